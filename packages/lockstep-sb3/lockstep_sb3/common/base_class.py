"""`BaseAlgorithm`: `learn`, `predict`, `save` and `load` on Lockstep's policies, collectors and trainers."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from lockstep.algorithms import get_config
from lockstep.builder import AlgorithmConfig
from lockstep.config import from_plain, to_plain
from lockstep.data import DEFAULT_MODULE_ID, map_tree
from lockstep.envs import StepResult, make_vector
from lockstep.policy import Policy
from lockstep.rollout import Collector
from lockstep.state import FileNames, Kind, claims_of, handed_in, read_checkpoint, signed, write_checkpoint
from lockstep.tracking import versions
from lockstep.trainer import Callback, CollectEnd, OffpolicyTrainer, OnpolicyTrainer
from lockstep_sb3.common import noise
from lockstep_sb3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback
from lockstep_sb3.common.env_util import vector_of
from lockstep_sb3.common.files import DAMAGE
from lockstep_sb3.common.logger import Logger
from lockstep_sb3.common.torch_layers import model_config_of
from lockstep_sb3.common.utils import OverSteps, set_random_seed
from lockstep_sb3.common.vec_env import VecNormalize
from lockstep_sb3.common.vec_env.base_vec_env import BoundaryVecEnv, infos_of
from lockstep_sb3.common.vec_env.wrappers import normalize_of

Rate = float | Callable[[float], float]
NAMES = {"policy_loss": "policy_gradient_loss", "vf_loss": "value_loss", "alpha": "ent_coef", "qf_loss": "loss"}
"""our metric -> its name in the logger"""
GRID = np.linspace(0.0, 1.0, 101)
"""of the progress that remains: where schedules are written down"""
NETWORK = Kind("a subclass of torch.nn.Module", (nn.Module,))
OPTIMIZER = Kind("a subclass of torch.optim.Optimizer", (torch.optim.Optimizer,))
KINDS = {"features_extractor_class": NETWORK, "activation_fn": NETWORK, "optimizer_class": OPTIMIZER}
"""the classes that a file may name in `policy_kwargs`"""
STEPS_SAMPLED = "num_env_steps_sampled_lifetime"
"""key of `Policy.timesteps` for the environment steps, at which schedules and exploration are evaluated"""
NOISES = (noise.NormalActionNoise, noise.OrnsteinUhlenbeckActionNoise)
POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")


def option(default: Any, path: str | None) -> Any:
    """Return a field that is the option `path` of the configuration; None: that can only be what it is by default."""
    return field(default=default, metadata={"path": path})


class BasePolicy:
    """The networks of a model: `predict`, and their numbers by name."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model, self.predict = model, model.predict
        self.observation_space, self.action_space = model.observation_space, model.action_space

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all numbers by name: `policy_net.` stands before those that act, `value_net.` before the others."""
        found = self.model.lockstep.state_dict()
        return {
            f"{'value' if 'value' in name or 'critic' in name else 'policy'}_net.{name}": found[name] for name in found
        }

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
    widths: ClassVar[tuple[int, ...]] = (64, 64)
    activation: ClassVar[type[nn.Module]] = nn.ReLU
    has_q: ClassVar[bool] = True
    adam_epsilon: ClassVar[float] = 1e-8
    sde_log_std: ClassVar[float] = -3.0

    policy: Any
    env: Any
    learning_rate: Rate = option(3e-4, "training.lr")
    _: KW_ONLY
    gamma: float = option(0.99, "training.gamma")
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
        self.buffer: Any = None
        self.last_training: Any = None
        self.last_collect: Any = None
        self.locals: dict[str, Any] = {}
        self._ended: dict[int, dict[str, Any]] = {}  # the last episode of each environment
        self.logger, self.callback = Logger(), BaseCallback()
        self.ep_info_buffer: deque[dict[str, Any]] = deque(maxlen=self.stats_window_size)
        self.total = [0]
        self.policy_name = getattr(self.policy, "__name__", self.policy)
        if self.policy_name not in POLICIES:
            raise ValueError(
                f"policy={self.policy!r} is none of {POLICIES}; give networks of your own as policy_kwargs="
                "{'features_extractor_class': ...}, or to Lockstep itself as an RLModule"
            )
        self.is_cnn = self.policy_name == "CnnPolicy"
        if self._init_setup_model and self.env is not None:
            self.env = vector_of(self.env)
            self.n_envs = self.env.num_envs
            self.set_up(self.env.observation_space, self.env.action_space)

    # -- building ---

    def set_up(self, observation_space: Any, action_space: Any) -> None:
        """Build configuration and policy and, where there are environments, the trainer."""
        self.observation_space, self.action_space = observation_space, action_space
        self.set_random_seed(self.seed)
        self.config = self.make_config()
        self.lockstep: Policy = self.config.build_policy(spaces=(observation_space, action_space))
        self.policy, self.buffer = BasePolicy(self), self.make_buffer()
        if self.env is not None:
            self._connect()

    def _connect(self) -> None:
        """Make the trainer for the environments."""
        venv = self.env
        self.boundary = venv.boundary if isinstance(venv, BoundaryVecEnv) else make_vector(venv)
        seeds = None if self.seed is not None or not isinstance(venv, BoundaryVecEnv) else venv.seeds
        collector = Collector(
            self.lockstep,
            self.boundary,
            self.buffer,
            on_episode_done_hook=self._on_episode,
            seed=None if seeds is None else seeds[0],
        )
        options: dict[str, Any] = {"max_epoch": 0, "step_per_epoch": 1, "callbacks": [RolloutEnd(self)]}
        self.trainer = self.make_trainer(policy=self.lockstep, train_collector=collector, **options)

    def make_config(self) -> AlgorithmConfig:
        """Return the configuration that these options come to."""
        config: Any = get_config(self.algorithm).evaluation(evaluation_interval=0)
        config.environment(observation_space=self.observation_space, action_space=self.action_space)
        config.env_runners(num_envs_per_env_runner=self.n_envs)
        config.debugging(seed=secrets.randbits(31) if self.seed is None else self.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        config.framework(device=device if str(self.device) == "auto" else str(self.device))
        for each in fields(self):
            value = getattr(self, each.name)
            path = each.metadata.get("path", "")
            if path:
                try:
                    config.set_path(path, self.over_steps(value))
                except (TypeError, ValueError) as error:
                    self.refuse(f"{each.name}={value!r}", str(error))
            elif path is None and value != each.default:
                self.refuse(f"{each.name}={value}", "leave it out")
        kwargs = dict(self.policy_kwargs or {})
        if self.use_sde:
            exploration: dict[str, Any] = {"log_std_init": float(kwargs.pop("log_std_init", self.sde_log_std))}
            exploration["sample_freq"] = None if self.sde_sample_freq < 0 else self.sde_sample_freq
            config.env_runners(exploration="gsde", exploration_config=exploration)
        config.training(adam_epsilon=self.adam_epsilon)
        if "optimizer_class" in kwargs:
            options = kwargs.pop("optimizer_kwargs", {})
            config.training(optimizer=kwargs.pop("optimizer_class"), optimizer_kwargs=options)
        self.set_options(config, kwargs)
        shape: dict[str, Any] = {"is_cnn": self.is_cnn, "has_q": self.has_q}
        shape |= {"widths": self.widths, "activation": self.activation}
        config.rl_module(model_config=model_config_of(kwargs, self.observation_space, **shape))
        if kwargs:
            self.refuse(f"policy_kwargs={kwargs}", "these have no counterpart")
        made: AlgorithmConfig = config
        return made

    @abstractmethod
    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        """Set the options that have another form here; take out of `kwargs`, policy_kwargs, what they need."""

    def refuse(self, what: str, instead: str) -> None:
        """Raise `ValueError` for an option that has no counterpart."""
        raise ValueError(f"{type(self).__name__}: {what} is not allowed here; {instead} (docs/sb3.md)")

    @abstractmethod
    def make_buffer(self) -> Any:
        """Return what transitions are remembered in; None where they are learned from once."""

    @abstractmethod
    def make_trainer(self, **options: Any) -> OnpolicyTrainer | OffpolicyTrainer:
        """Return the trainer."""

    def over_steps(self, value: Any) -> Any:
        """Return a function of the progress that remains as one of environment steps, and all else as it is."""
        return OverSteps(value, self.total) if callable(value) else value

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
        self.num_timesteps = 0 if reset_num_timesteps else self.num_timesteps
        self.trainer.reset()
        self.trainer.env_step = self.lockstep.timesteps[STEPS_SAMPLED] = self.num_timesteps
        self.total[0] = int(total_timesteps) + self.num_timesteps
        name = tb_log_name or type(self).__name__
        self._open_logger(name, reset_num_timesteps)
        interval = self.log_interval if log_interval == -1 else log_interval
        self.start_time, self._steps_before, self._logged = time.monotonic(), self.num_timesteps, 0
        listed = list(callback) if isinstance(callback, list | tuple) else [callback] if callback else []
        callbacks = [each if isinstance(each, BaseCallback) else ConvertCallback(each) for each in listed]
        self.callback = CallbackList([*callbacks, ProgressBarCallback()] if progress_bar else callbacks)
        self.callback.check()
        self.trainer.collector.on_step_hook = self._on_vector_step if self.callback.children else None
        if self.callback.children:
            self.boundary.keep_infos()
        self.locals = {"self": self, "total_timesteps": self.total[0], "tb_log_name": name, "env": self.env}
        self.callback.begin(self, self.locals, globals())
        try:
            while self.num_timesteps < self.total[0]:
                self.callback.on("rollout_start")
                self.last_collect, training, _ = self.trainer.training_step()
                self.last_training = training or self.last_training
                self.num_timesteps = self.trainer.env_step
                due = self.log_unit() // interval if interval else 0
                if due > self._logged:
                    self._logged = due
                    self.dump_logs()
        except Stopped:
            pass
        self.callback.on("training_end")
        return self

    def _on_episode(self, row: int, episode_return: float, length: int) -> None:
        known = self.boundary.infos.step_infos[row] if self.boundary.infos else {}
        counted = {"r": episode_return, "l": length, "t": time.monotonic() - self.start_time}
        self._ended[row] = known.get("episode", counted)
        self.ep_info_buffer.append(self._ended[row])

    def _on_vector_step(self, result: StepResult) -> None:
        self.num_timesteps += self.n_envs
        infos, dones = infos_of(result, self.boundary), result.terminateds | result.truncateds
        for row in map(int, np.flatnonzero(dones)):
            infos[row].setdefault("episode", self._ended[row])
        self.locals.update(infos=infos, dones=dones, rewards=result.rewards, new_obs=result.obs)
        if not self.callback.on_step():
            raise Stopped

    # -- logging ---

    def _open_logger(self, name: str, anew: bool) -> None:
        folder = None
        if self.tensorboard_log is not None:
            taken = [int(path.name.rpartition("_")[2]) for path in Path(self.tensorboard_log).glob(f"{name}_[0-9]*")]
            folder = Path(self.tensorboard_log) / f"{name}_{max(max(taken, default=0) + anew, 1)}"
        self.logger = Logger(folder, prints=self.verbose > 0)

    @abstractmethod
    def log_unit(self) -> int:
        """Return how many of what `log_interval` counts have ended: rollouts or episodes."""

    def dump_logs(self) -> None:
        """Record returns, speed and the metrics of the last update, and write what the logger has."""
        if self.ep_info_buffer:
            for key, name in (("r", "ep_rew_mean"), ("l", "ep_len_mean")):
                self.logger.record(f"rollout/{name}", float(np.mean([each[key] for each in self.ep_info_buffer])))
        if self.last_collect is not None:
            for epsilon in self.last_collect.epsilon.values():
                self.logger.record("rollout/exploration_rate", epsilon)
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

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed Python, NumPy, torch, the action space and the environments' next reset; None leaves them alone.

        What `learn` draws follows from the option `seed` alone.
        """
        if seed is None:
            return
        set_random_seed(seed)
        self.action_space.seed(seed)
        if self.env is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)

    def get_env(self) -> Any:
        """Return the environments, or None."""
        return self.env

    def get_vec_normalize_env(self) -> VecNormalize | None:
        """Return the `VecNormalize` around the environments, or None."""
        return normalize_of(self.env)

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Learn in other environments, of the same spaces and number."""
        venv = vector_of(env)
        if venv.num_envs != self.n_envs:
            raise ValueError(f"set_env got {venv.num_envs} environments, the model has {self.n_envs}; give as many")
        self.lockstep.acting[DEFAULT_MODULE_ID].check_spaces(venv.observation_space, venv.action_space)
        self.env = venv
        self._connect()

    # -- files ---

    def save(self, path: str | Path, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> None:
        """Write options, networks and optimizers as a checkpoint in a zip, `<path>.zip`; nothing is pickled."""
        if exclude or include:
            raise ValueError(f"exclude={exclude!r}, include={include!r} are not there; a file has all but environments")
        path = Path(path) if Path(path).suffix else Path(f"{path}.zip")
        left = ("policy", "env", "_init_setup_model", "device", "tensorboard_log")
        options = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left}
        plain = {name: _write_option(name, value) for name, value in options.items()}
        name = to_plain("the algorithm", type(self))["__import__"]
        about = {"class": name, "policy": self.policy_name, "n_envs": self.n_envs}
        about |= {"num_timesteps": self.num_timesteps, "total": self.total[0]}
        both = {"observation_space": self.observation_space, "action_space": self.action_space}
        about |= {"spaces": [to_plain(name, space)["__space__"] for name, space in both.items()], "options": plain}
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            write_checkpoint(f"{folder}/model", {"sb3": signed(about), "policy": {"state": self.lockstep.get_state()}})
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
        *,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Return a model that `save` wrote, with other options where `custom_objects` or `kwargs` have some.

        `trust`: take all objects that the file names. Otherwise these are classes of the kind that their options
        expect, unless this user has saved the model; `UntrustedError` names another one.
        """
        path = Path(path) if Path(path).suffix or Path(path).exists() else Path(f"{path}.zip")
        with tempfile.TemporaryDirectory() as folder:
            try:
                shutil.unpack_archive(path, f"{folder}/model", "zip")
                found = read_checkpoint(f"{folder}/model")
            except DAMAGE as error:
                raise ValueError(
                    f"{path} is no file of `save` ({error}); one of Stable-Baselines3 is not read"
                ) from error
        about = found["sb3"]
        with handed_in(cls, *_callables({**(custom_objects or {}), **kwargs})):
            names = FileNames(path, about, trust)
        kind = names.find("the class", about["class"], Kind("a BaseAlgorithm", (BaseAlgorithm,), takes_others=False))
        if not issubclass(kind, cls):
            raise ValueError(f"{path} is of {kind.__name__}, not of {cls.__name__}")
        options = {name: _read_option(name, plain, names) for name, plain in about["options"].items()}
        options |= {**(custom_objects or {}), **kwargs, "device": device, "_init_setup_model": False}
        model = kind(about["policy"], None if env is None else vector_of(env), **options)
        model.n_envs = about["n_envs"] if env is None else model.env.num_envs
        model.total[0], model.num_timesteps = about["total"], about["num_timesteps"]
        with claims_of(path):
            model.set_up(*[from_plain("spaces", {"__space__": plain}, names) for plain in about["spaces"]])
            model.lockstep.set_state(found["policy"]["state"], names=names)
        if print_system_info:
            sys.stdout.write(f"{versions()}\n")
        return model


