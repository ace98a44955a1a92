"""`EnvironmentCallback`: what watches environments where they are stepped, and `EnvironmentEvents`, which calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from lockstep.data import MultiAgentEpisode, SingleAgentEpisode
from lockstep.data.trees import map_tree
from lockstep.envs import StepResult, VectorBoundary
from lockstep.options.checks import misspelt_method
from lockstep.tracking.metrics import Metrics

Episode = SingleAgentEpisode | MultiAgentEpisode


class EnvironmentCallback:
    """The events of environments; `lockstep.trainer.Callback` has those of the run too. Override those you need.

    They are called in the process in which the environments are stepped, of training and of evaluation. What is not
    overridden is not called and costs nothing. Values that are logged into `metrics` go into the statistics of the
    collect (`CollectStats.metrics`), of all processes together.

    `episode` is read-only, and has the whole episode so far: observations as the environment gave them, actions as it
    took them. `env_index` is the environment's number in its process. What a method raises ends the collect.
    """

    needs_infos: ClassVar[bool] = False
    """episodes have the environment's infos (those of several agents have them anyway)"""

    @property
    def metrics(self) -> Metrics:
        """Where to log: those of the collector that calls, between its events those of the trainer."""
        found: Metrics = self.__dict__.setdefault("_metrics", Metrics())
        return found

    @metrics.setter
    def metrics(self, metrics: Metrics) -> None:
        self.__dict__["_metrics"] = metrics

    def on_environment_created(self, env_runner: Any, env: Any, env_index: int) -> None:
        """Handle a new environment, before its first reset.

        `env_runner`: the `EnvRunner`, or the trainer's collector. `env`: the environment, where it is in this process,
        else the vector that it is a row of.
        """

    def on_episode_start(self, episode: Any, env_index: int) -> None:
        """Handle the first observation of an episode, before the first action."""

    def on_episode_step(self, episode: Any, env_index: int) -> None:
        """Handle a step of an episode, the last one too."""

    def on_episode_end(self, episode: Any, env_index: int) -> None:
        """Handle the end of an episode; one that is cut off with its environment has none."""

    def on_sample_end(self, env_runner: Any, samples: Sequence[Any]) -> None:
        """Handle the end of a collect. `samples`: the (pieces of) episodes with its steps."""

    def get_state(self) -> Mapping[str, Any]:
        """Return what must survive a resume."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""


OF_EPISODES = ("on_episode_start", "on_episode_step", "on_episode_end", "on_sample_end")
EVENTS = ("on_environment_created", *OF_EPISODES)


def overridden_events(callback: EnvironmentCallback | type[EnvironmentCallback]) -> list[str]:
    """Return the environments' events that a callback, or a class of them, handles."""
    methods = {event: getattr(callback, event) for event in EVENTS}
    own = {event: getattr(method, "__func__", method) for event, method in methods.items()}
    return [event for event, method in own.items() if method is not getattr(EnvironmentCallback, event)]


ELSEWHERE = {
    "on_algorithm_init": "on_run_start",
    "on_train_result": "on_epoch_end",
    "on_learn_on_batch": "on_update_end",
    "on_episode_created": "on_episode_start",
    "on_training_start": "on_run_start",
    "on_training_end": "on_run_end",
    "on_rollout_end": "on_collect_end",
    "on_step": "on_episode_step",
}
"""Events of RLlib and Stable-Baselines3, and the nearest ones here."""


def misspelt_event(callback: object) -> str | None:
    """Return words about a method of a callback, or of a class of them, that is named as an event and is none.

    Without such a method None.
    """
    return misspelt_method(callback, ("on_",), ELSEWHERE)


def states_of(callbacks: Sequence[EnvironmentCallback]) -> list[Any]:
    """Return the states of callbacks, `[name of the class, state]` each."""
    return [[type(callback).__name__, dict(callback.get_state())] for callback in callbacks]


def restore_callbacks(callbacks: Sequence[EnvironmentCallback], saved: Sequence[Any]) -> None:
    """Restore what `states_of` returned; they are matched by their class, in order."""
    left = list(saved)
    for callback in callbacks:
        entry = next((entry for entry in left if entry[0] == type(callback).__name__), None)
        if entry is not None:
            left.remove(entry)
            callback.set_state(entry[1])


