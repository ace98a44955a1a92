"""Callbacks of `learn`, which are called after each step of all environments, and around rollouts."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class BaseCallback:
    """Base class of callbacks. Subclasses override `_on_step` and other methods that begin with `_on_`.

    A step for which `_on_step` returns False ends `learn`. `locals` has the values `infos`, `dones`, `rewards` and
    `new_obs` of the last step. The `children` of a callback are notified of all events but steps, which the callback
    passes on itself.
    """

    model: Any
    parent: Any = None
    children: Sequence[BaseCallback] = ()
    locals: Values
    globals: Values
    n_calls = 0
    """Number of steps of all environments so far."""
    num_timesteps = 0
    """Number of environment steps of the model so far."""

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose

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

        Raises `ValueError` otherwise: such a method is a misspelled one, which would never be called.
        """
        own_classes = [each for each in type(self).__mro__ if each.__module__.startswith("lockstep_sb3.")]
        known = _event_methods(*own_classes)
        for name in sorted(_event_methods(*type(self).__mro__) - known):
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"callback: {type(self).__name__} has a method {name}, which nothing calls; {advice}")
        for child in self.children:
            child.check()

    def begin(self, model: Any, locals_: Values, globals_: Values) -> None:
        """Handle the start of `learn`. `locals_` is updated with each step."""
        self.model = model
        self.locals = locals_
        self.globals = globals_
        self.num_timesteps = model.num_timesteps
        self._init_callback()
        for child in self.children:
            child.begin(model, locals_, globals_)
        self._on_training_start()

    def on_step(self) -> bool:
        """Handle a step of all environments, and return whether to continue."""
        self.n_calls += 1
        self.num_timesteps = self.model.num_timesteps
        return self._on_step()

    def on(self, event: str) -> None:
        """Handle an event: `rollout_start`, `rollout_end` (before the update) or `training_end`."""
        getattr(self, f"_on_{event}")()
        for child in self.children:
            child.on(event)

    def _init_callback(self) -> None: ...

    def _on_training_start(self) -> None: ...

    def _on_rollout_start(self) -> None: ...

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None: ...

    def _on_training_end(self) -> None: ...


class CallbackList(BaseCallback):
    """Callback that calls several callbacks in order."""

    def __init__(self, callbacks: Sequence[BaseCallback]) -> None:
        super().__init__()
        self.callbacks = self.children = list(callbacks)

    def _on_step(self) -> bool:
        answers = [callback.on_step() for callback in self.callbacks]  # all are called, even if the first says no
        return all(answers)


