"""The order of events, the ways to use a trainer, and how a run ends."""

import math
import os
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from trainer_tools import Recorder, RecordingLogger, Stops, config_for, learned

from lockstep.envs.counting import CountingEnv, CountingVectorEnv
from lockstep.envs.errors import EnvironmentStepError
from lockstep.tracking.statistics import CollectStats, EpochStats, InfoStats
from lockstep.trainer import Callback, EarlyStop, OnpolicyTrainer

EPOCH_OF_TWO = ["CollectEnd", "UpdateEnd", "CollectEnd", "UpdateEnd"]


def build(env="CartPole-v1", *, evaluate=True, step_per_collect=64, **options):
    """A trainer by hand, so that every parameter can be given."""
    config = config_for(env=env)
    if not evaluate:
        config.evaluation(evaluation_interval=0)
    template = config.build_trainer()
    given = {
        "max_epoch": 2,
        "batch_size": 32,
        "step_per_epoch": 128,
        "repeat_per_collect": 1,
        "step_per_collect": step_per_collect,
        "test_collector": template.test_collector,
        "episode_per_test": 3 if evaluate else None,
        **options,
    }
    if "episode_per_collect" in options:
        given["step_per_collect"] = None
    return OnpolicyTrainer(template.policy, train_collector=template.train_collector, **given)


def test_events_come_in_the_order_of_the_contract():
    log = []

    def note(name, result=None):
        def function(*arguments):
            log.append(name)
            return result

        return function

    trainer = build(
        train_fn=note("train_fn"),
        test_fn=note("test_fn"),
        stop_fn=note("stop_fn", False),
        compute_score_fn=lambda stats: (log.append("score"), float(len(log)))[1],
        save_best_fn=note("save_best_fn"),
        save_checkpoint_fn=lambda *where: (log.append(f"save {where}"), "somewhere")[1],
        logger=RecordingLogger(log),
        callbacks=[Recorder(log)],
    )
    for collector, name in ((trainer.train_collector, "train"), (trainer.test_collector, "test")):
        collector.on_step_hook = lambda step, name=name: log.append(name) if log[-1] != name else None
    log.extend(f"epoch {stats.epoch}" for stats in trainer)

    def evaluation(env_step):
        return ["test_fn", "test", "score", f"log test {env_step}", "EvaluationEnd", "save_best_fn", "stop_fn"]

    def update(env_step, gradient_step):
        collect = ["train_fn", "train", f"log train {env_step}", "CollectEnd"]
        return [*collect, f"log update {gradient_step}", "UpdateEnd"]

    assert log == [
        "RunStart",
        *evaluation(0),
        *update(64, 2),
        *update(128, 4),
        *evaluation(128),
        "save (1, 128, 4)",
        "CheckpointSaved",
        "log info 1",
        "EpochEnd",
        "epoch 1",
        *update(192, 6),
        *update(256, 8),
        *evaluation(256),
        "save (2, 256, 8)",
        "CheckpointSaved",
        "log info 2",
        "EpochEnd",
        "epoch 2",
        "RunEnd",
        "finalize",
    ]


def test_a_trainer_is_an_iterator_over_epochs_whose_items_unpack_into_three():
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


def test_two_trainers_take_turns_in_a_zip():
    one, two = build(), build(max_epoch=3)
    pairs = list(zip(one, two))
    assert [(left.epoch, right.epoch) for left, right in pairs] == [(1, 1), (2, 2)]
    assert one.stop_reason == "max_epoch"
    alone = build()
    alone.run()
    assert learned(one) == learned(alone)


def test_a_trainer_can_be_reset_and_run_again():
    trainer = build()
    first = trainer.run()
    trainer.reset()
    assert (trainer.epoch, trainer.env_step, trainer.gradient_step, trainer.best_score) == (0, 0, 0, None)
    assert trainer.history == []
    assert trainer.info().timing.total_time == 0.0
    again = trainer.run()
    assert (again.train_step, again.gradient_step, len(again.history)) == (256, 8, 2)
    assert first.history[0].train_collect_stat.returns != again.history[0].train_collect_stat.returns


def test_iterating_without_a_reset_resets_first_and_after_one_does_not_reset_twice():
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


