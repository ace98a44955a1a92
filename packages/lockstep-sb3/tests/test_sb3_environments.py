"""Vector environments, wrappers, `Monitor` and `evaluate_policy` of `lockstep_sb3`, with numbers written out."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from small_tasks import Copy, Count, Picture

from lockstep.envs import make_vector
from lockstep_sb3 import PPO
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.evaluation import evaluate_policy
from lockstep_sb3.common.monitor import Monitor, load_results
from lockstep_sb3.common.results_plotter import X_EPISODES, X_TIMESTEPS, ts2xy
from lockstep_sb3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecNormalize,
    sync_envs_normalization,
)
from lockstep_sb3.common.vec_env.base_vec_env import VecEnvWrapper


class Zero:
    """Always takes action 0."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.zeros(len(observation), int), state


def stepped(venv, number):
    venv.reset()
    return [venv.step([0] * venv.num_envs) for _ in range(number)]


@pytest.mark.parametrize("terminates", [True, False])
def test_an_ended_episode_resets_and_reports_its_last_observation(terminates):
    venv = DummyVecEnv([lambda: Count(terminates=terminates), lambda: Count(length=2, terminates=terminates)])
    steps = stepped(venv, 3)
    assert [step[0].ravel().tolist() for step in steps] == [[1.0, 1.0], [2.0, 0.0], [0.0, 1.0]]
    assert [step[1].tolist() for step in steps] == [[1.0, 1.0], [2.0, 2.0], [3.0, 1.0]]
    assert [step[2].tolist() for step in steps] == [[False, False], [False, True], [True, False]]
    last = steps[2][3][0]
    assert last["terminal_observation"].tolist() == [3.0]
    assert last["TimeLimit.truncated"] is not terminates
    assert (last["episode"]["r"], last["episode"]["l"]) == (6.0, 3)
    assert "episode" not in steps[2][3][1]


def test_seeds_are_used_by_the_next_reset_and_methods_reach_environments():
    venv = make_vec_env(Count, n_envs=3, seed=5, env_kwargs={"factor": 2.0})
    venv.reset()
    assert [info["seed"] for info in venv.boundary.infos.reset_infos] == [5, 6, 7]
    venv.reset()
    assert [info["seed"] for info in venv.boundary.infos.reset_infos] == [None] * 3
    assert venv.get_attr("factor") == [2.0, 2.0, 2.0]
    venv.env_method("set_factor", 3.0, indices=[1])
    venv.set_attr("factor", 4.0, indices=2)
    assert venv.get_attr("factor") == [2.0, 3.0, 4.0]


def test_environments_in_processes_are_the_same_ones():
    venv = SubprocVecEnv([Count, Count])
    try:
        assert [step[0].ravel().tolist() for step in stepped(venv, 4)] == [
            [1.0, 1.0],
            [2.0, 2.0],
            [0.0, 0.0],
            [1.0, 1.0],
        ]
        venv.env_method("set_factor", 10.0)
        assert venv.step([0, 0])[0].ravel().tolist() == [20.0, 20.0]
        assert venv.env_method("set_factor", 5.0, indices=1) == [None]
        venv.set_attr("factor", 7.0, indices=[0])
        assert venv.get_attr("factor") == [7.0, 5.0]
        assert venv.get_attr("factor", indices=[1, 0]) == [5.0, 7.0]
        assert venv.env_is_wrapped(Monitor) == [False, False]
    finally:
        venv.close()


def test_statistics_of_vec_normalize(tmp_path):
    venv = VecNormalize(DummyVecEnv([lambda: Count(), lambda: Count(factor=3.0)]), gamma=0.5, clip_reward=1.5)
    first = venv.reset()
    assert first.ravel().tolist() == [0.0, 0.0]
    obs, rewards, _, _ = venv.step([0, 0])  # it has seen 0, 0, 1 and 3: mean 1, variance 1.5
    assert venv.obs_rms.mean.tolist() == [1.0]
    assert venv.obs_rms.var.tolist() == [1.5]
    np.testing.assert_allclose(obs.ravel(), [0.0, 2.0 / np.sqrt(1.5)], rtol=1e-6)
    assert rewards.tolist() == [1.5, 1.5]  # both returns are 1: no deviation, and the limit holds
    _, rewards, _, _ = venv.step([0, 0])  # returns 0.5 * 1 + 2 = 2.5 twice: of 1, 1, 2.5, 2.5 the deviation is 0.75
    np.testing.assert_allclose(venv.ret_rms.var, 0.75**2)
    _, rewards, dones, infos = venv.step([0, 0])
    assert dones.all()
    assert venv.returns.tolist() == [0.0, 0.0]
    mean, deviation = venv.obs_rms.mean, np.sqrt(venv.obs_rms.var + 1e-8)
    np.testing.assert_allclose(infos[1]["terminal_observation"], (9.0 - mean) / deviation, rtol=1e-6)

    venv.save(tmp_path / "statistics.pkl")
    assert json.loads((tmp_path / "statistics.pkl").read_text())["gamma"] == 0.5
    loaded = VecNormalize.load(tmp_path / "statistics.pkl", DummyVecEnv([Count]))
    loaded.training = loaded.norm_reward = False
    loaded.reset()
    obs, rewards, _, _ = loaded.step([0])
    np.testing.assert_allclose(obs.ravel(), (1.0 - mean) / deviation, rtol=1e-6)
    assert rewards.tolist() == [1.0]
    assert loaded.obs_rms.count == venv.obs_rms.count
    other = VecNormalize(DummyVecEnv([Count]))
    sync_envs_normalization(venv, other)
    assert other.obs_rms.mean.tolist() == mean.tolist()
    with pytest.raises(ValueError, match="wrap both"):
        sync_envs_normalization(venv, DummyVecEnv([Count]))
    (tmp_path / "pickled.pkl").write_bytes(b"\x80\x04\x95")
    with pytest.raises(ValueError, match="unpickled"):
        VecNormalize.load(tmp_path / "pickled.pkl", DummyVecEnv([Count]))


