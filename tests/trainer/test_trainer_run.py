"""The ways to use a trainer, scores and statistics. How a run ends: `test_trainer_ends.py`."""

import subprocess
import sys
import warnings
from functools import partial

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv
from scenario_tools import KINDS, TRAINERS, outcome_of, position, trainer_of
from trainer_tools import Recorder, build, config_for, learned, noting

from lockstep import Collector
from lockstep.tracking.statistics import EpochStats, InfoStats, TimingStats
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


@pytest.mark.parametrize("kind", TRAINERS)
def test_events_come_in_the_order_of_the_contract(kind):
    log = []
    options = noting(log)
    note = options.pop("save_checkpoint_fn")
    trainer = trainer_of(kind, max_epoch=2, save_checkpoint_fn=lambda *where: note(*where) or "somewhere", **options)
    for collector, name in ((trainer.train_collector, "train"), (trainer.test_collector, "test")):
        if collector is not None:
            collector.on_step_hook = lambda step, name=name: log.append(name) if log[-1] != name else None
    log.extend(f"epoch {stats.epoch}" for stats in trainer)

    def evaluation(epoch, updates):
        step, gradient_step = position(kind, updates)
        test = [f"test_fn {epoch} {step}", "test", "score", f"log test {step or gradient_step}"]
        return [*test, "EvaluationEnd", "save_best", "stop_fn"]

    def update(epoch, updates):
        step, gradient_step = position(kind, updates)
        collect = [] if kind == "offline" else ["train", f"log train {step}", "CollectEnd"]
        called = f"train_fn {epoch} {position(kind, updates - 1)[0]}"
        return [called, *collect, f"log update {gradient_step}", "UpdateEnd"]

    def end(epoch, updates):
        saved = [f"checkpoint {(epoch, *position(kind, updates))}", "CheckpointSaved"]
        return [*saved, f"log info {epoch}", "EpochEnd", f"epoch {epoch}"]

    first = [*update(1, 1), *update(1, 2), *evaluation(1, 2), *end(1, 2)]
    second = [*update(2, 3), *update(2, 4), *evaluation(2, 4), *end(2, 4)]
    assert log == ["RunStart", *evaluation(0, 0), *first, *second, "RunEnd", "finalize"]


@pytest.mark.parametrize("kind", KINDS)
def test_returns_and_lengths_span_collects_of_whole_episodes(kind):
    trainer = trainer_of(
        kind, step_per_collect=6, step_per_epoch=18, max_epoch=2
    )  # three vector steps, episodes of four
    first, second = list(trainer)
    assert first.train_collect_stat.returns.tolist() == [-4.0] * 4
    assert first.train_collect_stat.lens.tolist() == [4] * 4
    assert second.train_collect_stat.n_collected_episodes == 4
    assert trainer.info().train_episode == 8


@pytest.mark.parametrize("after", ["the end", "an interrupt", "an error", "one epoch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_is_reset_and_run_again_after(kind, after):
    class Once(Callback):
        left = 1

        def on_update_end(self, event):
            if event.env_step == 24 and self.left and after != "the end":
                self.left = 0
                raise KeyboardInterrupt if after == "an interrupt" else LookupError("once")

    options = {"update_per_step": 0.3} if kind == "off" else {}
    trainer = trainer_of(kind, callbacks=[] if after in ("the end", "one epoch") else [Once()], **options)
    if after == "one epoch":
        next(trainer)
    elif after == "an error":
        with pytest.raises(LookupError):
            trainer.run()
    else:
        trainer.run()
    trainer.reset(reset_buffer=True)
    zero = outcome_of(trainer)
    assert (zero.env_step, zero.gradient_step, zero.evaluations, zero.best, zero.reason, zero.epochs) == (
        *(0, 0, 0, None, None, 0),
    )
    assert (trainer.info().timing, trainer.last_test, trainer.history) == (TimingStats(), None, [])
    assert len(trainer.buffer.episodes() if kind == "on" else trainer.buffer) == 0
    assert [stats.epoch for stats in trainer] == [1, 2, 3]
    again = outcome_of(trainer)
    updates = 6 if kind == "on" else 14  # 48 * 0.3: the fraction begins anew too
    assert (again.env_step, again.gradient_step, again.steps) == (48, updates, [16] * 3)


def test_two_kinds_of_trainers_alternate_in_a_zip_as_if_alone():
    on, off = trainer_of("on"), trainer_of("off", max_epoch=2)
    assert [(a.epoch, b.epoch) for a, b in zip(off, on)] == [(1, 1), (2, 2)]
    assert (off.stop_reason, on.stop_reason) == ("max_epoch", None)
    assert next(on).epoch == 3
    for trainer in (on, off):
        with pytest.raises(StopIteration):
            next(trainer)
    for kind, trainer in (("on", on), ("off", off)):
        alone = trainer_of(kind, max_epoch=trainer.max_epoch)
        alone.run()
        assert learned(alone) == learned(trainer)


def test_a_score_of_another_type_than_a_number_is_refused():
    with pytest.raises(TypeError, match="compute_score_fn returned None; it must return a number"):
        trainer_of("on", compute_score_fn=lambda stats: None).run()


def test_test_in_train_is_off_with_a_warning_where_it_cannot_work():
    with pytest.warns(UserWarning, match="test_in_train=True is off"):
        trainer = trainer_of("off", test_in_train=True)
    assert not trainer.test_in_train
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer_of("off", test_in_train=True, stop_fn=bool).test_in_train


def test_total_steps_by_hand_are_those_of_each_run():
    trainer = trainer_of("on", max_epoch=9, total_steps=24)
    assert [trainer.run().train_step for _ in range(2)] == [24, 24]
    with pytest.raises(ValueError, match="total_steps=0 is not allowed"):
        trainer_of("on", total_steps=0)
