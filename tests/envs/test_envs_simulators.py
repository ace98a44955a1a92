"""Tasks of mjlab and of brax, where they are installed, learned on the device by PPO.

Neither is in the environment of the other tests: mjlab needs its own versions of MuJoCo, brax brings JAX.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import PPOConfig
from lockstep.envs import JaxEnv, RslRlEnv
from lockstep.rollout import TensorCollector

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def returns_of(env: Any, num_steps: int, epochs: int) -> list[float]:
    """Return the mean return of each epoch, whose collects are `num_steps` steps of each environment."""
    num_envs = env.num_envs
    config = PPOConfig().environment(env, normalize_observations=True).debugging(seed=1).framework(compile=False)
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=64)
    config.training(train_batch_size=64 * num_envs, minibatch_size=8 * num_envs, num_epochs=10, lr=1e-3)
    config.training(entropy_coeff=0.0).evaluation(evaluation_interval=0)
    steps = num_steps * num_envs
    trainer = config.reporting(total_steps=epochs * steps, steps_per_epoch=steps).build_trainer()
    assert type(trainer.train_collector) is TensorCollector
    returns = []
    for _, stats, _ in trainer:
        returns.append(stats.train_collect_stat.returns_stat.mean)
        print(returns[-1], flush=True)
    return returns


def test_a_task_of_mjlab_is_learned():
    pytest.importorskip("mjlab.tasks")
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg, load_rl_cfg

    config = load_env_cfg("Mjlab-Cartpole-Balance")
    config.scene.num_envs = 32
    config.episode_length_s = 2.0
    env = RslRlVecEnvWrapper(ManagerBasedRlEnv(config, device="cpu"))
    adapter = RslRlEnv(env, obs_groups=load_rl_cfg("Mjlab-Cartpole-Balance").obs_groups)
    assert list(adapter.single_observation_space.spaces) == ["actor", "critic"]
    assert adapter.observation_groups == {"policy": ["actor"], "critic": ["critic"]}
    returns = returns_of(adapter, 128, 8)
    assert returns[-1] > 1.2 * returns[0], returns


def test_a_task_of_brax_is_learned():
    """brax leaves resets and time limits to wrappers; here they are in the functions that `JaxEnv` takes."""
    jax = pytest.importorskip("jax")
    brax_env = pytest.importorskip("brax.envs").get_environment("inverted_pendulum", backend="generalized")
    limit = 200

    def reset(key):
        physics = brax_env.reset(key)
        return {"pendulum": physics.obs}, {"physics": physics, "step": jax.numpy.zeros((), int), "key": key}

    def step(key, state, action):
        physics = brax_env.step(state["physics"], action)
        steps = state["step"] + 1
        terminated = physics.done > 0.5
        truncated = (steps >= limit) & ~terminated
        first, fresh = reset(key)
        following = {"physics": physics, "step": steps, "key": state["key"]}

        def pick(fresh_leaf, leaf):
            return jax.numpy.where(terminated | truncated, fresh_leaf, leaf)

        obs = {"pendulum": physics.obs}
        next_state = jax.tree.map(pick, fresh, following)
        info = {"final_observation": obs}
        return jax.tree.map(pick, first, obs), next_state, physics.reward, terminated, truncated, info

    space = spaces.Dict({"pendulum": spaces.Box(-np.inf, np.inf, (brax_env.observation_size,))})
    actions = spaces.Box(-1.0, 1.0, (brax_env.action_size,))
    env = JaxEnv(reset, step, space, actions, num_envs=8, max_episode_length=limit)
    assert env.device == torch.device("cpu")
    returns = returns_of(env, 512, 8)
    assert returns[-1] > 150 > 5 * returns[0], returns
