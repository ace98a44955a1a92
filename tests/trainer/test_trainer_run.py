"""The ways to use a trainer, scores and statistics. How a run ends: `test_trainer_ends.py`."""

import subprocess
import sys
from functools import partial

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv
from scenario_tools import KINDS, trainer_of
from trainer_tools import Recorder, build, config_for

from lockstep import Collector
from lockstep.tracking.statistics import EpochStats, InfoStats
from lockstep.trainer import Callback


def test_a_trainer_iterates_over_epochs_that_unpack_into_three():
    trainer = build()
    assert iter(trainer) is trainer
    seen = []
    for epoch, stats, info in trainer:
        assert isinstance(stats, EpochStats)
        assert isinstance(info, InfoStats)
        assert (stats.epoch, stats.info_stat) == (epoch, info)
        seen.append((epoch, info.train_step, info.gradient_step))
    assert seen == [(1, 128, 4), (2, 256, 8)]
    with pytest.raises(StopIteration):
        next(trainer)
    with pytest.raises(StopIteration):
        next(trainer)


def test_run_goes_to_the_end_and_returns_the_whole_history():
    ended, tests = [], []

    class Watching(Callback):
        def on_evaluation_end(self, event):
            tests.append(event.stats)

        def on_run_end(self, event):
            ended.append(event.info)

    trainer = build(callbacks=[Watching()])
    info = trainer.run()
    assert ended == [info]  # with the history
    assert info.stop_reason == "max_epoch"
    assert [stats.epoch for stats in info.history] == [1, 2]
    assert (info.train_step, info.gradient_step) == (256, 8)
    assert info.train_episode == sum(stats.train_collect_stat.n_collected_episodes for stats in info.history)
    assert info.test_episode == 9  # before the first epoch, and after each
    assert info.test_step == sum(sum(stats.lens) for stats in tests) > info.test_episode
    assert info.history[1].info_stat.train_step == 256


def test_iterating_resets_once_with_or_without_an_explicit_reset():
    resets = []

    def counted(trainer):
        collector = trainer.train_collector
        before = collector.reset_env
        collector.reset_env = lambda: (resets.append(1), before())[1]
        return trainer

    trainer = counted(build(max_epoch=1))
    assert [stats.epoch for stats in trainer] == [1]
    assert len(resets) == 1
    assert [stats.epoch for stats in trainer] == [1]
    assert len(resets) == 2
    trainer.reset()
    assert len(resets) == 3
    next(trainer)
    assert len(resets) == 3
    trainer.reset(reset_collectors=False)
    trainer.run()
    assert len(resets) == 3
    assert trainer.env_step == 128


def test_a_run_that_was_left_ends_when_the_next_begins():
    log = []
    trainer = build(max_epoch=3, callbacks=[Recorder(log)])
    next(trainer)
    trainer.run()
    assert log.count("RunStart") == log.count("RunEnd") == 2
    assert trainer.epoch == 3


class Scores(Callback):
    """Every score with whether it was the best."""

    def __init__(self):
        self.seen = []

    def on_evaluation_end(self, event):
        self.seen.append((event.score, event.is_best))


def test_a_score_that_is_no_number_is_never_the_best():
    scores = iter([float("nan"), -5.0, float("nan")])
    trainer = build(compute_score_fn=lambda stats: next(scores))
    with pytest.warns(UserWarning, match="compute_score_fn returned nan .* such a score is never the best"):
        assert trainer.run().best_score == -5.0


def test_the_score_is_the_mean_return_unless_said_otherwise():
    seen = Scores()
    trainer = build(callbacks=[seen])
    info = trainer.run()
    returns = [stats.test_collect_stat.returns_stat.mean for stats in info.history]
    assert [score for score, _ in seen.seen][1:] == returns
    longest = build(compute_score_fn=lambda stats: max(stats.lens))
    assert longest.run().best_score == longest.best_stats.lens_stat.max


@pytest.mark.parametrize("evaluate", [False, True])
def test_an_environment_with_endless_episodes_is_reported_after_an_epoch(evaluate):
    trainer = build(lambda: gym.make("CartPole-v1").unwrapped, evaluate=evaluate, max_epoch=1, step_per_epoch=2048)
    for env in trainer.train_collector.env.envs:
        env.unwrapped.theta_threshold_radians = env.unwrapped.x_threshold = 1e9
    with pytest.warns(UserWarning, match=r"no training episode ended in the first 2048 steps.*TimeLimit"):
        info = trainer.run()
    assert info.test_episode == (6 if evaluate else 0)  # those of evaluation end