def _callables(value: Any) -> Iterator[Any]:
    """Iterate over the classes and functions in an option, at any depth of dicts and lists."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _callables(part)
    elif callable(value):
        yield value


def _write_option(name: str, value: Any) -> Any:
    if isinstance(value, noise.NormalActionNoise):
        return {"noise": type(value).__name__, **vars(value)}
    if callable(value) and not isinstance(value, type):
        return {"progress": [float(value(left)) for left in GRID]}
    return to_plain(name, value)


def _read_option(name: str, plain: Any, names: FileNames) -> Any:
    """Return the option that `_write_option` wrote, with the objects that the file may name."""
    if isinstance(plain, Mapping) and "noise" in plain:
        kinds = {kind.__name__: kind for kind in NOISES}
        if plain["noise"] not in kinds:
            raise ValueError(f"{name} in {names.file} is {plain['noise']!r}; it must be one of {', '.join(kinds)}")
        return kinds[plain["noise"]](**{key: part for key, part in plain.items() if key != "noise"})
    if isinstance(plain, Mapping) and "progress" in plain:
        return Progress(plain["progress"])
    if name != "policy_kwargs" or not isinstance(plain, Mapping):
        return from_plain(name, plain, names)
    found = {}
    for key, part in plain.items():
        is_object = isinstance(part, Mapping) and list(part) == ["__import__"]
        if is_object and key in KINDS:
            found[key] = names.find(f"policy_kwargs.{key}", part["__import__"], KINDS[key])
        else:
            found[key] = from_plain(f"policy_kwargs.{key}", part, names)
    return found


@dataclass(frozen=True)
class Progress:
    """A schedule that was read from a file: its `values` on `GRID`, linear in between."""

    values: Sequence[float]

    def __call__(self, left: float) -> float:
        """Return what it gives where a share `left` of the run remains."""
        return float(np.interp(left, GRID, self.values))