class ConvertCallback(BaseCallback):
    """Callback that calls a function `f(locals, globals)` at each step."""

    def __init__(self, callback: Callable[[Values, Values], Any], verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback

    def _on_step(self) -> bool:
        return bool(self.callback(self.locals, self.globals))


class EventCallback(BaseCallback):
    """Callback that calls another callback at some of the steps."""

    def __init__(self, callback: BaseCallback | None = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback
        self._add_child(callback)

    def _add_child(self, child: BaseCallback | None) -> None:
        if child is not None:
            child.parent = self
            self.children = [*self.children, child]

    def _on_event(self) -> bool:
        return self.callback is None or self.callback.on_step()


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


@dataclass(eq=False)
class CheckpointCallback(BaseCallback):
    """Callback that saves the model every `save_freq` steps of all environments."""

    save_freq: int
    save_path: str | Path
    name_prefix: str = "rl_model"
    save_replay_buffer: bool = False
    save_vecnormalize: bool = False
    verbose: int = 0

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            stem = f"{self.save_path}/{self.name_prefix}"
            steps = f"{self.num_timesteps}_steps"
            normalize = self.model.get_vec_normalize_env()
            self.model.save(f"{stem}_{steps}.zip")
            if self.save_replay_buffer and hasattr(self.model, "save_replay_buffer"):
                self.model.save_replay_buffer(f"{stem}_replay_buffer_{steps}.pkl")
            if self.save_vecnormalize and normalize is not None:
                normalize.save(f"{stem}_vecnormalize_{steps}.pkl")
        return True


@dataclass(eq=False)
class EvalCallback(EventCallback):
    """Callback that evaluates the model every `eval_freq` steps of all environments, and saves the best one."""

    eval_env: Any
    callback_on_new_best: BaseCallback | None = None
    callback_after_eval: BaseCallback | None = None
    n_eval_episodes: int = 5
    eval_freq: int = 10000
    log_path: str | Path | None = None
    best_model_save_path: str | Path | None = None
    deterministic: bool = True
    render: bool = False
    verbose: int = 1
    warn: bool = True

    def __post_init__(self) -> None:
        super().__init__(self.callback_after_eval, self.verbose)
        self._add_child(self.callback_on_new_best)
        self.eval_env = vector_of(self.eval_env)
        self.best_mean_reward = self.last_mean_reward = -np.inf
        self.evaluations: dict[str, list[Any]] = {"timesteps": [], "results": [], "ep_lengths": []}

    def _log_success(self, locals_: Values, globals_: Values) -> None:
        """Log whether an evaluation episode was a success, if its environment says so."""
        if locals_["done"] and "is_success" in locals_["info"]:
            self.logger.record_mean("eval/success_rate", float(locals_["info"]["is_success"]))

    def evaluate(self, **options: Any) -> Any:
        """Return the result of `evaluate_policy` for the model and the evaluation environments."""
        return evaluate_policy(self.model, self.eval_env, **options)

    def _on_step(self) -> bool:
        if self.eval_freq <= 0 or self.n_calls % self.eval_freq:
            return True
        sync_envs_normalization(self.training_env, self.eval_env)
        returns, lengths = self.evaluate(
            n_eval_episodes=self.n_eval_episodes,
            deterministic=self.deterministic,
            render=self.render,
            callback=self._log_success,
            return_episode_rewards=True,
        )
        for name, value in zip(self.evaluations, (self.num_timesteps, returns, lengths)):
            self.evaluations[name].append(value)
        if self.log_path is not None:
            Path(self.log_path).mkdir(parents=True, exist_ok=True)
            arrays: Values = {name: np.array(values) for name, values in self.evaluations.items()}
            np.savez(Path(self.log_path) / "evaluations", **arrays)
        self.last_mean_reward = float(np.mean(returns))
        if self.verbose:
            result = f"episode_reward={self.last_mean_reward:.2f} +/- {np.std(returns):.2f}"
            sys.stdout.write(f"Eval num_timesteps={self.num_timesteps}, {result}\n")
        self.logger.record("eval/mean_reward", self.last_mean_reward)
        self.logger.record("eval/mean_ep_length", float(np.mean(lengths)))
        self.logger.dump(self.num_timesteps)

        if self.last_mean_reward > self.best_mean_reward:
            self.best_mean_reward = self.last_mean_reward
            if self.best_model_save_path is not None:
                self.model.save(Path(self.best_model_save_path) / "best_model")
            if self.callback_on_new_best is not None and not self.callback_on_new_best.on_step():
                return False
        return self._on_event()


class StopTrainingOnRewardThreshold(BaseCallback):
    """Callback that ends training at a mean return. It is used as `EvalCallback(callback_on_new_best=)`."""

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = reward_threshold

    def _on_step(self) -> bool:
        return bool(self.parent.best_mean_reward < self.reward_threshold)


class StopTrainingOnMaxEpisodes(BaseCallback):
    """Callback that ends training after `max_episodes` episodes per environment."""

    def __init__(self, max_episodes: int, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_episodes = max_episodes
        self.n_episodes = 0

    def _on_step(self) -> bool:
        self.n_episodes += int(np.sum(self.locals["dones"]))
        return bool(self.n_episodes < self.max_episodes * self.training_env.num_envs)


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
        if self.n_calls > self.min_evals:
            is_better = self.parent.best_mean_reward > self.last_best_mean_reward
            self.no_improvement_evals = 0 if is_better else self.no_improvement_evals + 1
        self.last_best_mean_reward = self.parent.best_mean_reward
        return self.no_improvement_evals <= self.max_no_improvement_evals


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
