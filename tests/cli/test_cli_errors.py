"""Wrong input: one clear message on stderr, exit code 2 (1 for a run that failed), nothing half-written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import cli_envs
import pytest
from cli_tools import SMALL, Said, Trained

Command = Callable[..., Said]
TRAIN = ("train", "ppo", "CartPole-v1")

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "algorithm": (("train", "pppo", "CartPole-v1"), "unknown algorithm 'pppo'; did you mean 'ppo'?"),
    "environment": (("train", "ppo", "CartPol-v1"), "the environment id 'CartPol-v1' is unknown. Did you mean"),
    "module": (("train", "ppo", "no_such_module:Env"), "there is no module 'no_such_module'"),
    "class": (
        ("train", "ppo", "cli_envs:Nothing"),
        "'cli_envs:Nothing' is unknown. The module 'cli_envs' has no",
    ),
    "option": ((*TRAIN, "--set", "training.lrr=1"), "training has no option 'lrr'; did you mean 'lr'?"),
    "section": ((*TRAIN, "--set", "trainin.lr=1"), "unknown option 'trainin.lr'; did you mean 'training'?"),
    "no value": ((*TRAIN, "--set", "training.lr"), "--set 'training.lr' has no value"),
    "value": ((*TRAIN, "--set", "training.gamma=2"), "gamma=2 is not allowed; it must be a number between 0 and 1"),
    "learning rate": ((*TRAIN, "--set", "training.lr=abc"), "must be a finite number"),
    "batch": ((*TRAIN, "--num-envs", "5000"), "training.train_batch_size=1000 is smaller than"),
    "network": (
        (*TRAIN, "--set", "rl_module.rl_module_spec=cli_envs:Counter"),
        "cli_envs:Counter is not an RLModule; give a subclass",
    ),
    "network module": (
        (*TRAIN, "--set", "rl_module.rl_module_spec=no_such:Net"),
        "the class no_such:Net cannot be imported",
    ),
    "search's file": (("tune", "ppo", "CartPole-v1", "--config", "none.json"), "cannot read --config none.json"),
    "device": ((*TRAIN, "--device", "abacus"), "framework.device='abacus'"),
    "config file": ((*TRAIN, "--config", "none.json"), "cannot read --config none.json: No such file"),
    "steps": ((*TRAIN, "--total-steps", "0"), "--total-steps=0 is not allowed; it must be a whole number, at least 1"),
    "seeds": ((*TRAIN, "--seeds", "0"), "--seeds=0 is not allowed"),
    "jobs": ((*TRAIN, "--jobs", "0"), "--jobs=0 is not allowed"),
    "actions": (
        ("train", "dqn", "cli_envs:TupleActions"),
        "need a Discrete action space, not Tuple(Discrete(2), Discrete(3))",
    ),
    "shape": (("train", "ppo", "cli_envs:WrongShape"), "has shape (2,), its space says (3,)"),
    "nan": (("train", "ppo", "cli_envs:NanReward"), "the reward at step 1 is nan"),
    "not made": (("train", "ppo", "cli_envs:NotMade"), "raised RuntimeError: no licence"),
    "eval": (("eval", "nothing"), "there is no nothing"),
    "export": (("export", "nothing"), "there is no nothing"),
    "resume": (("resume", "nothing"), "no run at"),
    "plot": (("plot", "nothing"), "no run at"),
    "plot none": (("plot",), "plot needs at least one run's folder"),
    "doctor": (("doctor", "CartPoll-v1"), "the environment id 'CartPoll-v1' is unknown. Did you mean 'CartPole-v1'"),
    "doctor run": (("doctor", "runs/nothing"), "there is no run's folder runs/nothing, and no environment: "),
    "doctor folder": (("doctor", "."), "it has no config.json"),
    "doctor return": (("doctor", ".", "--expected-return", "nan"), "expected_return=nan is not allowed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_message_and_exit_code_2(lockstep: Command, tmp_path: Path, name: str) -> None:
    words, message = WRONG[name]
    said = lockstep(*words)
    assert said.code == 2, said
    assert message in said.err
    assert said.err.startswith("error: ")
    assert said.err.count("error:") == 1
    assert "Traceback" not in said.err
    assert not list(tmp_path.glob("runs/*")), "no folder of a run that never began"


@pytest.mark.parametrize("command", ["eval", "export", "resume", "doctor"])
def test_a_folder_of_several_runs_is_refused_with_their_names(
    lockstep: Command, trained: Trained, command: str
) -> None:
    folder = trained.runs[0].parent
    said = lockstep(command, str(folder))
    assert said.code == 2
    assert f"it holds 2 runs, give one: {', '.join(run.name for run in trained.runs)}" in said.err


@pytest.mark.parametrize(
    ("words", "message", "cause"),
    [
        (
            ("trian", "ppo", "CartPole-v1"),
            "train, resume, eval, export, eject, plot",
            "trian, ppo, CartPole-v1",
        ),
        ((*TRAIN, "--totl-steps", "5"), "--total-steps", "--totl-steps"),
        ((*TRAIN, "--total-steps", "3.5"), "'3.5' is not a whole number", "3.5"),
        (("train", "ppo"), "ENV", "Missing from lockstep train: ENV"),
    ],
)
def test_unknown_commands_and_flags_are_answered_with_what_there_is(
    lockstep: Command, words: tuple[str, ...], message: str, cause: str
) -> None:
    said = lockstep(*words)
    assert said.code == 2
    assert message in said.err
    *_, last = said.err.splitlines()
    assert last.startswith("error: "), "what is wrong stands last"
    assert cause in last
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (cli_envs.LateError, "raised ZeroDivisionError: the dynamo broke ("),
        (cli_envs.LateNan, "gave a value that is not finite in column 'obs' at step"),
    ],
)
def test_a_failed_run_says_where_it_is_and_how_to_resume_it(
    lockstep: Command, tmp_path: Path, env: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.total = 0
    said = lockstep("train", "ppo", f"cli_envs:{env.__name__}", *SMALL)
    assert said.code == 1
    assert message in said.err
    assert "Traceback" not in said.err
    (run,) = tmp_path.glob("runs/*")
    assert said.err.count("error:") == 1
    assert f"The run's folder: runs/{run.name}" in said.err
    assert not list(run.glob("**/*.tmp*"))
    assert (run / "summary.json").exists()
    monkeypatch.setenv("LOCKSTEP_DEBUG", "1")
    env.total = 0
    assert "Traceback (most recent call last)" in lockstep("train", "ppo", f"cli_envs:{env.__name__}", *SMALL).err


def test_environment_outside_its_bounds_is_trained_on_with_a_warning(lockstep: Command) -> None:
    said = lockstep("train", "ppo", "cli_envs:Outside", *SMALL)
    assert said.code == 0
    assert "warning: the environment: the observation at step 1 lies outside" in said.out


def damage(checkpoint: Path) -> None:
    file = max(checkpoint.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_damaged_checkpoint_is_named_and_passed_over(lockstep: Command, trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained.runs[0], run)
    checkpoints = sorted((run / "checkpoints").iterdir())
    damage(checkpoints[-1])
    said = lockstep("resume", "copy", "--total-steps", "1536")
    assert said.code == 0
    assert "continues at step 512" in said.out
    assert said.err.startswith("warning: ")
    assert checkpoints[-1].name in said.err


def test_damaged_checkpoints_only_is_an_error(lockstep: Command, trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained.runs[0], run)
    for checkpoint in [*(run / "checkpoints").iterdir(), run / "best" / "policy"]:
        damage(checkpoint)
    said = lockstep("resume", "copy", "--total-steps", "1536")
    assert said.code == 2
    assert "error: " in said.err
    assert "has no intact checkpoint to continue from" in said.err
    said = lockstep("eval", "copy/best/policy")
    assert said.code == 2
    assert "error: damaged checkpoint" in said.err
