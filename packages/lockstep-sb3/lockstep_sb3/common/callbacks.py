"""Callbacks of `learn`, which are called after each step of all environments, and around rollouts."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from lockstep_sb3.common.env_util import vector_of
from lockstep_sb3.common.evaluation import evaluate_policy
from lockstep_sb3.common.vec_env import sync_envs_normalization

Values = dict[str, Any]
"""Local or global variables by name."""


def _event_methods(*classes: type) -> set[str]:
    """Return the names of all methods of these classes that are named like handlers of an event."""
    names: set[str] = set()
    for each in classes:
        names |= {name for name, value in vars(each).items() if name.startswith(("_on_", "on_")) and callable(value)}
    return names


def _used_names(callback_class: type) -> set[str]:
    """Return the names of attributes that methods of a class use."""
    names: set[str] = set()
    for each in callback_class.__mro__:
        for method in vars(each).values():
            code = getattr(method, "__code__", None)
            names |= set() if code is None else set(code.co_names)
    return names


def as_callback(callback: Any) -> Any:
    """Return a callback unchanged, also one of an installed Stable-Baselines3, and a function as a callback."""
    if all(hasattr(callback, name) for name in ("init_callback", "on_training_start", "on_step")):
        return callback
    return ConvertCallback(callback)


class BaseCallback:
    """Base class of callbacks. Subclasses override `_on_step` and other methods that begin with `_on_`.

    A step for which `_on_step` returns False ends `learn`. `locals` has the values of the last step, such as `infos`,
    `dones`, `rewards`, `new_obs` and `actions` (see `StepValues`). The `children` of a callback are notified of all
    events but steps, which the callback passes on itself.
    """

    model: Any
    parent: Any = None
    children: Sequence[Any] = ()
    n_calls = 0
    """Number of steps of all environments so far."""
    num_timesteps = 0
    """Number of environment steps of the model so far."""

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose
        self.locals: Values = {}
        self.globals: Values = {}

    @property
    def training_env(self) -> Any:
        """Environments that `learn` steps."""
        return self.model.get_env()

    @property
    def logger(self) -> Any:
        """Logger of the model."""
        return self.model.logger

    def check(self) -> None:
        """Check that no method of this callback or of a child is named like a handler of an unknown event.

        Raises `ValueError` otherwise: such a method is a misspelled one, which would never be called. A method that
        another one of the class uses is a helper.
        """
        own_classes = [each for each in type(self).__mro__ if each.__module__.startswith("lockstep_sb3.")]
        known = _event_methods(*own_classes)
        for name in sorted(_event_methods(*type(self).__mro__) - known - _used_names(type(self))):
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"callback: {type(self).__name__} has a method {name}, which nothing calls; {advice}")
        for child in self.children:
            if isinstance(child, BaseCallback):
                child.check()

    def init_callback(self, model: Any) -> None:
        """Set the model, at the start of `learn`."""
        self.model = model
        self._init_callback()
        for child in self.children:
            child.init_callback(model)

    def on_training_start(self, locals_: Values, globals_: Values) -> None:
        """Handle the start of `learn`. `locals_` is updated with each step."""
        self.locals = locals_
        self.globals = globals_
        self.num_timesteps = self.model.num_timesteps
        self._on_training_start()
        for child in self.children:
            child.on_training_start(locals_, globals_)

    def on_rollout_start(self) -> None:
        """Handle the start of a rollout."""
        self._on_rollout_start()
        for child in self.children:
            child.on_rollout_start()

    def on_step(self) -> bool:
        """Handle a step of all environments, and return whether to continue."""
        self.n_calls += 1
        self.num_timesteps = self.model.num_timesteps
        return self._on_step()

    def on_rollout_end(self) -> None:
        """Handle the end of a rollout, before the update."""
        self._on_rollout_end()
        for child in self.children:
            child.on_rollout_end()

    def on_training_end(self) -> None:
        """Handle the end of `learn`."""
        self._on_training_end()
        for child in self.children:
            child.on_training_end()

    def update_locals(self, locals_: Values) -> None:
        """Add values to `locals`, and to those of the children."""
        self.locals.update(locals_)
        self.update_child_locals(locals_)

    def update_child_locals(self, locals_: Values) -> None:
        """Add values to the `locals` of the children."""
        for child in self.children:
            child.update_locals(locals_)

    def _init_callback(self) -> None: ...

    def _on_training_start(self) -> None: ...

    def _on_rollout_start(self) -> None: ...

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None: ...

    def _on_training_end(self) -> None: ...


class CallbackList(BaseCallback):
    """Callback that calls several callbacks in order. They have the parent of the list."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        super().__init__()
        self.callbacks = self.children = list(callbacks)

    def init_callback(self, model: Any) -> None:
        if self.parent is not None:
            for callback in self.callbacks:
                callback.parent = self.parent
        super().init_callback(model)

    def _on_step(self) -> bool:
        # All are called, even if the first says no. A callback that returns None says no, too.
        answers = [callback.on_step() for callback in self.callbacks]
        return all(answers)


