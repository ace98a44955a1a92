"""Every `lockstep` command of the pages is run, and what its plan announced is compared with what the run did.

How a command is shortened stands in CONTRIBUTING.md, "Pages". A page's Python blocks: `tests/docs/test_docs_pages.py`.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from algorithm_cases import ALGORITHM_CASES, OFFLINE
from announced_plans import Announced, Happened, differences, read_plan
from warm import run_python

from lockstep.cli import main
from lockstep.state.checkpoint import newest_checkpoint, read_checkpoint
from lockstep.tracking import RunFolder, read_metrics

ROOT = Path(__file__).parents[2]
SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"runs/(?P<algo>[^_/]+)_(?P<env>[^/]+)_s(?P<seed>\d+)_\d{8}-\d{6}")
NOT_RUN = {
    "lockstep train ppo CartPole-v1 --num-learners 2 --num-env-runners 2 --ray-address auto": "joins a Ray cluster "
    "that somebody else has started",
    "lockstep bench run ppo Hopper-v5 --seeds 5": "takes half an hour, and a clean commit; a short one is run in "
    "tests/recipes/test_recipes_bench.py",
    "lockstep tune ppo LunarLander-v3 --trials 40 --total-steps 100000 --jobs 2 --final-seeds 10": "takes half an hour",
    "lockstep tune ppo CartPole-v1 --trials 20 --jobs 2 --total-steps 20000": "starts twenty processes; a search of "
    "few trials is run in tests/tuning/test_tuning_study.py",
    "lockstep tune ppo warehouse:Warehouse --trials 20 --jobs 2 --total-steps 20_000 "
    "--set rl_module.model_config.encoder=network:Difference": "as above",
    "lockstep train ppo warehouse:Warehouse --config runs/tune/ppo-Warehouse/best.json "
    "--total-steps 40_000": "needs the result of that search",
    "lockstep trust runs/ppo_CartPole-v1_s1_20250101-120000": "is for a run of version 0.2; one is signed in "
    "tests/trainer/test_trainer_hostile_files.py",
    **dict.fromkeys(
        (
            "lockstep train bc CartPole-v1 --set offline_data.input_=lockstep/cartpole/expert-v0",
            *(
                f"lockstep train {name} {'Pendulum-v1' if ALGORITHM_CASES[name].in_a_box else 'CartPole-v1'}"
                for name in OFFLINE
                if name != "bc"
            ),
        ),
        "needs a data set, which `benchmarks/learning/make_offline_data.py` takes minutes to make",
    ),
}
"""commands that need what is not there, and why"""
NEEDS_RAY = ("--num-learners", "--num-env-runners")
"""what starts processes on Ray: half a minute each, so these commands are marked `faults`"""
MARKS = {"README.md": (), "getting-started.md": pytest.mark.long}
"""pages whose other commands are fast or long tests; those of the rest are marked `faults`, too"""
OFF_THE_PAGES = (
    "lockstep train dqn CartPole-v1 --no-recipe --seed 1 --set replay.learning_starts=500",
    "lockstep train dqn CartPole-v1 --no-recipe --seed 2 --set training.lr='[[0, 1e-3], [2_048, 1e-4]]'",
    "lockstep resume runs/dqn_CartPole-v1_s1_20250101-120000 --total-steps 200_000",
)
"""of the other kind of trainer, which no page trains from the command line"""


def commands_of(page: str) -> list[str]:
    """The `lockstep` commands in blocks for a shell, without their comments."""
    lines = [line for block in SHELL.findall(page) for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [shlex.join(found) for found in words if found[:1] == ["lockstep"]]


FILE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
"""a block that stands for a file of the reader's"""


def write_files(folder: Path, page: str) -> None:
    """Write the files that a page asks its reader to make."""
    for text, name in FILE.findall(page):
        (folder / name).write_text(text)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.name: page.read_text() for page in PAGES}
COMMANDS = {page.name: found for page in PAGES if (found := commands_of(page.read_text()))}
COMMANDS["off the pages"] = [shlex.join(shlex.split(text)) for text in OFF_THE_PAGES]


