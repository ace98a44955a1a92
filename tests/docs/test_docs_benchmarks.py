"""Quoted benchmark commands exist and take their options; committed results are of revisions that a commit holds."""

import argparse
import json
import re
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_docs_pages import PAGES, ROOT

BENCHMARKS = ROOT / "benchmarks"
SOURCES = [*PAGES, BENCHMARKS / "README.md", *BENCHMARKS.rglob("*.py")]
REVISION = re.compile(r'"revision": "([^"]*)"|; revision ([^ ;]+);')
PROGRAM = r"benchmarks/(?:(?:speed|learning|numerics|gpu)/\w+|peers/(?:setup_peers|sb3_door))\.py"
QUOTED = re.compile(rf"python ({PROGRAM})((?: +[\w./=\[\],-]+)*)")
PLACEHOLDERS = {"ALGORITHM": "ppo", "ENV": "CartPole-v1"}


def quoted_commands():
    """Return every command once, with the words after it up to a comment, a bracket or prose."""
    commands = set()
    for source in SOURCES:
        text = re.sub(r" *\\\\?\n\s+(?=--)", " ", source.read_text(encoding="utf-8"))
        for line in re.sub(r"\[(--[^\]]+)\]", r"\1", text).splitlines():
            for match in QUOTED.finditer(line):
                if line[match.end() :].lstrip().startswith("{"):  # filled in by the code
                    continue
                words = re.split(r"  +", match[2].strip())[0]
                commands.add((match[1], words.strip().rstrip(".,;:")))
    return sorted(commands)


class ParsedError(Exception):
    """The command line was understood."""


@pytest.fixture
def parsing_only(monkeypatch):
    """End a command as soon as it has parsed its arguments; forget the modules that it loaded from its folder."""
    parse_args, before = argparse.ArgumentParser.parse_args, set(sys.modules)

    def parse(self, args=None, namespace=None):
        parse_args(self, args, namespace)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(ROOT)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.mark.parametrize(("file", "words"), quoted_commands())
def test_a_quoted_benchmark_command_parses(file, words, monkeypatch, parsing_only):
    arguments = [PLACEHOLDERS.get(word, word) for word in shlex.split(words)]
    monkeypatch.setattr(sys, "argv", [file, *arguments])
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.syspath_prepend((ROOT / file).parent)
    with pytest.raises(ParsedError):
        runpy.run_path(str(ROOT / file), run_name="__main__")


def test_the_commands_of_the_table_are_found():
    files = {file for file, _ in quoted_commands()}
    assert len(files) >= 20
    assert ("benchmarks/speed/replay_speed.py", "--rounds 2") in quoted_commands()


def revisions_of(file):
    """Return the revisions that a result names."""
    if file.suffix == ".parquet":
        return set(pq.read_table(file, columns=["revision"])["revision"].to_pylist())
    return {either or other for either, other in REVISION.findall(file.read_text(encoding="utf-8"))}


def git(*words):
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no checkout")
    return done.stdout.split()


def test_every_committed_result_is_of_a_revision_that_a_commit_holds():
    if git("rev-parse", "--is-shallow-repository") == ["true"]:
        pytest.skip("this checkout has no history")
    commits = git("rev-list", "HEAD")
    held = {commit[:12] for commit in commits} | set(commits)
    results = [ROOT / file for file in git("ls-files", "benchmarks/results")]
    named = {file.name: revisions_of(file) for file in results if file.exists()}
    assert sum(map(bool, named.values())) > 50
    assert {name: found - held for name, found in named.items() if found - held} == {}


def test_a_revision_is_marked_for_changed_code_but_not_for_results(parsing_only, monkeypatch, tmp_path):
    import report

    files = [tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "speed.json"]
    files[1].parent.mkdir(parents=True)
    for file in files:
        file.write_text("before")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    files[1].write_text("after")
    assert re.fullmatch("[0-9a-f]{12}", report.revision())
    files[0].write_text("after")
    assert re.fullmatch(r"[0-9a-f]{12}\+", report.revision())


def test_the_compiled_simple_spread_is_the_game_of_mpe2(parsing_only, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS / "learning")
    import simple_spread

    for name in ("move", "look"):  # not compiled, which takes longer than it saves here
        monkeypatch.setattr(simple_spread, name, getattr(simple_spread, name).py_func)
    theirs, ours, rng = simple_spread.mpe2_game(), simple_spread.SimpleSpread(), np.random.default_rng(0)
    for seed in range(4):
        seen, others = theirs.reset(seed=seed)[0], ours.reset(seed=seed)[0]
        for _ in range(25):
            actions = {agent: int(rng.integers(5)) for agent in theirs.agents}
            assert np.array_equal(theirs.state(), ours.state())
            assert all(np.array_equal(seen[agent], others[agent]) for agent in actions)
            (seen, *their_outcome), (others, *our_outcome) = theirs.step(actions), ours.step(actions)
            assert [dict(part) for part in their_outcome] == our_outcome
    trainer = simple_spread.make_config("mappo", 1_600).build_trainer()
    assert trainer.policy.acting["team"].module.observation_space["state"].shape == (54,)


def test_every_work_that_revisions_times_says_what_it_is(parsing_only, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS / "speed")
    import revisions
    import works

    listed = re.sub(r"\s+", " ", revisions.__doc__)
    for name, work in works.WORKS.items():
        assert re.search(rf"[ \"]{re.escape(name)}[,;\" ]", listed), name
        assert work.__doc__, name
    assert set(revisions.ON_RAY) < set(works.WORKS)


@pytest.fixture
def start_speed(parsing_only, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS / "speed")
    import start_speed

    return start_speed


def test_a_whole_run_is_estimated_from_its_first_part_and_later_rate(start_speed):
    first = {"first": {"steps": 100, "seconds": 30.0}, "rest": {"steps": 10, "seconds": 99.0}}
    second = {"first": {"steps": 100, "seconds": 2.0}, "rest": {"steps": 50, "seconds": 1.0}}
    assert start_speed.seconds_of_whole(second, second, 1_100, "seconds") == 2.0 + 1_000 / 50
    assert start_speed.seconds_of_whole(first, second, 1_100, "seconds") == 30.0 + 1_000 / 50


def test_a_goal_is_met_by_the_ratio_of_the_processor_s_times(start_speed):
    ours, theirs = [[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]], [[4.0, 8.0, 9.0], [9.0, 9.0, 9.0]]
    rows = [
        start_speed.compared("work", ("ours", ours), ("theirs", theirs), goal, "", start_speed.rate_of(100))
        for goal in (4.0, 4.1)
    ]
    assert [row.goal for row in rows] == ["4, met", "4.1, not met"]
    assert (rows[0].ratio, rows[0].by_clock) == ("**4.00** (3.00-4.00)", "1.00")
    assert (rows[0].ours, rows[0].other) == ("ours: 50 steps/s", "theirs: 12 steps/s")


def test_the_committed_speeds_have_every_row_in_full(start_speed):
    record = json.loads((BENCHMARKS / "results/start_speed.json").read_text())
    assert {part: facts["quick"] for part, facts in record["machines"].items()} == dict.fromkeys(
        start_speed.PARTS, False
    )
    assert len(start_speed.rows_of(record)) == 13
    assert [run for run in record["runs"] if "error" in run] == []
