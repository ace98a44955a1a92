"""Vector environments and their wrappers, with the names of `stable_baselines3.common.vec_env`."""

from lockstep_sb3.common.vec_env.base_vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from lockstep_sb3.common.vec_env.wrappers import VecFrameStack, VecNormalize, sync_envs_normalization

__all__ = ["DummyVecEnv", "SubprocVecEnv", "VecEnv", "VecEnvWrapper", "VecFrameStack", "VecNormalize"]
__all__ += ["sync_envs_normalization"]
