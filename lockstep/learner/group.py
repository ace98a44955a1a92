"""`LearnerGroup`: one or many learners that act as one. Here: one, in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from lockstep.data.multi_agent_batch import MultiAgentBatch
from lockstep.data.sample_batch import SampleBatch
from lockstep.learner.checkpointing import checkpoint_folders, select_components, state_from_folders
from lockstep.learner.config import LearnersSection
from lockstep.learner.learner import Learner
from lockstep.learner.results import Results
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint


class LearnerGroup:
    """Coordinates the learners; every method means the same for one learner in process and for many.

    A context manager; `shutdown()` leaves no process behind.
    """

    def __init__(self, learner: Learner, section: LearnersSection | None = None) -> None:
        self.section = section or LearnersSection()
        self.section.validate()
        self._learner = learner.build()

    @property
    def is_local(self) -> bool:
        """Does the learner run in this process?"""
        return True

    @property
    def is_remote(self) -> bool:
        """Do learners run in other processes?"""
        return not self.is_local

    def __len__(self) -> int:
        """Number of learners."""
        return 1

    @property
    def learner(self) -> Learner:
        """The learner in this process."""
        return self._learner

    def update_from_episodes(
        self,
        episodes: Sequence[Any],
        *,
        timesteps: Mapping[str, int] | None = None,
        return_state: bool = False,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> Results:
        """Trains on episodes; returns `{module_id: {metric: number}}`.

        `episodes`: a list of `SingleAgentEpisode`, or what `RolloutStore.episodes()` returns (read without a copy).
        `num_epochs` passes over the train batch, each in `len(batch) // minibatch_size` gradient steps.
        `return_state=True` adds the weights under `"_rl_module_state_after_update"`. An empty list is a counted
        no-op, or a `ValueError` with `never_skip_update=True`.
        """
        results = self._learner.update_from_episodes(
            episodes,
            timesteps=timesteps,
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle_batch_per_epoch=shuffle_batch_per_epoch,
        )
        return self._finish(results, return_state)

    def update_from_batch(
        self,
        batch: SampleBatch | MultiAgentBatch,
        *,
        timesteps: Mapping[str, int] | None = None,
        return_state: bool = False,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> Results:
        """As `update_from_episodes`, on a batch that has the columns the loss needs."""
        results = self._learner.update_from_batch(
            batch,
            timesteps=timesteps,
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle_batch_per_epoch=shuffle_batch_per_epoch,
        )
        return self._finish(results, return_state)

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
    ) -> dict[str, Any]:
        """`{"learner": {...}}`; components by path, e.g. `"learner/rl_module/p0"`."""
        wanted = [components] if isinstance(components, str) else components
        unwanted = [not_components] if isinstance(not_components, str) else not_components
        for path in [*(wanted or []), *(unwanted or [])]:
            if path.split("/")[0] != "learner":
                raise KeyError(f"no component {path!r}; a group's state has 'learner' and what lies below it")
        inside = None if wanted is None or "learner" in wanted else [path.removeprefix("learner/") for path in wanted]
        without = None if unwanted is None else [path.removeprefix("learner/") for path in unwanted]
        return {"learner": self._learner.get_state(inside, not_components=without)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned, on every learner."""
        if set(state) != {"learner"}:
            raise ValueError(f"a group's state has the one key 'learner', not {sorted(state)}")
        self._learner.set_state(state["learner"])

    def get_weights(self, module_ids: Collection[str] | None = None) -> dict[str, dict[str, np.ndarray]]:
        """`{module_id: {name: array}}`."""
        modules = self._learner.module
        ids = list(modules) if module_ids is None else list(module_ids)
        unknown = [mid for mid in ids if mid not in modules]
        if unknown:
            raise KeyError(f"no modules {unknown}; there are {sorted(modules)}")
        return {mid: modules[mid].get_state() for mid in ids}

    def set_weights(self, weights: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Sets the weights of the given modules on every learner; all or none."""
        self._learner.set_state({"rl_module": dict(weights)})

    def foreach_learner(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """`[func(learner, *args)]`, in order."""
        return [func(self._learner, *args)]

    def get_stats(self) -> dict[str, int]:
        """Queue lengths, requests in flight, dropped requests, restarts, skipped updates."""
        skipped = self._learner.lifetime.get("num_updates_skipped", 0)
        return {"num_in_flight": 0, "num_dropped": 0, "num_restarts": 0, "num_updates_skipped": skipped}

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """The folders of the group's checkpoint."""
        return checkpoint_folders(self._learner, "learner")

    def set_checkpoint_folders(self, folders: Mapping[str, dict[str, Any]], component: str | None = None) -> None:
        """Restores from the folders of a checkpoint, all or one component."""
        state = state_from_folders(folders, "learner")
        inside = None if component in (None, "learner") else str(component).removeprefix("learner/")
        self._learner.set_state(select_components(state, inside, None))

    def save_to_path(self, path: str | Path) -> str:
        """Writes a checkpoint folder; returns its path."""
        return str(write_checkpoint(Path(path), self.checkpoint_folders()))

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Restores all, or one component such as `"learner/rl_module/default_policy"`."""
        self.set_checkpoint_folders(read_checkpoint(Path(path)), component)

    def shutdown(self) -> None:
        """Ends all processes of the group; nothing to do for one in process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _finish(self, results: Results, return_state: bool) -> Results:
        skipped = results.get("__all_modules__", {}).get("num_updates_skipped", 0)
        if skipped and self.section.never_skip_update:
            raise ValueError("the update has nothing to train on, and never_skip_update=True does not allow that")
        if return_state:
            results["_rl_module_state_after_update"] = self.get_weights()
        return results
