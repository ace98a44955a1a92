"""Evaluation: by steps, with settings and functions of one's own, in env runners of its own, beside training."""

from __future__ import annotations

import copy
import json
import re
import threading
from contextlib import suppress

import gymnasium as gym
import numpy as np
import pytest
from parts import one_in
from trainer_tools import At, config_for, learned

from lockstep import PPOConfig, load_policy
from lockstep.rollout.runner_group import LocalRunner
from lockstep.runs.run import prepare_run
from lockstep.tracking import read_metrics
from lockstep.trainer import Callback, restore_trainer, save_trainer

BESIDE = {"evaluation_parallel_to_training": True}


def run_of(*, callbacks=(), **evaluation):
    """Three epochs of PPO on CartPole, trained to the end."""
    config = config_for(total_steps=384).evaluation(evaluation_duration=3, **evaluation)
    trainer = config.build_trainer(callbacks=callbacks)
    trainer.run()
    trainer.close()
    return trainer


def returns_of(trainer):
    return [None if e.test_collect_stat is None else e.test_collect_stat.returns.tolist() for e in trainer.history]


class Evaluations(Callback):
    """Epoch, steps and score of each evaluation, and the epochs in which it was reported."""

    def __init__(self):
        self.found, self.reported = [], []

    def on_run_start(self, event):
        self.trainer = event.trainer

    def on_evaluation_end(self, event):
        self.found.append((event.epoch, event.env_step, event.gradient_step, event.score, event.is_best))
        self.reported.append(self.trainer.epoch)


@pytest.fixture(scope="module")
def in_turn():
    watcher = Evaluations()
    return run_of(callbacks=[watcher]), watcher


# -- beside training ---


def test_beside_training_each_epoch_has_the_evaluation_of_its_own_policy(in_turn):
    trainer, watcher = in_turn
    other = Evaluations()
    beside = run_of(callbacks=[other], **BESIDE)
    assert learned(beside) == learned(trainer)
    assert returns_of(beside) == returns_of(trainer)
    assert other.found == watcher.found
    assert watcher.reported == [0, 1, 2, 3]
    assert other.reported == [1, 2, 3, 3]  # at the end of the epoch that trained meanwhile; the last is waited for
    for name in ("best_score", "best_epoch", "test_env_step", "test_episode"):
        assert getattr(beside, name) == getattr(trainer, name), name


@pytest.mark.parametrize("algorithm", one_in(3, ["dqn", "sac", "bc"]))
def test_beside_training_other_trainers_keep_their_bits_too(algorithm):
    found = []
    for options in ({}, BESIDE):
        config = config_for(algorithm, total_steps=256).evaluation(**options)
        if config.is_offline:
            config.evaluation(evaluation_interval=1).reporting(total_steps=40, steps_per_epoch=20)
        trainer = config.build_trainer()
        trainer.run()
        found.append((learned(trainer), returns_of(trainer), trainer.best_score))
        trainer.close()
    assert found[0] == found[1]


def test_training_continues_while_an_earlier_policy_is_evaluated():
    """The evaluation of epoch 1 waits until epoch 2 has trained, and still sees the policy of epoch 1."""
    trained, seen = threading.Event(), []

    def evaluate(policy, collector):
        if len(seen) == 1:
            assert trained.wait(20)
        seen.append(policy.weights_seq_no)
        return float(len(seen))

    class Trained(Callback):
        def on_update_end(self, event):
            if event.epoch == 2:
                trained.set()

    trainer = run_of(callbacks=[Trained()], custom_evaluation_function=evaluate, **BESIDE)
    assert seen == [0, 2, 4, 6]  # updates: two in each epoch
    assert trainer.best_score == 4.0


POLICIES: dict[int, dict[str, np.ndarray]] = {}
"""parameters of the policies that `good_after_an_epoch` saw, by their version"""


def good_after_an_epoch(policy, collector):
    POLICIES[policy.weights_seq_no] = copy.deepcopy(policy.module.get_state())
    return [0.0, 5.0, 1.0][len(POLICIES) - 1]


