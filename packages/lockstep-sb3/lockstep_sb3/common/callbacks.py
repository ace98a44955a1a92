"""Callbacks, which are called after each vector step and around rollouts; False ends `learn`."""

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


def _event_methods(*kinds: type) -> set[str]:
    """Return the names of the methods in these classes that look like those that are called for an event."""
    return {
        name
        for kind in kinds
        for name, value in vars(kind).items()
        if name.startswith(("_on_", "on_")) and callable(value)
    }


class BaseCallback:
    """Override `_on_step` and others that begin with `_on_`. `locals` has `infos`, `dones`, `rewards`, `new_obs`.

    `children` hear of all but steps, which a callback passes on itself.
    """

    model: Any
    parent: Any = None
    children: Sequence[BaseCallback] = ()
    locals: Values
    globals: Values
    n_calls = num_timesteps = 0

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose

    @property
    def training_env(self) -> Any:
        """The environments that `learn` steps."""
        return self.model.get_env()

    @property
    def logger(self) -> Any:
        """The logger of the model."""
        return self.model.logger

    def check(self) -> None:
        """Raise `ValueError` where this callback or a child has a method that is named as an event and is none."""
        known = _event_methods(*(kind for kind in type(self).__mro__ if kind.__module__.startswith("lockstep_sb3.")))
        for name in sorted(_event_methods(*type(self).__mro__) - known):
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"callback: {type(self).__name__} has a method {name}, which nothing calls; {advice}")
        for child in self.children:
            child.check()

    def begin(self, model: Any, locals_: Values, globals_: Values) -> None:
        """Handle the beginning of `learn`; `locals_` changes with each step."""
        self.model, self.locals, self.globals, self.num_timesteps = model, locals_, globals_, model.num_timesteps
        self._init_callback()
        for child in self.children:
            child.begin(model, locals_, globals_)
        self._on_training_start()

    def on_step(self) -> bool:
        """Count a vector step and handle it; return whether to go on."""
        self.n_calls += 1
        self.num_timesteps = self.model.num_timesteps
        return self._on_step()

    def on(self, event: str) -> None:
        """Handle `rollout_start`, `rollout_end` (before it is learned from) or `training_end`."""
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
    """Calls several callbacks, one after the other."""

    def __init__(self, callbacks: Sequence[BaseCallback]) -> None:
        super().__init__()
        self.callbacks = self.children = list(callbacks)

    def _on_step(self) -> bool:
        wishes = [callback.on_step() for callback in self.callbacks]
        return all(wishes)