def test_max_epoch_0_trains_nothing():
    saved = []
    trainer = build(max_epoch=0, save_checkpoint_fn=lambda *where: saved.append(where))
    before = learned(trainer)
    info = trainer.run()
    assert (info.train_step, info.gradient_step, info.test_episode, info.history) == (0, 0, 0, ())
    assert info.stop_reason == "max_epoch"
    assert learned(trainer) == before
    assert saved == [(0, 0, 0)]


def test_steps_beyond_the_epoch_are_counted_as_what_they_are_and_carried_over():
    trainer = build(max_epoch=3, step_per_epoch=100, step_per_collect=64)
    counted = [(stats.train_collect_stat.n_collected_steps, stats.info_stat.train_step) for stats in trainer]
    assert counted == [(128, 128), (128, 256), (64, 320)]  # 28 carried into the second, 56 into the third


def test_whole_episodes_may_be_collected_instead_of_steps():
    trainer = build(max_epoch=1, episode_per_collect=5)
    stats = next(trainer)
    collect = stats.train_collect_stat
    assert collect.n_collected_episodes % 5 == 0
    assert collect.n_collected_steps == sum(collect.lens) >= 128
    assert trainer.gradient_step == stats.training_stat.gradient_steps > 0


class Scores(Callback):
    """Every score with whether it was the best."""

    def __init__(self):
        self.seen = []

    def on_evaluation_end(self, event):
        self.seen.append((event.score, event.is_best))


def test_stop_fn_is_asked_about_the_current_score_and_not_the_best_one():
    scores = iter([50.0, 10.0, 20.0, 30.0])
    asked = []
    trainer = build(
        max_epoch=3,
        compute_score_fn=lambda stats: next(scores),
        stop_fn=lambda score: (asked.append(score), score == 20.0)[1],
    )
    info = trainer.run()
    assert asked == [50.0, 10.0, 20.0]
    assert (info.stop_reason, len(info.history), info.best_score, info.best_epoch) == ("stop_fn", 2, 50.0, 0)


def test_the_first_evaluation_may_stop_the_run_and_counts_as_best():
    saved, best = [], []
    trainer = build(
        stop_fn=lambda score: True,
        save_best_fn=best.append,
        save_checkpoint_fn=lambda *where: saved.append(where),
    )
    info = trainer.run()
    assert (info.stop_reason, info.train_step, info.history) == ("stop_fn", 0, ())
    assert best == [trainer.policy]
    assert saved == [(0, 0, 0)]
    assert info.best_epoch == 0


def test_the_best_of_negative_scores_is_the_largest():
    scores = iter([-300.0, -500.0, -200.0, -200.0])
    best, seen = [], Scores()
    trainer = build(
        max_epoch=3,
        compute_score_fn=lambda stats: next(scores),
        save_best_fn=lambda policy: best.append(policy.weights_seq_no),
        callbacks=[seen],
    )
    info = trainer.run()
    assert seen.seen == [(-300.0, True), (-500.0, False), (-200.0, True), (-200.0, False)]
    assert best == [0, 4]
    assert (info.best_score, info.best_epoch) == (-200.0, 2)
    assert info.best_reward == trainer.history[1].test_collect_stat.returns_stat.mean
    assert info.best_reward_std == trainer.history[1].test_collect_stat.returns_stat.std


def test_a_score_that_is_no_number_is_never_the_best():
    scores = iter([float("nan"), -5.0, float("nan")])
    trainer = build(compute_score_fn=lambda stats: next(scores))
    assert trainer.run().best_score == -5.0


def test_the_score_is_the_mean_return_unless_said_otherwise():
    seen = Scores()
    trainer = build(callbacks=[seen])
    info = trainer.run()
    returns = [stats.test_collect_stat.returns_stat.mean for stats in info.history]
    assert [score for score, _ in seen.seen][1:] == returns
    longest = build(compute_score_fn=lambda stats: max(stats.lens))
    assert longest.run().best_score == longest.best_stats.lens_stat.max


def test_evaluation_comes_every_test_interval_epochs_and_at_the_end():
    trainer = build(max_epoch=5, test_interval=2)
    evaluated = [stats.epoch for stats in trainer if stats.test_collect_stat is not None]
    assert evaluated == [2, 4, 5]


def test_checkpoints_come_every_checkpoint_interval_epochs_and_at_the_end():
    saved = []
    build(max_epoch=5, checkpoint_interval=2, save_checkpoint_fn=lambda *where: saved.append(where)).run()
    assert [epoch for epoch, _, _ in saved] == [2, 4, 5]


