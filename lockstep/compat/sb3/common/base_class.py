"""`BaseAlgorithm`: `learn`, `predict`, `save` and `load` on Lockstep's policies, collectors and trainers."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces

from lockstep.algorithms import AlgorithmConfig, Policy
from lockstep.algorithms.json_form import from_plain, to_plain
from lockstep.algorithms.saved_policy import described, space_of
from lockstep.compat.sb3.common import noise
from lockstep.compat.sb3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback
from lockstep.compat.sb3.common.env_util import make_vec_env
from lockstep.compat.sb3.common.logger import Logger
from lockstep.compat.sb3.common.utils import OverSteps, TableSchedule
from lockstep.compat.sb3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from lockstep.compat.sb3.common.vec_env.base_vec_env import BoundaryVecEnv, infos_of
from lockstep.compat.sb3.common.vec_env.wrappers import unwrap_vec_wrapper
from lockstep.data.trees import map_tree
from lockstep.envs import StepResult
from lockstep.envs.vec_env import VecEnvBoundary
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.rollout import Collector
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.tracking.run_folder import versions
from lockstep.trainer import Callback, OffpolicyTrainer, OnpolicyTrainer
from lockstep.trainer.callbacks import CollectEnd

Rate = float | Callable[[float], float]
NAMES = {"policy_loss": "policy_gradient_loss", "vf_loss": "value_loss", "alpha": "ent_coef", "qf_loss": "loss"}
"""our metric -> its name in the logger"""


class BasePolicy:
    """The networks of a model: `predict`, and their numbers by name."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model, self.predict = model, model.predict
        self.observation_space, self.action_space = model.observation_space, model.action_space

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all numbers by name: `policy_net.` stands before those that act, `value_net.` before the others."""
        return {_sorted_name(name): value for name, value in self.model.lockstep.state_dict().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Set what `state_dict` returned, or (`strict=False`) some of it."""
        new = {name.partition(".")[2]: value for name, value in state_dict.items()}
        return self.model.lockstep.load_state_dict(new, strict)

    def save(self, path: str | Path) -> None:
        """Write the model that this is the policy of."""
        self.model.save(path)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> BasePolicy:
        """Return the policy of a model that was written, of whatever algorithm."""
        policy: BasePolicy = BaseAlgorithm.load(path, device=device).policy
        return policy


def _sorted_name(name: str) -> str:
    return f"{'value_net' if 'value' in name or 'critic' in name else 'policy_net'}.{name}"


class Stopped(Exception):
    """A callback ended `learn`."""


