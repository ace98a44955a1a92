"""Logs of `lockstep_sb3`: files, names and values as in Stable-Baselines3, and the values that callbacks read."""

from __future__ import annotations

import json
import re
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_tasks import Aim, Copy, Count, Picture

import lockstep_sb3
from lockstep.options import install_hint
from lockstep_sb3 import DQN, PPO, SAC
from lockstep_sb3.common import logger as logging
from lockstep_sb3.common.atari_wrappers import WarpFrame
from lockstep_sb3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.log_names import training_values
from lockstep_sb3.common.logger import Figure, HumanOutputFormat, KVWriter, Logger, Video, configure
from lockstep_sb3.common.monitor import load_results
from lockstep_sb3.common.results_plotter import plot_curves, plot_results

SMALL = {"net_arch": [8]}


@pytest.mark.parametrize(
    ("algorithm", "options"), [(PPO, {"n_steps": 32, "batch_size": 32}), (DQN, {"learning_starts": 8})]
)
def test_no_row_of_the_table_is_cut_off(algorithm, options, capsys):
    model = algorithm("MlpPolicy", "CartPole-v1", verbose=1, seed=0, policy_kwargs=SMALL, **options)
    model.learn(64, log_interval=1)
    table = capsys.readouterr().out
    assert "|    grad_norm " in table
    assert "|    grad_clipped " in table
    assert "..." not in table


def test_metrics_of_gradients_have_short_names_for_each_optimizer():
    metrics = {"gradients_critic_global_norm": 2.0, "gradients_default_optimizer_share_clipped": 0.5}
    assert training_values(metrics, {}) == {"critic_grad_norm": 2.0, "grad_clipped": 0.5}


