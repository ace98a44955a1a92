"""A small robot with the interface of rsl_rl's `VecEnv`, and rsl_rl's runner for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

NUM_ENVS, LIMIT = 16, 24


def make_robot(**options: Any) -> Any:
    """Return `NUM_ENVS` carts that are pushed to a goal against a wind that only the critic sees.

    An episode ends where a cart leaves the track, and by a time limit. `nested=True`: the goal is in a group within a
    group. `reuses=True`: observations are always the same tensors, which rsl_rl's storage cannot take.
    """
    vec_env = pytest.importorskip("rsl_rl.env").VecEnv
    tensor_dict = pytest.importorskip("tensordict").TensorDict

    class Robot(vec_env):
        num_actions = 1
        device = "cpu"
        cfg: Any = {}

        def __init__(self, num_envs: int = NUM_ENVS, seed: int = 0, nested: bool = False, reuses: bool = False) -> None:
            self.num_envs, self.nested, self.reuses = num_envs, nested, reuses
            self.running, self.returns = torch.zeros(num_envs), []
            self.max_episode_length = torch.full((num_envs,), LIMIT)
            self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
            self.state = torch.zeros(num_envs, 4)  # place, velocity, goal, wind
            self.proprio, self.wind = torch.zeros(num_envs, 2), torch.zeros(num_envs, 1)
            self.goal = torch.zeros(num_envs, 1)
            self.extras: dict[str, Any] = {}
            self.seed(seed)
            self.reset()

        def seed(self, seed: int) -> None:
            self.generator = torch.Generator().manual_seed(seed)

        def reset(self) -> Any:
            self._begin(torch.ones(self.num_envs, dtype=torch.bool))
            return self.get_observations(), {}

        def _begin(self, rows: torch.Tensor) -> None:
            draws = torch.rand(self.num_envs, 4, generator=self.generator) * 2.0 - 1.0
            fresh = draws * torch.tensor([0.5, 0.1, 1.0, 0.5])
            self.state[rows] = fresh[rows]
            self.episode_length_buf[rows] = 0

        def get_observations(self) -> Any:
            self.proprio.copy_(self.state[:, :2])
            self.goal.copy_(self.state[:, 2:3])
            self.wind.copy_(self.state[:, 3:])
            goal = tensor_dict({"goal": self.goal}, [self.num_envs]) if self.nested else self.goal
            name = "task" if self.nested else "goal"
            obs = tensor_dict({"proprio": self.proprio, name: goal, "wind": self.wind}, [self.num_envs])
            return obs if self.reuses else obs.clone()

        def step(self, actions: torch.Tensor) -> Any:
            place, velocity, goal, wind = self.state.unbind(1)
            force = actions[:, 0].clamp(-1.0, 1.0) + wind
            velocity = 0.9 * velocity + 0.2 * force
            place = place + 0.2 * velocity
            self.state[:, 0], self.state[:, 1] = place, velocity
            self.episode_length_buf += 1
            distance = (place - goal).abs()
            rewards = 1.0 - distance
            fell = place.abs() > 1.6
            time_outs = self.episode_length_buf >= self.max_episode_length
            dones = fell | time_outs
            self.extras = {"time_outs": time_outs & ~fell, "log": {"/distance": distance, "Robot/falls": fell.sum()}}
            self.extras["log"]["steps"] = 2.0
            self.running += rewards
            if dones.any():
                self.returns += self.running[dones].tolist()
                self.running[dones] = 0.0
                self._begin(dones)
            return self.get_observations(), rewards, dones.long(), self.extras

    return Robot(**options)


OBS_GROUPS = {"actor": ["proprio", "goal"], "critic": ["proprio", "goal", "wind"]}


def make_runner(env: Any, num_steps: int, *, seed: int = 0, obs_groups: Any = OBS_GROUPS, **algorithm: Any) -> Any:
    """Return rsl_rl's runner, whose networks have two layers of 32 units."""
    runners = pytest.importorskip("rsl_rl.runners")
    torch.manual_seed(seed)
    network = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "tanh"}
    config = {
        "num_steps_per_env": num_steps,
        "save_interval": 10**6,
        "obs_groups": {name: list(groups) for name, groups in obs_groups.items()},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": dict(network),
        "algorithm": {"class_name": "PPO", **algorithm},
    }
    return runners.OnPolicyRunner(env, config, log_dir=None, device="cpu")
