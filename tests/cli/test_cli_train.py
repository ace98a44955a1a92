"""`lockstep train` and `lockstep resume`: plan, lines, table, folder, seeds, settings, interruption."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import agent_games
import numpy as np
import pytest
from cli_tools import SMALL, Said, Trained, command, process_env, start
from tracked_runs import make_run

from lockstep import get_config
from lockstep.cli.arguments import parse_setting
from lockstep.cli.commands import parse
from lockstep.cli.running import show_seed_runs
from lockstep.cli.terminal import show_result
from lockstep.runs.run import prepare_run
from lockstep.state.checkpoint import newest_checkpoint, read_checkpoint
from lockstep.tracking import RunFolder, read_metrics
from lockstep.trainer import Callback, UpdateEnd

Command = Callable[..., Said]


def weights_of(run: Path) -> dict[str, np.ndarray]:
    checkpoint = newest_checkpoint(run / "checkpoints")
    folders = read_checkpoint(checkpoint)
    found = {}
    for folder, tree in folders.items():
        if "rl_module" in folder:
            for name, value in tree.get("weights", {}).items():
                found[name] = np.asarray(value)
    assert found, sorted(folders)
    return found


def test_plan_says_what_the_run_is_going_to_do(trained: Trained) -> None:
    assert trained.code == 0, trained.err
    plan = trained.out.partition("\n\n")[0]
    assert plan.startswith("PPO on CartPole-v1, seed 0\n")
    lines = dict(re.findall(r"^  (\w[\w ]*?)  +(.*)$", plan, re.MULTILINE))
    assert lines["settings"].startswith("the recipe for ppo on CartPole-v1")
    assert lines["environments"] == "4 x CartPole-v1 (light_sync, SAME_STEP): Box((4,), float32) -> Discrete(2)"
    assert lines["updates"] == "4 of 256 environment steps, 1,024 in all"
    assert lines["gradient steps"] == "32: for each update 2 passes over 4 minibatches of 64"
    assert lines["networks"] == "9,155 parameters (35.8 KiB)"
    assert lines["device"] == "cpu, float32, 1 thread, eager"
    assert lines["evaluation"] == ("4 episodes every 512 steps, most likely actions; may take up to 80% of all steps")
    assert lines["folder"] in {f"runs/{run.name}" for run in trained.runs}


def test_output_that_is_no_terminal_gets_one_plain_line_for_each_epoch(trained: Trained) -> None:
    lines = [line for line in trained.out.splitlines() if "/1,024 steps" in line]
    assert [line.split("/")[0].strip() for line in lines] == ["0", "512", "1,024"] * 2
    last = lines[2]
    for part in ("evaluation return", "training return", "length", "policy_loss", "vf_loss", "steps/s", "0:00 left"):
        assert part in last
    assert "\x1b" not in trained.out
    assert trained.err == ""


def test_run_leaves_its_folder_and_a_short_table(trained: Trained) -> None:
    run = trained.runs[0]
    names = {path.name for path in run.iterdir()}
    assert names == {
        *("config.json", "metrics.jsonl", "checkpoints", "best", "curve.png", "summary.json", "tensorboard")
    }
    summary = RunFolder.open(run).read_summary()
    assert summary["train_step"] == 1024
    assert summary["gradient_step"] == 32
    assert f"final return  {summary['final_return']:.4g} ±" in trained.out
    assert "steps         1,024 in" in trained.out
    assert "ended         all steps done" in trained.out
    shares = re.findall(r"^  time +(.*)$", trained.out, re.MULTILINE)[-1]  # the plan has a guess under this name
    parts = dict(re.findall(r"(\w[\w, ]*?) (\d+)%", shares))
    assert set(parts) == {"environment", "acting", "storing", "update", "evaluation", "checkpoints, logs"}
    assert 97 <= sum(map(int, parts.values())) <= 103


def test_seeds_run_one_after_the_other_and_end_in_one_table(trained: Trained) -> None:
    assert [RunFolder.open(run).seed for run in trained.runs] == [0, 1]
    finals = [RunFolder.open(run).read_summary()["final_return"] for run in trained.runs]
    table = trained.out.rpartition("final return")[2]
    for seed, (run, final) in enumerate(zip(trained.runs, finals, strict=True)):
        assert re.search(rf"seed {seed} +{re.escape(f'{final:.4g}')} ±.*runs/{run.name}", table)
    assert f"2 runs: median {np.median(finals):.4g}, worst {min(finals):.4g}, interquartile mean" in table


def test_seeds_end_with_the_command_that_exports_the_best(trained: Trained) -> None:
    scores = [RunFolder.open(run).read_summary()["best_score"] for run in trained.runs]
    best_run = trained.runs[int(np.argmax(scores))]
    (line,) = re.findall(r"^export of the best evaluation: (.*)$", trained.out, re.MULTILINE)
    assert line == f"lockstep export runs/{best_run.name}"
    assert parse(line.split()[1:]).folder.name == best_run.name


def test_seeds_without_evaluations_have_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path, seed=seed, ended=True).path for seed in range(3)]
    show_seed_runs(runs)
    assert "lockstep export" not in capsys.readouterr().out
    for run, score in zip(runs[1:], (-3.0, -2.0), strict=True):
        folder = RunFolder.open(run)
        folder.write_summary({**folder.read_summary(), "best_score": score})
    show_seed_runs(runs)
    assert f"lockstep export {runs[2]}\n" in capsys.readouterr().out


@pytest.mark.long
def test_seeds_run_side_by_side_under_one_display(lockstep: Command, trained: Trained, tmp_path: Path) -> None:
    said = lockstep("train", "ppo", "CartPole-v1", *SMALL, "--seeds", "2", "--jobs", "2", "--num-envs", "4")
    assert said.code == 0, said.err
    assert said.out.count("  settings  ") == 1, "the plan is the same for all"
    assert re.search(r"^PPO on CartPole-v1, seed [01]\n  settings", said.out, re.MULTILINE)
    for seed in (0, 1):
        lines = re.findall(rf"^seed {seed} +([\d,]+)/1,024 steps  evaluation", said.out, re.MULTILINE)
        assert lines == ["0", "512", "1,024"]
    runs = {RunFolder.open(run).seed: run for run in (tmp_path / "runs").iterdir()}
    finals = [RunFolder.open(runs[seed]).read_summary()["final_return"] for seed in (0, 1)]
    assert finals == [RunFolder.open(run).read_summary()["final_return"] for run in trained.runs]
    assert f"2 runs: median {np.median(finals):.4g}" in said.out
    table = said.out.rpartition("final return")[2]
    assert [table.index(runs[seed].name) for seed in (0, 1)] == sorted(table.index(run.name) for run in runs.values())


@pytest.mark.long
def test_a_failed_seed_among_several_is_an_error(lockstep: Command, tmp_path: Path) -> None:
    words = ("--total-steps", "2048", "--seeds", "2", "--jobs", "2", "--no-check")
    said = lockstep("train", "ppo", "cli_envs:LateError", *SMALL[1:], *words)
    assert said.code == 1
    assert said.err.count("error: seed ") == 2
    assert "ZeroDivisionError" in said.err
    assert "Traceback" not in said.err


@pytest.mark.faults
def test_seeds_side_by_side_are_stopped_together(tmp_path: Path) -> None:
    words = ("train", "ppo", "CartPole-v1", *SMALL[1:], "--total-steps", "9000000", "--seeds", "3", "--jobs", "2")
    process = start(*words, cwd=tmp_path)
    seen = ""
    while not all(re.search(rf"seed {seed} +512/", seen) for seed in (0, 1)):
        seen += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    for run in (tmp_path / "runs").iterdir():
        folder = RunFolder.open(run)
        assert f"continue seed {folder.seed} with: lockstep resume runs/{run.name}" in out
        assert folder.read_summary()["stop_reason"] == "interrupted"
    assert "seed 2 has not begun" in out


def test_a_run_that_stops_at_a_return_names_the_return(lockstep: Command) -> None:
    said = lockstep("train", "ppo", "CartPole-v1", *SMALL, "--stop-return", "3", "--root", "runs")
    assert "ended         reached the return 3\n" in said.out
    (run,) = Path("runs").iterdir()
    assert RunFolder.open(run).read_summary()["stop_reason"] == "stop_fn"
    assert "steps/s while training; ended: reached the return 3\n" in lockstep("doctor", str(run)).out


def test_settings_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"training": {"lr": 0.5, "gamma": 0.9}, "evaluation": {"evaluation_duration": 3}}))
    words = ["train", "ppo", "CartPole-v1", "--config", str(file), "--set", "training.lr=3e-4", "--num-envs", "2"]
    words += ["--set", "rl_module.model_config.hiddens=[32]", "--compile", "--stop-return", "-5", "--seed", "7"]
    settings = parse(words).settings()
    config = settings.config
    assert (config.lr, config.gamma, config.evaluation_duration) == (3e-4, 0.9, 3)
    assert config.model_config.hiddens == (32,)
    assert config.num_envs_per_env_runner == 2
    assert config.compile
    assert config.stop_return == -5
    assert config.seed == 7
    assert config.train_batch_size == 1000, "from the recipe"
    assert str(file) in settings.sources[1]
    assert "training.lr=0.0003" in settings.sources[2]


def test_common_options_have_short_names() -> None:
    config = parse(["train", "PPO", "CartPole-v1", "--lr", "0.01", "--device", "cpu"]).settings().config
    assert (config.algorithm, config.lr, config.device) == ("ppo", 0.01, "cpu")
    config = parse(["train", "PPO", "CartPole-v1", "--lr", "0.01", "--set", "training.lr=0.02"]).settings().config
    assert config.lr == 0.02, "--set is the last source"


def test_settings_of_a_run_can_be_used_again(trained: Trained) -> None:
    words = ["train", "ppo", "CartPole-v1", "--config", str(trained.runs[1] / "config.json")]
    config = parse(words).settings().config
    assert (config.seed, config.train_batch_size, config.loggers) == (1, 256, ["jsonl", "tensorboard"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-4", 3e-4), ("null", None), ("None", None), ("True", True), ("[1, 2]", [1, 2]), ("relu", "relu")],
)
def test_set_values_are_json_python_or_text(text: str, value: object) -> None:
    assert parse_setting(f"training.lr= {text}") == ("training.lr", value)


def test_resume_continues_with_more_steps(lockstep: Command, trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained.runs[0], run)
    records = (run / "metrics.jsonl").read_bytes()
    whole = lockstep("resume", str(run))
    assert whole.code == 2
    assert "has made all its 1,024 steps; give more with --total-steps" in whole.err
    wrong = lockstep("resume", "copy", "--total-steps", "1280", "--set", "rl_module.model_config.hiddens=[8]")
    assert wrong.code == 2
    assert "rl_module.model_config.hiddens=[8] (the run has [64, 64]) cannot be changed" in wrong.err
    assert (run / "metrics.jsonl").read_bytes() == records, "a command that is refused changes nothing"
    more = lockstep("resume", "copy", "--total-steps", "1280", "--set", "training.entropy_coeff=0.01")
    assert more.code == 0, more.err
    assert "continues at step 1,024" in more.out
    assert "1 of 256 environment steps, 256 in all" in more.out
    assert "from step 1,024 on training.entropy_coeff=0.01 (was 0.0), reporting.total_steps=1280 (was 1024)" in more.out
    assert "training.lr stretched to 1,280 steps" in more.out
    assert more.err == ""
    assert RunFolder.open(run).read_summary()["train_step"] == 1280
    assert [entry["step"] for entry in RunFolder.open(run).info["history"]] == [1024]


def test_train_from_a_run_begins_with_its_weights(lockstep: Command, trained: Trained, tmp_path: Path) -> None:
    words = ("train", "ppo", "CartPole-v1", *SMALL[1:], "--no-check", "--total-steps", "256")
    said = lockstep(*words, "--from", str(trained.runs[0]))
    assert said.code == 0, said.err
    plan = said.out.partition("\n\n")[0]
    assert f"weights of {trained.runs[0] / 'best' / 'policy'}" in plan
    assert "1 of 256 environment steps" in plan
    (run,) = (tmp_path / "runs").iterdir()
    assert RunFolder.open(run).info["init_from"] == str(trained.runs[0] / "best" / "policy")
    wrong = lockstep(*words, "--from", str(trained.runs[0]), "--set", "rl_module.model_config.hiddens=[8]")
    assert wrong.code == 2
    assert "rl_module.model_config.hiddens=[64, 64] there, [8] here" in wrong.err
    assert list((tmp_path / "runs").iterdir()) == [run]


LONG = (
    "--total-steps=8192",
    "--set=training.train_batch_size=512",
    "--set=training.minibatch_size=64",
    "--set=training.num_epochs=4",
    "--set=reporting.steps_per_epoch=2048",
)


def test_ctrl_c_ends_in_order_and_resume_reaches_the_same_weights(lockstep: Command, tmp_path: Path) -> None:
    words = ("train", "ppo", "CartPole-v1", *LONG)
    with start(*words, cwd=tmp_path) as process:
        for line in process.stdout:
            if line.strip().startswith("2,048/8,192 steps"):
                process.send_signal(signal.SIGINT)
                break
        out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130, (out, err)
    (run,) = (tmp_path / "runs").iterdir()
    assert err == "stopping after this update; once more stops at once\n"
    assert f"interrupted; continue with: lockstep resume runs/{run.name}" in out
    assert "ended         interrupted" in out
    steps = RunFolder.open(run).read_summary()["train_step"]
    assert 2048 <= steps < 8192
    assert steps % 512 == 0
    assert lockstep("resume", f"runs/{run.name}").code == 0
    assert RunFolder.open(run).read_summary()["train_step"] == 8192
    assert lockstep(*words, "--root", "whole").code == 0
    (whole,) = (tmp_path / "whole").iterdir()
    resumed, uninterrupted = weights_of(run), weights_of(whole)
    assert resumed.keys() == uninterrupted.keys()
    for name, value in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    both = [[(r["scope"], r["step"]) for r in read_metrics(path)] for path in (run, whole)]
    assert both[0] == both[1], "the interrupt's checkpoint has no record in the run that went on"


def test_a_final_return_of_an_earlier_step_says_of_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = get_config("ppo").environment("CartPole-v1").evaluation(evaluation_duration=1)
    config.training(train_batch_size=64, minibatch_size=None).reporting(total_steps=512, steps_per_epoch=256)
    for stop_at, text in ((128, " (evaluated at step 0)"), (320, " (evaluated at step 256)"), (512, "")):
        callbacks = [StopAt(stop_at)]
        run = prepare_run(config.copy(), tmp_path / str(stop_at), callbacks=callbacks)
        result = run.finish()
        summary = show_result(run.folder)
        final = f"{summary['final_return']:.4g} ± {summary['final_return_std']:.3g}{text}\n"
        assert f"final return  {final}" in capsys.readouterr().out
        assert result.info.train_step == stop_at


class StopAt(Callback):
    """Asks to stop after so many steps, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, event: UpdateEnd) -> str | None:
        return "interrupted" if event.env_step == self.step < 512 else None


