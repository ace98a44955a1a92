"""The pages are true: every Python block runs, every command is one that exists, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from announced_plans import watch_plans

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, and line in the page."""

    language: str
    text: str
    line: int


def blocks_of(page: str, *languages: str) -> list[Block]:
    """Return the blocks in any of the languages."""
    found = [Block(m[1], m[2], page[: m.start()].count("\n") + 2) for m in FENCE.finditer(page)]
    return [block for block in found if block.language in languages]


def shortened(code: str) -> str:
    """Return the code with the lengths of its runs cut down (CONTRIBUTING.md, "Pages")."""

    def steps(match: re.Match[str]) -> str:
        longest = 1_000 if match[1] != "total_steps" else 4_096 if int(match[2]) >= 200_000 else 2_048
        return f"{match[1]}={min(int(match[2]), longest)}"

    code = re.sub(r"\b(total_steps|step_per_epoch|step_per_collect)=([\d_]+)", steps, code)
    return re.sub(r"\b(max_epoch|num_updates)=\d+", r"\1=1", code)


FILE = re.compile(r"# (\w+\.py)\n")
"""the first line of a block that stands for a file of the reader's"""
TRAINS = r"\blockstep\.train\(|\bin trainer:"
"""in a block that certainly runs a trainer whose plan can be compared"""
PAGES_WITH_PYTHON = [page for page in PAGES if blocks_of(page.read_text(), "python")]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.name == "README.md" else pytest.mark.long) for page in PAGES_WITH_PYTHON],
    ids=lambda page: page.name,
)
def test_every_python_block_runs(page, tmp_path, monkeypatch, capsys):
    """In an empty directory, all blocks of a page one after another, as a script would; what the plan of each run
    announces is compared with what the run does.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    differences, runs = watch_plans(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    script = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    blocks = blocks_of(page.read_text(), "python")
    for block in blocks:
        if file := FILE.match(block.text):
            Path(file[1]).write_text(block.text)
        code = "\n" * (block.line - 1) + shortened(block.text)
        exec(compile(code, str(page), "exec"), vars(script))
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__).is_relative_to(tmp_path):
            del sys.modules[name]
    assert len(blocks) >= 1
    printed = capsys.readouterr().out
    assert printed or not any("print(" in block.text for block in blocks)
    assert differences == [], "a plan announced something else than its run did"
    alone = [block.text for block in blocks if ".multi_agent(" not in block.text]
    assert runs or not any(re.search(TRAINS, text) for text in alone)


def test_the_readme_is_short_and_leads_to_every_way_of_using_it():
    page = PAGES[0].read_text()
    assert page.count("\n") <= 160
    text = "\n".join(block.text for block in blocks_of(page, "python"))
    assert "lockstep.train(" in text
    assert "OnpolicyTrainer(" in text
    for name, needed in (("own-loop", "update_from_batch("), ("own-loss", "def compute_loss_for_module(")):
        assert f"(docs/{name}.md)" in page
        assert needed in (ROOT / f"docs/{name}.md").read_text()


def test_the_page_about_the_own_loop_shows_the_example_as_it_is():
    code = (ROOT / "examples/own_loop.py").read_text().split('"""\n', 1)[1].strip()
    assert code in [block.text.strip() for block in blocks_of((ROOT / "docs/own-loop.md").read_text(), "python")]


def commands_of(page: str) -> list[tuple[int, list[str]]]:
    """Return `(line, words)` of every command in `sh` blocks and of every `lockstep ...` in backticks."""
    found = []
    for block in blocks_of(page, "sh"):
        for offset, line in enumerate(block.text.splitlines()):
            words = shlex.split(line, comments=True)
            if words:
                found.append((block.line + offset, words))
    prose = FENCE.sub(lambda m: "\n" * m[0].count("\n"), page)
    named = re.finditer(r"`(lockstep [^`]+)`", prose)
    return found + [(prose[: match.start()].count("\n") + 1, shlex.split(match[1])) for match in named]


COMMANDS = [
    pytest.param(words, id=f"{page.name}:{line}") for page in PAGES for line, words in commands_of(page.read_text())
]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_exists(words, capsys):
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[0] == "lockstep":
        from lockstep.cli.commands import parse

        if len(words) == 2 and words[1] != "list":
            words = [*words, "--help"]  # the command by name
        try:
            command = parse([word.replace("...", "x") for word in words[1:]])
        except SystemExit as ending:
            if ending.code != 0 or words[-1] != "--help":
                pytest.fail(f"{' '.join(words)} is no command: {ending.code}\n{capsys.readouterr()}")
            return
        assert type(command).__name__.lower() == words[1]
    elif words[0] == "make":
        assert words[1] in makefile_targets()
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert (ROOT / words[0]).is_file()


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def anchors_of(page: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them; of a source file those of its lines."""
    if not page.startswith("#"):
        return {f"L{number}" for number in range(1, page.count("\n") + 1)}
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md"], ids=lambda p: p.name)
def test_every_link_and_named_file_is_there(page):
    text = page.read_text()
    missing = []
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if not there.exists() or (anchor and anchor not in anchors_of(there.read_text())):
            missing.append(target)
    assert missing == []
    for name in re.findall(r"`((?:lockstep|examples|tests|docs)/[\w./-]+\.(?:py|md))`", text):
        assert (ROOT / name).is_file(), name


def test_every_extra_that_is_named_exists():
    extras: set[str] = set()
    for folder in (ROOT, ROOT / "packages/lockstep-sb3"):
        extras |= set(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        name
        for page in PAGES
        for names in re.findall(r"\bextra `(\w+)`|'\.\[([\w,]+)\]'", page.read_text())
        for name in ",".join(filter(None, names)).split(",")
    }
    assert named
    assert named <= extras


def test_every_option_in_a_table_exists():
    """What the prose calls `section(option=...)`."""
    from lockstep import ALGORITHMS

    sections: dict[str, list] = {}
    for config_class in ALGORITHMS:
        for name, section in config_class().sections.items():
            sections.setdefault(name, []).append(section)
    calls = [
        (page.name, section, option)
        for page in PAGES
        for section, inside in re.findall(rf"`({'|'.join(sections)})\(([^`]*)\)`", page.read_text())
        for option in re.findall(r"(\w+)=", inside)
    ]
    assert len(calls) >= 10
    assert [call for call in calls if not any(hasattr(one, call[2]) for one in sections[call[1]])] == []
