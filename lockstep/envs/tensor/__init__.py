"""Vector environments of tensors on a device: our own, and those of other libraries."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import torch

from lockstep.envs.errors import did_you_mean
from lockstep.envs.tensor.adapters import JaxEnv, RslRlEnv
from lockstep.envs.tensor.base import TensorEnv, TensorVecEnv
from lockstep.envs.tensor.boundary import SingleTensorEnv, TensorBoundary, arrived_at
from lockstep.envs.tensor.classic_control import Acrobot, CartPole, Pendulum
from lockstep.envs.tensor.minatar import Breakout

TENSOR_ENVS: dict[str, type[TensorEnv]] = {
    "tensor/CartPole-v1": CartPole,
    "tensor/Pendulum-v1": Pendulum,
    "tensor/Acrobot-v1": Acrobot,
    "tensor/MinAtar-Breakout-v1": Breakout,
}
"""the environments that `make_tensor_env` makes, by id"""


def make_tensor_env(
    env_id: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> TensorEnv:
    """Make `num_envs` environments whose states are tensors on `device`.

    Args:
        env_id: a key of `TENSOR_ENVS`.
        num_envs: number of environments B.
        device: where they are.
        dtype: of the real numbers in their state: float64 has gymnasium's numbers to 1e-12. Observations are float32
            (bool in games of MinAtar), rewards float32.
        seed: of their random numbers.

    Raises:
        ValueError: the id is unknown; names those that there are.
    """
    if env_id not in TENSOR_ENVS:
        raise ValueError(
            f"the tensor environment {env_id!r} is unknown; there are {', '.join(TENSOR_ENVS)}."
            f"{did_you_mean(str(env_id), TENSOR_ENVS)}"
        )
    return TENSOR_ENVS[env_id](num_envs, device, dtype, seed)


def register_tensor_envs() -> None:
    """Register the ids in gymnasium; may be called again. `make_vector` does so for ids that begin with `tensor/`."""
    for env_id in TENSOR_ENVS:
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=partial(_single, env_id), disable_env_checker=True, order_enforce=False)


def _single(env_id: str, **options: Any) -> SingleTensorEnv:
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
    "arrived_at",
    "make_tensor_env",
    "register_tensor_envs",
]
