"""Run programs written for Stable-Baselines3: the blocks of its documentation, Python files, and notebooks.

Every program is changed in the same way for both libraries: few steps, no window, and gymnasium with its present
environments in place of gym. For `lockstep_sb3`, the imports are changed too, and nothing else. Each program runs in a
forked process with an empty working folder.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import runpy
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path

import nbformat

STEPS = 300
"""Most environment steps of a call of `learn`."""
LOOPS = 20
"""Most iterations of a loop over a range; also those of an endless loop."""
EVERY = 100
"""Most steps between two evaluations, checks or saved files."""
POPULATION = 10
"""Members of a population, for programs that search without gradients."""
SECONDS = 300
"""Time limit of a program."""

CURRENT_IDS = {
    "CartPole-v0": "CartPole-v1",
    "Pendulum-v0": "Pendulum-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "BipedalWalker-v2": "BipedalWalker-v3",
    "CarRacing-v2": "CarRacing-v3",
}
"""Environments that gymnasium no longer has, and their next version."""
FREQUENCIES = ("eval_freq", "check_freq", "save_freq", "render_freq")
IMPORT = re.compile(r"^(\s*(?:from|import)\s+)(?:stable_baselines3|sb3_contrib)\b", re.MULTILINE)
ATTRIBUTE = re.compile(r"\b(?:stable_baselines3|sb3_contrib)(?=\.\w)")
CELL = "# %%"
"""Line above each cell of a notebook's code, as editors have it."""
GYM = re.compile(r"^(\s*)import gym(?: as gym)?[ \t]*(?:#.*)?$", re.MULTILINE)
GYM_MODULE = re.compile(r"^(\s*(?:from|import)\s+)gym(?=[. ])", re.MULTILINE)
BLOCK = re.compile(r"^[ ]*```python\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)


# -- finding programs ---


def half_of(name: str) -> str:
    """Return the half that a program belongs to by the hash of its name: "work" or "report".

    The door was built with the programs of the first half in view. Only the second half says how well it works for
    programs that nobody looked at.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()
    return ("work", "report")[int(digest, 16) % 2]


def find_files(folders: list[Path], suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Return the files with these suffixes in the folders, by their path relative to their folder."""
    found: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise SystemExit(f"{folder} is not a folder")
        for path in sorted(folder.rglob("*")):
            if path.suffix in suffixes and path.is_file():
                found[path.relative_to(folder).as_posix()] = path
    return found


def find_examples(folders: list[Path]) -> dict[str, str]:
    """Return the text of the Python files in the folders, and of each Python block of their Markdown pages.

    Block 2 of a page `examples.md` has the name `docs/examples_2.py`.
    """
    programs: dict[str, str] = {}
    for name, path in find_files(folders, (".py", ".md")).items():
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".py":
            programs[name] = text
            continue
        for number, block in enumerate(BLOCK.findall(text), 1):
            programs[f"docs/{path.stem}_{number}.py"] = without_margin(block)
    return {name: text for name, text in programs.items() if IMPORT.search(text)}


def find_notebooks(folders: list[Path]) -> dict[str, str]:
    """Return the code of the notebooks in the folders."""
    programs = {}
    for name, path in find_files(folders, (".ipynb",)).items():
        with contextlib.suppress(ValueError):  # a file that is not a notebook
            programs[name] = notebook_code(path)
    return {name: text for name, text in programs.items() if IMPORT.search(text)}


def without_margin(block: str) -> str:
    """Return a block without the indentation that all of its lines share."""
    lines = block.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines) + "\n"


