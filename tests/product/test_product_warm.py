"""Processes that are forked warm do what new interpreters do."""

import subprocess
import sys

import pytest
from warm import run_python

SHOWS = """
import atexit, os, sys
atexit.register(print, "at the end")
print(sys.argv[1:], os.getcwd(), os.environ["MINE"], sys.stdin.read(), __name__, sys.path[0] in ("", os.getcwd()))
print("complained", file=sys.stderr)
class Made: pass
print(Made.__module__, sys.modules["__main__"].Made is Made, "pytest" in sys.argv[0], "PYTHONPATH" in os.environ)
sys.exit(3)
"""


@pytest.mark.parametrize("words", [["-c", SHOWS], ["-m", "shows"], ["shows.py"]], ids=["-c", "-m", "file"])
def test_a_warm_process_answers_as_a_new_interpreter_does(words, tmp_path):
    (tmp_path / "shows.py").write_text(SHOWS)
    options = {"cwd": tmp_path, "env": {"MINE": "here"}, "input": "sent"}
    warm = run_python([*words, "one", "two"], **options)
    command = [sys.executable, *words, "one", "two"]
    cold = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert (warm.returncode, warm.stdout, warm.stderr) == (3, cold.stdout, cold.stderr)
    assert warm.stdout.endswith("at the end\n")


def test_an_error_ends_a_warm_process_and_stays_there():
    done = run_python(["-c", "import builtins; builtins.mine = 1; raise KeyError('unheard of')"])
    assert (done.returncode, "unheard of" in done.stderr) == (1, True)
    assert run_python(["-c", "print(mine)"]).returncode == 1


def test_a_warm_process_that_hangs_is_killed():
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_python(["-c", "print('begun', flush=True)\nimport threading; threading.Event().wait()"], timeout=0.5)
    assert caught.value.cmd[0] == "-c"


def test_the_library_is_loaded_before_a_warm_process_begins():
    assert run_python(["-c", "import sys; print('lockstep.cli.commands' in sys.modules)"]).stdout == "True\n"
