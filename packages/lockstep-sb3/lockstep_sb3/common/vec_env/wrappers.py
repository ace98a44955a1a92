"""Old place of `VecNormalize`, `VecFrameStack` and their helpers, until version 0.2."""

from __future__ import annotations

from typing import Any

from lockstep_sb3.common.moved import moved_name

_MOVED = {
    "VecEnv": "lockstep_sb3.common.vec_env.base_vec_env:VecEnv",
    "VecEnvWrapper": "lockstep_sb3.common.vec_env.base_vec_env:VecEnvWrapper",
    "VecFrameStack": "lockstep_sb3.common.vec_env.vec_frame_stack:VecFrameStack",
    "VecNormalize": "lockstep_sb3.common.vec_env.vec_normalize:VecNormalize",
    "find_vec_normalize": "lockstep_sb3.common.vec_env.vec_normalize:unwrap_vec_normalize",
    "normalize_of": "lockstep_sb3.common.vec_env.vec_normalize:unwrap_vec_normalize",
    "sync_envs_normalization": "lockstep_sb3.common.vec_env.vec_normalize:sync_envs_normalization",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
