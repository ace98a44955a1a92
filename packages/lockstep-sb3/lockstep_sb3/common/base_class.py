"""`BaseAlgorithm`: `learn`, `predict`, `save` and `load` of Stable-Baselines3, with the parts of Lockstep."""

from __future__ import annotations

import importlib
import secrets
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
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
from lockstep.envs import StepResult, VectorBoundary, make_vector
from lockstep.learner import Learner
from lockstep.policy import Policy
from lockstep.rollout import Collector
from lockstep.state import FileNames, Kind, claims_of, handed_in, read_checkpoint, signed, write_checkpoint
from lockstep.trainer import Callback, CollectEnd, OffpolicyTrainer, OnpolicyTrainer
from lockstep_sb3.common.callbacks import BaseCallback, CallbackList, ProgressBarCallback, as_callback
from lockstep_sb3.common.env_util import vector_of
from lockstep_sb3.common.files import DAMAGE
from lockstep_sb3.common.live_options import changed_options, is_live, set_live_option
from lockstep_sb3.common.log_names import MetricNames, training_values
from lockstep_sb3.common.logger import Logger
from lockstep_sb3.common.model_config import model_config_of
from lockstep_sb3.common.model_options import callables_in, networks_of_script, option_from_plain, plain_option
from lockstep_sb3.common.moved import moved_name
from lockstep_sb3.common.policies import ActorCriticPolicy, BasePolicy
from lockstep_sb3.common.step_values import StepValues
from lockstep_sb3.common.utils import (
    FloatSchedule,
    StepSchedule,
    configure_logger,
    get_device,
    get_system_info,
    set_random_seed,
)
from lockstep_sb3.common.vec_env import VecNormalize, unwrap_vec_normalize
from lockstep_sb3.common.vec_env.boundary_vec_env import BoundaryVecEnv, infos_of

Rate = float | Callable[[float], float]
"""Number, or a function of the remaining progress, which falls from 1 to 0."""
NOT_WATCHED = frozenset(
    {"policy", "env", "verbose", "tensorboard_log", "stats_window_size", "seed", "_init_setup_model"}
)
"""Options that are read when they are needed, and may change at any time."""
NOT_SAVED = frozenset({"policy", "env", "_init_setup_model", "device", "tensorboard_log"})
"""Options that a file does not contain."""
NEVER_SAVED = NOT_SAVED | {
    *("replay_buffer", "rollout_buffer", "_vec_normalize_env", "_logger", "_custom_logger", "logger", "ep_info_buffer"),
    *("ep_success_buffer", "_last_obs", "_last_episode_starts", "_last_original_obs"),
}
"""Attributes that no file contains, so that a program may exclude them."""
POLICY = Kind("a subclass of ActorCriticPolicy", (ActorCriticPolicy,))
STEPS_SAMPLED = "num_env_steps_sampled_lifetime"
"""Key of `Policy.timesteps` with the number of environment steps, which schedules and exploration depend on."""
OPTIMIZER_NAMES = {"default_optimizer": "policy.optimizer", "alpha": "ent_coef_optimizer"}
"""Names of optimizers in `get_parameters`, by their names in Lockstep. Others are `<name>.optimizer`."""
POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
"""Allowed values of `policy`."""


def option(default: Any, path: str | None) -> Any:
    """Return a dataclass field for the option `path` of the configuration.

    `path=None` is for an option without a counterpart, which must keep its default.
    """
    return field(default=default, metadata={"path": path})


class StopTraining(Exception):
    """Signal that a callback has ended `learn`."""