def is_slow(command: str) -> bool:
    return any(option in command for option in NEEDS_RAY)


def shortened(words: list[str], folder: Path) -> list[str]:
    """The command with the length of its run cut down, and names of runs for the examples of names."""
    words = [re.sub(PLACEHOLDER, lambda found: run_of(found, folder), word) for word in words]
    words = [found for word in words for found in (expanded(word, folder) if "*" in word else [word])]
    if words[0] == "train" and "--total-steps" not in words:
        words += ["--total-steps", "2048"]
    if "--total-steps" in words:
        at = words.index("--total-steps") + 1
        words[at] = "4096" if int(words[at]) >= 200_000 else "2048"
    return words


def expanded(pattern: str, folder: Path) -> list[str]:
    """The paths that a shell would put in the place of a pattern."""
    paths = sorted(str(path.relative_to(folder)) for path in folder.glob(pattern))
    assert paths, f"no command above has made {pattern}"
    return paths


def run_of(found: re.Match[str], folder: Path) -> str:
    """The first run with that algorithm, environment and seed."""
    runs = sorted((folder / "runs").glob(f"{found['algo']}_{found['env']}_s{found['seed']}_*"))
    assert runs, f"no command above has made {found[0]}"
    return str(runs[0].relative_to(folder))


@dataclass(frozen=True)
class Ran:
    """One command that was run."""

    words: list[str]
    code: int
    out: str
    err: str
    plans: list[tuple[Announced, Happened]]
    folder: Path


def run_in(folder: Path, command: str) -> Ran:
    """Runs a command; of one that trains, reads its plans and what they came to."""
    words = shortened(shlex.split(command)[1:], folder)
    before = counts_of(folder / words[1]) if words[0] == "resume" else (0, 0)
    code, out, err = (in_a_process if is_slow(command) else in_this_process)(folder, words)
    facts = plans_in(out) if code == 0 and words[0] in ("train", "resume") else []
    plans = [(read_plan(plan), happened_in(folder / plan["folder"], *before)) for plan in facts]
    return Ran(words, code, out, err, plans, folder)


def in_this_process(folder: Path, words: list[str]) -> tuple[int, str, str]:
    """Exit code, output and messages; most of a process's time would be imports."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SDL_VIDEODRIVER", "dummy")
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def in_a_process(folder: Path, words: list[str]) -> tuple[int, str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = run_python(["-m", "lockstep.cli", *words], cwd=folder, env=environment, timeout=300)
    return done.returncode, done.stdout, done.stderr


def plans_in(out: str) -> list[dict[str, str]]:
    """The plans that were printed, as facts by name: each stands below a headline, and ends with the folder."""
    blocks = re.findall(r"^\S+ on \S+, seed .*\n((?:  .*\n)+)", out, re.MULTILINE)
    return [dict(re.findall(r"^  (\w[\w ]*?)  +(.*)$", block, re.MULTILINE)) for block in blocks]


def counts_of(run: Path) -> tuple[int, int]:
    """Gradient steps and environment steps of a run so far."""
    summary = RunFolder.open(run).read_summary()
    return summary["gradient_step"], summary["train_step"]


def happened_in(run: Path, gradient_steps: int, steps: int) -> Happened:
    """What a run has done since it had so many gradient steps and steps."""
    now, summary = counts_of(run), RunFolder.open(run).read_summary()
    happened = Happened(now[0] - gradient_steps, now[1] - steps, is_whole=summary["stop_reason"] == "max_epoch")
    checkpoint: Any = read_checkpoint(newest_checkpoint(run / "checkpoints"))
    collector = checkpoint["trainer"]["state"]["train_collector"]
    runners = [saved["collector"] for saved in collector["group"]["runners"]] if "group" in collector else [collector]
    happened.num_envs = sum(len(np.asarray(saved["lengths"])) for saved in runners)
    earlier = Happened()
    for record in read_metrics(run):
        if record["scope"] == "update" and record["step"] > gradient_steps:
            happened.note_rates(record["data"])
        elif record["scope"] == "update":
            earlier.note_rates(record["data"])
        if record["scope"] == "test" and record["step"] > steps:
            happened.episodes.add(int(record["data"]["n_collected_episodes"]))
    changes = [entry["changes"].get("training.lr", {}) for entry in RunFolder.open(run).info.get("history", [])]
    ends = [change["before"][-1][1] for change in changes if isinstance(change.get("before"), list)]
    happened.earlier = {name: [rates[-1], *ends] for name, rates in earlier.rates.items()}
    for key, optimizer in checkpoint["learner/optimizer"].items():  # a record may be the mean over several updates
        happened.rates[key.rpartition(".")[2]].append(optimizer["param_groups"][0]["lr"])
    return happened


def run_all(folder: Path, commands: list[str]) -> Iterator[tuple[str, Ran]]:
    """One after the other, as a reader would, in one directory."""
    for command in commands:
        if command not in NOT_RUN and not is_slow(command):
            yield command, run_in(folder, command)


class Pages:
    """The commands of each page as they were run, each page's in a directory of its own when it is first asked for."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.folders = folders
        self._ran: dict[str, dict[str, Ran]] = {}

    def __getitem__(self, page: str) -> dict[str, Ran]:
        if page not in self._ran:
            folder = self.folders.mktemp("page")
            write_files(folder, TEXTS.get(page, ""))
            self._ran[page] = dict(run_all(folder, COMMANDS[page]))
        return self._ran[page]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(tmp_path_factory)


