"""One place for gradients, no unsafe loading, nothing unfinished, everything documented."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_checks import (
    calls_of,
    constant_asserts,
    optimizer_steps,
    read_sources,
    read_standalone,
    unasserted_tests,
    undocumented,
    unfinished_marks,
    unsafe_loading,
)

ROOT = Path(__file__).parents[2]
SOURCES = read_sources(ROOT, "lockstep")
STANDALONE = read_standalone(ROOT)
EXAMPLES = read_sources(ROOT, "examples")
PACKAGE = ROOT / "packages/lockstep-sb3"
SB3 = read_sources(PACKAGE, "lockstep_sb3")
TESTS = {
    **read_sources(ROOT, "tests"),
    **{f"{PACKAGE.name}/{path}": text for path, text in read_sources(PACKAGE, "tests").items()},
}


def strings(found):
    return [str(item) for item in found]


def test_backward_is_called_in_one_place():
    (site,) = calls_of(SOURCES, "backward")
    assert site.path == "lockstep/learner/learner.py"
    functional = [call for call in calls_of(SOURCES, "grad") if "create_graph=True" not in call.what]
    # the compiled form of the same step, and second derivatives along a vector; create_graph is for backward functions
    # of our own that are differentiable
    assert {call.path for call in functional} == {"lockstep/learner/compile/update.py", "lockstep/ops/trust_region.py"}
    for call in calls_of(SOURCES, "grad"):
        assert call in functional or call.path.startswith("lockstep/ops/"), str(call)


def test_optimizers_step_in_one_place():
    (site,) = optimizer_steps(SOURCES)
    assert site.path == "lockstep/learner/optimizers.py"


def test_nothing_is_pickled():
    assert strings(unsafe_loading({**SOURCES, **SB3, **STANDALONE})) == []


def test_nothing_is_marked_unfinished():
    assert strings(unfinished_marks({**SOURCES, **SB3, **STANDALONE, **EXAMPLES, **TESTS})) == []


def test_every_public_name_is_documented():
    assert strings(undocumented({**SOURCES, **SB3})) == []
    for path, text in STANDALONE.items():  # one by one: they have classes of the same names
        assert strings(undocumented({path: text})) == []


def test_every_test_asserts_something():
    tests = {path: text for path, text in TESTS.items() if Path(path).name.startswith("test_")}
    assert len(tests) > 30
    assert strings(unasserted_tests(tests)) == []
    assert strings(constant_asserts(TESTS)) == []


@pytest.mark.parametrize("suffix", ["*.py", "*.md", "*.toml", "*.json"])
def test_no_path_of_one_machine_is_written_down(suffix):
    private = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/"]
    folders = ["lockstep", "packages", "tests", "docs", "examples", "benchmarks"]
    files = [path for folder in folders for path in (ROOT / folder).rglob(suffix)] + list(ROOT.glob(suffix))
    written = [path.relative_to(ROOT).as_posix() for path in files if any(p in path.read_text() for p in private)]
    assert written == []