class RolloutEndCallback(Callback):
    """Trainer callback that notifies the callbacks of a model when a rollout has ended."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model

    def on_collect_end(self, event: CollectEnd) -> None:
        self.model.callback.on_rollout_end()
        self.model.before_update()


@dataclass(eq=False, repr=False)
class BaseAlgorithm(ABC):
    """Algorithm with its policy and its environments, which has the interface of Stable-Baselines3.

    Options have the names and defaults of Stable-Baselines3. An option without a counterpart is refused by name.
    `model.lockstep` is the `lockstep.Policy`, `model.config` its configuration, and `model.trainer` its trainer.
    """

    algorithm: ClassVar[str] = ""
    """Name of the algorithm in Lockstep."""
    log_interval: ClassVar[int] = 4
    """Number of rollouts or episodes between two logs, see `log_unit`."""
    log_unit_name: ClassVar[str] = "iterations"
    """Name of the unit of `log_interval` in the log."""
    step_counter: ClassVar[str] = "n_steps"
    """Name for callbacks of the number of steps of all environments in a rollout, before the present one."""
    widths: ClassVar[tuple[int, ...]] = (64, 64)
    """Default widths of the hidden layers."""
    activation: ClassVar[type[nn.Module]] = nn.ReLU
    """Default activation."""
    critic_name: ClassVar[str | None] = "qf"
    """Name of the critics in `net_arch`: "qf" for values of actions, "vf" for state values. None: there is one network
    for all."""
    adam_epsilon: ClassVar[float] = 1e-8
    """Default epsilon of Adam."""
    sde_log_std: ClassVar[float] = -3.0
    """Default logarithm of the standard deviation in state-dependent exploration."""
    policy_names: ClassVar[tuple[str, ...]] = POLICIES
    """Allowed values of `policy`."""
    takes_own_policies: ClassVar[bool] = False
    """Whether `policy` may be a user's subclass of `ActorCriticPolicy`."""
    policy_package: ClassVar[str] = ""
    """Package of `lockstep_sb3` whose module `policies` has the policy classes. Defaults to the algorithm's name."""

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
        self._is_learning = False
        self._changed: dict[str, Any] = {}
        """Options that were set since the last update, with their values."""
        self.device = get_device(self.device)
        self.num_timesteps = 0
        self.n_envs = 1
        self.start_time = 0.0
        self._steps_before = 0
        """Number of environment steps when the present `learn` began."""
        self._num_logs = 0
        """Number of log intervals that have passed since then."""
        self._n_updates = 0
        """Number of updates, as Stable-Baselines3 counts them: epochs on-policy, gradient steps off-policy."""
        self._rollout_steps = 0
        """Number of steps of all environments in the present rollout."""
        self.trainer: Any = None
        self.buffer: Any = None
        self.last_training: Any = None
        """Statistics of the last update."""
        # Algorithms with a delayed policy have its loss in every `policy_delay`-th update only.
        self._recent_training: deque[Any] = deque(maxlen=getattr(self, "policy_delay", 1))
        """Statistics of the last updates, of which the log has the newest value of each metric."""
        self.last_collect: Any = None
        """Statistics of the last collected steps."""
        self.locals = StepValues({})
        """Values of the present step for callbacks, which Stable-Baselines3 takes from local variables of `learn`."""
        self._last_episodes: dict[int, dict[str, Any] | None] = {}
        """Return, length and time of the last episode, by the row of its environment; None for a lost life."""
        self.step_result: Any = None
        """Result of the present step of all environments, while `learn` has callbacks."""
        self.logger = Logger()
        self._custom_logger = False
        """Whether the logger is one of `set_logger`, which `learn` keeps."""
        self.callback = BaseCallback()
        self.ep_info_buffer: deque[dict[str, Any]] = deque(maxlen=self.stats_window_size)
        self.ep_success_buffer: deque[Any] = deque(maxlen=self.stats_window_size)
        """Whether the last episodes were a success, of environments whose infos have `"is_success"`."""
        self.total = [0]
        """Number of steps at which `learn` ends. It is a list, which schedules made before `learn` hold on to."""
        self.policy_name, self.policy_class = self._find_policy(self.policy)
        self.is_cnn = self.policy_name.startswith("Cnn")
        if self._init_setup_model and self.env is not None:
            self.env = vector_of(self.env)
            self.n_envs = self.env.num_envs
            self.set_up(self.env.observation_space, self.env.action_space)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. An option holds from the next update on; one that cannot change raises `ValueError`."""
        is_changed = name in self._live_names() and "trainer" in self.__dict__ and "lockstep" in self.__dict__
        old = self.__dict__.get(name)
        object.__setattr__(self, name, value)
        if not is_changed:
            return
        self._changed[name] = value
        if not self._is_learning:
            try:
                self.apply_changes()
            except ValueError:
                object.__setattr__(self, name, old)
                raise

    @classmethod
    @cache
    def _live_names(cls) -> frozenset[str]:
        """Return the names of the options whose change concerns the networks, the learner or the trainer."""
        return frozenset(each.name for each in fields(cls)) - NOT_WATCHED

    # -- building ---

    @property
    def policy_aliases(self) -> dict[str, type[BasePolicy]]:
        """Policy classes by the names that `policy` may have."""
        package = self.policy_package or self.algorithm
        module = importlib.import_module(f"lockstep_sb3.{package}.policies")
        return {name: getattr(module, name) for name in self.policy_names}

    def _find_policy(self, policy: Any) -> tuple[str, type[BasePolicy]]:
        """Return the name and the class of a policy. The name is "" for a class of the user's own."""
        classes = self.policy_aliases
        for name, policy_class in classes.items():
            if policy in (name, policy_class):
                return name, policy_class
        is_own = isinstance(policy, type) and issubclass(policy, ActorCriticPolicy)
        if is_own and self.takes_own_policies and policy.__module__.partition(".")[0] != "lockstep_sb3":
            return "", policy
        own = "a subclass of ActorCriticPolicy, or " if self.takes_own_policies else ""
        raise ValueError(
            f"policy={policy!r} of {type(self).__name__} is none of {self.policy_names}, and none of the classes with "
            f"these names in lockstep_sb3.{self.policy_package or self.algorithm}; networks of your own are {own}"
            "policy_kwargs={'features_extractor_class': ...}"
        )

    def set_up(self, observation_space: Any, action_space: Any) -> None:
        """Build the configuration, the policy and, if there are environments, the trainer."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.set_random_seed(self.seed)
        self.config = self.make_config()
        self.lockstep: Policy = self.config.build_policy(spaces=self.network_spaces())
        self._live_policy = self.policy_class.of_model(self)
        self.policy = self._live_policy
        self.buffer = self.make_buffer()
        if self.env is not None:
            self._connect()

    def network_spaces(self) -> tuple[Any, Any]:
        """Return the observation and action space of the `lockstep.Policy`. Defaults to those of the environments."""
        return self.observation_space, self.action_space

    def make_boundary(self, venv: Any) -> VectorBoundary:
        """Return the vector environment of Lockstep that steps `venv`. Its spaces are the `network_spaces`."""
        return venv.boundary if isinstance(venv, BoundaryVecEnv) else make_vector(venv)

    def _connect(self) -> None:
        """Create the trainer for the present environments."""
        venv = self.env
        self.boundary = self.make_boundary(venv)
        # Without a seed of the model, the environments may have been seeded by themselves (`make_vec_env(seed=)`).
        seeds = venv.seeds if self.seed is None and isinstance(venv, BoundaryVecEnv) else None
        collector = Collector(
            self.lockstep,
            self.boundary,
            self.buffer,
            on_episode_done_hook=self._on_episode,
            seed=None if seeds is None else seeds[0],
        )
        options: dict[str, Any] = {"max_epoch": 0, "step_per_epoch": 1, "callbacks": [RolloutEndCallback(self)]}
        self.trainer = self.make_trainer(policy=self.lockstep, train_collector=collector, **options)

    def make_config(self) -> AlgorithmConfig:
        """Return the configuration with the options of this model."""
        config: Any = get_config(self.algorithm).evaluation(evaluation_interval=0)
        observation_space, action_space = self.network_spaces()
        config.environment(observation_space=observation_space, action_space=action_space)
        config.env_runners(num_envs_per_env_runner=self.n_envs)
        config.debugging(seed=secrets.randbits(31) if self.seed is None else self.seed)
        config.framework(device=str(self.device))

        # Options that are declared with `option` have one counterpart each. All others are set in `set_options`.
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

        # Everything that has a counterpart is taken out of the keywords of the policy.
        kwargs = {name: value for name, value in (self.policy_kwargs or {}).items() if value is not None}
        if self.use_sde:
            exploration: dict[str, Any] = {"log_std_init": float(kwargs.pop("log_std_init", self.sde_log_std))}
            exploration["sample_freq"] = None if self.sde_sample_freq < 0 else self.sde_sample_freq
            config.env_runners(exploration="gsde", exploration_config=exploration)
        config.training(adam_epsilon=self.adam_epsilon)
        self.set_options(config, kwargs)
        self._set_optimizer(config, kwargs)
        self.set_networks(config, kwargs)
        if kwargs:
            self.refuse(f"policy_kwargs={kwargs}", "these have no counterpart")
        result: AlgorithmConfig = config
        return result

    def _set_optimizer(self, config: Any, kwargs: dict[str, Any]) -> None:
        """Set the optimizer that the keywords of the policy describe, and remove them."""
        optimizer_class = kwargs.pop("optimizer_class", None)
        options = dict(kwargs.pop("optimizer_kwargs", {}))
        if optimizer_class is not None:
            config.training(optimizer=optimizer_class, optimizer_kwargs={})
        # An epsilon that the algorithm sets counts only without any settings of the user's.
        has_settings = optimizer_class is not None or bool(options)
        if has_settings and config.training.optimizer in ("adam", torch.optim.Adam):
            config.training(adam_epsilon=options.pop("eps", 1e-8))
        if options:
            config.training(optimizer_kwargs={**config.training.optimizer_kwargs, **options})

    def set_networks(self, config: Any, kwargs: dict[str, Any]) -> None:
        """Set the networks that the keywords of the policy describe, and remove the keywords."""
        model = model_config_of(
            kwargs,
            self.observation_space,
            is_cnn=self.is_cnn,
            critic=self.critic_name,
            widths=self.widths,
            activation=self.activation,
        )
        config.rl_module(model_config=model)

    @abstractmethod
    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        """Set the options whose form differs in Lockstep.

        Keywords of the policy that are used are removed from `kwargs`.
        """

    def refuse(self, setting: str, advice: str) -> None:
        """Raise `ValueError` for a setting that has no counterpart."""
        raise ValueError(f"{type(self).__name__}: {setting} is not allowed here; {advice} (docs/sb3.md)")

    @abstractmethod
    def make_buffer(self) -> Any:
        """Return the replay buffer; None for an on-policy algorithm."""

    @abstractmethod
    def make_trainer(self, **options: Any) -> OnpolicyTrainer | OffpolicyTrainer:
        """Return the trainer."""

    def over_steps(self, value: Any) -> Any:
        """Return a function of the remaining progress as a schedule over environment steps.

        Other values are returned unchanged.
        """
        return StepSchedule(value, self.total) if callable(value) else value

    def check_policy(self) -> None:
        """Raise `ValueError` if a program has replaced `policy` by another one, which would neither learn nor act."""
        # `torch.compile` puts a module around it.
        if getattr(self.policy, "_orig_mod", self.policy) is not self._live_policy:
            self.refuse(
                "another object as model.policy",
                "it would neither learn nor act; copy its numbers, model.policy.load_state_dict(other.state_dict())",
            )

    # -- changed options ---

    def apply_changes(self) -> None:
        """Let the options that were set since the last update hold from now on."""
        changed = self._changed
        self._changed = {}
        config = self.make_config()
        options = changed_options(self.config, config)
        if not all(map(is_live, options)):
            names = ", ".join(f"{name}={value!r}" for name, value in changed.items())
            self.refuse(names, "it is built into the model; give it when you make the model or load it")
        for path, value in options.items():
            set_live_option(self.config, self.learner, path, value)
        if self.trainer is not None:
            self.update_trainer()

    @abstractmethod
    def update_trainer(self) -> None:
        """Give the trainer the options of this model that it has read when it was made."""

    def before_update(self) -> None:
        """Apply changes of options. It is called after each collect."""
        if self._changed:
            self.apply_changes()

    @property
    def learner(self) -> Learner:
        """Lockstep's learner, which trains the networks."""
        return self.lockstep.learner_group.learner

    @property
    def lr_schedule(self) -> FloatSchedule:
        """Learning rate as a function of the remaining progress. It may be set."""
        return FloatSchedule(self.learning_rate)

    @lr_schedule.setter
    def lr_schedule(self, schedule: Callable[[float], float]) -> None:
        self.learning_rate = schedule

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
        """Train the model, and return it.

        Args:
            total_timesteps: Number of environment steps.
            callback: Callback, function `f(locals, globals)`, or a list of these.
            log_interval: Number of rollouts or episodes between two logs. -1 takes the default of the algorithm, None
                switches logs off.
            tb_log_name: Name of the run in TensorBoard. Defaults to the name of the algorithm.
            reset_num_timesteps: Count steps from 0. False trains for `total_timesteps` more steps.
            progress_bar: Show a progress bar.
        """
        self.check_policy()
        if self.trainer is None:
            raise ValueError("the model has no environment; call set_env(env) first")
        self.num_timesteps = 0 if reset_num_timesteps else self.num_timesteps
        self.reset_trainer()
        self.trainer.env_step = self.lockstep.timesteps[STEPS_SAMPLED] = self.num_timesteps
        self.total[0] = int(total_timesteps) + self.num_timesteps
        name = tb_log_name or type(self).__name__
        if not self._custom_logger:
            self.logger = configure_logger(self.verbose, self.tensorboard_log, name, reset_num_timesteps)
        interval = self.log_interval if log_interval == -1 else log_interval
        self.start_time = time.monotonic()
        self._steps_before = self.num_timesteps
        self._num_logs = 0
        self._set_callback(callback, progress_bar)
        self.trainer.collector.on_step_hook = self._on_vector_step if self.callback.children else None
        if self.callback.children:
            self.boundary.keep_infos()
        self.locals = StepValues(
            self.computed_values(),
            self=self,
            env=self.env,
            callback=self.callback,
            total_timesteps=self.total[0],
            log_interval=interval,
            tb_log_name=name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
            **self.rollout_values(),
        )
        self.callback.init_callback(self)
        self.callback.on_training_start(self.locals, globals())
        self._is_learning = True
        try:
            while self.num_timesteps < self.total[0]:
                self._rollout_steps = 0
                self.callback.on_rollout_start()
                self.last_collect, training, _ = self.trainer.training_step()
                if training:
                    self.note_training(training)
                    self._n_updates += self.count_updates(training.gradient_steps)
                self.num_timesteps = self.trainer.env_step
                num_logs = self.log_unit() // interval if interval else 0
                if num_logs > self._num_logs:
                    self._num_logs = num_logs
                    self.dump_logs()
        except StopTraining:
            pass
        finally:
            self._is_learning = False
        self.callback.on_training_end()
        return self

    def reset_trainer(self) -> None:
        """Begin a new run of the trainer."""
        self.trainer.reset()

    def _set_callback(self, callback: Any, progress_bar: bool) -> None:
        """Put the callbacks of a call of `learn` into one."""
        if isinstance(callback, list | tuple):
            listed = list(callback)
        else:
            listed = [callback] if callback else []
        callbacks = [as_callback(each) for each in listed]
        if progress_bar:
            callbacks.append(ProgressBarCallback())
        self.callback = CallbackList(callbacks)
        self.callback.check()

    def _on_episode(self, row: int, episode_return: float, length: int) -> None:
        """Record the end of an episode.

        If a wrapper of the environments counts episodes, its own count is taken. Then an ending that it does not report
        is no end of an episode, such as a lost life.
        """
        info = self.boundary.ended_infos.get(row, {})
        episode = info.get("episode")
        if episode is None and not getattr(self.env, "is_monitored", False):
            episode = {"r": episode_return, "l": length, "t": time.monotonic() - self.start_time}
        self._last_episodes[row] = episode
        if episode is not None:
            self.ep_info_buffer.append(episode)
        if "is_success" in info:
            self.ep_success_buffer.append(info["is_success"])

    def _on_vector_step(self, result: StepResult) -> None:
        """Notify the callbacks of a step of all environments."""
        self.num_timesteps += self.n_envs
        infos = infos_of(result, self.boundary)
        dones = result.terminateds | result.truncateds
        for row in map(int, np.flatnonzero(dones)):
            if self._last_episodes[row] is not None:
                infos[row].setdefault("episode", self._last_episodes[row])
        self.step_result = result
        # Names and numbers as in Stable-Baselines3, which counts the step only after the callback.
        self.locals.set_step(
            infos=infos,
            dones=dones,
            rewards=result.rewards,
            new_obs=result.obs,
            **{self.step_counter: self._rollout_steps},
        )
        self._rollout_steps += 1
        if not self.callback.on_step():
            raise StopTraining

    @property
    def _last_obs(self) -> Any:
        """Observations that the present actions were taken for; None before the first step with callbacks."""
        return None if self.step_result is None else self.step_result.acted_on

    @property
    def _total_timesteps(self) -> int:
        """Number of environment steps at which the present or last `learn` ends."""
        return self.total[0]

    @property
    def _current_progress_remaining(self) -> float:
        """Remaining progress, which falls from 1 to 0."""
        return max(0.0, 1.0 - self.num_timesteps / self.total[0]) if self.total[0] else 1.0

    @property
    def _acting(self) -> Any:
        """Part of the policy that acts."""
        return self.lockstep.acting[DEFAULT_MODULE_ID]

    def computed_values(self) -> dict[str, Callable[[], Any]]:
        """Return functions that compute the values of a step that callbacks seldom read, by their names."""
        return {"actions": lambda: self._acting.to_env(self.step_result.actions)}

    def rollout_values(self) -> dict[str, Any]:
        """Return the values for callbacks that stay the same in all steps, by their names."""
        return {}

    # -- logging ---

    def set_logger(self, logger: Logger) -> None:
        """Set the logger, which `learn` uses instead of one of its own."""
        self.logger = logger
        self._custom_logger = True

    @property
    def metric_names(self) -> MetricNames:
        """Names and factors of the metrics of an update in the section "train/"."""
        return {}

    def note_training(self, training: Any) -> None:
        """Keep the statistics of an update for the log."""
        self.last_training = training
        self._recent_training.append(training)

    def scheduled_values(self) -> dict[str, float]:
        """Return present values of options to log, by their names."""
        return {}

    def at_present(self, value: Any) -> float:
        """Return the present value of an option that may be a schedule over environment steps."""
        return float(value(self.num_timesteps) if callable(value) else value)

    def count_updates(self, gradient_steps: int) -> int:
        """Return the number of updates in so many gradient steps after a rollout, as Stable-Baselines3 counts."""
        return gradient_steps

    @abstractmethod
    def log_unit(self) -> int:
        """Return the number of rollouts or episodes that have ended, in which `log_interval` is measured."""

    def dump_logs(self) -> None:
        """Log returns, speed and the metrics of the last update, and write the log."""
        log = self.logger.record
        log(f"time/{self.log_unit_name}", self.log_unit(), exclude="tensorboard")
        if self.ep_info_buffer:
            log("rollout/ep_rew_mean", float(np.mean([episode["r"] for episode in self.ep_info_buffer])))
            log("rollout/ep_len_mean", float(np.mean([episode["l"] for episode in self.ep_info_buffer])))
        if self.ep_success_buffer:
            log("rollout/success_rate", float(np.mean(self.ep_success_buffer)))
        seconds = max(time.monotonic() - self.start_time, 1e-9)
        log("time/fps", int((self.num_timesteps - self._steps_before) / seconds))
        log("time/time_elapsed", int(seconds), exclude="tensorboard")
        log("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        for name, value in self.scheduled_values().items():
            log(name, value)
        if self.last_training is not None:
            metrics: dict[str, float] = {}
            for training in self._recent_training:
                metrics |= training.get_loss_stats_dict()
            for name, value in training_values(metrics, self.metric_names).items():
                log(f"train/{name}", value)
            log("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)

    # -- acting ---

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Return actions for one observation or a batch of observations, and `state`.

        No policy here has a memory, so `state` is returned unchanged and `episode_start` is ignored.
        """
        batch, is_single = self.as_batch(observation)
        # In Stable-Baselines3 `action_noise` of TD3 acts in training only.
        explore = not deterministic and self.algorithm != "td3"
        actions = self.lockstep.compute_actions(batch, explore=explore)
        return (actions[0] if is_single else actions), state

    def as_batch(self, observation: Any) -> tuple[Any, bool]:
        """Return a batch `[B, ...]` of one observation or of a batch, and whether it was a single observation."""
        # Of a dict any entry tells whether it is a batch.
        space = self.observation_space
        leaf = observation
        if isinstance(space, spaces.Dict):
            name = next(iter(space.spaces))
            space = space[name]
            leaf = observation[name]
        is_single = np.shape(leaf) == space.shape
        if is_single:
            return map_tree(lambda each: np.asarray(each)[None], observation), True
        return observation, False

    # -- environments, seeds, parameters ---

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed Python, NumPy, torch, the action space and the next reset of the environments. None changes nothing.

        Random numbers of `learn` depend on the option `seed` only.
        """
        if seed is None:
            return
        set_random_seed(seed)
        self.action_space.seed(seed)
        if self.env is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)

    def get_env(self) -> Any:
        """Return the environments; None if there are none."""
        return self.env

    def get_vec_normalize_env(self) -> VecNormalize | None:
        """Return the `VecNormalize` wrapper of the environments; None without one."""
        return unwrap_vec_normalize(self.env)

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Train in other environments, which must have the same spaces and number."""
        venv = vector_of(env)
        if venv.num_envs != self.n_envs:
            raise ValueError(f"set_env got {venv.num_envs} environments, the model has {self.n_envs}; give as many")
        boundary = self.make_boundary(venv)
        self.lockstep.acting[DEFAULT_MODULE_ID].check_spaces(boundary.observation_space, boundary.action_space)
        self.env = venv
        self._connect()

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """Return the parameters of the policy as `"policy"`, and the states of the optimizers by their names."""
        parameters: dict[str, dict[str, Any]] = {"policy": self.policy.state_dict()}
        states = self.learner.get_state("optimizer")["optimizer"]
        return parameters | {name: states[key] for name, key in self._optimizer_keys().items()}

    def _optimizer_keys(self) -> dict[str, str]:
        """Return the keys of the optimizers in the learner's state, by their names in `get_parameters`."""
        return {OPTIMIZER_NAMES.get(each.name, f"{each.name}.optimizer"): each.key for each in self.learner.optimizers}

    def set_parameters(
        self, load_path_or_dict: str | Path | Mapping[str, Any], exact_match: bool = True, device: Any = "auto"
    ) -> None:
        """Set parameters of the policy and states of the optimizers.

        Args:
            load_path_or_dict: Result of `get_parameters`, or a file of `save`.
            exact_match: All of them must be given. False sets those that are given.
            device: Has no effect; the parameters stay on the device of the model.

        Raises:
            ValueError: A name is unknown, or one is missing.
        """
        if not isinstance(load_path_or_dict, Mapping):
            load_path_or_dict = type(self).load(load_path_or_dict, device=self.device).get_parameters()
        optimizer_keys = self._optimizer_keys()
        known = {"policy", *optimizer_keys}
        given = set(load_path_or_dict)
        if not given <= known or (exact_match and given != known):
            raise ValueError(f"set_parameters got {sorted(given)}; {type(self).__name__} has {sorted(known)}")
        if "policy" in given:
            self.policy.load_state_dict(load_path_or_dict["policy"], strict=exact_match)
        state = self.learner.get_state("optimizer")
        for name in given - {"policy"}:
            state["optimizer"][optimizer_keys[name]] = load_path_or_dict[name]
        self.learner.set_state(state)

    # -- files ---

    def save(
        self, path: str | Path, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """Save options, networks and optimizers as a checkpoint in a zip file, `<path>.zip`. Nothing is pickled.

        Args:
            path: Path of the file, with or without its suffix.
            exclude: Options that are not saved, so that `load` takes their defaults. Environments, buffers and the
                logger are never saved.
            include: Options to save in any case.

        Raises:
            ValueError: A name is not of an option.
        """
        path = Path(path) if Path(path).suffix else Path(f"{path}.zip")
        names = {each.name for each in fields(self)} - NOT_SAVED
        for argument, given, others in (("exclude", exclude, NEVER_SAVED), ("include", include, frozenset())):
            unknown = set(given or ()) - names - others
            if unknown:
                raise ValueError(f"{argument}={sorted(unknown)} are not options that a file has: {sorted(names)}")
        names -= set(exclude or ()) - set(include or ())
        options = {name: getattr(self, name) for name in sorted(names)}
        spaces_by_name = {"observation_space": self.observation_space, "action_space": self.action_space}
        about = {
            "class": to_plain("the algorithm", type(self))["__import__"],
            "policy": self.policy_name or to_plain("the policy", self.policy_class),
            "n_envs": self.n_envs,
            "num_timesteps": self.num_timesteps,
            "total": self.total[0],
            "spaces": [to_plain(name, space)["__space__"] for name, space in spaces_by_name.items()],
            "options": {name: plain_option(name, value) for name, value in options.items()},
        }

        # The zip is made next to its place and then moved, so that a failure leaves no half a file.
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
        """Return a saved model.

        Args:
            path: File of `save`.
            env: Environments to continue training in.
            device: Device of the networks; "auto" takes a GPU if there is one.
            custom_objects: Options that replace saved ones.
            print_system_info: Print the versions of libraries.
            force_reset: Has no effect.
            trust: Import all objects that the file names. Without it, only classes of the expected kind are imported
                unless this user has saved the model, and `UntrustedError` names another object.
            **kwargs: Options that replace saved ones.
        """
        path = Path(path) if Path(path).suffix or Path(path).exists() else Path(f"{path}.zip")
        with tempfile.TemporaryDirectory() as folder:
            try:
                shutil.unpack_archive(path, f"{folder}/model", "zip")
                checkpoint = read_checkpoint(f"{folder}/model")
            except DAMAGE as error:
                raise ValueError(
                    f"{path} is no file of `save` ({error}); one of Stable-Baselines3 is not read"
                ) from error
        about = checkpoint["sb3"]
        with handed_in(cls, *networks_of_script(), *callables_in({**(custom_objects or {}), **kwargs})):
            names = FileNames(path, about, trust)
        kind = Kind("a BaseAlgorithm", (BaseAlgorithm,), takes_others=False)
        model_class = names.find("the class", about["class"], kind)
        if not issubclass(model_class, cls):
            raise ValueError(f"{path} is of {model_class.__name__}, not of {cls.__name__}")
        options = {name: option_from_plain(name, plain, names) for name, plain in about["options"].items()}
        given = {**(custom_objects or {}), **kwargs}
        if "lr_schedule" in given:
            given["learning_rate"] = given.pop("lr_schedule")  # files of Stable-Baselines3 contain both
        new_spaces = {name: given.pop(name) for name in ("observation_space", "action_space") if name in given}
        options |= {**given, "device": device, "_init_setup_model": False}
        policy: Any = about["policy"]
        if isinstance(policy, Mapping):
            policy = names.find("the policy", policy["__import__"], POLICY)
        model = model_class(policy, None if env is None else vector_of(env), **options)
        model.n_envs = about["n_envs"] if env is None else model.env.num_envs
        model.total[0] = about["total"]
        model.num_timesteps = about["num_timesteps"]
        with claims_of(path):
            saved_spaces = [from_plain("spaces", {"__space__": plain}, names) for plain in about["spaces"]]
            model.set_up(
                new_spaces.get("observation_space", saved_spaces[0]), new_spaces.get("action_space", saved_spaces[1])
            )
            model.lockstep.set_state(checkpoint["policy"]["state"], names=names)
        if print_system_info:
            get_system_info()
        return model


_MOVED = {
    "ConvertCallback": "lockstep_sb3.common.callbacks:ConvertCallback",
    "OverSteps": "lockstep_sb3.common.utils:StepSchedule",
    "Progress": "lockstep_sb3.common.model_options:SavedSchedule",
    "RolloutEnd": "lockstep_sb3.common.base_class:RolloutEndCallback",
    "Stopped": "lockstep_sb3.common.base_class:StopTraining",
    "normalize_of": "lockstep_sb3.common.vec_env.vec_normalize:unwrap_vec_normalize",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
