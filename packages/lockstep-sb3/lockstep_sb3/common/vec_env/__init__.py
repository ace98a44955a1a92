"""Vector environments and their wrappers, with the names of `stable_baselines3.common.vec_env`."""

from lockstep_sb3.common.vec_env.async_eval import AsyncEval
from lockstep_sb3.common.vec_env.base_vec_env import CloudpickleWrapper, VecEnv, VecEnvWrapper
from lockstep_sb3.common.vec_env.dummy_vec_env import DummyVecEnv
from lockstep_sb3.common.vec_env.stacked_observations import StackedObservations
from lockstep_sb3.common.vec_env.subproc_vec_env import SubprocVecEnv
from lockstep_sb3.common.vec_env.util import is_vecenv_wrapped, unwrap_vec_wrapper
from lockstep_sb3.common.vec_env.vec_check_nan import VecCheckNan
from lockstep_sb3.common.vec_env.vec_extract_dict_obs import VecExtractDictObs
from lockstep_sb3.common.vec_env.vec_frame_stack import VecFrameStack
from lockstep_sb3.common.vec_env.vec_monitor import VecMonitor
from lockstep_sb3.common.vec_env.vec_normalize import VecNormalize, sync_envs_normalization, unwrap_vec_normalize
from lockstep_sb3.common.vec_env.vec_transpose import VecTransposeImage
from lockstep_sb3.common.vec_env.vec_video_recorder import VecVideoRecorder

__all__ = [
    "AsyncEval",
    "CloudpickleWrapper",
    "DummyVecEnv",
    "StackedObservations",
    "SubprocVecEnv",
    "VecCheckNan",
    "VecEnv",
    "VecEnvWrapper",
    "VecExtractDictObs",
    "VecFrameStack",
    "VecMonitor",
    "VecNormalize",
    "VecTransposeImage",
    "VecVideoRecorder",
    "is_vecenv_wrapped",
    "sync_envs_normalization",
    "unwrap_vec_normalize",
    "unwrap_vec_wrapper",
]