@pytest.mark.faults
def test_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    words = ("train", "ppo", "cli_envs:Slow", "--no-check", "--num-envs", "1", "--set=evaluation.evaluation_duration=1")
    with start(*words, cwd=tmp_path) as process:
        for line in process.stdout:
            if "0/" in line and "evaluation" in line and "steps " in line and "every" not in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith("stopping after this update")
        process.send_signal(signal.SIGINT)  # 2,048 steps of 10 ms lie between this and the update
        err = process.stderr.read()
    assert process.returncode == 130
    assert err == "error: stopped at once; it has no checkpoint yet\n"


def test_terminal_gets_one_live_display(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = process_env(TERM="xterm-256color", COLUMNS="110", LINES="40")
    process = subprocess.Popen(
        command("train", "ppo", "CartPole-v1", *SMALL), cwd=tmp_path, env=env, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end has been closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(timeout=30) == 0
    text = seen.decode()
    assert "\x1b[?25l" in text, "the cursor is hidden while the display lives"
    assert "\x1b[?25h" in text, "and comes back"
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.rpartition("\x1b[2K")[2])
    for part in ("1,024/1,024 steps", "steps/s", "0:00 left", "evaluation", "training", "policy_loss", "final return"):
        assert part in last
    assert text.count("final return") == 1


def test_several_agents_are_trained_without_naming_policies(lockstep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(agent_games.__file__).parent))
    options = ("--num-envs", "2", "--set", "training.train_batch_size=32", "--set", "training.minibatch_size=16")
    said = lockstep("train", "ppo", "agent_games:DictGame", "--total-steps", "64", *options)
    assert said.code == 0, said.err
    assert re.search(r"policies +a acts for a, b; c acts for c\n", said.out)
    assert lockstep("doctor", "agent_games:DictGame").code == 0


