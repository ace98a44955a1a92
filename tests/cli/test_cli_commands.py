"""`lockstep eval`, `plot`, `list`, `doctor`, help; videos."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from agent_games import CountingGame, game_config
from algorithm_cases import ALGORITHM_CASES
from cli_tools import SMALL, Said, Trained, run_process
from gymnasium.envs.classic_control import CartPoleEnv

from lockstep import ALGORITHMS, AlgorithmConfig, PPOConfig, load_policy, train
from lockstep.cli.commands import COMMANDS, command_class
from lockstep.recipes import RECIPES
from lockstep.recipes.families import FAMILIES
from lockstep.runs.video import VideoCallback, record_video
from lockstep.tracking import RunFolder

Command = Callable[..., Said]


def test_help_and_version_are_quick_answers(lockstep: Command) -> None:
    assert re.fullmatch(r"lockstep \d+\.\d+\.\d+\S*\n", lockstep("--version").out)
    for words in (("--help",), ()):
        said = lockstep(*words)
        assert said.code == 0
        assert all(name in said.out for name in ("train", "resume", "eval", "plot", "doctor"))
    said = lockstep("train", "--help")
    assert said.code == 0
    assert all(f"--{name}" in said.out for name in ("total-steps", "seeds", "stop-return", "set"))


def test_the_list_of_commands_has_the_first_sentence_of_each() -> None:
    for name, description in COMMANDS.items():
        first_paragraph = inspect.getdoc(command_class(name)).partition("\n\n")[0]
        assert " ".join(first_paragraph.split()) == description


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_names_and_explains_each_argument(lockstep: Command, name: str) -> None:
    said = lockstep(name, "--help")
    assert said.code == 0
    assert not re.search(r"\bSTR\b|\{None\}", said.out), "a metavar says what the argument is"
    for field in fields(command_class(name)):
        text = inspect.getsource(command_class(name)).partition(f"    {field.name}: ")[2].partition('"""')[2]
        assert "\n" not in text.partition('"""')[0], f"tyro keeps the line breaks in the help of {field.name}"


def test_the_help_of_bench_names_its_positional_arguments(lockstep: Command) -> None:
    usage = lockstep("bench", "--help").out.partition("\n")[0]
    assert usage.endswith("{list,run,repeat,table,pictures} [ALGORITHM] [ENV]")


@pytest.mark.long
def test_eval_plays_the_best_policy_and_repeats_with_its_seed(lockstep: Command, trained: Trained) -> None:
    run = str(trained.runs[0])
    first, again = lockstep("eval", run, "--episodes", "3"), lockstep("eval", run, "--episodes", "3")
    assert first.code == 0
    assert first.out == again.out
    assert "best/policy (ppo on CartPole-v1)" in first.out
    assert "3, most likely actions, seed 0" in first.out
    other = lockstep("eval", run, "--episodes", "3", "--seed", "5", "--stochastic")
    assert other.code == 0
    assert "3, drawn actions, seed 5" in other.out
    assert len({re.search(r"return +(\S+)", said.out)[1] for said in (first, other)}) == 2