@pytest.mark.parametrize("event, env_step", [("CollectEnd", 64), ("UpdateEnd", 64), ("EpochEnd", 128)])
def test_a_callback_may_ask_to_stop_with_a_reason(event, env_step):
    saved, log = [], []
    trainer = build(
        max_epoch=4,
        callbacks=[Stops(event, "I have seen enough"), Recorder(log)],
        save_checkpoint_fn=lambda *where: saved.append(where),
    )
    info = trainer.run()
    assert info.stop_reason == "I have seen enough"
    assert info.train_step == env_step
    assert saved[-1][1] == env_step
    assert log[-1] == "RunEnd"
    assert log.count("UpdateEnd") == env_step // 64  # what was collected is still learned from


def test_early_stop_at_a_threshold_after_patience_and_after_a_time():
    scores = iter([1.0, 5.0, 3.0, 9.0])
    trainer = build(max_epoch=9, compute_score_fn=lambda stats: next(scores), callbacks=[EarlyStop(threshold=9.0)])
    assert trainer.run().stop_reason == "score 9 reached the threshold 9"
    scores = iter([1.0, 5.0, 3.0, 4.0, 6.0, 7.0])
    patient = EarlyStop(patience=2)
    trainer = build(max_epoch=9, compute_score_fn=lambda stats: next(scores), callbacks=[patient])
    assert trainer.run().stop_reason == "no better score in 2 evaluations"
    assert trainer.epoch == 3
    scores = iter([1.0, 2.0, 1.5, 3.0])
    trainer.max_epoch = 3
    assert trainer.run().stop_reason == "max_epoch"  # a new run counts from zero
    quick = build(max_epoch=9, callbacks=[EarlyStop(time_limit_s=1e-9)])
    assert quick.run().stop_reason == "time limit of 1e-09 s"
    assert build(max_epoch=1, callbacks=[EarlyStop(time_limit_s=1e6)]).run().stop_reason == "max_epoch"
    with pytest.raises(ValueError, match="threshold, patience or time_limit_s"):
        EarlyStop()


def test_test_in_train_allows_one_more_evaluation_in_an_epoch():
    asked = []
    trainer = build(
        max_epoch=1,
        test_in_train=True,
        compute_score_fn=lambda stats: 7.0,
        stop_fn=lambda score: (asked.append(score), len(asked) == 2)[1],  # yes to the training return only
    )
    info = trainer.run()
    assert info.test_episode == 9
    assert info.stop_reason == "max_epoch"
    with pytest.warns(UserWarning, match="test_in_train=True is off"):
        build(test_in_train=True)