@pytest.mark.parametrize(
    ("package", "extra", "distribution", "call"),
    [
        ("pandas", "monitor", "lockstep-sb3", lambda: load_results("never")),
        ("pandas", "monitor", "lockstep-sb3", lambda: plot_results(["never"], None, "timesteps", "")),
        ("pandas", "monitor", "lockstep-sb3", lambda: logging.read_csv("never")),
        ("pandas", "monitor", "lockstep-sb3", lambda: logging.read_json("never")),
        ("matplotlib", "monitor", "lockstep-sb3", lambda: plot_curves([], "timesteps", "")),
        ("tensorboard", "tensorboard", "lockstep-rl", lambda: logging.TensorBoardOutputFormat("never")),
        ("cv2", "atari", "lockstep-rl", lambda: WarpFrame(Picture()).reset()),
    ],
)
def test_a_missing_package_is_named_with_the_command(package, extra, distribution, call, monkeypatch):
    imported = {package, "torch.utils.tensorboard" if package == "tensorboard" else package}
    for name in [name for name in sys.modules if name.startswith(tuple(imported))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # the import system then reports that there is no such module
    hint = install_hint(extra, distribution)
    assert package in hint or package == "cv2"
    with pytest.raises(ImportError, match=re.escape(hint)):
        call()


def test_all_outputs_are_written_to_their_files(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("tensorboard")
    logger = configure(str(tmp_path / "logs"), ["log", "json", "csv", "tensorboard"])
    logger.record("train/loss", 0.5)
    logger.record("name", "first", exclude="csv")
    logger.record_mean("mean", 1.0)
    logger.record_mean("mean", 4.0)
    logger.record_mean("mean", None)
    assert logger.name_to_value["mean"] == 2.5
    logger.dump(step=3)
    assert logger.name_to_value == {}
    logger.record("train/loss", np.float32(0.25))
    logger.record("new", torch.tensor(7))
    logger.dump(step=4)
    logger.info("done", 5)
    logger.close()
    assert logger.get_dir() == str(tmp_path / "logs")
    text = (tmp_path / "logs/log.txt").read_text().splitlines()
    assert text[0].startswith("Logging to")
    assert text[2:6] == [
        "| mean    | 2.5      |",
        "| name    | first    |",
        "| train/  |          |",
        "|    loss | 0.5      |",
    ]
    assert text[-1] == "done 5"
    table = logging.read_csv(tmp_path / "logs/progress.csv")
    assert sorted(table.columns) == ["mean", "new", "train/loss"]
    assert table["train/loss"].tolist() == [0.5, 0.25]
    assert np.isnan(table["new"][0])
    assert table["new"][1] == 7
    lines = [json.loads(line) for line in (tmp_path / "logs/progress.json").read_text().splitlines()]
    assert lines == [{"train/loss": 0.5, "name": "first", "mean": 2.5}, {"train/loss": 0.25, "new": 7}]
    assert logging.read_json(tmp_path / "logs/progress.json")["new"].tolist()[1] == 7
    assert any(path.name.startswith("events") for path in (tmp_path / "logs").iterdir())


def test_a_value_that_an_output_cannot_write_is_named(tmp_path):
    logger = configure(str(tmp_path), ["json"])
    logger.record("trajectory", Video(torch.zeros(1, 2, 3, 4, 4), fps=4), exclude=("stdout", "csv"))
    with pytest.raises(logging.FormatUnsupportedError, match=r"'trajectory', a Video.*exclude"):
        logger.dump()
    with pytest.raises(ValueError, match="'xml' is unknown"):
        configure(str(tmp_path), ["xml"])
    human = Logger(None, [HumanOutputFormat(str(tmp_path / "table.txt"))])
    human.record("figure", Figure(None, close=True), exclude=("stdout", "log"))
    human.record("a" * 50, 1)
    human.dump()
    assert ("a" * 33 + "...") in (tmp_path / "table.txt").read_text()


class Kept(KVWriter):
    """Output that keeps what it is given."""

    def __init__(self) -> None:
        self.dumps = []

    def write(self, key_values, key_excluded, step=0):
        self.dumps.append((step, dict(key_values), dict(key_excluded)))


def test_a_logger_that_was_set_is_kept_by_learn(tmp_path):
    kept = Kept()
    model = PPO("MlpPolicy", Copy(), n_steps=16, batch_size=16, policy_kwargs=SMALL)
    model.set_logger(Logger(None, [kept]))
    model.learn(32)
    model.learn(16)
    assert [step for step, _, _ in kept.dumps] == [16, 32, 16]
    assert kept.dumps[0][2]["time/iterations"] == ("tensorboard",)


COMMON = {"time/fps", "time/time_elapsed", "time/total_timesteps", "rollout/ep_rew_mean", "rollout/ep_len_mean"}
TRAIN = {
    "PPO": "approx_kl clip_fraction clip_range clip_range_vf entropy_loss explained_variance learning_rate loss "
    "n_updates policy_gradient_loss std value_loss",
    "A2C": "entropy_loss explained_variance learning_rate n_updates policy_loss std value_loss",
    "TRPO": "explained_variance kl_divergence_loss learning_rate policy_objective std value_loss",
    "DQN": "learning_rate loss n_updates",
    "QRDQN": "learning_rate loss n_updates",
    "SAC": "actor_loss critic_loss ent_coef ent_coef_loss learning_rate n_updates",
    "TQC": "actor_loss critic_loss ent_coef ent_coef_loss learning_rate n_updates",
    "TD3": "actor_loss critic_loss learning_rate n_updates",
    "DDPG": "actor_loss critic_loss learning_rate n_updates",
}
"""Names of Stable-Baselines3 in the section "train/"."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("PPO", "DQN") else pytest.mark.long) for name in TRAIN]
)
def test_all_names_of_stable_baselines3_are_logged(name):
    is_on_policy = name in ("PPO", "A2C", "TRPO")
    env = Copy() if "DQN" in name else Aim()
    options = {"n_steps": 10} if is_on_policy else {"learning_starts": 5}
    if name == "PPO":
        options |= {"clip_range_vf": 0.2}
    kept = Kept()
    model = getattr(lockstep_sb3, name)("MlpPolicy", env, policy_kwargs=SMALL, **options)
    model.set_logger(Logger(None, [kept]))
    model.learn(40, log_interval=1)
    _, values, excluded = kept.dumps[-1]
    expected = {*COMMON, *(f"train/{each}" for each in TRAIN[name].split())}
    expected |= {"time/iterations"} if is_on_policy else {"time/episodes"}
    expected |= {"rollout/exploration_rate"} if "DQN" in name else set()
    assert expected <= set(values)
    # Nothing is there twice, under the name of Lockstep.
    doubled = {"entropy", "vf_loss", "total_loss", "mean_kl_loss", "qf_loss", "alpha", "alpha_loss", "vf_explained_var"}
    doubled -= {"entropy"} if name in ("SAC", "TQC", "TRPO") else set()
    assert not {f"train/{each}" for each in doubled} & set(values)
    assert values["time/total_timesteps"] == 40
    assert excluded["time/total_timesteps"] == ("tensorboard",)


def test_updates_are_counted_as_gradient_steps():
    model = DQN("MlpPolicy", Copy(), learning_starts=8, train_freq=4, gradient_steps=2, policy_kwargs=SMALL).learn(40)
    assert model._n_updates == 16  # after steps 12, 16, ..., 40
    ppo = PPO("MlpPolicy", Copy(), n_steps=10, batch_size=5, n_epochs=3, policy_kwargs=SMALL).learn(20)
    assert ppo._n_updates == 6  # epochs


def test_the_exploration_rate_follows_its_schedule():
    kept = Kept()
    model = DQN("MlpPolicy", Copy(), exploration_fraction=0.5, train_freq=1, policy_kwargs=SMALL)
    model.set_logger(Logger(None, [kept]))
    model.learn(40, log_interval=1)
    rates = [values["rollout/exploration_rate"] for _, values, _ in kept.dumps]
    np.testing.assert_allclose(rates, [0.525, 0.05, 0.05, 0.05])
    assert model.exploration_rate == pytest.approx(0.05)


class Success(gym.Wrapper):
    """Wrapper whose first episode of two is a success."""

    def reset(self, **kwargs):
        self.episodes = getattr(self, "episodes", 0) + 1
        return self.env.reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, "is_success": self.episodes % 2 == 1}


def test_the_share_of_successes_is_logged(tmp_path):
    kept = Kept()
    model = PPO("MlpPolicy", Success(Count()), n_steps=9, batch_size=9, n_epochs=1, policy_kwargs=SMALL)
    model.set_logger(Logger(None, [kept]))
    evaluate = EvalCallback(Success(Count()), n_eval_episodes=4, eval_freq=9, log_path=tmp_path, verbose=0)
    model.learn(9, evaluate)
    logged = [values for _, values, _ in kept.dumps]
    assert logged[0]["eval/success_rate"] == 0.5
    assert logged[0]["eval/mean_reward"] == 6.0
    assert logged[0]["eval/mean_ep_length"] == 3.0
    assert logged[1]["rollout/success_rate"] == pytest.approx(2 / 3)
    assert np.load(tmp_path / "evaluations.npz")["successes"].tolist() == [[True, False, True, False]]


def test_episodes_that_the_environment_counts_are_taken_without_callbacks():
    env = gym.wrappers.RecordEpisodeStatistics(Count())
    model = PPO("MlpPolicy", gym.wrappers.TransformReward(env, lambda reward: 0.0), n_steps=9, policy_kwargs=SMALL)
    model.learn(9)
    assert [float(episode["r"]) for episode in model.ep_info_buffer] == [6.0] * 3


class Reader(BaseCallback):
    """Callback that keeps values of each step."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.steps = names, []

    def _on_step(self):
        self.steps.append([self.locals[name] for name in self.names])
        return True


def test_callbacks_read_actions_values_and_observations_of_their_step():
    reader = Reader("actions", "infos", "new_obs", "obs_tensor", "n_steps", "clipped_actions")
    model = PPO("MlpPolicy", make_vec_env(Copy, n_envs=2), n_steps=4, batch_size=8, n_epochs=1, policy_kwargs=SMALL)
    model.learn(8, reader)
    before = None
    for number, (actions, infos, new_obs, obs, n_steps, clipped) in enumerate(reader.steps):
        assert actions.shape == (2,)
        assert clipped.tolist() == actions.tolist()
        assert n_steps == number
        assert before is None or before.tolist() == obs.cpu().numpy().tolist()
        before = new_obs
        assert len(infos) == 2
    rewards = Reader("actions", "obs_tensor", "rewards")
    model.learn(8, rewards)
    for actions, obs, given in rewards.steps:
        assert given.tolist() == (actions == obs.cpu().numpy()[:, 0]).astype(float).tolist()


def test_off_policy_callbacks_read_actions_in_two_forms():
    reader = Reader("actions", "buffer_actions", "num_collected_steps", "replay_buffer")
    SAC("MlpPolicy", Aim(), learning_starts=4, train_freq=2, policy_kwargs=SMALL).learn(8, reader)
    for actions, buffer_actions, _, buffer in reader.steps:
        np.testing.assert_allclose(actions, 2.0 * buffer_actions, rtol=1e-6)  # the bounds are -2 and 2
        assert buffer.size() <= 8
    assert [step[2] for step in reader.steps] == [0, 1] * 4


def test_values_of_a_step_behave_as_a_dict():
    class Looks(BaseCallback):
        def _on_step(self):
            assert "actions" in self.locals
            assert "colour" not in self.locals
            assert self.locals.get("colour", 3) == 3
            assert self.locals.get("actions").shape == (1,)
            assert self.locals["self"] is self.model
            assert self.locals["rollout_buffer"].buffer_size == 4
            with pytest.raises(KeyError, match="colour"):
                self.locals["colour"]
            return True

    PPO("MlpPolicy", Copy(), n_steps=4, batch_size=4, policy_kwargs=SMALL).learn(4, Looks())


def test_a_list_hands_its_parent_on():
    stop = StopTrainingOnRewardThreshold(6.0)
    evaluate = EvalCallback(Count(), callback_on_new_best=CallbackList([stop]), eval_freq=4, verbose=0)
    model = PPO("MlpPolicy", Count(), n_steps=32, policy_kwargs=SMALL).learn(1000, evaluate)
    assert stop.parent is evaluate
    assert model.num_timesteps == 4
    with pytest.raises(ValueError, match="needs an EvalCallback"):
        model.learn(4, StopTrainingOnRewardThreshold(6.0))


def test_a_method_that_another_one_calls_is_a_helper():
    class Helped(BaseCallback):
        def _on_step(self):
            return self._on_each_episode()

        def _on_each_episode(self):
            return self.n_calls < 3

    assert PPO("MlpPolicy", Copy(), n_steps=32, policy_kwargs=SMALL).learn(32, Helped()).num_timesteps == 3


def test_logged_losses_have_the_values_of_stable_baselines3():
    """One update of one step on a whole rollout, so that values and probabilities are those before the update."""
    kept = Kept()
    rollout = {}

    class Reads(BaseCallback):
        def _on_step(self):
            for name in ("values", "rewards", "log_probs"):
                rollout.setdefault(name, []).append(np.asarray(self.locals[name]).reshape(-1))
            return True

    model = PPO("MlpPolicy", Copy(), n_steps=10, batch_size=10, n_epochs=1, gamma=0.0, gae_lambda=1.0, seed=0)
    model.set_logger(Logger(None, [kept]))
    model.learn(10, Reads())
    values = kept.dumps[0][1]
    errors = np.concatenate(rollout["rewards"]) - np.concatenate(rollout["values"])
    np.testing.assert_allclose(values["train/value_loss"], np.mean(errors**2), rtol=1e-5)
    np.testing.assert_allclose(values["train/entropy_loss"], -np.log(2), atol=1e-3)  # nearly uniform at first
    np.testing.assert_allclose(values["train/policy_gradient_loss"], 0.0, atol=1e-6)  # of normalized advantages
    total = values["train/policy_gradient_loss"] + 0.5 * values["train/value_loss"]
    np.testing.assert_allclose(values["train/loss"], total, rtol=1e-5)
    assert values["train/n_updates"] == 1
    assert values["train/clip_range"] == 0.2
    assert values["train/learning_rate"] == pytest.approx(3e-4)
    assert len(np.concatenate(rollout["log_probs"])) == 10