def assert_true(run: Ran) -> None:
    """The command has ended well, has made the files that it names, and did what its plan announced."""
    assert run.code == 0, f"{shlex.join(run.words)}\n{run.out}\n{run.err}"
    for option in ("-o", "--output", "--video"):
        if option in run.words:
            assert (run.folder / run.words[run.words.index(option) + 1]).stat().st_size > 0
    if run.words[0] in ("train", "resume"):
        number = int(run.words[run.words.index("--seeds") + 1]) if "--seeds" in run.words else 1
        assert len(run.plans) == (1 if "--jobs" in run.words else number), run.out  # side by side have one plan
        for announced, happened in run.plans:
            assert differences(announced, happened) == [], f"{shlex.join(run.words)}\n{run.out}"
            assert happened.rates
    else:
        assert run.out.strip()


IN_PROCESS = [
    pytest.param(page, one, id=f"{page}: {one}", marks=MARKS.get(page, pytest.mark.faults))
    for page, all_ in COMMANDS.items()
    for one in all_
    if one not in NOT_RUN and not is_slow(one)
]


@pytest.mark.parametrize(("page", "command"), IN_PROCESS)
def test_a_command_of_the_pages_does_what_it_announces(page, command, ran):
    assert_true(ran[page][command])


SLOW = sorted({one for all_ in COMMANDS.values() for one in all_ if is_slow(one) and one not in NOT_RUN})


@pytest.mark.faults
@pytest.mark.parametrize("command", SLOW)
def test_a_command_that_starts_processes_does_what_it_announces(command, tmp_path):
    assert_true(run_in(tmp_path, command))


def test_every_command_is_run_or_has_a_reason_not_to_be():
    known = {command for commands in COMMANDS.values() for command in commands}
    assert set(NOT_RUN) <= known, "a command that is no longer on a page"
    commands = "train resume eval export eject plot compare report list doctor cache bench tune trust"
    assert set(commands.split()) == {command.split()[1] for command in known}


LIES = [
    {"gradient_steps": 1},
    {"steps": 1},
    {"num_envs": 1},
    {"episodes": 1},
    {"rates": {"": (0.5, 0.5)}},
    {"rates": {"default_policy.other": (1e-3, 0.0)}},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_plan_that_lies_is_found(lie, ran):
    (announced, happened), *_ = next(run for run in ran["README.md"].values() if run.plans).plans
    changed = {name: value if name == "rates" else getattr(announced, name) + value for name, value in lie.items()}
    assert differences(replace(announced, **changed), happened)