def test_parallel_evaluation_stops_a_run_and_keeps_the_best_snapshot(tmp_path):
    """`stop_fn` is satisfied by the policy of epoch 1: the run ends with epoch 2, whose policy is evaluated, too."""
    POLICIES.clear()
    options = {"stop_return": 5.0, "custom_evaluation_function": good_after_an_epoch, **BESIDE}
    result = prepare_run(config_for(total_steps=512).evaluation(**options), tmp_path).finish()
    assert (result.info.stop_reason, result.info.best_epoch, len(result.history)) == ("stop_fn", 1, 2)
    best, second = load_policy(result.path), sorted(POLICIES)[1]
    assert best.weights_seq_no == second
    for name, value in best.module.get_state().items():
        np.testing.assert_array_equal(value, POLICIES[second][name])
    tests = [record for record in read_metrics(result.path / "metrics.jsonl") if record["scope"] == "test"]
    assert [(record["step"], record["data"]["score"]) for record in tests] == [(0, 0.0), (128, 5.0), (256, 1.0)]


POINTS = {
    "inside an epoch": ("UpdateEnd", 192, KeyboardInterrupt),
    "at an error inside an epoch": ("UpdateEnd", 192, LookupError),
    "after an epoch": ("EpochEnd", 128, KeyboardInterrupt),
    "before the first epoch ends": ("UpdateEnd", 64, KeyboardInterrupt),
}


@pytest.mark.parametrize("point", one_in(2, POINTS))
def test_a_run_goes_on_bit_by_bit_while_an_evaluation_is_under_way(point, in_turn, tmp_path):
    name, env_step, error = POINTS[point]
    config = config_for(total_steps=384).evaluation(evaluation_duration=3, **BESIDE)
    first = config.build_trainer(callbacks=[At(name, env_step, error())])
    first.save_checkpoint_fn = lambda *where: save_trainer(first, tmp_path / str(where))
    with suppress(LookupError):
        first.run()
    first.close()
    newest = max(tmp_path.glob("*"), key=lambda path: path.stat().st_mtime_ns)
    assert any(newest.glob("evaluation/*")) == (point != "after an epoch")  # else the policy is the checkpoint's
    again, watcher = config.build_trainer(), Evaluations()
    again.callbacks.append(watcher)
    restore_trainer(again, newest)
    again.run()
    again.close()
    straight, evaluations = in_turn
    assert learned(again) == learned(straight)
    assert returns_of(again) == returns_of(straight)
    assert watcher.found == evaluations.found[-len(watcher.found) :]
    assert (again.best_score, again.test_env_step) == (straight.best_score, straight.test_env_step)


def test_a_parallel_evaluations_checkpoint_needs_parallel_evaluation(in_turn, tmp_path):
    config = config_for(total_steps=384).evaluation(**BESIDE)
    first = config.build_trainer(callbacks=[At("UpdateEnd", 192, KeyboardInterrupt())])
    first.save_checkpoint_fn = lambda *where: save_trainer(first, tmp_path / "checkpoint")
    first.run()
    first.close()
    other = config_for(total_steps=384).build_trainer()
    with pytest.raises(
        ValueError, match="epoch 1 was running in parallel to training; continue with evaluation_parallel"
    ):
        restore_trainer(other, tmp_path / "checkpoint")
    other.run()
    assert learned(other) == learned(in_turn[0])  # nothing was changed
    other.close()


def test_what_an_evaluation_beside_training_raises_ends_the_run():
    def evaluate(policy, collector):
        raise LookupError("of the evaluation")

    with pytest.raises(LookupError, match="of the evaluation"):
        run_of(custom_evaluation_function=evaluate, **BESIDE)


class Ended(Callback):
    """Numbers the episodes that it is told of, and takes down which trainer's thread calls."""

    number = 0

    def on_episode_end(self, episode, env_index):
        self.number += 1
        self.metrics.log_value("number", self.number, reduce="max")
        self.metrics.log_value("length", len(episode))
        self.metrics.log_value("beside", threading.current_thread() is not threading.main_thread(), reduce="max")

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


