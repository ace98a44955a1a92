"""DQN with goals: bit flipping is right, `replay(her=True)` relabels with the environment's own functions, refusals."""

import gymnasium as gym
import numpy as np
import pytest

from lockstep import DQNConfig
from lockstep.envs import BitFlipping, check_environment, goal_functions, make_vector


def config_of(num_bits=6, **replay):
    config = DQNConfig().environment("lockstep/BitFlipping-v0", env_config={"num_bits": num_bits})
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=5).replay(**replay)
    config.rl_module(model_config={"hiddens": (64,), "activation": "relu"})
    return config.evaluation(evaluation_interval=0)


def test_bit_flipping_ends_at_the_goal_and_after_as_many_steps_as_bits():
    env = BitFlipping(5)
    assert [finding for finding in check_environment(env, num_steps=300) if finding.level == "error"] == []
    obs, _ = env.reset(seed=3)
    different = np.flatnonzero(obs["observation"] != obs["desired_goal"])
    assert len(different) > 0
    for count, bit in enumerate(different, start=1):
        obs, reward, terminated, truncated, _ = env.step(bit)
        assert (reward, terminated) == ((0.0, True) if count == len(different) else (-1.0, False))
        assert not truncated
    assert np.array_equal(obs["achieved_goal"], obs["desired_goal"])
    obs, _ = env.reset()
    wrong = int(np.flatnonzero(obs["observation"] == obs["desired_goal"])[0])
    flags = [env.step(wrong)[2:4] for _ in range(5)]  # there and back
    assert flags == [(False, False)] * 4 + [(False, True)]
    with pytest.raises(ValueError, match="num_bits=0 is not allowed"):
        BitFlipping(0)


def test_bit_flipping_goes_on_from_its_state():
    vector = make_vector("lockstep/BitFlipping-v0", num_envs=2)
    vector.reset([1, 2])
    vector.step(np.array([0, 3]))
    state = vector.get_state()
    expected = [vector.step(np.array([k % 15, k % 7])).obs["observation"].copy() for k in range(20)]
    other = make_vector("lockstep/BitFlipping-v0", num_envs=2)
    other.set_state(state)
    got = [other.step(np.array([k % 15, k % 7])).obs["observation"].copy() for k in range(20)]
    assert np.array_equal(got, expected)


def test_the_buffer_of_a_configuration_relabels_with_her_only():
    shares = []
    for options in ({"her": True, "her_future_k": 3.0}, {"her": False}):
        trainer = config_of(12, learning_starts=400, **options).reporting(total_steps=400).build_trainer()
        trainer.run()
        batch = trainer.buffer.sample(4000)
        reached = (batch["new_obs"]["achieved_goal"] == batch["new_obs"]["desired_goal"]).all(-1)
        np.testing.assert_array_equal(batch["rewards"], np.where(reached, 0.0, -1.0))
        np.testing.assert_array_equal(batch["terminateds"], reached)
        shares.append(reached.mean())
    assert shares[0] > 0.1
    assert shares[1] < 0.02
    assert trainer.buffer.hindsight is None


def test_dqn_learns_six_bits_with_hindsight():
    config = config_of(her=True, update_per_step=0.5).reporting(total_steps=1_500).debugging(seed=1)
    config.training(gamma=0.9, lr=3e-3, train_batch_size=64, tau=0.05, target_update_interval=1)
    policy = config.training(epsilon=[[0, 1.0], [1_000, 0.2]]).build_trainer()
    policy.run()
    env, solved = BitFlipping(6), 0
    for seed in range(40):
        obs, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            obs, _, reached, truncated, _ = env.step(policy.policy.compute_single_action(obs))
            ended = reached or truncated
        solved += reached
    assert solved >= 30


def test_a_finished_environment_gives_its_own_functions():
    env = BitFlipping(4)
    compute_reward, compute_terminated = goal_functions(gym.wrappers.TimeLimit(env, 3))
    goals = np.eye(4, dtype=np.float32)
    assert compute_reward(goals, goals[::-1], {}).tolist() == [-1.0] * 4
    assert compute_terminated(goals, goals, {}).tolist() == [True] * 4
    buffer = DQNConfig().environment(env).replay(her=True).build_collector().buffer
    assert buffer.hindsight.compute_reward == env.compute_reward
