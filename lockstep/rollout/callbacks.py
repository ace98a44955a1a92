"""Callbacks for events of environments: `EnvironmentCallback`, and `EnvironmentEvents`, which calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from lockstep.data import MultiAgentEpisode, SingleAgentEpisode
from lockstep.data.trees import map_tree
from lockstep.envs import StepResult, VectorBoundary
from lockstep.options.checks import misspelt_method
from lockstep.rollout.episode_view import EpisodeView, SingleAgentEpisodeView
from lockstep.state.optional import optional_state
from lockstep.tracking.metrics import Metrics

Episode = SingleAgentEpisode | MultiAgentEpisode


class EnvironmentCallback:
    """Base class of callbacks that handle the events of environments. Override the events you need.

    `lockstep.trainer.Callback` also has the events of a run. Events are called in the process that steps the
    environments, in training and in evaluation. An event that is not overridden costs nothing. Values that are logged
    into `metrics` are merged over all processes into the statistics of the collect (`CollectStats.metrics`).

    `episode` is read-only and holds the whole episode so far: the observations that the environment returned and the
    actions that it received. `env_index` is the index of the environment in its process. An exception in a method ends
    the collect.
    """

    needs_infos: ClassVar[bool] = False
    """Whether episodes contain the environment's infos. Episodes of several agents always do."""

    @property
    def metrics(self) -> Metrics:
        """The metrics to log into: the calling collector's during an event, the trainer's at other times."""
        # Created on first use: subclasses need not call `super().__init__()`.
        metrics: Metrics = self.__dict__.setdefault("_metrics", Metrics())
        return metrics

    @metrics.setter
    def metrics(self, metrics: Metrics) -> None:
        self.__dict__["_metrics"] = metrics

    def on_environment_created(self, env_runner: Any, env: Any, env_index: int) -> None:
        """Handle a new environment, before its first reset.

        Args:
            env_runner: the `EnvRunner`, or the trainer's collector.
            env: the environment if it is in this process, otherwise the vector that contains it.
            env_index: index of the environment in its process.
        """

    def on_episode_start(self, episode: Any, env_index: int) -> None:
        """Handle the first observation of an episode, before the first action."""

    def on_episode_step(self, episode: Any, env_index: int) -> None:
        """Handle a step of an episode, including the last one."""

    def on_episode_end(self, episode: Any, env_index: int) -> None:
        """Handle the end of an episode. Not called for an episode that is lost with its environment."""

    def on_sample_end(self, env_runner: Any, samples: Sequence[Any]) -> None:
        """Handle the end of a collect. `samples`: the episodes, or pieces of episodes, that hold its steps."""

    def get_state(self) -> Mapping[str, Any]:
        """Return the state that a checkpoint saves."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""


EPISODE_EVENTS = ("on_episode_start", "on_episode_step", "on_episode_end", "on_sample_end")
"""Events for which episodes have to be recorded."""
EVENTS = ("on_environment_created", *EPISODE_EVENTS)
"""All events of environments."""


def overridden_events(callback: EnvironmentCallback | type[EnvironmentCallback]) -> list[str]:
    """Return the names of the environment events that a callback, or a callback class, overrides."""
    overridden = []
    for event in EVENTS:
        method = getattr(callback, event)
        # The method of an object is bound; `__func__` is the function that the class defines.
        function = getattr(method, "__func__", method)
        if function is not getattr(EnvironmentCallback, event):
            overridden.append(event)
    return overridden


FOREIGN_EVENTS = {
    "on_algorithm_init": "on_run_start",
    "on_train_result": "on_epoch_end",
    "on_learn_on_batch": "on_update_end",
    "on_episode_created": "on_episode_start",
    "on_training_start": "on_run_start",
    "on_training_end": "on_run_end",
    "on_rollout_end": "on_collect_end",
    "on_step": "on_episode_step",
}
"""The events of RLlib and Stable-Baselines3, and the closest event of this library."""


def misspelt_event(callback: object) -> str | None:
    """Return a message about a method whose name looks like an event but is not one; None if there is no such method.

    `callback` is a callback or a callback class.
    """
    return misspelt_method(callback, ("on_",), FOREIGN_EVENTS)


def states_of(callbacks: Sequence[EnvironmentCallback]) -> list[Any]:
    """Return a list of `[class name, state]`, one entry for each callback."""
    return [[type(callback).__name__, dict(callback.get_state())] for callback in callbacks]


def restore_callbacks(callbacks: Sequence[EnvironmentCallback], saved: Sequence[Any]) -> None:
    """Restore the states that `states_of` returned. Callbacks are matched by class name, in order."""
    unused = list(saved)
    for callback in callbacks:
        entry = next((entry for entry in unused if entry[0] == type(callback).__name__), None)
        if entry is not None:
            unused.remove(entry)
            callback.set_state(entry[1])


class EnvironmentEvents:
    """Dispatcher of the events of one collector to its callbacks. All callbacks log into one `Metrics` object.

    After each call a callback gets its own metrics (those of the trainer) back. An exception that a callback raises is
    passed on unchanged, with a note that names the class, the method and the environment.

    Args:
        callbacks: The callbacks.
        runner: The collector or env runner that is passed to the callbacks.

    Raises:
        ValueError: A callback has a method whose name looks like an event but is not one.
    """

    def __init__(self, callbacks: Sequence[EnvironmentCallback], runner: Any) -> None:
        for callback in callbacks:
            if message := misspelt_event(callback):
                raise ValueError(f"callbacks: {message}")
        self.callbacks = list(callbacks)
        self.runner = runner
        self.metrics = Metrics()
        """Metrics that the callbacks log into during an event."""
        self._handlers: dict[str, list[EnvironmentCallback]] = {event: [] for event in EVENTS}
        """Callbacks that override an event, by event."""
        for callback in callbacks:
            for event in overridden_events(callback):
                self._handlers[event].append(callback)
        self.needs_episodes = False
        """Whether episodes have to be recorded."""
        self.needs_infos = False
        """Whether the recorded episodes have to contain the environments' infos."""
        for event in EPISODE_EVENTS:
            handlers = self._handlers[event]
            self.needs_episodes |= bool(handlers)
            self.needs_infos |= any(callback.needs_infos for callback in handlers)
        self._pieces: list[tuple[Episode, int]] = []
        """Episodes with steps in this collect, each with its length at the beginning of the collect."""
        self._has_reported_environments = False

    @property
    def is_empty(self) -> bool:
        """Whether no callback handles an event of an environment."""
        return not any(self._handlers.values())

    def call(self, event: str, *args: Any, env_index: int | None = None) -> None:
        """Call all callbacks that override an event, in their order."""
        for callback in self._handlers[event]:
            trainer_metrics = callback.metrics
            callback.metrics = self.metrics
            try:
                if env_index is None:
                    getattr(callback, event)(*args)
                else:
                    getattr(callback, event)(*args, env_index)
            except Exception as error:
                where = "" if env_index is None else f" of environment {env_index}"
                error.add_note(f"in {type(callback).__name__}.{event}{where}")
                raise
            finally:
                callback.metrics = trainer_metrics

    def created(self, envs: Sequence[Any]) -> None:
        """Report the environments to the callbacks. Only the first call has an effect."""
        if not self._has_reported_environments:
            self._has_reported_environments = True
            for env_index, env in enumerate(envs):
                self.call("on_environment_created", self.runner, env, env_index=env_index)

    # -- episodes ---

    def start(self, view: EpisodeView, env_index: int) -> None:
        """Notify the callbacks that an episode begins."""
        self.begin_piece(view)
        self.call("on_episode_start", view, env_index=env_index)

    def begin_piece(self, episode: Episode) -> None:
        """Note the length of an episode, so that `end_collect` returns only the steps after it."""
        if self._handlers["on_sample_end"]:
            self._pieces.append((episode, len(episode)))

    def step(self, view: EpisodeView, env_index: int) -> None:
        """Notify the callbacks of the newest step of an episode and, if it is the last step, of the episode's end."""
        if self._handlers["on_episode_step"]:
            self.call("on_episode_step", view, env_index=env_index)
        if view.is_done:
            self.call("on_episode_end", view, env_index=env_index)

    def begin_collect(self, running: Sequence[Episode]) -> None:
        """Begin a collect. `running`: the episodes that it continues."""
        self._pieces = []
        for episode in running:
            self.begin_piece(episode)

    def end_collect(self) -> dict[str, Any]:
        """Notify the callbacks that a collect has ended, and return their part of `CollectStats`."""
        if self._handlers["on_sample_end"]:
            samples = [episode[length:] for episode, length in self._pieces if len(episode) > length]
            self.call("on_sample_end", self.runner, samples)
        self._pieces = []
        return self.metrics.statistics([self.metrics.take()])

    def forget(self) -> None:
        """Discard all logged values."""
        self.metrics = Metrics()

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the state of the metrics. The owner of the callbacks saves theirs."""
        return {"metrics": self.metrics.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        self.metrics.set_state(state["metrics"])


class EpisodeRecorder:
    """Recorder of the episodes of a vector of environments for callbacks, whose events it reports to `events`.

    Only episodes that count in a collect are recorded. The recording of an episode begins with its first step. If an
    episode is running when the recorder is constructed, recording of that row begins with its next episode.

    Args:
        events: Dispatcher that the events are reported to.
        env: The environments.
    """

    def __init__(self, events: EnvironmentEvents, env: VectorBoundary) -> None:
        self.events = events
        self.env = env
        self._episodes: list[SingleAgentEpisode | None] = [None] * env.num_envs
        """Running episode of each row; None if it is not recorded."""
        self._views: list[Any] = [None] * env.num_envs
        """Views of the running episodes that the callbacks get."""
        self._firsts: list[tuple[Any, dict[str, Any]] | None] = [None] * env.num_envs
        """First observation and info of the next episode in each row; None if not known."""
        self._resets_later = env.has_invalid_rows and env.autoreset_mode == "NEXT_STEP"
        """Whether the first observation of the next episode comes one step after the end of an episode."""
        if events.needs_infos:
            env.keep_infos()

    def begin(self, obs: Any) -> None:
        """Note that a new episode begins in each row. `obs`: the first observations `[B, ...]`."""
        for b in range(self.env.num_envs):
            self._episodes[b] = None
            self._firsts[b] = self._first(obs, b)

    def running(self) -> list[SingleAgentEpisode]:
        """Return the running episodes."""
        return [episode for episode in self._episodes if episode is not None]

    def wrap_step(
        self, env_step: Callable[[Any], StepResult], counting: np.ndarray | None
    ) -> Callable[[Any], StepResult]:
        """Return a function that calls `env_step` and records the step.

        `counting`: bool `[B]`, the rows whose episodes count; None if all count. It may change between two steps.
        """

        def step(actions: Any) -> StepResult:
            # Before the step: afterwards episodes that end with it do not count any more.
            counted = range(self.env.num_envs) if counting is None else np.flatnonzero(counting).tolist()
            self.start(counted)
            result = env_step(actions)
            self._take(set(counted), actions, result)
            self.events.metrics.end_step()
            return result

        return step

    def start(self, rows: Iterable[int]) -> None:
        """Begin an episode in each of these rows that does not have a running one."""
        for b in rows:
            first = self._firsts[b]
            if self._episodes[b] is None and first is not None:
                episode = self._episodes[b] = SingleAgentEpisode()
                episode.add_env_reset(*first)
                view = self._views[b] = SingleAgentEpisodeView(episode)
                self.events.start(view, b)
        self.events.metrics.end_step()

    def take(
        self, b: int, action: Any, obs: Any, reward: Any, *, terminated: bool, truncated: bool, next_obs: Any = None
    ) -> None:
        """Add a step to the running episode of a row.

        Args:
            b: The row.
            action: The action as the environment took it.
            obs: Observation after the step, of this episode.
            reward: Reward of the step.
            terminated: Whether the episode terminated with the step.
            truncated: Whether the episode was truncated with the step.
            next_obs: Observations of all rows that are acted on next. If the episode ended, row `b` is the first
                observation of the next episode, unless the row resets later.
        """
        episode = self._episodes[b]
        is_over = terminated or truncated
        self._firsts[b] = None
        if is_over and not self._resets_later:
            self._firsts[b] = self._first(next_obs, b)
        if episode is None:
            return
        info = None if self.env.infos is None else self.env.infos.step_infos[b]
        episode.add_env_step(obs, action, float(reward), info, terminated=terminated, truncated=truncated)
        if is_over:
            self._episodes[b] = None
        self.events.step(self._views[b], b)

    def stop_recording(self, b: int) -> None:
        """Stop recording the running episode of row `b`. Recording begins again with the next episode."""
        self._episodes[b] = None

    def restart(self, b: int, obs: Any) -> None:
        """Discard the episode of row `b`, whose environment was reset. Row `b` of `obs` begins the next episode."""
        self._episodes[b] = None
        self._firsts[b] = self._first(obs, b)

    def _take(self, counted: set[int], actions: Any, result: StepResult) -> None:
        """Add a vector step to the running episodes of the rows that count."""
        final_rows, final_obs = (np.empty(0, np.int64), None) if result.final_obs is None else result.final_obs
        final_index = {int(b): i for i, b in enumerate(final_rows)}
        for b in range(self.env.num_envs):
            # A row that only reset its environment, or whose environment was lost: no step, but a first observation.
            if result.valid is not None and not result.valid[b]:
                self.restart(b, result.obs)
                continue
            if b not in counted:
                self.stop_recording(b)  # `take` then adds no step, but notes the first observation of the next episode
            obs = _row(final_obs, final_index[b]) if b in final_index else _row(result.obs, b)
            self.take(
                b,
                _row(actions, b),
                obs,
                result.rewards[b],
                terminated=bool(result.terminateds[b]),
                truncated=bool(result.truncateds[b]),
                next_obs=result.obs,
            )

    def _first(self, obs: Any, b: int) -> tuple[Any, dict[str, Any]]:
        """Return the first observation and info of the episode that begins in row `b`."""
        return _row(obs, b), {} if self.env.infos is None else self.env.infos.reset_infos[b]

    def get_state(self) -> dict[str, Any]:
        """Return the running episodes, and the first observations of the next ones."""
        firsts = [None if first is None else list(first) for first in self._firsts]
        return {"running": list(map(optional_state, self._episodes)), "firsts": firsts}

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state that `get_state` returned. Without a state, recording begins with the next episodes."""
        unknown = [None] * self.env.num_envs
        running = unknown if state is None else state["running"]
        firsts = unknown if state is None else state["firsts"]
        self._episodes = [None if saved is None else SingleAgentEpisode.from_state(saved) for saved in running]
        self._views = [None if episode is None else SingleAgentEpisodeView(episode) for episode in self._episodes]
        self._firsts = [None if first is None else (first[0], first[1]) for first in firsts]


def _row(tree: Any, b: int) -> Any:
    """Return a copy of row `b` of each leaf."""
    return map_tree(lambda leaf: np.array(leaf[b]), tree)
