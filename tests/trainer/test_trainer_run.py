"""The order of events, the ways to use a trainer, scores and statistics. How a run ends: `test_trainer_ends.py`."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from trainer_tools import Recorder, RecordingLogger, build, config_for, learned

from lockstep.envs.counting import CountingEnv, CountingVectorEnv
from lockstep.tracking.statistics import EpochStats, InfoStats
from lockstep.trainer import Callback


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
    assert first.history[0].train_collect_stat != again.history[0].train_collect_stat


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


def test_evaluation_comes_every_test_interval_epochs_and_at_the_end():
    trainer = build(max_epoch=5, test_interval=2)
    evaluated = [stats.epoch for stats in trainer if stats.test_collect_stat is not None]
    assert evaluated == [2, 4, 5]


def test_checkpoints_come_every_checkpoint_interval_epochs_and_at_the_end():
    saved = []
    build(max_epoch=5, checkpoint_interval=2, save_checkpoint_fn=lambda *where: saved.append(where)).run()
    assert [epoch for epoch, _, _ in saved] == [2, 4, 5]


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


@pytest.mark.parametrize("evaluate", [False, True])
def test_an_environment_whose_episodes_never_end_is_told_after_the_first_epoch(evaluate):
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