@pytest.mark.long
def test_eval_writes_a_video_that_can_be_read_back(trained: Trained, tmp_path: Path) -> None:
    done = run_process("eval", str(trained.runs[0]), "--episodes", "1", "--video", "out.gif", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    frames = iio.imread(tmp_path / "out.gif")
    assert frames.ndim == 4
    assert frames.shape[1:3] == (400, 600)
    assert len(frames) > 3
    assert frames.std() > 0
    assert not np.array_equal(frames[0], frames[-1])
    assert "out.gif (return" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out.gif"]


def test_video_of_a_policy_without_pictures_says_so(lockstep: Command, tmp_path: Path) -> None:
    words = ("--total-steps", "64", "--set", "training.train_batch_size=64", "--root", "runs")
    assert lockstep("train", "a2c", "cli_envs:Counter", *words).code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert "(a2c on cli_envs:Counter)" in lockstep("eval", "runs", "--episodes=1").out
    said = lockstep("eval", f"runs/{run.name}", "--video", "out.mp4")
    assert said.code == 2
    assert "cannot be filmed" in said.err


class Unpainted(CartPoleEnv):
    """Environment whose picture needs a package that is not installed, as MinAtar's does."""

    def render(self):
        raise NameError("name 'sns' is not defined")


def test_video_of_an_environment_that_cannot_render_names_the_error(tmp_path: Path) -> None:
    policy = PPOConfig().environment(Unpainted).build_policy()
    with pytest.raises(ValueError, match=r"cannot be filmed: .* its render\(\) raised NameError: name 'sns'"):
        record_video(policy, tmp_path / "out.gif")
    assert list(tmp_path.iterdir()) == []
    assert not (tmp_path / "out.mp4").exists()


def test_eval_shows_the_return_of_each_agent_and_of_each_module(lockstep: Command, tmp_path: Path) -> None:
    config = game_config(CountingGame, reporting={"total_steps": 32})
    run = train(config, root=tmp_path / "runs").path
    said = lockstep("eval", str(run), "--episodes=4")
    assert said.code == 0, said.err
    again = lockstep("eval", str(run), "--episodes=4")
    assert said.out == again.out
    found = {row[0]: row[1] for row in re.findall(r"((?:agent|module) \w+) +(-?[\d.]+) ± ", said.out)}
    a, b, c = (float(found[f"agent {agent}"]) for agent in "abc")
    assert b == 20.0  # ten for each of two steps, whatever the length
    assert (a - 1.0) * 100.0 == pytest.approx(c, rel=1e-3)  # who comes one step later has one less
    assert float(found["module first"]) == a
    assert float(found["module others"]) == pytest.approx((b + c) / 2, rel=1e-3)
    total = float(re.search(r"return +([\d.]+)", said.out)[1])
    assert total == pytest.approx(a + b + c, rel=1e-3)
    refused = lockstep("eval", str(run), "--episodes=1", "--video", "out.gif")
    assert refused.code == 2
    assert "--video is for one agent" in refused.err


def test_eval_of_several_agents_has_the_return_that_reward_metric_makes(lockstep: Command, tmp_path: Path) -> None:
    config = game_config(CountingGame, reporting={"total_steps": 32}, multi_agent={"reward_metric": of_the_second})
    run = train(config, root=tmp_path / "runs").path
    said = lockstep("eval", str(run), "--episodes=2", "--stochastic")
    assert re.search(r"return +20 ± 0", said.out), said.out
    assert "2, drawn actions" in said.out


def of_the_second(returns: np.ndarray) -> np.ndarray:
    return returns[:, 1]


def test_video_callback_records_and_leaves_the_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep import PPOConfig

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    weights = []
    for callbacks in ([], [VideoCallback(tmp_path, interval=2)]):
        config = PPOConfig().environment("CartPole-v1").training(train_batch_size=128, num_epochs=1)
        config.reporting(total_steps=256, steps_per_epoch=128).evaluation(evaluation_duration=2)
        trainer = config.build_trainer(callbacks=callbacks)
        trainer.run()
        weights.append([p.detach().numpy().copy() for p in trainer.policy.module.parameters()])
    assert all(map(np.array_equal, *weights))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000000000000.mp4", "step_000000000256.mp4"]
    frames = iio.imread(tmp_path / "step_000000000000.mp4")
    assert frames.shape[1:] == (400, 600, 3)
    assert len(frames) > 3


@pytest.mark.long
def test_video_shows_the_episode_whole(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    stats = record_video(load_policy(trained.runs[0]), tmp_path / "out.mp4", num_episodes=2)
    assert len(stats.returns) == 2
    assert len(iio.imread(tmp_path / "out.mp4")) == sum(stats.lens) + 1, "one frame for each step, and the first"


def test_plot_draws_the_runs(lockstep: Command, trained: Trained, tmp_path: Path) -> None:
    said = lockstep("plot", *map(str, trained.runs), "-o", "curves.png")
    assert said.code == 0, said.err
    assert said.out == f"curves.png ({len(trained.runs)} runs)\n"
    picture = iio.imread(tmp_path / "curves.png")
    assert picture.shape[0] > 400
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 10
    said = lockstep("plot", str(trained.runs[0]), "-o", "curves.doc")
    assert said.code == 2
    assert "must end in .png" in said.err
    said = lockstep("plot", str(trained.runs[0]), "--metric", "nothing")
    assert said.code == 2
    assert "it has: " in said.err
    assert "test/returns_stat/mean" in said.err


def test_list_shows_algorithms_spaces_and_recipes(lockstep: Command) -> None:
    said = lockstep("list")
    assert said.code == 0
    for config_class in ALGORITHMS:
        (line,) = re.findall(rf"^ *{config_class.algorithm}  +\S.*MultiBinary.*$", said.out, re.MULTILINE)
        assert "Dict, Tuple" in line
        assert line.rstrip().endswith(f"Tuple   {', '.join(ALGORITHM_CASES[config_class.algorithm].actions)}")
        assert "Text" not in line
    for recipe in RECIPES:
        promise = "" if recipe.promise is None else f"{recipe.promise:g}"
        assert re.search(rf"{recipe.algorithm} {recipe.env} .*{recipe.total_steps:,}.*{promise}", said.out)


def test_list_has_no_blank_lines_between_entries(lockstep: Command) -> None:
    tables = lockstep("list").out.removesuffix("\n").split("\n\n")
    assert [len(table.splitlines()) for table in tables] == [2 + len(ALGORITHMS), 2 + len(RECIPES) + len(FAMILIES)]
    assert not any(line.endswith(" ") for table in tables for line in table.splitlines()), "a narrow window wraps them"


def recipes_where(is_wanted: Callable[[str, str], bool]) -> set[str]:
    """Return the names of recipes and families in the list; an expected set is not empty."""
    names = {(each.algorithm, each.env) for each in RECIPES} | {(each.algorithm, each.pattern) for each in FAMILIES}
    wanted = {f"{algorithm} {env}" for algorithm, env in names if is_wanted(algorithm, env)}
    assert wanted
    return wanted


@pytest.mark.parametrize(
    ("words", "recipes"),
    [
        (("--algorithm", "ppo"), recipes_where(lambda algorithm, env: algorithm == "ppo")),
        (("--env", "BipedalWalker-v3"), recipes_where(lambda algorithm, env: env == "BipedalWalker-v3")),
        (("--env", "BipedalWalker"), recipes_where(lambda algorithm, env: env == "BipedalWalker-v3")),
        (("--env", "MinAtar/Free*"), recipes_where(lambda algorithm, env: env == "MinAtar/Freeway-v1")),
        (("--env", "ALE/Breakout-v5"), recipes_where(lambda algorithm, env: env == "ALE/*")),
        (("--algorithm", "ppo", "--env", "ALE/Pong-v5"), {"ppo ALE/Pong-v5", "ppo ALE/*"}),
    ],
)
def test_list_shows_the_recipes_of_an_algorithm_or_environment(lockstep: Command, words, recipes) -> None:
    said = lockstep("list", *words)
    assert said.code == 0, said.err
    *algorithms, recipe_table = said.out.split("\n\n")
    assert {line.partition("  ")[0] for line in recipe_table.splitlines()[2:]} == recipes
    names = [table.splitlines()[2].split()[0] for table in algorithms]
    assert names == [words[1]] * ("--algorithm" in words), "an environment alone does not say which algorithms learn it"


def test_list_filters_refuse_unknown_names_and_markdown(lockstep: Command) -> None:
    said = lockstep("list", "--algorithm", "ppoo")
    assert said.code == 2
    assert "did you mean 'ppo'?" in said.err
    assert "no recipe of sac for CartPole-v1" in lockstep("list", "--algorithm", "sac", "--env", "CartPole-v1").out
    said = lockstep("list", "--markdown", "--env", "CartPole-v1")
    assert said.code == 2
    assert "leave out --algorithm and --env" in said.err


def test_list_markdown_is_the_reference_of_every_option(lockstep: Command) -> None:
    text = lockstep("list", "--markdown").out
    written = (Path(__file__).parents[2] / "docs/reference.md").read_text()
    assert text.rstrip() == written.rstrip(), "options have changed: make pages"
    shared = text.partition("\n## Options of all algorithms\n")[2]
    for config_class in ALGORITHMS:
        part = text.partition(f"## Options of {config_class.algorithm}\n")[2].partition("\n## ")[0]
        for field in fields(config_class.training_class):
            row, is_changed = f"| `training.{field.name}` |", f"| `training.{field.name}` |" in part
            assert is_changed or row in shared
            default = getattr(config_class().training, field.name)
            if row in shared and default != getattr(AlgorithmConfig().training, field.name):
                assert is_changed, (config_class, field.name)
    assert re.findall(r"^\| `.*\|  \|$", text.partition("\n## Options of")[2], re.MULTILINE) == [], (
        "options without a meaning"
    )
    assert text.count("| `training.num_epochs` | `int` | `1` |") == 1, "a shared option stands once"
    for name, section in ALGORITHMS[0]().sections.items():
        assert all(f"| `{name}.{field.name}` |" in text for field in fields(section))
    assert "| `training.lambda_` | `float` | `0.95` | Lambda of GAE (Schulman et al. 2016). |" in text
    assert "| `rl_module.model_config.hiddens` |" in text


def test_doctor_of_a_run_shows_where_the_time_went(lockstep: Command, trained: Trained) -> None:
    said = lockstep("doctor", str(trained.runs[0]))
    assert said.code == 0
    summary = RunFolder.open(trained.runs[0]).read_summary()
    rows = dict(re.findall(r"^ *([a-z][a-z, ]*?)  +(\d+\.\d+) +\d+\.\d%", said.out, re.MULTILINE))
    assert set(rows) == {*summary["seconds_by_stage"], "checkpoints, logs"}
    assert float(rows["update"]) == pytest.approx(summary["seconds_by_stage"]["update"], abs=0.006)
    assert sum(map(float, rows.values())) == pytest.approx(summary["timing"]["total_time"], abs=0.05)
    assert "within the update: " in said.out


def test_doctor_of_a_run_says_what_keeps_it_from_learning(lockstep: Command, trained: Trained) -> None:
    said = lockstep("doctor", str(trained.runs[0]), "--expected-return", "1", "--no-play")
    assert said.code == 0
    assert said.out.startswith("It learns: ")
    assert "(1 is expected)" in said.out
    words = ("--set", "training.lr=0.0", "--root", "runs")
    assert lockstep("train", "ppo", "CartPole-v1", *SMALL, *words).code == 0
    (run,) = Path("runs").iterdir()
    said = lockstep("doctor", str(run))
    assert said.code == 0
    assert said.out.startswith("It does not learn: ")
    first = said.out.splitlines()[1:4]
    assert first[0] == "1. The learning rate is 0 (certain)"
    assert first[1].endswith("training.lr=0.0")
    assert first[2] == "   try:  set training.lr to a number such as 3e-4"
    (run / "summary.json").unlink()
    assert lockstep("doctor", str(run)).out.endswith("Where the time went is known when the run has ended.\n")


def test_doctor_of_an_environment_shows_findings_and_speed(lockstep: Command) -> None:
    said = lockstep("doctor", "CartPole-v1", "--steps", "300")
    assert said.code == 0
    assert "environment steps in a second" in said.out
    assert said.out.endswith("CartPole-v1: 0 errors, 0 warnings\n")
    said = lockstep("doctor", "cli_envs:NanReward")
    assert said.code == 1
    assert "error: the reward at step 1 is nan" in said.out
    assert "1 errors" in said.out
