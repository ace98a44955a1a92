"""The Python of README and docs has no type errors: one run of pyright and one of mypy over the blocks of all pages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs_pages import FILE, PAGES_WITH_PYTHON, ROOT, blocks_of

BIN = Path(sys.executable).parent
pytestmark = pytest.mark.long


def name_of(page):
    return "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_") + "_page.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One file for each page, with its blocks one after another, each in the lines that it has on the page. A block
    that stands for a file of the reader's is that file.

    A page knows which of the optional parts of a run are there, so none of the two asks whether something is None.
    """
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES_WITH_PYTHON:
        lines = []
        for block in blocks_of(page.read_text(), "python"):
            if file := FILE.match(block.text):
                (folder / file[1]).write_text(block.text)
            else:
                lines += [""] * (block.line - len(lines) - 1) + block.text.splitlines()
        (folder / name_of(page)).write_text("\n".join(lines) + "\n")
    optional = ("Subscript", "MemberAccess", "Call", "Iterable", "ContextManager", "Operand")
    options = {f"reportOptional{each}": False for each in optional}
    options |= {"typeCheckingMode": "basic", "reportMissingImports": False, "strictParameterNoneValue": False}
    (folder / "pyrightconfig.json").write_text(json.dumps({**options, "extraPaths": [str(ROOT)]}))
    return folder


def test_pyright_finds_nothing_in_the_pages(folder):
    done = subprocess.run(
        [BIN / "pyright", "--pythonpath", sys.executable], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_mypy_finds_nothing_in_the_pages(folder):
    words = ["--allow-redefinition", "--ignore-missing-imports", "--follow-imports=silent", "--no-strict-optional", "."]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        [BIN / "mypy", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