def test_statistics_are_those_of_the_epoch():
    trainer = build(max_epoch=2)
    info = trainer.run()
    for stats in info.history:
        collect = stats.train_collect_stat
        assert collect.n_collected_steps == 128
        assert collect.n_collected_episodes == len(collect.returns) == len(collect.lens)
        assert collect.returns_stat.count == len(collect.returns)
        assert collect.returns.tolist() == [float(length) for length in collect.lens]  # CartPole pays 1 a step
        assert collect.collect_speed == pytest.approx(128 / collect.collect_time)
        training = stats.training_stat
        assert training.gradient_steps == 4
        assert training.metrics["policy_loss"].count == 4
        assert set(training.get_loss_stats_dict()) >= {"policy_loss", "vf_loss", "entropy", "total_loss"}
        assert training.get_loss_stats_dict()["vf_loss"] == training.metrics["vf_loss"].mean
        assert training.train_time > 0
    timing = info.timing
    parts = (timing.train_time_collect, timing.train_time_update, timing.test_time, timing.env_time, timing.act_time)
    assert all(part > 0 for part in parts)
    assert timing.train_time == timing.train_time_collect + timing.train_time_update
    assert timing.total_time >= timing.train_time + timing.test_time
    assert timing.update_speed == pytest.approx(256 / timing.train_time)


def test_verbose_prints_one_line_per_evaluation_and_nothing_else(capsys):
    build().run()
    assert capsys.readouterr().out == ""
    # test_in_train: the training return suffices in each epoch, the evaluations never do
    asked, told = iter([False, True, False, False, True, False, False]), []
    options = {"stop_fn": lambda score: next(asked), "train_fn": lambda *where: told.append(capsys.readouterr().out)}
    trainer = build(verbose=True, test_in_train=True, **options)
    scores = Scores()
    trainer.callbacks.append(scores)
    trainer.run()
    told.append(capsys.readouterr().out)
    assert [len(part.splitlines()) for part in told] == [1] * 5  # each at once
    lines = "".join(told).splitlines()
    assert [line.split("/")[0].strip() for line in lines] == ["0", "64", "128", "192", "256"]
    assert [f"evaluation return {score:.4g} ±" in line for line, (score, _) in zip(lines, scores.seen)] == [True] * 5
    assert ["policy_loss" in line for line in lines] == [False, False, True, False, True]


def test_show_progress_prints_plain_lines_without_a_terminal(capsys):
    told = []
    build(show_progress=True, train_fn=lambda *where: told.append(capsys.readouterr().out)).run()
    told.append(capsys.readouterr().out)
    assert ["evaluation" in part for part in told] == [
        True,
        False,
        True,
        False,
        True,
    ]  # each line as soon as it is known
    text = "".join(told)
    assert "\x1b" not in text
    assert [line.split("/")[0].strip() for line in text.splitlines()] == ["0", "128", "256"]


@pytest.mark.parametrize("own_vector", [False, True])
def test_no_word_of_episodes_that_never_end_before_their_known_limit(own_vector, recwarn):
    config = config_for(env="Pendulum-v1", total_steps=768)  # 192 steps of each, episodes have 200
    vector = SyncVectorEnv([lambda: gym.make("Pendulum-v1")] * 4, autoreset_mode="SameStep")
    trainer = build("Pendulum-v1", max_epoch=6, train_collector=partial(Collector, env=vector))
    if not own_vector:
        trainer = config.build_trainer()
    assert trainer.run().train_step == 768
    assert not [one for one in recwarn if "no training episode ended" in str(one.message)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_in_mid_epoch_does_not_explore(kind):
    asked, exploring = [], []
    trainer = trainer_of(
        kind,
        max_epoch=1,
        test_in_train=True,
        stop_fn=lambda score: (asked.append(score), len(asked) == 2)[1],  # yes to the training return only
    )
    collector, collect = trainer.test_collector, trainer.test_collector.collect

    def watched(**amount):
        exploring.append(trainer.policy.is_exploring)
        return collect(**amount)

    collector.collect = watched
    trainer.run()
    assert exploring == [False] * 3


STARTS = """
import sys
from lockstep import get_config

for name, env in (("ppo", "CartPole-v1"), ("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")):
    config = get_config(name).environment(env).reporting(total_steps=400, steps_per_epoch=200)
    config.evaluation(evaluation_interval=0)
    if name == "ppo":
        config.training(train_batch_size=200)
    else:
        config.replay(learning_starts=150, update_per_step=0.05)
    trainer = config.build_trainer()
    next(trainer)
    state = trainer.get_state()
    trainer.set_state(state)
    next(trainer)
    assert trainer.gradient_step > 0
print([name for name in ("torch._dynamo", "sympy", "ray", "matplotlib", "tensorboard") if name in sys.modules])
"""


def test_a_run_loads_nothing_that_it_does_not_use():
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