def ended_config(**evaluation):
    return config_for(total_steps=384).callbacks(Ended).evaluation(evaluation_duration=5, **evaluation)


def metrics_of(trainer):
    return [dict(epoch.test_collect_stat.metrics) for epoch in trainer.history]


def test_environment_callbacks_have_their_own_instance_beside_training():
    turn, beside = (ended_config(**more).build_trainer() for more in ({}, BESIDE))
    for trainer in (turn, beside):
        trainer.run()
        trainer.close()
    assert learned(beside) == learned(turn)
    found = metrics_of(beside)
    assert [numbers["length"] for numbers in found] == [numbers["length"] for numbers in metrics_of(turn)]
    assert [numbers["number"] for numbers in found] == [10, 15, 20]  # five before the first epoch
    assert {numbers["beside"] for numbers in found} == {1}
    assert {epoch.train_collect_stat.metrics["beside"] for epoch in beside.history} == {0}


def test_callbacks_of_parallel_evaluation_resume_where_it_started(tmp_path):
    straight = ended_config(**BESIDE).build_trainer()
    first = ended_config(**BESIDE).build_trainer(callbacks=[At("UpdateEnd", 192, KeyboardInterrupt())])
    again = ended_config(**BESIDE).build_trainer()
    first.save_checkpoint_fn = lambda *where: save_trainer(first, tmp_path / "checkpoint")
    straight.run()
    first.run()
    restore_trainer(again, tmp_path / "checkpoint")
    again.run()
    assert metrics_of(again) == metrics_of(straight)
    for trainer in (straight, first, again):
        trainer.close()


def test_callbacks_of_environments_that_evaluation_cannot_call_are_refused(monkeypatch):
    monkeypatch.setattr(
        "lockstep.cluster.ray_runners.RayRunnerBackend", lambda build, section, **options: LocalRunner(build)
    )
    with pytest.raises(ValueError, match=r"on_episode_end.*at once with evaluation_parallel.*give the class"):
        config_for().evaluation(**BESIDE).build_trainer(callbacks=[Ended()])
    apart = config_for().evaluation(evaluation_num_env_runners=1)
    with pytest.raises(ValueError, match=r"on_episode_end.*evaluation_num_env_runners above 0: .* not to count"):
        apart.build_trainer(callbacks=[Ended()])
    with pytest.raises(ValueError, match=r"evaluation.evaluation_num_env_runners=1 is not allowed with callbacks="):
        apart.callbacks(Ended).validate()


# -- amounts, functions, settings ---


def test_an_evaluation_by_steps_starts_over_and_counts_ended_episodes():
    config = config_for(total_steps=384)
    config.evaluation(evaluation_duration_unit="timesteps", evaluation_duration=200, evaluation_num_envs=2)
    trainer = config.build_trainer()
    trainer.run()
    assert trainer.test_env_step == 4 * 200
    for stats in trainer.history:
        test = stats.test_collect_stat
        assert (test.n_collected_steps, len(test.lens)) == (200, test.n_collected_episodes)
        assert 0 < test.lens.sum() <= 200
    assert trainer.test_collector.num_resets == 4 + 1  # each begins new episodes, and so does the run
    trainer.close()


def of_collect(policy, collector):
    return collector.collect(n_episode=2)


def of_number(policy, collector):
    collector.collect(n_episode=2)
    return 7


def of_dict(policy, collector):
    return {"score": np.float32(2.0), "of_mine": 3}


def of_text(policy, collector):
    return "good"


def without_score(policy, collector):
    return {"of_mine": 3}


@pytest.mark.parametrize(
    "function, score, metrics, episodes",
    [
        (of_collect, None, {}, 2),
        (of_number, 7.0, {"score": 7.0}, 2),
        (of_dict, 2.0, {"score": 2.0, "of_mine": 3.0}, 0),
    ],
)
def test_a_function_of_ones_own_gives_the_score(function, score, metrics, episodes, tmp_path):
    events = []

    class Events(Callback):
        def on_evaluation_end(self, event):
            events.append(event)

    config = config_for(total_steps=128).evaluation(custom_evaluation_function=function)
    result = prepare_run(config, tmp_path, callbacks=[Events()]).finish()
    assert [event.metrics for event in events] == [metrics] * 2
    assert {event.stats.n_collected_episodes for event in events} == {episodes}
    expected = [event.stats.returns.mean() if score is None else score for event in events]
    assert [event.score for event in events] == expected
    assert result.info.best_score == max(expected)
    records = [record["data"] for record in read_metrics(result.path / "metrics.jsonl") if record["scope"] == "test"]
    assert [{name: record[name] for name in metrics} for record in records] == [metrics] * 2