@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3", "pettingzoo.classic.connect_four_v3"])
def test_a_module_of_pettingzoo_is_trained_by_its_name(lockstep: Command, name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    small = ("--num-envs", "2", "--set", "training.train_batch_size=32", "--set", "training.minibatch_size=16")
    said = lockstep("train", "ppo", name, "--total-steps", "32", *small, "--set", "evaluation.evaluation_duration=1")
    assert said.code == 0, said.err
    (folder,) = Path("runs").iterdir()
    assert RunFolder.open(folder).env == name
    assert lockstep("resume", str(folder), "--total-steps", "64").code == 0


@pytest.mark.long
def test_a_game_of_atari_is_trained_by_its_id_with_settings_for_it(lockstep: Command) -> None:
    pytest.importorskip("ale_py")
    small = '--set=rl_module.model_config={"conv_filters": [[4, 8, 8]], "image_hiddens": [8]}'
    options = ("--set=training.train_batch_size=64", "--set=training.minibatch_size=32", small)
    game = '--set=environment.env_config={"max_num_frames_per_episode": 80}'
    said = lockstep("train", "ppo", "ALE/Breakout-v5", "--total-steps=128", game, *options)
    assert said.code == 0, said.err
    assert "the settings of RL Baselines3 Zoo for ppo on ALE/*" in said.out
    assert "8 x ALE/Breakout-v5 (native, SAME_STEP): Box(0, 255, (84, 84), uint8) -> Discrete(4)" in said.out
    assert "warning" not in said.err
