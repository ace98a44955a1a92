"""`benchmarks/peers/sb3_door.py` counts which programs for Stable-Baselines3 run with `lockstep_sb3`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import nbformat
import pytest

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"
RUNS = """
from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v0", n_steps=64, batch_size=64)
model.learn(total_timesteps=100_000)
assert model.num_timesteps <= 400
"""
FAILS = "from stable_baselines3 import NoSuchAlgorithm\n"
UNRELATED = "import gymnasium\n"


@pytest.fixture(autouse=True)
def door(monkeypatch):
    """The command's modules; forgotten after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(PEERS)
    import sb3_door

    yield sb3_door
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(PEERS)):
            del sys.modules[name]


@pytest.fixture
def door_command(door, monkeypatch, tmp_path):
    """Run the command with words, and return its output file."""

    def run(*words):
        output = tmp_path / "output.json"
        monkeypatch.setattr(sys, "argv", ["sb3_door.py", *map(str, words), "-o", str(output)])
        monkeypatch.setattr(os, "environ", os.environ.copy())
        door.main()
        return json.loads(output.read_text())

    return run


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_shortened_programs_run_with_only_the_import_changed(door_command, tmp_path, capfd):
    folder = write(tmp_path / "all", {"runs.py": RUNS, "deep/fails.py": FAILS, "unrelated.py": UNRELATED})
    result = door_command("examples", folder)
    assert set(result["found"]) == {"runs.py", "deep/fails.py"}
    assert result["found"]["runs.py"] == ""
    assert "NoSuchAlgorithm" in result["found"]["deep/fails.py"]
    assert "all: 1 of 2 programs run (50%)" in result["summary"]


def test_programs_that_fail_with_the_peer_are_not_counted(door_command, tmp_path):
    folder = write(tmp_path / "all", {"runs.py": RUNS, "fails.py": FAILS})
    peer = tmp_path / "sb3.json"
    peer.write_text(json.dumps({"found": {"runs.py": "", "fails.py": "ImportError: ..."}}))
    result = door_command("examples", folder, "--against", peer)
    assert result["found"] == {"runs.py": ""}
    assert result["summary"][-1] == "all: 1 of 1 programs that run with Stable-Baselines3 itself run (100%)"


def test_programs_of_the_report_half_stay_unseen(door, door_command, tmp_path, capfd):
    folder = write(tmp_path / "all", {f"{number}.py": FAILS for number in range(6)})
    halves = {
        half: {n for n in map("{}.py".format, range(6)) if door.sb3_programs.half_of(n) == half} for half in door.HALVES
    }
    assert all(halves.values())
    everything = door_command("examples", folder)
    printed = {line.split()[0] for line in capfd.readouterr().out.splitlines() if ".py" in line}
    assert printed == halves["work"]
    assert set(everything["found"]) == halves["work"] | halves["report"]
    assert set(door_command("examples", folder, "--half", "report")["found"]) == halves["report"]


def test_each_python_block_of_a_page_is_a_program(door, tmp_path):
    page = "# Page\n\n  ```python\n  from stable_baselines3 import A2C\n  if True:\n      A2C\n  ```\n"
    page += "```bash\nls\n```\n```python\nimport sb3_contrib\n```\n```python\nprint()\n```\n"
    programs = door.sb3_programs.find_examples([write(tmp_path, {"guide/page.md": page})])
    assert programs == {
        "docs/page_1.py": "from stable_baselines3 import A2C\nif True:\n    A2C\n",
        "docs/page_2.py": "import sb3_contrib\n",
    }


def test_notebooks_run_without_magics(door_command, tmp_path):
    cells = [
        "%%bash\nexit 1",
        "!pip install \\\n  nothing\n%matplotlib inline",
        RUNS,
        "if model:\n    !ls",
        "import gym  # of the time before gymnasium\nfrom gym import spaces\ngym.make('CartPole-v1')",
        "from __future__ import annotations\ndisplay(model)",
    ]
    for name, extra in {"good.ipynb": [], "bad.ipynb": ["1 / 0"]}.items():
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells + extra])
        nbformat.write(book, tmp_path / name)
    found = door_command("notebooks", tmp_path)["found"]
    assert found["good.ipynb"] == ""
    assert found["bad.ipynb"].startswith("ZeroDivisionError")


def test_names_are_found_in_imports_and_in_attributes_of_modules(door):
    program = """
import stable_baselines3 as sb3
import stable_baselines3.common.utils
from sb3_contrib import *
from stable_baselines3.common import vec_env as v, monitor
from other import stable

class Wrapper(v.VecEnvWrapper):
    model = sb3.PPO.load("model")
    env = other.sb3.A2C
stable.A2C
"""
    assert door.sb3_names.names_of(program) == {
        "stable_baselines3",
        "stable_baselines3.PPO",
        "stable_baselines3.PPO.load",
        "stable_baselines3.common.utils",
        "sb3_contrib",
        "stable_baselines3.common.vec_env",
        "stable_baselines3.common.vec_env.VecEnvWrapper",
        "stable_baselines3.common.monitor",
    }


def test_files_are_counted_by_the_names_that_they_miss(door_command, tmp_path, capfd):
    gone = "stable_baselines3.common.gone"
    files = {
        "good.py": "import stable_baselines3 as sb3\nsb3.PPO.load('model')\nsb3.common.utils.set_random_seed(1)\n",
        "bad.py": f"from {gone} import a, b\n",
        "worse.py": f"from stable_baselines3.common import gone\ngone.c\nimport {gone}\n",
        "broken.py": "from stable_baselines3 import\n",
    }
    found = door_command("names", write(tmp_path / "all", files))["found"]
    assert found == {"good.py": "", "bad.py": f"{gone}.a {gone}.b", "worse.py": gone}
    assert f"   1 files miss {gone}.a\n" in capfd.readouterr().out


def test_a_program_that_hangs_is_killed_with_its_processes(door, tmp_path):
    def hang():
        if os.fork() == 0:
            (tmp_path / "started").write_text(str(os.getpid()))
        time.sleep(60)

    began = time.monotonic()
    assert door.sb3_programs.run_in_fork(hang, seconds=1) == "TimeoutError: after 1 s"
    assert time.monotonic() - began < 10
    assert is_gone(int((tmp_path / "started").read_text()))


def test_processes_that_a_program_leaves_behind_are_killed(door, tmp_path):
    def leave():
        if os.fork() == 0:
            (tmp_path / "started").write_text(str(os.getpid()))
            time.sleep(60)
        while not (tmp_path / "started").exists():
            time.sleep(0.01)

    assert door.sb3_programs.run_in_fork(leave, seconds=30) == ""
    assert is_gone(int((tmp_path / "started").read_text()))


def is_gone(process):
    """Wait until a process has ended, at most five seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