class RolloutEnd(Callback):
    """Tells a model's callback that a rollout has ended."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model

    def on_collect_end(self, event: CollectEnd) -> None:
        self.model.callback.on("rollout_end")


@dataclass(eq=False, repr=False)
class BaseAlgorithm(ABC):
    """An algorithm with its policy and its environments.

    Options have the names and defaults of Stable-Baselines3; what has no counterpart is refused by name.
    `model.lockstep` is the `lockstep.Policy`, `model.config` its configuration, `model.trainer` what trains it.
    """

    algorithm: ClassVar[str] = ""
    log_interval: ClassVar[int] = 4

    policy: Any
    env: Any
    learning_rate: Rate = 3e-4
    _: KW_ONLY
    gamma: float = 0.99
    use_sde: bool = False
    sde_sample_freq: int = -1
    stats_window_size: int = 100
    tensorboard_log: str | None = None
    policy_kwargs: dict[str, Any] | None = None
    verbose: int = 0
    seed: int | None = None
    device: Any = "auto"
    _init_setup_model: bool = True

    def __post_init__(self) -> None:
        self.num_timesteps, self.n_envs, self.start_time, self._steps_before, self._logged = 0, 1, 0.0, 0, 0
        self.trainer: Any = None
        self.remembered: Any = None  # a replay buffer that was loaded before there are environments
        self.last_training: Any = None
        self.log_interval_now: int | None = None
        self._ended: dict[int, dict[str, Any]] = {}
        self.locals: dict[str, Any] = {}
        self.logger, self.callback = Logger(None, []), BaseCallback()
        self.ep_info_buffer: deque[dict[str, Any]] = deque(maxlen=self.stats_window_size)
        self.total = [0]
        self.policy_name = getattr(self.policy, "__name__", self.policy)
        if self.policy_name not in ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"):
            raise ValueError(
                f"policy={self.policy!r} is no name here: 'MlpPolicy', 'CnnPolicy' or 'MultiInputPolicy', networks of "
                "your own as policy_kwargs={'features_extractor_class': ...}, or to Lockstep itself as an RLModule"
            )
        if self._init_setup_model:
            self.set_up(self.vector_of(self.env))

    # -- building ---

    @staticmethod
    def vector_of(env: Any) -> Any:
        """Return environments side by side for an id, one environment, or a vector; None for None."""
        if isinstance(env, str):
            return make_vec_env(env)
        return env if isinstance(env, VecEnv) or env is None else DummyVecEnv([lambda: env])

    def set_up(self, venv: Any, spaces_of_policy: tuple[Any, Any] | None = None) -> None:
        """Build configuration and policy and, for an environment, the trainer."""
        self.env, self.n_envs = venv, self.n_envs if venv is None else venv.num_envs
        self.observation_space, self.action_space = spaces_of_policy or (venv.observation_space, venv.action_space)
        self.config = self.make_config()
        self.lockstep: Policy = self.config.build_policy(spaces=(self.observation_space, self.action_space))
        self.policy = BasePolicy(self)
        if venv is not None:
            self._make_trainer()

    @abstractmethod
    def make_config(self) -> AlgorithmConfig:
        """Return the configuration that these options come to."""

    def _make_trainer(self) -> None:
        venv = self.env
        self.boundary = venv.boundary if isinstance(venv, BoundaryVecEnv) else VecEnvBoundary(venv)
        seeds = None if self.seed is not None or not isinstance(venv, BoundaryVecEnv) else venv.seeds
        collector = Collector(
            self.lockstep,
            self.boundary,
            self.remembered if self.trainer is None else self.trainer.buffer,
            on_episode_done_hook=self._on_episode,
            seed=None if seeds is None else seeds[0],
        )
        self.trainer = self.make_trainer(
            policy=self.lockstep, max_epoch=0, step_per_epoch=1, train_collector=collector, callbacks=[RolloutEnd(self)]
        )

    @abstractmethod
    def make_trainer(self, **options: Any) -> OnpolicyTrainer | OffpolicyTrainer:
        """Return the trainer."""

    def over_steps(self, rate: Rate) -> Any:
        """Return a number as it is, and a function of the progress that remains as one of environment steps."""
        return OverSteps(rate, self.total) if callable(rate) else float(rate)

    # -- learning ---

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = -1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for so many steps (`reset_num_timesteps=False`: so many more) and return the model."""
        if self.trainer is None:
            raise ValueError("the model has no environment; call set_env(env) first")
        if reset_num_timesteps:
            self.num_timesteps = 0
            self.trainer.reset()
        elif getattr(self.env.unwrapped, "is_stepped_by_hand", False):
            self.trainer.collector.reset_env()
        self.trainer.env_step = self.num_timesteps
        self.lockstep.timesteps[STEPS_SAMPLED] = self.num_timesteps
        self.total[0] = int(total_timesteps) + self.num_timesteps
        name = tb_log_name or type(self).__name__
        self._open_logger(name, reset_num_timesteps)
        self.log_interval_now = self.log_interval if log_interval == -1 else log_interval
        self._ended = {}
        self.start_time, self._steps_before, self._logged = time.monotonic(), self.num_timesteps, 0
        self.callback = self._joined(callback, progress_bar)
        self.trainer.collector.on_step_hook = self._on_vector_step if type(self.callback) is not BaseCallback else None
        if self.trainer.collector.on_step_hook is not None:
            self.boundary.keep_infos()
        self.callback.init_callback(self)
        self.locals = {"self": self, "total_timesteps": self.total[0], "tb_log_name": name, "env": self.env}
        self.callback.on_training_start(self.locals, globals())
        try:
            while self.num_timesteps < self.total[0]:
                self.callback.on("rollout_start")
                self.last_training = self.trainer.training_step()[1] or self.last_training
                self.num_timesteps = self.trainer.env_step
                self._log()
        except Stopped:
            pass
        self.callback.on("training_end")
        return self

    def _joined(self, callback: Any, progress_bar: bool) -> BaseCallback:
        if isinstance(callback, list | tuple):
            callback = CallbackList(callback)
        elif callable(callback):
            callback = ConvertCallback(callback)
        if progress_bar:
            return CallbackList([*([] if callback is None else [callback]), ProgressBarCallback()])
        return BaseCallback() if callback is None else callback

    def _on_episode(self, row: int, episode_return: float, length: int) -> None:
        known = self.boundary.infos.of_step[row] if self.boundary.infos else {}
        episode = known.get("episode", {"r": episode_return, "l": length, "t": time.monotonic() - self.start_time})
        self.ep_info_buffer.append(episode)
        self._ended[row] = episode

    def _on_vector_step(self, result: StepResult) -> None:
        self.num_timesteps += self.n_envs
        infos = infos_of(result, self.boundary)
        for row, episode in self._ended.items():
            infos[row].setdefault("episode", episode)
        self._ended = {}
        dones = result.terminateds | result.truncateds
        self.locals.update(infos=infos, dones=dones, rewards=result.rewards, new_obs=result.obs)
        if not self.callback.on_step():
            raise Stopped

    # -- logging ---

    def set_logger(self, logger: Logger) -> None:
        """Use this logger in `learn` from now on."""
        self.logger, self._own_logger = logger, True

    def _open_logger(self, name: str, anew: bool) -> None:
        if getattr(self, "_own_logger", False):
            return
        formats, folder = ["stdout"] * (self.verbose > 0), None
        if self.tensorboard_log is not None:
            taken = [int(path.name.rpartition("_")[2]) for path in Path(self.tensorboard_log).glob(f"{name}_[0-9]*")]
            folder = Path(self.tensorboard_log) / f"{name}_{max(max(taken, default=0) + anew, 1)}"
            formats.append("tensorboard")
        self.logger = Logger(folder, formats)

    @abstractmethod
    def _log(self) -> None: ...

    def dump_logs(self) -> None:
        """Record returns, speed and the metrics of the last update, and write what the logger has."""
        if self.ep_info_buffer:
            for key, name in (("r", "ep_rew_mean"), ("l", "ep_len_mean")):
                self.logger.record(f"rollout/{name}", float(np.mean([each[key] for each in self.ep_info_buffer])))
        seconds = max(time.monotonic() - self.start_time, 1e-9)
        self.logger.record("time/fps", int((self.num_timesteps - self._steps_before) / seconds))
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        if self.last_training is not None:
            for name, value in self.last_training.get_loss_stats_dict().items():
                self.logger.record(f"train/{NAMES.get(name, name)}", value)
        self.logger.dump(self.num_timesteps)

    # -- acting ---

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Return actions for one observation or a batch, and `state` as it is: no policy here has a memory."""
        space, leaf = self.observation_space, observation
        if isinstance(space, spaces.Dict):
            name = next(iter(space.spaces))
            space, leaf = space[name], observation[name]
        is_single = np.shape(leaf) == space.shape
        batch = map_tree(lambda each: np.asarray(each)[None], observation) if is_single else observation
        actions = self.lockstep.compute_actions(batch, explore=not deterministic and self.algorithm != "td3")
        return (actions[0] if is_single else actions), state

    # -- environments, seeds, parameters ---

    def get_env(self) -> Any:
        """Return the environments, or None."""
        return self.env

    def get_vec_normalize_env(self) -> VecNormalize | None:
        """Return the `VecNormalize` around the environments, or None."""
        return unwrap_vec_wrapper(self.env, VecNormalize)

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Learn in other environments, of the same spaces and number."""
        venv = self.vector_of(env)
        if venv.num_envs != self.n_envs:
            raise ValueError(f"set_env got {venv.num_envs} environments, the model has {self.n_envs}; give as many")
        self.lockstep.acting["default_policy"].check_spaces(venv.observation_space, venv.action_space)
        self.env = venv
        self._make_trainer()

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed all random numbers but the initial weights."""
        if seed is not None and self.trainer is not None:
            self.trainer.set_seed(seed)

    def get_parameters(self) -> dict[str, Any]:
        """Return the networks' numbers: `{"policy": state_dict}`; `save` has optimizers too."""
        return {"policy": self.policy.state_dict()}

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: str = "auto") -> None:
        """Set what `get_parameters` returned, or the networks of a file."""
        is_file = isinstance(load_path_or_dict, str | Path)
        found = BaseAlgorithm.load(load_path_or_dict).get_parameters() if is_file else load_path_or_dict
        self.policy.load_state_dict(found["policy"], strict=exact_match)

    # -- files ---

    def save(self, path: str | Path, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> None:
        """Write options, networks and optimizers as a checkpoint in a zip, `<path>.zip`; nothing is pickled."""
        if exclude or include:
            raise ValueError(f"exclude={exclude!r}, include={include!r} are not there; a file has all but environments")
        path = Path(path) if Path(path).suffix else Path(f"{path}.zip")
        left = ("policy", "env", "_init_setup_model", "device", "tensorboard_log")
        options = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left}
        plain = {name: _plain(name, value) for name, value in options.items()}
        about = {"algorithm": type(self).__name__, "policy": self.policy_name, "n_envs": self.n_envs}
        about |= {"num_timesteps": self.num_timesteps, "total": self.total[0]}
        about |= {"spaces": [described(self.observation_space), described(self.action_space)], "options": plain}
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            write_checkpoint(f"{folder}/model", {"sb3": about, "policy": {"state": self.lockstep.get_state()}})
            shutil.move(shutil.make_archive(f"{folder}/packed", "zip", f"{folder}/model"), path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Any = None,
        device: Any = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Return a model that `save` wrote, with other options where `custom_objects` or `kwargs` have some."""
        path = Path(path) if Path(path).suffix or Path(path).exists() else Path(f"{path}.zip")
        with tempfile.TemporaryDirectory() as folder:
            try:
                shutil.unpack_archive(path, f"{folder}/model", "zip")
                found = read_checkpoint(f"{folder}/model")
            except (shutil.ReadError, ValueError) as error:
                raise ValueError(
                    f"{path} is no file of `save` ({error}); one of Stable-Baselines3 is not read"
                ) from error
        about = found["sb3"]
        kind = next(each for each in subclasses(BaseAlgorithm) if each.__name__ == about["algorithm"])
        if not issubclass(kind, cls):
            raise ValueError(f"{path} is of {kind.__name__}, not of {cls.__name__}")
        options = {name: _value(plain) for name, plain in about["options"].items()}
        options |= {**(custom_objects or {}), **kwargs, "device": device, "_init_setup_model": False}
        model = kind(about["policy"], None, **options)
        model.n_envs, model.total[0], model.num_timesteps = about["n_envs"], about["total"], about["num_timesteps"]
        observation_space, action_space = map(space_of, about["spaces"])
        model.set_up(cls.vector_of(env), (observation_space, action_space))
        model.lockstep.set_state(found["policy"]["state"])
        if print_system_info:
            sys.stdout.write(f"{versions()}\n")
        return model


def subclasses(kind: type) -> list[type]:
    """Return a class and all below it."""
    found: list[type] = kind.__subclasses__()
    return [kind, *(each for below in found for each in subclasses(below))]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, noise.NormalActionNoise):
        return {"noise": type(value).__name__, **{key: np.asarray(part).tolist() for key, part in vars(value).items()}}
    if callable(value) and not isinstance(value, type):
        return {"progress": [float(value(i / 100)) for i in range(101)]}
    return to_plain(name, value)


def _value(plain: Any) -> Any:
    if isinstance(plain, Mapping) and "noise" in plain:
        return getattr(noise, plain["noise"])(**{name: part for name, part in plain.items() if name != "noise"})
    if isinstance(plain, Mapping) and "progress" in plain:
        return TableSchedule(plain["progress"])
    return from_plain(plain)