def test_frames_are_stacked_newest_last_and_begin_with_zeros():
    venv = VecFrameStack(DummyVecEnv([lambda: Count(factor=1.0)]), n_stack=3)
    assert venv.observation_space.shape == (3,)
    assert venv.reset().tolist() == [[0.0, 0.0, 0.0]]
    steps = [venv.step([0]) for _ in range(4)]
    assert [step[0].tolist()[0] for step in steps] == [[0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]
    assert steps[2][3][0]["terminal_observation"].tolist() == [1.0, 2.0, 3.0]
    images = VecFrameStack(DummyVecEnv([Picture]), n_stack=2)
    assert images.observation_space.shape == (12, 16, 6)
    assert VecFrameStack(DummyVecEnv([Picture]), 2, channels_order="first").observation_space.shape == (24, 16, 3)
    assert images.reset()[0, 0, 0].tolist() == [0, 0, 0, 255, 255, 255]


def test_load_results_reads_the_files_of_monitor(tmp_path):
    pytest.importorskip("pandas")
    env = Monitor(Count(), str(tmp_path))
    stepped(DummyVecEnv([lambda: env]), 7)
    assert env.get_episode_rewards() == [6.0, 6.0]
    stepped(make_vec_env(Count, n_envs=2, monitor_dir=str(tmp_path / "more")), 3)
    table = load_results(tmp_path)
    assert table.r.tolist() == [6.0, 6.0]
    assert ts2xy(table, X_TIMESTEPS)[0].tolist() == [3, 6]
    assert ts2xy(table, X_EPISODES)[1].tolist() == [6.0, 6.0]
    assert len(load_results(tmp_path / "more")) == 2
    with pytest.raises(FileNotFoundError, match="Monitor"):
        load_results(tmp_path / "nothing")


def test_evaluate_policy_gives_each_environment_its_share():
    venv = DummyVecEnv([lambda: Count(length=2), lambda: Count(length=3)])
    returns, lengths = evaluate_policy(Zero(), venv, n_eval_episodes=5, return_episode_rewards=True)
    assert sorted(returns) == [3.0, 3.0, 6.0, 6.0, 6.0]
    assert sorted(lengths) == [2, 2, 3, 3, 3]
    mean, deviation = evaluate_policy(Zero(), venv, n_eval_episodes=2)
    assert (mean, deviation) == (4.5, 1.5)
    normalized = VecNormalize(DummyVecEnv([Count]), training=False)
    assert evaluate_policy(Zero(), normalized, n_eval_episodes=1) == (
        6.0,
        0.0,
    )  # as the environment gives them
    seen = []
    evaluate_policy(Zero(), Count(), 1, callback=lambda values, _: seen.append((values["reward"], values["done"])))
    assert seen == [(1.0, False), (2.0, False), (3.0, True)]
    with pytest.raises(AssertionError, match="not above 7"):
        evaluate_policy(Zero(), Count(), 1, reward_threshold=7.0)


class Doubled(VecEnvWrapper):
    """Doubles rewards, as a user's own wrapper."""

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs, 2 * rewards, dones, infos


def test_any_vec_env_is_a_vector_for_lockstep_itself():
    with make_vector(Doubled(DummyVecEnv([lambda: Count(terminates=False), lambda: Count(length=2)]))) as boundary:
        boundary.reset([3, 4])
        results = [boundary.step(np.zeros(2, int)) for _ in range(2)]
        assert results[1].rewards.tolist() == [4.0, 4.0]
        assert results[1].terminateds.tolist() == [False, True]
        rows, last = results[1].final_obs
        assert (rows.tolist(), last.tolist()) == ([1], [[2.0]])
        result = boundary.step(np.zeros(2, int))
        assert (result.truncateds.tolist(), result.terminateds.tolist()) == ([True, False], [False, False])
        with pytest.raises(ValueError, match="finished"):
            make_vector(boundary.env, num_envs=5)


def test_training_through_a_wrapper_of_ones_own_sees_its_rewards():
    seen = []
    model = PPO("MlpPolicy", Doubled(DummyVecEnv([Copy])), n_steps=40, seed=0)
    model.learn(40, callback=lambda values, _: seen.extend(values["rewards"].tolist()) is None)
    assert set(seen) == {0.0, 2.0}
    assert [episode["l"] for episode in model.ep_info_buffer] == [10] * 4
    assert sum(episode["r"] for episode in model.ep_info_buffer) == sum(seen) / 2  # as the environment gives them
    assert model.get_vec_normalize_env() is None


def test_pictures_of_all_environments_are_one_picture():
    venv = make_vec_env("CartPole-v1", n_envs=2)
    venv.reset()
    picture = venv.render("rgb_array")
    one = venv.envs[0].render()
    assert picture.shape == (2 * one.shape[0], one.shape[1], 3)
    venv.close()


def test_atari_games_are_preprocessed():
    pytest.importorskip("ale_py")
    import ale_py

    from lockstep_sb3.common.env_util import make_atari_env

    gym.register_envs(ale_py)
    venv = make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=0, wrapper_kwargs={"terminal_on_life_loss": False})
    obs = venv.reset()
    assert (obs.shape, obs.dtype) == ((1, 84, 84, 1), np.uint8)
    assert all(venv.step([2])[1][0] in (-1.0, 0.0, 1.0) for _ in range(30))
    venv.close()