def notebook_code(path: Path) -> str:
    """Return the code cells of a notebook, each below a line `CELL`, without shell commands and magics."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return "\n".join(f"{CELL}\n{without_magics(cell)}" for cell in cells if not cell.lstrip().startswith("%%"))


def without_magics(cell: str) -> str:
    """Return a cell with `pass` in place of each line that only IPython understands."""
    lines = []
    continued = False
    for line in cell.splitlines():
        code = line.lstrip()
        is_magic = continued or code.startswith(("!", "%", "?"))
        if is_magic:
            replacement = "" if continued else "pass"
            lines.append(line[: len(line) - len(code)] + replacement)
        else:
            lines.append(line)
        continued = is_magic and code.endswith("\\")
    return "\n".join(lines)


def with_imports(text: str, library: str) -> str:
    """Return a program with only the name of the imported package changed."""
    if library == "sb3":
        return text
    text = IMPORT.sub(r"\1lockstep_sb3", text)
    return ATTRIBUTE.sub("lockstep_sb3", text)  # after `import stable_baselines3.common`


def with_gymnasium(text: str) -> str:
    """Return a program with the imports of `gym`, which Stable-Baselines3 has left, changed to `gymnasium`."""
    text = GYM.sub(r"\1import gymnasium as gym", text)
    return GYM_MODULE.sub(r"\1gymnasium", text)


# -- shortening programs ---


class Shortener(ast.NodeTransformer):
    """Rewrites a program to take few steps, evaluate soon, open no window, and make environments that exist."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        limit = {"learn": STEPS, "range": LOOPS}.get(name)
        if limit is not None and len(node.args) == 1:
            node.args[0] = at_most(node.args[0], limit)

        for keyword in node.keywords:
            if keyword.arg in FREQUENCIES:
                keyword.value = at_most(keyword.value, EVERY)
            elif keyword.arg == "total_timesteps" and name == "learn":
                keyword.value = at_most(keyword.value, STEPS)
            elif keyword.arg == "render_mode":
                keyword.value = ast.Constant("rgb_array")
            elif keyword.arg == "reward_threshold" and name == "evaluate_policy":
                keyword.value = ast.Constant(None)  # a few steps do not reach it
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.value = CURRENT_IDS.get(node.value, node.value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "attr", "") in ("render", "show"):
            return ast.Pass()
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        loop = ast.parse(f"for _ in range({LOOPS}): pass").body[0]
        assert isinstance(loop, ast.For)
        loop.body = node.body
        return loop

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "pop_size":
            node.value = ast.Constant(POPULATION)
        return node


def at_most(value: ast.expr, limit: int) -> ast.expr:
    """Return the expression `min(value, limit)`."""
    return ast.Call(ast.Name("min", ast.Load()), [value, ast.Constant(limit)], [])


def shortened(text: str) -> str:
    """Return a shortened program."""
    tree = Shortener().visit(ast.parse(with_gymnasium(text)))
    return ast.unparse(ast.fix_missing_locations(tree))


# -- running programs ---


def run_script(text: str) -> None:
    """Run a program as `python program.py` does."""
    program = Path("program.py")
    program.write_text(shortened(text), encoding="utf-8")
    sys.argv = [str(program)]
    sys.path.insert(0, os.getcwd())
    runpy.run_path(str(program.resolve()), run_name="__main__")


def run_cells(text: str) -> None:
    """Run the code of a notebook cell by cell. Its `__main__` has no file, and IPython's `display`."""
    main = types.ModuleType("__main__")
    main.__dict__.update(display=print)
    sys.modules["__main__"] = main
    sys.argv = ["notebook"]
    for number, cell in enumerate(text.split(f"{CELL}\n")):
        exec(compile(shortened(cell), f"cell {number}", "exec"), main.__dict__)


def run_in_fork(run: Callable[[], None], seconds: int = SECONDS) -> str:
    """Run a function in a forked process with an empty working folder.

    Returns "" if it ended well, and otherwise the type, message and place of its error. Processes that the function
    started are killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()  # a process group to be killed as a whole
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.chdir(folder)
            error = error_of(run)
            os.write(writing, error.encode()[:1000])
            os.chdir("/")
        os._exit(0)

    os.close(writing)
    status = wait_for(child, seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)

    os.set_blocking(reading, False)  # a killed process may still hold the other end, so there is no end of file
    try:
        error = os.read(reading, 1000).decode(errors="replace")
    except BlockingIOError:
        error = ""
    os.close(reading)
    if status is None:
        return f"TimeoutError: after {seconds} s"
    if status != 0:
        return error or f"ended with status {status}"
    return error


def wait_for(child: int, seconds: int) -> int | None:
    """Wait for a process to end. Returns its status, or kills it after the time limit and returns None."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def error_of(run: Callable[[], None]) -> str:
    """Run a function without output. Returns "" or its error as one line."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    try:
        run()
    except SystemExit as leaving:
        return "" if leaving.code in (None, 0) else f"SystemExit: {leaving.code}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = re.sub(r"/[\w./-]*/(lockstep/|lockstep_sb3/)", r"\1", " ".join(str(error).split()))[:300]
        return f"{type(error).__name__}: {message} [{Path(last.filename).name}:{last.lineno}]"
    return ""
