"""Callbacks of `lockstep_sb3` are called at the events of Stable-Baselines3, with the values that it passes."""

from __future__ import annotations

import numpy as np
import pytest
from small_tasks import Copy, Count

from lockstep_sb3 import A2C, DQN, PPO
from lockstep_sb3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.logger import HParam, Logger, TensorBoardOutputFormat
from lockstep_sb3.common.vec_env import VecNormalize

SMALL = {"net_arch": [8]}


class Recorder(BaseCallback):
    """Callback that records the events, and ends training after `limit` steps."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit, self.events, self.infos = limit, [], []

    def _init_callback(self):
        self.events.append("init")

    def _on_training_start(self):
        self.events.append(f"training_start {self.locals['total_timesteps']}")

    def _on_rollout_start(self):
        self.events.append("rollout_start")

    def _on_step(self):
        self.events.append(f"step {self.num_timesteps}")
        assert self.locals["rewards"].shape == self.locals["dones"].shape == (self.training_env.num_envs,)
        assert len(self.locals["new_obs"]) == len(self.locals["infos"]) == self.training_env.num_envs
        self.infos += self.locals["infos"]
        return self.limit is None or self.n_calls < self.limit

    def _on_rollout_end(self):
        self.events.append("rollout_end")

    def _on_training_end(self):
        self.events.append("training_end")


def a2c(n_envs: int = 2, **more):
    return A2C("MlpPolicy", make_vec_env(Copy, n_envs=n_envs), n_steps=3, seed=0, policy_kwargs=SMALL, **more)


def test_the_order_of_calls_and_the_steps_they_see():
    recorder = Recorder()
    a2c().learn(12, callback=recorder)
    rollout = ["rollout_start", "step {}", "step {}", "step {}", "rollout_end"]
    steps = iter(range(2, 14, 2))
    expected = [each.format(next(steps)) if "step" in each else each for each in rollout * 2]
    assert recorder.events == ["init", "training_start 12", *expected, "training_end"]
    assert recorder.n_calls == 6


def test_false_ends_the_training_within_the_rollout():
    model, recorder = a2c(), Recorder(limit=4)
    model.learn(1000, callback=[recorder, Recorder()])
    assert recorder.events[-2:] == ["step 8", "training_end"]
    assert model.num_timesteps == 8
    model.learn(6, reset_num_timesteps=False)
    assert model.num_timesteps == 14


class Keeping(BaseCallback):
    """Keeps what it sees at each step, and what that was then."""

    def __init__(self):
        super().__init__()
        self.kept, self.was = [], []

    def _on_step(self):
        seen = [self.locals[name] for name in ("rewards", "dones", "new_obs")]
        self.kept.append(seen)
        self.was.append([part.tolist() for part in seen])
        return True


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_arrays_that_a_callback_keeps_stay_as_they_were(algorithm, n_envs):
    venv, keeping = make_vec_env(Count, n_envs=n_envs), Keeping()
    sizes = {"n_steps": 8, "batch_size": 8} if algorithm is PPO else {"learning_starts": 4, "buffer_size": 50}
    algorithm("MlpPolicy", venv, policy_kwargs=SMALL, **sizes).learn(16, keeping)
    assert [[part.tolist() for part in seen] for seen in keeping.kept] == keeping.was
    assert len({str(seen) for seen in keeping.was}) > 1


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("_on_rollout_ended", "_on_rollout_end"),
        ("on_training_started", "on_training_start"),
        ("_on_steps", "_on_step"),
    ],
)
def test_a_method_that_is_never_called_is_refused_with_the_nearest(name, nearest):
    watching = type("Watching", (BaseCallback,), {name: lambda self: True})()
    for callback in (watching, [Recorder(), watching], EveryNTimesteps(4, watching)):
        with pytest.raises(ValueError, match=f"{name}, which nothing calls; did you mean '{nearest}'"):
            a2c().learn(6, callback)


def test_off_policy_rollouts_are_the_steps_between_two_updates():
    recorder = Recorder()
    model = DQN("MlpPolicy", Copy(), train_freq=2, learning_starts=2, policy_kwargs=SMALL)
    model.learn(6, callback=recorder)
    assert recorder.events[2:] == [
        *("rollout_start", "step 1", "step 2", "rollout_end", "rollout_start", "step 3", "step 4", "rollout_end"),
        *("rollout_start", "step 5", "step 6", "rollout_end", "training_end"),
    ]


@pytest.mark.parametrize("wrapped", [False, True])
def test_infos_tell_of_episodes(wrapped):
    venv = make_vec_env(Count, n_envs=1)
    recorder = Recorder()
    PPO("MlpPolicy", VecNormalize(venv) if wrapped else venv, n_steps=7, policy_kwargs=SMALL).learn(
        7, callback=recorder
    )
    ends = [info for info in recorder.infos if "episode" in info]
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in ends] == [(6.0, 3), (6.0, 3)]
    assert [("terminal_observation" in info) for info in recorder.infos] == [False, False, True] * 2 + [False]
    assert not any(info["TimeLimit.truncated"] for info in recorder.infos)


def test_functions_are_callbacks_and_settings_reach_the_environments():
    model = PPO("MlpPolicy", make_vec_env(Count), n_steps=8, policy_kwargs=SMALL)
    seen = []

    def watch(locals_, globals_):
        locals_["self"].get_env().env_method("set_factor", 10.0)
        seen.append(float(locals_["new_obs"][0, 0]))
        return len(seen) < 5

    model.learn(100, callback=watch)
    assert seen == [1.0, 20.0, 0.0, 10.0, 20.0]


def test_eval_callback_evaluates_keeps_the_best_and_stops(tmp_path):
    stop = StopTrainingOnRewardThreshold(reward_threshold=6.0)
    after = Recorder()
    evaluate = EvalCallback(
        Count(), callback_on_new_best=stop, callback_after_eval=after, eval_freq=4, n_eval_episodes=2,
        log_path=tmp_path / "logs", best_model_save_path=tmp_path / "best", verbose=0,
    )  # fmt: skip
    model = PPO("MlpPolicy", make_vec_env(Count, n_envs=2), n_steps=32, policy_kwargs=SMALL)
    model.learn(1000, callback=evaluate)
    assert model.num_timesteps == 8  # every return is 6
    assert evaluate.best_mean_reward == evaluate.last_mean_reward == 6.0
    found = np.load(tmp_path / "logs" / "evaluations.npz")
    assert found["timesteps"].tolist() == [8]
    assert found["results"].tolist() == [[6.0, 6.0]]
    assert found["ep_lengths"].tolist() == [[3, 3]]
    assert PPO.load(tmp_path / "best" / "best_model").num_timesteps == 8
    assert after.events[:1] == ["init"]
    assert "step 8" not in after.events  # a callback that stops leaves none after it


def test_no_improvement_stops_after_so_many_evaluations():
    stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=2, min_evals=1)
    evaluate = EvalCallback(Count(), callback_after_eval=stop, eval_freq=2, n_eval_episodes=1, verbose=0)
    model = PPO("MlpPolicy", Count(), n_steps=64, policy_kwargs=SMALL).learn(64, callback=evaluate)
    assert len(evaluate.evaluations_timesteps) == 4  # the first is the best; the third one without a better stops
    assert model.num_timesteps == 8


def test_evaluation_sees_through_the_statistics_of_training():
    model = PPO("MlpPolicy", VecNormalize(make_vec_env(Count)), n_steps=8, policy_kwargs=SMALL)
    evaluation = VecNormalize(make_vec_env(Count), training=False)
    model.learn(8, callback=EvalCallback(evaluation, eval_freq=8, n_eval_episodes=1, verbose=0))
    assert evaluation.obs_rms.count == model.get_vec_normalize_env().obs_rms.count == 9
    with pytest.raises(ValueError, match="wrap both"):
        model.learn(8, callback=EvalCallback(make_vec_env(Count), eval_freq=8, verbose=0))


def test_checkpoints_and_events_come_when_they_are_due(tmp_path):
    model = DQN("MlpPolicy", VecNormalize(make_vec_env(Copy, n_envs=2)), policy_kwargs=SMALL)
    saves = CheckpointCallback(4, tmp_path, "dqn", save_replay_buffer=True, save_vecnormalize=True)
    child = Recorder()
    model.learn(
        16, callback=CallbackList([saves, EveryNTimesteps(6, child), LogEveryNTimesteps(8), ProgressBarCallback()])
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"dqn_{what}{steps}_steps.{end}" for steps in (8, 16)
        for what, end in (("", "zip"), ("replay_buffer_", "pkl"), ("vecnormalize_", "pkl"))
    )  # fmt: skip
    assert [event for event in child.events if event.startswith("step")] == ["step 6", "step 12"]


def test_max_episodes_count_for_each_environment():
    model = A2C("MlpPolicy", make_vec_env(Count, n_envs=2), policy_kwargs=SMALL)
    model.learn(1000, callback=StopTrainingOnMaxEpisodes(max_episodes=2))
    assert model.num_timesteps == 12


def test_the_logger_writes_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Records(BaseCallback):
        def _on_training_start(self):
            self.writer = next(
                each for each in self.logger.output_formats if isinstance(each, TensorBoardOutputFormat)
            ).writer
            self.logger.record("settings", HParam({"lr": 1.0}, {"eval/mean": 0.0}), exclude=("stdout", "json"))

        def _on_step(self):
            self.logger.record_mean("mean_step", self.num_timesteps)
            self.logger.record("step", self.num_timesteps, exclude="tensorboard")
            return True

    PPO("MlpPolicy", Count(), n_steps=4, policy_kwargs=SMALL, tensorboard_log=tmp_path).learn(8, callback=Records())
    events = EventAccumulator(str(tmp_path / "PPO_1")).Reload()
    assert [(each.step, each.value) for each in events.Scalars("mean_step")] == [(4, 2.5), (8, 6.5)]
    assert "rollout/ep_rew_mean" in events.Tags()["scalars"]
    assert not {"step", "time/total_timesteps"} & set(events.Tags()["scalars"])


@pytest.mark.parametrize(
    ("make", "options", "name"),
    [
        (PPO, {"n_steps": 4, "batch_size": 4}, "train/clip_fraction"),
        (DQN, {"learning_starts": 0, "exploration_initial_eps": 0.3, "exploration_final_eps": 0.3},
         "rollout/exploration_rate"),
    ],
)  # fmt: skip
def test_clip_fraction_and_exploration_rate_are_logged_under_their_names(make, options, name):
    recorded = {}

    class Noting(Logger):
        def record(self, key, value, exclude=None):
            recorded[key] = value
            super().record(key, value, exclude)

    model = make("MlpPolicy", Copy(), policy_kwargs=SMALL, **options)
    model.learn(8)
    model.logger = Noting()
    model.dump_logs()
    assert recorded[name] == pytest.approx(0.3 if make is DQN else 0.0)
