"""Vector environments that are stepped with tensors on a device: our own, and those of other libraries."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import torch

from lockstep.envs.errors import did_you_mean
from lockstep.envs.tensor.adapters import JaxEnv, RslRlEnv
from lockstep.envs.tensor.base import TensorEnv, TensorVecEnv
from lockstep.envs.tensor.boundary import SingleTensorEnv, TensorBoundary, final_observations
from lockstep.envs.tensor.classic_control import Acrobot, CartPole, Pendulum
from lockstep.envs.tensor.minatar import Breakout
from lockstep.state.moved import moved_name

TENSOR_ENVS: dict[str, type[TensorEnv]] = {
    "tensor/CartPole-v1": CartPole,
    "tensor/Pendulum-v1": Pendulum,
    "tensor/Acrobot-v1": Acrobot,
    "tensor/MinAtar-Breakout-v1": Breakout,
}
"""Environments that `make_tensor_env` makes, by id."""


def make_tensor_env(
    env_id: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> TensorEnv:
    """Make `num_envs` environments whose states are tensors on `device`.

    Args:
        env_id: A key of `TENSOR_ENVS`.
        num_envs: Number of environments B.
        device: Device of all their tensors.
        dtype: Dtype of the real numbers in their state. With float64 they equal gymnasium's environments to 1e-12.
            Observations are float32 (bool in games of MinAtar), rewards float32.
        seed: Seed of their random numbers.

    Raises:
        ValueError: The id is unknown. Names the known ids.
    """
    if env_id not in TENSOR_ENVS:
        raise ValueError(
            f"the tensor environment {env_id!r} is unknown; there are {', '.join(TENSOR_ENVS)}."
            f"{did_you_mean(str(env_id), TENSOR_ENVS)}"
        )
    return TENSOR_ENVS[env_id](num_envs, device, dtype, seed)


def register_tensor_envs() -> None:
    """Register the ids with gymnasium. May be called again; `make_vector` does so for ids that begin with `tensor/`."""
    for env_id in TENSOR_ENVS:
        if env_id not in gym.registry:
            gym.register(
                env_id, entry_point=partial(_make_single, env_id), disable_env_checker=True, order_enforce=False
            )


def _make_single(env_id: str, **options: Any) -> SingleTensorEnv:
    return SingleTensorEnv(make_tensor_env(env_id, 1, **options))


__all__ = [
    "TENSOR_ENVS",
    "Acrobot",
    "Breakout",
    "CartPole",
    "JaxEnv",
    "Pendulum",
    "RslRlEnv",
    "SingleTensorEnv",
    "TensorBoundary",
    "TensorEnv",
    "TensorVecEnv",
    "final_observations",
    "make_tensor_env",
    "register_tensor_envs",
]

_MOVED = {"arrived_at": "lockstep.envs.tensor:final_observations"}


def __getattr__(name: str) -> Any:
    """Return objects by the names that they had before."""
    return moved_name(__name__, name, _MOVED)