class ConvertCallback(BaseCallback):
    """Calls a function `f(locals, globals)` at each step."""

    def __init__(self, callback: Callable[[Values, Values], Any], verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback

    def _on_step(self) -> bool:
        return bool(self.callback(self.locals, self.globals))


class EventCallback(BaseCallback):
    """Calls another callback at some steps."""

    def __init__(self, callback: BaseCallback | None = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback
        self._adopt(callback)

    def _adopt(self, child: BaseCallback | None) -> None:
        if child is not None:
            child.parent, self.children = self, [*self.children, child]

    def _on_event(self) -> bool:
        return self.callback is None or self.callback.on_step()


class EveryNTimesteps(EventCallback):
    """Calls a callback every `n_steps` environment steps."""

    def __init__(self, n_steps: int, callback: BaseCallback) -> None:
        super().__init__(callback)
        self.n_steps, self.last_time_trigger = n_steps, 0

    def _on_step(self) -> bool:
        if self.num_timesteps - self.last_time_trigger < self.n_steps:
            return True
        self.last_time_trigger = self.num_timesteps
        return self._on_event()


class LogEveryNTimesteps(EveryNTimesteps):
    """Writes what the logger has every `n_steps` environment steps."""

    def __init__(self, n_steps: int) -> None:
        super().__init__(n_steps, ConvertCallback(lambda *_: self.model.dump_logs() is None))


@dataclass(eq=False)
class CheckpointCallback(BaseCallback):
    """Saves the model every `save_freq` vector steps."""

    save_freq: int
    save_path: str | Path
    name_prefix: str = "rl_model"
    save_replay_buffer: bool = False
    save_vecnormalize: bool = False
    verbose: int = 0

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            stem, steps = f"{self.save_path}/{self.name_prefix}", f"{self.num_timesteps}_steps"
            normalize = self.model.get_vec_normalize_env()
            self.model.save(f"{stem}_{steps}.zip")
            if self.save_replay_buffer and hasattr(self.model, "save_replay_buffer"):
                self.model.save_replay_buffer(f"{stem}_replay_buffer_{steps}.pkl")
            if self.save_vecnormalize and normalize is not None:
                normalize.save(f"{stem}_vecnormalize_{steps}.pkl")
        return True


@dataclass(eq=False)
class EvalCallback(EventCallback):
    """Evaluates the model every `eval_freq` vector steps, and keeps the best one."""

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
        self._adopt(self.callback_on_new_best)
        self.eval_env = vector_of(self.eval_env)
        self.best_mean_reward = self.last_mean_reward = -np.inf
        self.evaluations: dict[str, list[Any]] = {"timesteps": [], "results": [], "ep_lengths": []}

    def _see(self, locals_: Values, globals_: Values) -> None:
        if locals_["done"] and "is_success" in locals_["info"]:
            self.logger.record_mean("eval/success_rate", float(locals_["info"]["is_success"]))

    def _on_step(self) -> bool:
        if self.eval_freq <= 0 or self.n_calls % self.eval_freq:
            return True
        sync_envs_normalization(self.training_env, self.eval_env)
        settings = self.n_eval_episodes, self.deterministic, self.render, self._see
        returns, lengths = evaluate_policy(self.model, self.eval_env, *settings, return_episode_rewards=True)
        for name, value in zip(self.evaluations, (self.num_timesteps, returns, lengths)):
            self.evaluations[name].append(value)
        if self.log_path is not None:
            Path(self.log_path).mkdir(parents=True, exist_ok=True)
            arrays: Values = {name: np.array(values) for name, values in self.evaluations.items()}
            np.savez(Path(self.log_path) / "evaluations", **arrays)
        self.last_mean_reward = float(np.mean(returns))
        if self.verbose:
            found = f"episode_reward={self.last_mean_reward:.2f} +/- {np.std(returns):.2f}"
            sys.stdout.write(f"Eval num_timesteps={self.num_timesteps}, {found}\n")
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
    """Ends training at a mean return; for `EvalCallback(callback_on_new_best=)`."""

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = reward_threshold

    def _on_step(self) -> bool:
        return bool(self.parent.best_mean_reward < self.reward_threshold)


class StopTrainingOnMaxEpisodes(BaseCallback):
    """Ends training after `max_episodes` episodes for each environment."""

    def __init__(self, max_episodes: int, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_episodes, self.n_episodes = max_episodes, 0

    def _on_step(self) -> bool:
        self.n_episodes += int(np.sum(self.locals["dones"]))
        return bool(self.n_episodes < self.max_episodes * self.training_env.num_envs)


class StopTrainingOnNoModelImprovement(BaseCallback):
    """Ends training after so many evaluations without a better one; for `EvalCallback(callback_after_eval=)`."""

    def __init__(self, max_no_improvement_evals: int, min_evals: int = 0, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_no_improvement_evals, self.min_evals = max_no_improvement_evals, min_evals
        self.last_best_mean_reward, self.no_improvement_evals = -np.inf, 0

    def _on_step(self) -> bool:
        if self.n_calls > self.min_evals:
            is_better = self.parent.best_mean_reward > self.last_best_mean_reward
            self.no_improvement_evals = 0 if is_better else self.no_improvement_evals + 1
        self.last_best_mean_reward = self.parent.best_mean_reward
        return self.no_improvement_evals <= self.max_no_improvement_evals


class ProgressBarCallback(BaseCallback):
    """Shows a progress bar."""

    def _on_training_start(self) -> None:
        self.bar = Progress()
        self.task = self.bar.add_task("learn", total=self.locals["total_timesteps"] - self.model.num_timesteps)
        self.bar.start()

    def _on_step(self) -> bool:
        self.bar.update(self.task, advance=self.training_env.num_envs)
        return True

    def _on_training_end(self) -> None:
        self.bar.stop()