class EpisodeView:
    """An episode for reading: all that it has, but the methods that change it, which raise `AttributeError`."""

    CHANGES = frozenset(
        (
            *("add_env_reset", "add_env_step", "concat_episode", "put_column", "set_observations", "set_actions"),
            *("set_rewards", "set_extra_model_outputs"),
        )
    )
    __slots__ = ("_episode",)

    def __init__(self, episode: Episode) -> None:
        object.__setattr__(self, "_episode", episode)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_episode"))

    def __getattr__(self, name: str) -> Any:
        if name in self.CHANGES or name.startswith("_"):
            raise AttributeError(
                f"a callback reads an episode and cannot call {name}(); change a copy, such as episode[:]"
            )
        return getattr(object.__getattribute__(self, "_episode"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a callback reads an episode and cannot set {name}; change a copy, such as episode[:]")

    def __len__(self) -> int:
        return len(object.__getattribute__(self, "_episode"))

    def __getitem__(self, key: Any) -> Any:
        return object.__getattribute__(self, "_episode")[key]

    def __repr__(self) -> str:
        return repr(object.__getattribute__(self, "_episode"))


class EnvironmentEvents:
    """Calls callbacks for the environments of one collector, with one instance of `metrics` for all of them.

    Raises `ValueError` for a callback with a method that is named as an event and is none.

    A callback's own metrics (those of the trainer) are put back after each call. What a callback raises goes on as it
    is, with a note that names the class, its method and the environment.
    """

    def __init__(self, callbacks: Sequence[EnvironmentCallback], runner: Any) -> None:
        for callback in callbacks:
            if words := misspelt_event(callback):
                raise ValueError(f"callbacks: {words}")
        self.callbacks, self.runner = list(callbacks), runner
        self.metrics = Metrics()
        handled = [(callback, overridden_events(callback)) for callback in callbacks]
        self._handlers = {event: [each for each, events in handled if event in events] for event in EVENTS}
        self.needs_episodes = any(self._handlers[event] for event in OF_EPISODES)
        self.needs_infos = any(each.needs_infos for event in OF_EPISODES for each in self._handlers[event])
        self._pieces: list[tuple[Episode, int]] = []
        """episodes with steps in this collect, and their length before it"""

        self._has_told = False
        """has `created` been called?"""

    @property
    def is_empty(self) -> bool:
        """Is no event of an environment handled?"""
        return not any(self._handlers.values())

    def call(self, event: str, *args: Any, env_index: int | None = None) -> None:
        """Call the handlers of an event, in order."""
        for callback in self._handlers[event]:
            before, callback.metrics = callback.metrics, self.metrics
            try:
                getattr(callback, event)(*args, *(() if env_index is None else (env_index,)))
            except Exception as error:
                where = "" if env_index is None else f" of environment {env_index}"
                error.add_note(f"in {type(callback).__name__}.{event}{where}")
                raise
            finally:
                callback.metrics = before

    def created(self, envs: Sequence[Any]) -> None:
        """Tell of the environments, once."""
        if not self._has_told:
            self._has_told = True
            for env_index, env in enumerate(envs):
                self.call("on_environment_created", self.runner, env, env_index=env_index)

    # -- episodes ---

    def start(self, episode: Episode, env_index: int) -> EpisodeView:
        """Tell of an episode that begins; return it as callbacks see it."""
        view = EpisodeView(episode)
        self.begin_piece(episode)
        self.call("on_episode_start", view, env_index=env_index)
        return view

    def begin_piece(self, episode: Episode) -> None:
        """Note what an episode has before this collect."""
        if self._handlers["on_sample_end"]:
            self._pieces.append((episode, len(episode)))

    def step(self, view: EpisodeView, env_index: int) -> None:
        """Tell of an episode's newest step, and of its end, if that is it."""
        if self._handlers["on_episode_step"]:
            self.call("on_episode_step", view, env_index=env_index)
        if view.is_done:
            self.call("on_episode_end", view, env_index=env_index)

    def begin_collect(self, running: Sequence[Episode]) -> None:
        """Begin a collect, in which these episodes go on."""
        self._pieces = []
        for episode in running:
            self.begin_piece(episode)

    def end_collect(self) -> dict[str, Any]:
        """Tell of the end of a collect; return what `CollectStats` has of it."""
        if self._handlers["on_sample_end"]:
            samples = [episode[length:] for episode, length in self._pieces if len(episode) > length]
            self.call("on_sample_end", self.runner, samples)
        self._pieces = []
        return self.metrics.statistics([self.metrics.take()])

    def forget(self) -> None:
        """Begin with new metrics."""
        self.metrics = Metrics()

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the metrics' state (that of the callbacks is kept by who made them)."""
        return {"metrics": self.metrics.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self.metrics.set_state(state["metrics"])


class EpisodeRecorder:
    """Records the episodes of a vector's rows, of those that count, and tells `events` of them.

    An episode begins with the first step that is taken in it. Rows whose episode is under way when recording begins
    are recorded from their next one on.
    """

    def __init__(self, events: EnvironmentEvents, env: VectorBoundary) -> None:
        self.events, self.env = events, env
        self._episodes: list[SingleAgentEpisode | None] = [None] * env.num_envs
        self._views: list[Any] = [None] * env.num_envs
        self._firsts: list[tuple[Any, dict[str, Any]] | None] = [None] * env.num_envs
        """first observation and info of the episode that is to begin in each row; None where it is not known"""
        self._resets_later = env.has_invalid_rows and env.autoreset_mode == "NEXT_STEP"
        if events.needs_infos:
            env.keep_infos()

    def begin(self, obs: Any) -> None:
        """Begin anew everywhere, with these first observations."""
        for b in range(self.env.num_envs):
            self._episodes[b] = None
            self._firsts[b] = self._first(obs, b)

    def running(self) -> list[SingleAgentEpisode]:
        """Return the episodes under way."""
        return [episode for episode in self._episodes if episode is not None]

    def watched(
        self, env_step: Callable[[Any], StepResult], counting: np.ndarray | None
    ) -> Callable[[Any], StepResult]:
        """Return `env_step` with recording around it; `counting`: rows whose episodes count (None: all)."""

        def step(actions: Any) -> StepResult:
            counted = range(self.env.num_envs) if counting is None else np.flatnonzero(counting).tolist()
            self.start(counted)
            result = env_step(actions)
            self._take(set(counted), actions, result)
            self.events.metrics.end_step()
            return result

        return step

    def start(self, rows: Iterable[int]) -> None:
        """Begin the episodes of these rows that are to begin."""
        for b in rows:
            first = self._firsts[b]
            if self._episodes[b] is None and first is not None:
                episode = self._episodes[b] = SingleAgentEpisode()
                episode.add_env_reset(*first)
                self._views[b] = self.events.start(episode, b)
        self.events.metrics.end_step()

    def take(
        self, b: int, action: Any, obs: Any, reward: Any, *, terminated: bool, truncated: bool, following: Any = None
    ) -> None:
        """Add a step to the episode of a row. `following`: the observations of all rows after it."""
        episode, is_over = self._episodes[b], terminated or truncated
        self._firsts[b] = None if not is_over or self._resets_later else self._first(following, b)
        if episode is None:
            return
        info = None if self.env.infos is None else self.env.infos.of_step[b]
        episode.add_env_step(obs, action, float(reward), info, terminated=terminated, truncated=truncated)
        if is_over:
            self._episodes[b] = None
        self.events.step(self._views[b], b)

    def leave(self, b: int) -> None:
        """Record no further step of the episode under way in a row."""
        self._episodes[b] = None

    def drop(self, b: int, obs: Any) -> None:
        """Leave the episode of a row that was only reset; it begins anew with its row of `obs`."""
        self._episodes[b] = None
        self._firsts[b] = self._first(obs, b)

    def _take(self, counted: set[int], actions: Any, result: StepResult) -> None:
        rows, finals = (np.empty(0, np.int64), None) if result.final_obs is None else result.final_obs
        place = {int(b): i for i, b in enumerate(rows)}
        for b in range(self.env.num_envs):
            if result.valid is not None and not result.valid[b]:  # lost rows too
                self.drop(b, result.obs)
                continue
            if b not in counted:
                self.leave(b)
            obs = _row(finals, place[b]) if b in place else _row(result.obs, b)
            flags = {"terminated": bool(result.terminateds[b]), "truncated": bool(result.truncateds[b])}
            self.take(b, _row(actions, b), obs, result.rewards[b], **flags, following=result.obs)

    def _first(self, obs: Any, b: int) -> tuple[Any, dict[str, Any]]:
        return _row(obs, b), {} if self.env.infos is None else self.env.infos.of_reset[b]

    def get_state(self) -> dict[str, Any]:
        """Return the episodes under way, and the beginnings of those to come."""
        return {
            "running": [None if episode is None else episode.get_state() for episode in self._episodes],
            "firsts": [None if first is None else list(first) for first in self._firsts],
        }

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `get_state`; without a state, with each row's next episode."""
        nothing = [None] * self.env.num_envs
        running, firsts = (nothing, nothing) if state is None else (state["running"], state["firsts"])
        self._episodes = [None if saved is None else SingleAgentEpisode.from_state(saved) for saved in running]
        self._views = [None if episode is None else EpisodeView(episode) for episode in self._episodes]
        self._firsts = [None if first is None else (first[0], first[1]) for first in firsts]


def _row(tree: Any, b: int) -> Any:
    """Return a copy of one row."""
    return map_tree(lambda leaf: np.array(leaf[b]), tree)