class ConvertCallback(BaseCallback):
    """Callback that calls a function `f(locals, globals)` at each step."""

    def __init__(self, callback: Callable[[Values, Values], Any] | None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback

    def _on_step(self) -> bool:
        return self.callback is None or bool(self.callback(self.locals, self.globals))


class EventCallback(BaseCallback):
    """Callback that calls another callback at some of the steps."""

    def __init__(self, callback: Any = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback
        self._add_child(callback)

    def _add_child(self, child: Any) -> None:
        if child is not None:
            child.parent = self
            self.children = [*self.children, child]

    def _on_event(self) -> bool:
        return self.callback is None or bool(self.callback.on_step())


class EveryNTimesteps(EventCallback):
    """Callback that calls another callback every `n_steps` environment steps."""

    def __init__(self, n_steps: int, callback: BaseCallback) -> None:
        super().__init__(callback)
        self.n_steps = n_steps
        self.last_time_trigger = 0

    def _on_step(self) -> bool:
        if self.num_timesteps - self.last_time_trigger < self.n_steps:
            return True
        self.last_time_trigger = self.num_timesteps
        return self._on_event()


class LogEveryNTimesteps(EveryNTimesteps):
    """Callback that writes the log every `n_steps` environment steps."""

    def __init__(self, n_steps: int) -> None:
        super().__init__(n_steps, ConvertCallback(lambda *_: self.model.dump_logs() is None))


class CheckpointCallback(BaseCallback):
    """Callback that saves the model every `save_freq` steps of all environments.

    Args:
        save_freq: Number of steps of all environments between two files.
        save_path: Folder of the files.
        name_prefix: First part of the names of the files.
        save_replay_buffer: Save the replay buffer, too.
        save_vecnormalize: Save the statistics of `VecNormalize`, too.
        verbose: 2 prints the names of the files.
    """

    def __init__(
        self,
        save_freq: int,
        save_path: str | Path,
        name_prefix: str = "rl_model",
        save_replay_buffer: bool = False,
        save_vecnormalize: bool = False,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.save_freq = save_freq
        self.save_path = save_path
        self.name_prefix = name_prefix
        self.save_replay_buffer = save_replay_buffer
        self.save_vecnormalize = save_vecnormalize

    def _init_callback(self) -> None:
        if self.save_path is not None:
            Path(self.save_path).mkdir(parents=True, exist_ok=True)

    def _checkpoint_path(self, checkpoint_type: str = "", extension: str = "") -> str:
        """Return the path of a file: of the model, or of the "replay_buffer_" or "vecnormalize_"."""
        name = f"{self.name_prefix}_{checkpoint_type}{self.num_timesteps}_steps.{extension}"
        return str(Path(self.save_path) / name)

    def _save(self, save: Callable[[str], Any], path: str) -> None:
        """Write a file, and print its name if that is wanted."""
        save(path)
        if self.verbose >= 2:
            sys.stdout.write(f"Saving {path}\n")

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            normalize = self.model.get_vec_normalize_env()
            self._save(self.model.save, self._checkpoint_path(extension="zip"))
            if self.save_replay_buffer and hasattr(self.model, "save_replay_buffer"):
                self._save(self.model.save_replay_buffer, self._checkpoint_path("replay_buffer_", "pkl"))
            if self.save_vecnormalize and normalize is not None:
                self._save(normalize.save, self._checkpoint_path("vecnormalize_", "pkl"))
        return True


class EvalCallback(EventCallback):
    """Callback that evaluates the model every `eval_freq` steps of all environments, and saves the best one.

    Args:
        eval_env: Environment or vector environment to evaluate in.
        callback_on_new_best: Callback for each new best mean return.
        callback_after_eval: Callback for each evaluation.
        n_eval_episodes: Number of episodes of an evaluation.
        eval_freq: Number of steps of all environments between two evaluations.
        log_path: Folder of `evaluations.npz`, with `timesteps`, `results`, `ep_lengths` and, if the environments say
            so, `successes`.
        best_model_save_path: Folder of `best_model.zip`.
        deterministic: Whether the policy takes its most likely actions.
        render: Whether to show the environments.
        verbose: 1 prints the results.
        warn: Warn if returns are sums of rewards that wrappers may have changed.
    """

    def __init__(
        self,
        eval_env: Any,
        callback_on_new_best: Any = None,
        callback_after_eval: Any = None,
        n_eval_episodes: int = 5,
        eval_freq: int = 10000,
        log_path: str | Path | None = None,
        best_model_save_path: str | Path | None = None,
        deterministic: bool = True,
        render: bool = False,
        verbose: int = 1,
        warn: bool = True,
    ) -> None:
        super().__init__(callback_after_eval, verbose)
        self.callback_on_new_best = callback_on_new_best
        self._add_child(callback_on_new_best)
        self.eval_env = vector_of(eval_env)
        self.n_eval_episodes = n_eval_episodes
        self.eval_freq = eval_freq
        self.deterministic = deterministic
        self.render = render
        self.warn = warn
        self.best_model_save_path = best_model_save_path
        self.log_path = None if log_path is None else str(Path(log_path) / "evaluations")
        self.best_mean_reward = -np.inf
        self.last_mean_reward = -np.inf
        self.evaluations_timesteps: list[int] = []
        self.evaluations_results: list[list[float]] = []
        self.evaluations_length: list[list[int]] = []
        self.evaluations_successes: list[list[bool]] = []
        self._is_success_buffer: list[bool] = []
        """Whether the episodes of the present evaluation were a success, if their environments say so."""

    def evaluate(self, **options: Any) -> Any:
        """Return the result of `evaluate_policy` for the model and the evaluation environments."""
        return evaluate_policy(self.model, self.eval_env, **options)

    def _log_success_callback(self, locals_: Values, globals_: Values) -> None:
        """Note whether an episode of the evaluation was a success."""
        if locals_["done"] and locals_["info"].get("is_success") is not None:
            self._is_success_buffer.append(bool(locals_["info"]["is_success"]))

    def _on_step(self) -> bool:
        if self.eval_freq <= 0 or self.n_calls % self.eval_freq:
            return True
        if self.model.get_vec_normalize_env() is not None:
            sync_envs_normalization(self.training_env, self.eval_env)
        self._is_success_buffer = []
        returns, lengths = self.evaluate(
            n_eval_episodes=self.n_eval_episodes,
            deterministic=self.deterministic,
            render=self.render,
            callback=self._log_success_callback,
            return_episode_rewards=True,
            warn=self.warn,
        )
        self._save_evaluation(returns, lengths)
        self.last_mean_reward = float(np.mean(returns))
        self._log_evaluation(returns, lengths)

        goes_on = True
        if self.last_mean_reward > self.best_mean_reward:
            self.best_mean_reward = self.last_mean_reward
            if self.verbose >= 1:
                sys.stdout.write("New best mean reward!\n")
            if self.best_model_save_path is not None:
                self.model.save(Path(self.best_model_save_path) / "best_model")
            if self.callback_on_new_best is not None:
                goes_on = bool(self.callback_on_new_best.on_step())
        return goes_on and self._on_event()

    def _save_evaluation(self, returns: list[float], lengths: list[int]) -> None:
        """Add an evaluation to the lists and to the file of evaluations."""
        self.evaluations_timesteps.append(self.num_timesteps)
        self.evaluations_results.append(returns)
        self.evaluations_length.append(lengths)
        arrays: Values = {
            "timesteps": self.evaluations_timesteps,
            "results": self.evaluations_results,
            "ep_lengths": self.evaluations_length,
        }
        if self._is_success_buffer:
            self.evaluations_successes.append(self._is_success_buffer)
            arrays["successes"] = self.evaluations_successes
        if self.log_path is not None:
            Path(self.log_path).parent.mkdir(parents=True, exist_ok=True)
            np.savez(self.log_path, **arrays)

    def _log_evaluation(self, returns: list[float], lengths: list[int]) -> None:
        """Print and log the means of an evaluation."""
        values = {"eval/mean_reward": float(np.mean(returns)), "eval/mean_ep_length": float(np.mean(lengths))}
        if self.verbose >= 1:
            result = f"episode_reward={np.mean(returns):.2f} +/- {np.std(returns):.2f}"
            sys.stdout.write(f"Eval num_timesteps={self.num_timesteps}, {result}\n")
            sys.stdout.write(f"Episode length: {np.mean(lengths):.2f} +/- {np.std(lengths):.2f}\n")
        if self._is_success_buffer:
            values["eval/success_rate"] = float(np.mean(self._is_success_buffer))
            if self.verbose >= 1:
                sys.stdout.write(f"Success rate: {100 * values['eval/success_rate']:.2f}%\n")
        for name, value in values.items():
            self.logger.record(name, value)
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)


class StopTrainingOnRewardThreshold(BaseCallback):
    """Callback that ends training at a mean return. It is used as `EvalCallback(callback_on_new_best=)`."""

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = reward_threshold

    def _on_step(self) -> bool:
        goes_on = bool(evaluation_of(self).best_mean_reward < self.reward_threshold)
        if self.verbose >= 1 and not goes_on:
            reached = f"the mean return {self.parent.best_mean_reward:.2f} has reached {self.reward_threshold}"
            sys.stdout.write(f"Stopping training because {reached}\n")
        return goes_on


def evaluation_of(callback: BaseCallback) -> Any:
    """Return the `EvalCallback` that calls a callback. Raises `ValueError` without one."""
    if not hasattr(callback.parent, "best_mean_reward"):
        name = type(callback).__name__
        raise ValueError(f"{name} needs an EvalCallback that calls it: EvalCallback(env, callback_after_eval={name}())")
    return callback.parent


class StopTrainingOnMaxEpisodes(BaseCallback):
    """Callback that ends training after `max_episodes` episodes per environment."""

    def __init__(self, max_episodes: int, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_episodes = max_episodes
        self.n_episodes = 0

    def _on_step(self) -> bool:
        self.n_episodes += int(np.sum(self.locals["dones"]))
        goes_on = bool(self.n_episodes < self.max_episodes * self.training_env.num_envs)
        if self.verbose >= 1 and not goes_on:
            sys.stdout.write(f"Stopping training after {self.n_episodes} episodes, {self.num_timesteps} steps\n")
        return goes_on


class StopTrainingOnNoModelImprovement(BaseCallback):
    """Callback that ends training after some evaluations without improvement.

    It is used as `EvalCallback(callback_after_eval=)`. Training goes on for at least `min_evals` evaluations, and ends
    after more than `max_no_improvement_evals` successive ones without a new best mean return.
    """

    def __init__(self, max_no_improvement_evals: int, min_evals: int = 0, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_no_improvement_evals = max_no_improvement_evals
        self.min_evals = min_evals
        self.last_best_mean_reward = -np.inf
        self.no_improvement_evals = 0

    def _on_step(self) -> bool:
        best = evaluation_of(self).best_mean_reward
        if self.n_calls > self.min_evals:
            is_better = best > self.last_best_mean_reward
            self.no_improvement_evals = 0 if is_better else self.no_improvement_evals + 1
        self.last_best_mean_reward = best
        goes_on = self.no_improvement_evals <= self.max_no_improvement_evals
        if self.verbose >= 1 and not goes_on:
            sys.stdout.write(f"Stopping training after {self.no_improvement_evals} evaluations without a new best\n")
        return goes_on


class ProgressBarCallback(BaseCallback):
    """Callback that shows a progress bar."""

    def _on_training_start(self) -> None:
        self.bar = Progress()
        self.task = self.bar.add_task("learn", total=self.locals["total_timesteps"] - self.model.num_timesteps)
        self.bar.start()

    def _on_step(self) -> bool:
        self.bar.update(self.task, advance=self.training_env.num_envs)
        return True

    def _on_training_end(self) -> None:
        self.bar.stop()
