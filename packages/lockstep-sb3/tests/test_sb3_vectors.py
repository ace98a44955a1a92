"""Wrappers of vector environments in `lockstep_sb3`, with numbers written out."""

from __future__ import annotations

import csv

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from small_tasks import Copy, Count, Picture

from lockstep_sb3 import PPO
from lockstep_sb3.common.env_util import make_vec_env, unwrap_wrapper
from lockstep_sb3.common.evaluation import evaluate_policy
from lockstep_sb3.common.monitor import Monitor
from lockstep_sb3.common.running_mean_std import RunningMeanStd
from lockstep_sb3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
    is_vecenv_wrapped,
    unwrap_vec_normalize,
    unwrap_vec_wrapper,
)
from lockstep_sb3.common.vec_env.base_vec_env import VecEnvWrapper, tile_images


class Parts(gym.Env):
    """Environment whose observations are the number of the step, an image of it, and a Discrete."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "step": spaces.Box(0.0, 100.0, (2,)),
                "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "flag": spaces.Discrete(2),
            }
        )
        self.action_space = spaces.Discrete(2)

    def _obs(self):
        image = np.full((8, 8, 3), self.steps, np.uint8)
        return {"step": np.full(2, self.steps, np.float32), "image": image, "flag": self.steps % 2}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {"started": True}

    def step(self, action):
        self.steps += 1
        return self._obs(), float(self.steps), self.steps == 3, False, {}


class Boxes(gym.ObservationWrapper):
    """Wrapper that leaves out the Discrete of `Parts`."""

    def __init__(self, env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({key: env.observation_space[key] for key in ("step", "image")})

    def observation(self, observation):
        return {key: observation[key] for key in ("step", "image")}


def stepped(venv, number):
    venv.reset()
    return [venv.step([0] * venv.num_envs) for _ in range(number)]


def test_vec_monitor_counts_and_writes_the_rewards_that_it_sees(tmp_path):
    class Halved(VecEnvWrapper):
        def step_wait(self):
            obs, rewards, dones, infos = self.venv.step_wait()
            return obs, rewards / 2, dones, [{**info, "half": True} for info in infos]

    venv = VecMonitor(
        Halved(DummyVecEnv([Count, lambda: Count(length=2)])), str(tmp_path / "all"), info_keywords=("half",)
    )
    ends = [info["episode"] for step in stepped(venv, 3) for info, done in zip(step[3], step[2]) if done]
    venv.close()
    assert [(end["r"], end["l"], end["half"]) for end in ends] == [(1.5, 2, True), (3.0, 3, True)]
    assert venv.episode_count == 2
    first, *rows = (tmp_path / "all.monitor.csv").read_text().splitlines()
    assert first.startswith('#{"t_start": ')
    assert [row["r"] for row in csv.DictReader(rows)] == ["1.5", "3.0"]


def test_a_model_learns_in_a_vec_monitor(tmp_path):
    venv = VecMonitor(make_vec_env(Copy, n_envs=2), str(tmp_path))
    model = PPO("MlpPolicy", venv, n_steps=20, batch_size=20, n_epochs=1).learn(40)
    rows = list(csv.DictReader((tmp_path / "monitor.csv").read_text().splitlines()[1:]))
    assert [float(row["r"]) for row in rows] == [episode["r"] for episode in model.ep_info_buffer]
    assert len(rows) == 4


def test_vec_monitor_warns_if_the_environments_have_a_monitor():
    with pytest.warns(UserWarning, match="overwrites"):
        VecMonitor(DummyVecEnv([lambda: Monitor(Count())]))


def test_a_video_has_the_frames_that_were_asked_for(tmp_path):
    import imageio.v2 as imageio

    venv = VecVideoRecorder(
        make_vec_env("CartPole-v1", n_envs=2), tmp_path / "videos", lambda step: step == 3, video_length=10
    )
    stepped(venv, 20)
    venv.close()
    (file,) = (tmp_path / "videos").iterdir()
    assert file.name == "rl-video-step-3-to-step-13.mp4"
    with imageio.get_reader(file) as video:
        frames = list(video.iter_data())
        assert video.get_meta_data()["fps"] == 50  # as the environment's metadata say
    assert len(frames) == 11  # that of the first step, and ten steps
    assert frames[0].shape == (800, 600, 3)  # two images, one above the other
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 100  # the pole has moved


def test_a_video_is_finished_by_close_and_needs_images(tmp_path):
    venv = VecVideoRecorder(make_vec_env("CartPole-v1"), tmp_path, lambda step: step == 0, 100, name_prefix="short")
    stepped(venv, 3)
    venv.close()
    assert [path.name for path in tmp_path.iterdir()] == ["short-step-0-to-step-100.mp4"]
    with pytest.raises(ValueError, match="rgb_array"):
        VecVideoRecorder(make_vec_env(Count), tmp_path, lambda step: True)


def test_images_get_their_channels_first_also_in_a_dict():
    venv = VecTransposeImage(DummyVecEnv([Picture]))
    assert venv.observation_space.shape == (3, 12, 16)
    assert venv.reset().shape == (1, 3, 12, 16)
    last = [venv.step([0]) for _ in range(5)][-1]
    assert last[3][0]["terminal_observation"].shape == (3, 12, 16)
    parts = VecTransposeImage(DummyVecEnv([Parts]))
    assert parts.observation_space["image"].shape == (3, 8, 8)
    assert parts.observation_space["step"].shape == (2,)
    steps = stepped(parts, 3)
    assert steps[0][0]["image"].shape == (1, 3, 8, 8)
    assert steps[2][3][0]["terminal_observation"]["image"].shape == (3, 8, 8)
    assert VecTransposeImage(DummyVecEnv([Picture]), skip=True).reset().shape == (1, 12, 16, 3)
    assert VecTransposeImage.transpose_image(np.zeros((2, 4, 5, 3))).shape == (2, 3, 4, 5)
    with pytest.raises(ValueError, match="takes images"):
        VecTransposeImage(DummyVecEnv([Count]))


class Broken(Count):
    """Environment that gives NaN from the second step on."""

    def __init__(self, value: float) -> None:
        super().__init__(length=10)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,))
        self.value = value

    def _obs(self):
        return np.array([self.value if self.steps > 1 else 0.0], np.float32)


def test_numbers_that_are_not_finite_are_reported_with_their_origin():
    venv = VecCheckNan(DummyVecEnv([lambda: Broken(np.nan)]), raise_exception=True)
    venv.reset()
    venv.step([0])
    with pytest.raises(ValueError, match=r"nan in observations\. It comes from the environment"):
        venv.step([1])
    with pytest.raises(ValueError, match=r"inf in actions\. It comes from the model"):
        venv.step(np.array([np.inf]))
    infinite = VecCheckNan(DummyVecEnv([lambda: Broken(np.inf)]))
    with pytest.warns(UserWarning, match="inf in observations") as seen:
        stepped(infinite, 5)
    assert len(seen) == 1
    unchecked = VecCheckNan(DummyVecEnv([lambda: Broken(np.inf)]), raise_exception=True, check_inf=False)
    assert len(stepped(unchecked, 3)) == 3


def test_one_part_of_a_dict_is_extracted():
    venv = VecExtractDictObs(DummyVecEnv([Parts, Parts]), key="step")
    assert venv.observation_space == spaces.Box(0.0, 100.0, (2,))
    steps = stepped(venv, 3)
    assert steps[1][0].tolist() == [[2.0, 2.0]] * 2
    assert steps[2][3][1]["terminal_observation"].tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="'colour'"):
        VecExtractDictObs(DummyVecEnv([Parts]), key="colour")


def test_frames_of_a_dict_are_stacked_part_by_part():
    venv = VecFrameStack(DummyVecEnv([lambda: Boxes(Parts())]), 2, channels_order={"image": "first", "step": None})
    assert venv.observation_space["image"].shape == (16, 8, 3)
    assert venv.observation_space["step"].shape == (4,)
    steps = stepped(venv, 3)
    assert steps[1][0]["step"].tolist() == [[1.0, 1.0, 2.0, 2.0]]
    assert steps[1][0]["image"][0, :, 0, 0].tolist() == [1] * 8 + [2] * 8
    assert steps[2][3][0]["terminal_observation"]["step"].tolist() == [2.0, 2.0, 3.0, 3.0]
    assert steps[2][0]["step"].tolist() == [[0.0] * 4]
    with pytest.raises(TypeError, match="Discrete"):
        VecFrameStack(DummyVecEnv([Parts]), 2)


def test_only_the_named_parts_of_a_dict_are_normalized(tmp_path):
    venv = VecNormalize(DummyVecEnv([Parts]), norm_obs_keys=["step"])
    steps = stepped(venv, 2)  # it has seen 0, 1, 2: mean 1 and variance 2 / 3
    assert venv.obs_rms["step"].mean.tolist() == [1.0, 1.0]
    obs = steps[1][0]
    np.testing.assert_allclose(obs["step"], np.full((1, 2), 1 / np.sqrt(2 / 3)), rtol=1e-6)
    assert obs["image"].dtype == np.uint8
    np.testing.assert_allclose(venv.unnormalize_obs(obs)["step"], [[2.0, 2.0]], rtol=1e-6)
    assert venv.get_original_obs()["step"].tolist() == [[2.0, 2.0]]
    assert venv.get_original_reward().tolist() == [2.0]
    venv.save(tmp_path / "parts.pkl")
    loaded = VecNormalize.load(tmp_path / "parts.pkl", DummyVecEnv([Parts]))
    assert loaded.norm_obs_keys == ["step"]
    assert loaded.obs_rms["step"].mean.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="norm_obs_keys"):
        VecNormalize(DummyVecEnv([Parts]))  # the flag is no Box
    with pytest.raises(ValueError, match="norm_obs_keys"):
        VecNormalize(DummyVecEnv([Count]), norm_obs_keys=["step"])


def test_normalized_rewards_are_turned_back():
    venv = VecNormalize(DummyVecEnv([Count, Count]))
    rewards = stepped(venv, 2)[1][1]
    np.testing.assert_allclose(venv.unnormalize_reward(rewards), [2.0, 2.0], rtol=1e-5)
    np.testing.assert_allclose(venv.normalize_reward(np.array([2.0, 2.0])), rewards)
    venv.norm_reward = False
    assert venv.normalize_reward(np.array([2.0])).tolist() == [2.0]


def test_moments_can_be_read_set_and_combined():
    moments = RunningMeanStd(epsilon=0.0, shape=(1,))
    moments.update(np.array([[1.0], [3.0]]))
    assert (moments.mean.tolist(), moments.var.tolist(), moments.count) == ([2.0], [1.0], 2.0)
    moments.update_from_moments(np.array([5.0]), np.array([1.0]), 2)
    assert (moments.mean.tolist(), moments.var.tolist()) == ([3.5], [3.25])  # 1, 3, 4 and 6
    other = moments.copy()
    other.mean, other.var = np.zeros(1), np.ones(1)
    assert (other.mean.tolist(), other.var.tolist(), moments.mean.tolist()) == ([0.0], [1.0], [3.5])
    started = RunningMeanStd(shape=())
    started.update(np.array([1.0, 3.0]))
    assert started.count == 2.0001
    np.testing.assert_allclose(started.mean, 4 / 2.0001)


def test_wrappers_are_found_in_any_depth():
    base = DummyVecEnv([lambda: Monitor(TimeLimit(Count(), 5))])
    venv = VecFrameStack(VecNormalize(VecMonitorless(base)), 2)
    assert unwrap_vec_normalize(venv) is venv.venv
    assert unwrap_vec_wrapper(venv, VecMonitorless) is venv.venv.venv
    assert unwrap_vec_normalize(base) is None
    assert is_vecenv_wrapped(venv, VecFrameStack)
    assert not is_vecenv_wrapped(venv, VecMonitor)
    assert venv.unwrapped is base
    assert venv.env_is_wrapped(Monitor) == venv.env_is_wrapped(TimeLimit, indices=0) == [True]
    assert unwrap_wrapper(base.envs[0], TimeLimit) is base.envs[0].env
    assert venv.obs_rms is venv.venv.obs_rms
    assert venv.has_attr("factor")
    assert not venv.has_attr("colour")
    twice = VecFrameStack(VecNormalize(venv.venv), 2)
    with pytest.raises(AttributeError, match="ambiguous"):
        twice.obs_rms


class VecMonitorless(VecEnvWrapper):
    """Wrapper that changes nothing."""


def test_infos_of_resets_are_kept():
    venv = VecMonitorless(DummyVecEnv([Parts]))
    venv.reset()
    assert venv.unwrapped.reset_infos == [{"started": True}]


def test_processes_are_started_as_asked():
    venv = SubprocVecEnv([Count, Count], start_method="spawn")
    try:
        assert venv.reset().tolist() == [[0.0], [0.0]]
        venv.env_method("set_factor", 3.0, indices=[1])
        assert venv.step([0, 0])[0].tolist() == [[1.0], [3.0]]
        with pytest.raises(AttributeError):
            venv.get_attr("colour")
    finally:
        venv.close()


def test_images_are_tiled_in_as_many_rows_as_columns():
    images = [np.full((2, 3, 1), value) for value in (1, 2, 3)]
    assert tile_images(images)[:, :, 0].tolist() == [[1, 1, 1, 2, 2, 2]] * 2 + [[3, 3, 3, 0, 0, 0]] * 2


def test_options_of_a_reset_are_refused_by_name():
    with pytest.raises(ValueError, match="set_options"):
        VecMonitorless(DummyVecEnv([Count])).set_options({"goal": 1})


class TwoLives(gym.Wrapper):
    """Wrapper that ends an episode after two steps, and continues the game at the next reset, as a lost life does."""

    def reset(self, **kwargs):
        if getattr(self, "was_real_end", True):
            self.last_reset = self.env.reset(**kwargs)
        self.steps = 0
        return self.last_reset

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_end, self.steps = terminated or truncated, self.steps + 1
        return obs, reward, terminated or self.steps == 2, truncated, info


class Zero:
    """Policy that always takes action 0."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.zeros(len(observation), int), state


def test_a_lost_life_is_no_end_of_an_episode_that_a_monitor_counts():
    venv = make_vec_env(Count, wrapper_class=TwoLives)
    returns, lengths = evaluate_policy(Zero(), venv, n_eval_episodes=2, return_episode_rewards=True)
    assert (returns, lengths) == ([6.0, 6.0], [3, 3])
    model = PPO("MlpPolicy", make_vec_env(Count, wrapper_class=TwoLives), n_steps=12, n_epochs=1).learn(12)
    assert [episode["r"] for episode in model.ep_info_buffer] == [6.0] * 4
    assert all("episode" in step[3][0] for step in stepped(make_vec_env(Count), 6) if step[2][0])