@pytest.mark.parametrize("where", ["train_fn", "collect", "UpdateEnd", "test_fn"])
def test_an_interrupt_anywhere_ends_the_run_in_order_with_a_checkpoint(where):
    saved, log = [], []

    def interrupt(*arguments):
        if trainer.epoch == 2:
            raise KeyboardInterrupt

    class AtUpdate(Callback):
        def on_update_end(self, event):
            interrupt()

    options = {where: interrupt} if where.endswith("_fn") else {}
    watchers = [AtUpdate()] if where == "UpdateEnd" else []
    trainer = build(
        max_epoch=4,
        save_checkpoint_fn=lambda *at: (saved.append(at), trainer.get_state())[0],
        callbacks=[*watchers, Recorder(log)],
        **options,
    )
    if where == "collect":
        trainer.train_collector.on_step_hook = interrupt
    info = trainer.run()
    assert info.stop_reason == "interrupted"
    assert len(info.history) == 1
    assert saved[-1][0] == 2
    assert log[-1] == "RunEnd"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_waits_for_the_end_of_the_update_and_the_second_one_does_not():
    events = []

    def press(*arguments):
        if trainer.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
            events.append("pressed")

    trainer = build(max_epoch=3, callbacks=[Recorder(events)], train_fn=press)
    info = trainer.run()
    assert info.stop_reason == "interrupted"
    assert events == ["RunStart", "EvaluationEnd", "pressed", "CollectEnd", "UpdateEnd", "RunEnd"]
    assert (info.train_step, info.history) == (64, ())

    def press_twice(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        events.append("not reached")

    events.clear()
    trainer = build(max_epoch=3, callbacks=[Recorder(events)], train_fn=press_twice)
    assert trainer.run().stop_reason == "interrupted"
    assert events == ["RunStart", "EvaluationEnd", "RunEnd"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_in_another_thread_leaves_signals_alone():
    trainer = build(max_epoch=1)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert trainer.stop_reason == "max_epoch"


class Failing(gym.Env):
    """Raises in its 100th step."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)
    count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        type(self).count += 1
        if type(self).count == 100:
            raise ZeroDivisionError("in the simulator")
        done = type(self).count % 9 == 0
        return np.zeros(2, np.float32), 1.0, done, False, {}


def test_an_error_in_an_environment_arrives_whole_after_a_last_checkpoint():
    Failing.count, saved, log = 0, [], []
    trainer = build(
        Failing,
        evaluate=False,
        save_checkpoint_fn=lambda *at: (saved.append(at), trainer.get_state(), "somewhere")[2],
        callbacks=[Recorder(log)],
    )
    with pytest.raises(EnvironmentStepError, match="ZeroDivisionError: in the simulator") as caught:
        trainer.run()
    assert caught.value.env_index == 99 % 4
    assert type(caught.value.__cause__) is ZeroDivisionError
    assert any(entry.name == "step" and entry.path.name == "test_trainer_run.py" for entry in _tracebacks(caught))
    assert saved == [(1, 64, 2)]  # one rollout was whole
    assert log == ["RunStart", "CollectEnd", "UpdateEnd", "CheckpointSaved", "RunEnd"]
    assert trainer.stop_reason == "error"


def _tracebacks(caught):
    from _pytest._code import Traceback

    return [*caught.traceback, *Traceback(caught.value.__cause__.__traceback__)]


@pytest.mark.parametrize("where", ["train_fn", "test_fn", "save_best_fn", "callback", "update"])
def test_an_error_anywhere_is_raised_after_a_last_checkpoint(where):
    saved = []

    def fail(*arguments, **options):
        raise LookupError("mine")

    class AtCollect(Callback):
        on_collect_end = fail

    options = {where: fail} if where.endswith("_fn") else {"callbacks": [AtCollect()]} if where == "callback" else {}
    trainer = build(save_checkpoint_fn=lambda *at: (saved.append(at), trainer.get_state())[0], **options)
    if where == "update":
        trainer.policy.learner_group.learner.compute_losses = fail
    with pytest.raises(LookupError, match="mine"):
        trainer.run()
    assert trainer.stop_reason == "error"
    assert len(saved) == 1
    assert len(trainer.buffer) == 0


def test_a_last_checkpoint_that_fails_too_does_not_hide_the_first_error():
    def fail(*arguments):
        raise LookupError("first")

    def fail_too(*arguments):
        raise OSError("second")

    with pytest.raises(LookupError, match="first") as caught:
        build(train_fn=fail, save_checkpoint_fn=fail_too).run()
    assert caught.value.__notes__ == ["the run could not be ended in order either: second"]


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_with_step_metric_and_batch(factor, folder):
    from lockstep.state.checkpoint import read_checkpoint
    from lockstep.trainer import save_trainer

    trainer = build(max_epoch=2, save_checkpoint_fn=lambda *at: save_trainer(trainer, folder / "last"))
    learner, plain = trainer.policy.learner_group.learner, trainer.policy.learner_group.learner.compute_losses

    def poisoned(**arguments):
        losses = plain(**arguments)
        if trainer.env_step == 128:
            learner.log("default_policy", policy_loss=losses["default_policy"] * factor)
        return losses

    learner.compute_losses = poisoned
    expected = "policy_loss is not finite at environment step 128, gradient step 4"
    with pytest.raises(FloatingPointError, match=expected):
        trainer.run()
    batch = read_checkpoint(folder / "last")["bad_batch"]["batch"]
    assert batch["obs"].shape == (16, 4, 4)
    assert batch["rewards"].shape == (16, 4)
    assert read_checkpoint(folder / "last")["trainer"]["state"]["stop_reason"] == "error"
    learner.compute_losses = plain
    trainer.reset()
    assert trainer.bad_batch is None
    going_on = build(max_epoch=1, nan_policy="ignore")
    ignoring = going_on.policy.learner_group.learner
    spoiled = ignoring.compute_losses

    def spoiling(**arguments):
        losses = spoiled(**arguments)
        ignoring.log("default_policy", policy_loss=losses["default_policy"] * factor)
        return losses

    ignoring.compute_losses = spoiling
    info = going_on.run()
    assert info.stop_reason == "max_epoch"
    seen = info.history[0].training_stat.metrics["policy_loss"]
    assert not math.isfinite(seen.mean)
    assert seen.count > 0


@pytest.mark.parametrize("evaluate", [False, True])
def test_an_environment_whose_episodes_never_end_is_told_after_the_first_epoch(evaluate):
    trainer = build(lambda: gym.make("CartPole-v1").unwrapped, evaluate=evaluate, max_epoch=1)
    for env in trainer.train_collector.env.envs:
        env.unwrapped.theta_threshold_radians = env.unwrapped.x_threshold = 1e9
    with pytest.warns(UserWarning, match=r"no training episode ended in the first 128 steps.*TimeLimit"):
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
        assert collect.returns == tuple(float(length) for length in collect.lens)  # CartPole pays 1 a step
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


@pytest.mark.parametrize("own_score", [{}, {"compute_score_fn": lambda stats: 7.0}])
def test_an_empty_evaluation_is_an_error(own_score):
    trainer = build(**own_score)
    trainer.test_collector.collect = lambda n_episode: CollectStats(0, 30)
    with pytest.raises(ValueError, match="the evaluation has no finished episode; raise episode_per_test"):
        trainer.run()
    assert (trainer.stop_reason, trainer.best_score) == ("error", None)


def test_a_run_may_go_on_from_the_counters_of_a_log(folder):
    from lockstep.tracking import JsonlLogger

    build(max_epoch=2, logger=JsonlLogger(folder / "metrics.jsonl")).run()
    logger = JsonlLogger(folder / "metrics.jsonl", resume=True)
    trainer = build(max_epoch=3, logger=logger, resume_from_log=True)
    assert [(stats.epoch, stats.info_stat.train_step) for stats in trainer] == [(3, 384)]
    assert trainer.gradient_step == 12
    assert trainer.policy.timesteps == {"num_env_steps_sampled_lifetime": 384}
    assert [stats.epoch for stats in trainer] == [1, 2, 3]  # the next run is a new one


def test_verbose_prints_a_line_for_each_evaluation_with_its_return_and_else_nothing_is_printed(capsys):
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


def test_show_progress_shows_plain_lines_only_where_the_output_is_no_terminal(capsys):
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


def test_rows_that_only_reset_are_in_no_statistics_of_the_policy():
    from gymnasium.vector import AutoresetMode

    episodes = ((1, "terminate"), (3, "truncate"), (2, "terminate"))
    vector = CountingVectorEnv(4, episodes, AutoresetMode.NEXT_STEP)
    config = config_for(env=vector, evaluation={"evaluation_interval": 0})
    trainer = config.build_trainer()
    stats = next(trainer)
    steps = stats.train_collect_stat.n_collected_steps
    assert steps < 128 * 1.5
    connectors = trainer.policy.connectors
    assert connectors.rewards.moments.count == steps
    assert connectors.get_state()["obs"]["0_NormalizeObs"]["leaves"][0]["count"] == steps
    assert trainer.env_step == steps


class Nested(CountingEnv):
    """Observations are a dict with a tuple in it."""

    def __init__(self):
        super().__init__(((5, "terminate"), (8, "truncate")))
        parts = (spaces.Discrete(9), spaces.MultiBinary(2))
        self.observation_space = spaces.Dict({"step": spaces.Box(0.0, 9.0, (1,)), "rest": spaces.Tuple(parts)})

    def _observation(self):
        parity = np.array([self.step_number % 2, self.episode_number % 2], np.int8)
        return {"step": np.array([self.step_number], np.float32), "rest": (np.int64(self.step_number), parity)}


def test_nested_observations_are_trained_on_and_resumed(folder):
    from lockstep.trainer import restore_trainer, save_trainer

    def make():
        return config_for(env=Nested, total_steps=256).build_trainer()

    whole = make()
    first = next(whole)
    assert first.train_collect_stat.lens_stat.max == 8
    path = save_trainer(whole, folder / "checkpoint")
    next(whole)
    resumed = make()
    restore_trainer(resumed, path)
    resumed.run()
    assert learned(resumed) == learned(whole)