@pytest.mark.parametrize(
    "function, error, words",
    [
        (of_text, TypeError, "custom_evaluation_function returned 'good'; it must return CollectStats, a number"),
        (without_score, ValueError, 'a dict needs a "score"'),
    ],
)
def test_a_function_that_returns_something_else_is_refused(function, error, words):
    with pytest.raises(error, match=words):
        run_of(custom_evaluation_function=function)


class Wind(gym.Wrapper):
    """CartPole whose rewards are `scale`."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.scale = scale

    def step(self, action):
        obs, _, *rest = self.env.step(action)
        return obs, self.scale, *rest


def test_evaluation_has_its_own_environments_and_exploration_if_set():
    found = {}
    for name, options in {
        "as in training": {},
        "other rewards": {"evaluation_config": {"environment.env_config": {"scale": 2.0}}},
        "drawn": {"evaluation_explore": True},
        "drawn, by path": {"evaluation_config": {"env_runners.explore": True}},
    }.items():
        config = config_for(env=Wind, total_steps=128).evaluation(**options)
        trainer = config.build_trainer()
        trainer.run()
        found[name] = trainer.history[0].test_collect_stat
        assert trainer.test_collector.exploration_noise == ("drawn" in name)
        trainer.close()
    np.testing.assert_array_equal(found["other rewards"].returns, 2 * found["as in training"].returns)
    np.testing.assert_array_equal(found["drawn"].returns, found["drawn, by path"].returns)
    assert found["drawn"].returns.tolist() != found["as in training"].returns.tolist()


REFUSED = [
    ({"environment.normalize_observations": False}, "['environment.normalize_observations']=False is not allowed"),
    ({"training.lr": 0.1}, "['training.lr']=0.1 is not allowed: it is the same in training and evaluation"),
    ({"env_runners.num_env_runners": 2}, "is not allowed"),
    (
        {"env_runners.explor": True},
        "['env_runners.explor']: env_runners has no option 'explor'; did you mean 'explore'",
    ),
    ({"env_runners.explore": 1}, "['env_runners.explore']: env_runners.explore=1 is not allowed"),
    ({"explore": True}, "write section.option"),
]


@pytest.mark.parametrize("settings, words", REFUSED, ids=[words for _, words in REFUSED])
def test_evaluation_settings_unlike_its_environments_are_refused(settings, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        config_for().evaluation(evaluation_config=settings).validate()


ELSEWHERE = [
    ({"evaluation_num_env_runners": 2, "evaluation_duration": 3}, "=2 cannot share 3 environments evenly"),
    ({"evaluation_num_env_runners": 3, "evaluation_duration": 20}, "=3 cannot share 8 environments evenly"),
    ({"evaluation_duration_unit": "steps"}, "one of 'episodes', 'timesteps'"),
    ({"evaluation_duration": 0}, "evaluation.evaluation_duration=0 is not allowed"),
    ({"custom_evaluation_function": 3}, "it must be a function"),
]


@pytest.mark.parametrize("options, words", ELSEWHERE, ids=[words for _, words in ELSEWHERE])
def test_options_of_evaluation_that_cannot_be_are_refused(options, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        config_for().evaluation(**{"evaluation_num_envs": 8, **options}).validate()


def test_files_of_earlier_versions_are_read():
    options = PPOConfig().environment("CartPole-v1").to_dict()
    del options["evaluation"]["evaluation_duration"]
    options["evaluation"]["evaluation_episodes"] = 7
    assert PPOConfig().update_from_dict(json.loads(json.dumps(options))).evaluation.evaluation_duration == 7
