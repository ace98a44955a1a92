"""Add to the site what is not in `docs/`: the README as start page, the API reference, files that pages link to.

MkDocs loads this file as a hook (`mkdocs.yml`). A link from a page to a file of the repository leads to a copy of that
file in the site: another page for Markdown, a page of highlighted lines for Python, the file itself for anything else.
"""

from __future__ import annotations

import importlib
import os
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from lockstep.recipes import RECIPES, bench

drawings = TemporaryDirectory(prefix="lockstep-site-")
"""holds the curves of each algorithm until the site is built"""
ROOT = Path(__file__).resolve().parents[1]
START = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
"""pages of the site that stand at the root of the repository"""
RESULTS = re.compile(r"^<!-- results (\w+) -->$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
TABLE_CODE = re.compile(r"(?<=[| ])`[^`\n]*\\\|[^`\n]*`")
"""code in tables, where GitHub wants bars escaped and Markdown here shows the backslash"""
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PACKAGES = {
    "lockstep": "Train, load a policy, and every configuration. Most programs need nothing else.",
    "lockstep.algorithms": "Configurations, learners with their losses, and the policy.",
    "lockstep.builder": "A whole configuration, and what builds policies and collectors from it.",
    "lockstep.policy": "The policy: it acts, learns and is saved.",
    "lockstep.config": "The sections of a configuration, and its JSON form.",
    "lockstep.trainer": "Trainers, their callbacks and events, self-play.",
    "lockstep.runs": "Runs on disk: resume, several seeds, video.",
    "lockstep.rollout": "Collectors and env runners.",
    "lockstep.envs": "The boundary to every vector environment, checks, and small environments to test with.",
    "lockstep.connectors": "What observations, actions and rewards go through.",
    "lockstep.modules": "Networks: modules, encoders, heads, memory, noise.",
    "lockstep.learner": "The update: learners, groups of learners, reducers.",
    "lockstep.data": "Batches, episodes, minibatches, files and data sets.",
    "lockstep.replay": "Replay buffers.",
    "lockstep.ops": "Returns, losses and distributions as plain functions.",
    "lockstep.recipes": "Settings with the return that they reach.",
    "lockstep.tuning": "The search for better settings.",
    "lockstep_sb3": "Programs for Stable-Baselines3, in the package `lockstep-sb3`.",
    "lockstep.export": "Portable artefacts of a policy.",
    "lockstep.eject": "One file that trains without Lockstep.",
    "lockstep.tracking": "Run folders, loggers, metrics, statistics.",
    "lockstep.analysis": "Curves, comparisons, intervals, reports, off-policy estimates.",
    "lockstep.diagnosis": "Why a run does not learn.",
    "lockstep.options": "How options are declared; schedules.",
    "lockstep.state": "Checkpoints, names in files, random streams.",
    "lockstep.cluster": "Ray Tune.",
}
"""the packages that users import from, as the reference lists them"""


def public_names(package: str) -> list[str]:
    """Return the names of the package's `__all__`."""
    return list(importlib.import_module(package).__all__)


@cache
def homes() -> dict[str, str]:
    """Return the one package on whose page each public object stands: the first that has it, the top package last."""
    found: dict[str, str] = {}
    for package in [*list(PACKAGES)[1:], "lockstep"]:
        for name in public_names(package):
            value = getattr(importlib.import_module(package), name)
            own = str(getattr(value, "__module__", "")).startswith("lockstep")
            key = f"{value.__module__}.{value.__qualname__}" if own and hasattr(value, "__qualname__") else name
            found.setdefault(key, package)
            found[f"{package}.{name}"] = found[key]
    return found


def reference_page(package: str) -> str:
    """Return the page of a package: its names, then each that has its home here."""
    names = public_names(package)
    here = [name for name in names if homes()[f"{package}.{name}"] == package]
    lines = [f"# {package}", "", PACKAGES[package], ""]
    elsewhere = [name for name in names if name not in here]
    if elsewhere:
        lines += ["| name | described in |", "|---|---|"]
        for name in elsewhere:
            home = homes()[f"{package}.{name}"]
            lines.append(f"| [`{name}`]({home}.md#{home}.{name}) | [{home}]({home}.md) |")
        lines.append("")
    for name in here:
        lines += [f"::: {package}.{name}", ""]
        algorithm = getattr(getattr(importlib.import_module(package), name), "algorithm", None)
        if name.endswith("Config") and algorithm:
            about = f"[About the algorithm](../algorithms/{algorithm}.md)"
            lines += [f"{about}. [Its options](../reference.md#options-of-{algorithm}).", ""]
    return "\n".join(lines)


def reference_overview() -> str:
    """Return the page that lists the packages."""
    rows = [f"| [`{package}`]({package}.md) | {text} |" for package, text in PACKAGES.items()]
    head = [
        "# API reference",
        "",
        "Every public name. The options of configurations are [listed apart](../reference.md).",
        "",
    ]
    return "\n".join([*head, "| package | what is in it |", "|---|---|", *rows, ""])


def results_of(algorithm: str) -> str:
    """Return the table and curves of an algorithm's recipes, from the committed results."""
    recipes = [recipe for recipe in RECIPES if recipe.algorithm == algorithm]
    rows = measured_rows(algorithm)
    if rows:
        about = (
            "IQM is the interquartile mean of the seeds. Thin curves are seeds, dashed lines what was published. "
            "[Results](../results.md) has the sources, and other algorithms on the same tasks."
        )
        picture = f"![Returns of {algorithm.upper()} with its recipes](../images/bench_{algorithm}.png)"
        return "\n".join([*rows, "", about, "", picture])
    promised = [
        f"| {recipe.env} | {recipe.total_steps:,} | {recipe.promise:,g} | {recipe.reference_return:,g} |"
        for recipe in recipes
        if recipe.promise is not None
    ]
    if not promised:
        return "There is no recipe with a measured return yet."
    head = ["| recipe | gradient steps | promised return | median of five seeds |", "|---|---:|---:|---:|"]
    about = "How they were measured: [Learn from data](../offline.md#recipes-and-results)."
    return "\n".join([*head, *promised, "", about])


def measured_rows(algorithm: str) -> list[str]:
    """Return the rows of an algorithm in the table of measured recipes, with its head; empty where there are none."""
    table = (ROOT / "benchmarks/results/bench/README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    rows = [row for row in cells[2:] if row[0].startswith(f"{algorithm.upper()} ")]
    for row in rows:
        row[0], row[8] = row[0].partition(" ")[2], row[8].partition(" (")[0]
    columns = [0, 1, 2, 3, 4, 5, 8]  # recipe, steps, seeds, IQM, interval, worst, published
    return [f"| {' | '.join(row[at] for at in columns)} |" for row in [*cells[:2], *rows]] if rows else []


def place_of(path: Path) -> str:
    """Return where a file of the repository stands in the site."""
    inside = path.relative_to(ROOT).as_posix()
    if inside in START:
        return START[inside]
    if inside.startswith("docs/"):
        return inside.removeprefix("docs/")
    return f"source/{inside}.html" if inside.endswith(".py") else f"source/{inside}"


def origin_of(place: str) -> Path:
    """Return the file of the repository that a page of the site is made from."""
    for name, start in START.items():
        if start == place:
            return ROOT / name
    return ROOT / place.removeprefix("source/") if place.startswith("source/") else ROOT / "docs" / place


def linked_files(origin: Path, text: str) -> list[Path]:
    """Return the files and folders of the repository that a page links to."""
    targets = (match[1] for match in LINK.finditer(FENCED.sub("", text)))
    paths = ((origin.parent / target).resolve() for target in targets if "://" not in target)
    return [path for path in paths if path.exists() and path.is_relative_to(ROOT)]


def source_page(path: Path) -> str:
    """Return a page with the lines of a Python file, each with an anchor such as `#L12`."""
    formatter = HtmlFormatter(
        full=True, title=path.relative_to(ROOT).as_posix(), linenos="inline", lineanchors="L", anchorlinenos=True
    )
    page = highlight(path.read_text(encoding="utf-8"), PythonLexer(), formatter)
    return re.sub(r'((?:id|name)="|href="#)L-(\d+)"', r'\1L\2"', page)


def folder_page(folder: Path) -> str:
    """Return a page that lists the files of a folder."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *(f"- `{name}`" for name in names), ""])


def on_files(files: Files, config: Any) -> Files:
    """Add the start page, the API reference, and every file that a page links to."""
    for name, place in START.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for picture in bench.draw(Path(drawings.name), by="algorithm"):
        files.append(File.generated(config, f"images/{picture.name}", abs_src_path=str(picture)))
    files.append(File.generated(config, "api/index.md", content=reference_overview()))
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=reference_page(package)))
    waiting = [ROOT / name for name in START] + sorted((ROOT / "docs").rglob("*.md"))
    known = {place_of(path) for path in waiting}
    while waiting:
        page = waiting.pop()
        for path in linked_files(page, page.read_text(encoding="utf-8")):
            place = place_of(path)
            if place in known or path.is_relative_to(ROOT / "docs"):
                continue
            known.add(place)
            if path.is_dir():
                file = File.generated(config, f"{place}.md", content=folder_page(path))
            elif path.suffix == ".py":
                file = File.generated(config, place, content=source_page(path))
            else:
                file = File.generated(config, place, abs_src_path=str(path))
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
            if path.suffix == ".md":
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Let links between files of the repository lead to their places in the site."""
    place = page.file.src_uri
    if place.startswith("source/"):
        page.meta["search"] = {"exclude": True}
    origin = origin_of(place)
    markdown = RESULTS.sub(lambda match: results_of(match[1]), markdown)

    def moved(match: re.Match[str]) -> str:
        target = (origin.parent / match[1]).resolve()
        if "://" in match[1] or not target.exists() or not target.is_relative_to(ROOT):
            return match[0]
        there = place_of(target) + (".md" if target.is_dir() else "")
        return f"]({os.path.relpath(there, os.path.dirname(place) or '.')}{match[2] or ''})"

    markdown = TABLE_CODE.sub(lambda match: match[0].replace("\\|", "|"), markdown)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)
