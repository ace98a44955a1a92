"""A run on ranks: what a configuration must say for it, how ranks stay in step, and which run they go on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.cluster.torchrun import Place, join_ranks
from lockstep.learner.many.reduction import Reducer
from lockstep.state.trust import without_signature
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import CONFIG, RunFolderError
from lockstep.trainer.callbacks import Callback, CheckpointSaved, Event, RunEnd, RunStart, Stop, TrainerView


def config_on_ranks(config: AlgorithmConfig, number: int | None = None) -> AlgorithmConfig:
    """Return the configuration of a run in one process, which every rank makes; unchanged in a process alone.

    `number`: of ranks; None: as this process was started. `ValueError` for another number of learners, for processes on
    Ray, and for environments that cannot be split.
    """
    number = Place.of_process().world_size if number is None else number
    if number == 1:
        return config
    asked = config.learners.num_learners
    if asked not in (0, number):
        raise ValueError(
            f"learners.num_learners={asked} is not allowed on {number} ranks, each of which has one; leave it out, or "
            f"start {asked} ranks"
        )
    for name, value in (
        ("env_runners.num_env_runners", config.env_runners.num_env_runners),
        ("evaluation.evaluation_num_env_runners", config.evaluation.evaluation_num_env_runners),
    ):
        if value:
            raise ValueError(f"{name}={value} is not allowed on ranks, each of which steps its share; leave it out")
    num_envs = config.env_runners.num_envs
    if num_envs % number and not config.is_offline:
        raise ValueError(
            f"{num_envs} environments cannot be split evenly over {number} ranks; give num_envs="
            f"{-(-num_envs // number) * number}, or start a number of ranks that divides them"
        )
    return config.copy().learners(num_learners=0)


def join(config: AlgorithmConfig) -> Reducer:
    """Return what joins this process with the other ranks; where there are none, of one alone."""
    place, device = Place.of_process(), torch.device(config.framework.device)
    has_own_gpu = False
    if device.type == "cuda" and place.world_size > 1:
        num_gpus = torch.cuda.device_count()
        torch.cuda.set_device(place.local_rank % num_gpus)
        has_own_gpu = place.local_world_size <= num_gpus
    return join_ranks(
        place,
        timeout_s=config.learners.learner_timeout_s,
        meeting_timeout_s=max(config.learners.learner_timeout_s, config.env_runners.sample_timeout_s),
        backend="nccl" if has_own_gpu else "gloo",  # NCCL refuses ranks that share a GPU
    )


class InStep(Callback):
    """Ends the run on all ranks after the same event, whichever of them was asked to stop. The last callback of all."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._trainer: TrainerView | None = None

    def on_event(self, event: Event) -> Stop:
        if isinstance(event, CheckpointSaved | RunEnd):  # not on all ranks, or none goes on
            return None
        if isinstance(event, RunStart):
            self._trainer = event.trainer
        reasons = self._reducer.gather(None if self._trainer is None else self._trainer.stop_reason)
        return next((reason for reason in reasons if reason is not None), None)


def run_begun_before(root: str | Path, config: Mapping[str, Any]) -> Path | None:
    """Return the newest run of this configuration that the same job of torchrun began, to go on with; None for none.

    A run that has ended is one only for ranks that are started again.
    """
    place = Place.of_process()
    if place.run_id is None:
        return None
    wanted, found = json.loads(json.dumps(without_signature(config))), None
    for file in sorted(Path(root).glob(f"*/{CONFIG}"), key=lambda file: file.stat().st_mtime):
        try:
            folder = RunFolder.open(file.parent)
        except RunFolderError:
            continue
        is_same = folder.info.get("run_id") == place.run_id and _is_of(folder.config, wanted)
        if is_same and folder.newest_checkpoint() is not None:
            found = folder.path if place.num_restarts or folder.ended_at() is None else None
    return found


def _is_of(settings: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a run's settings are those wanted, of which `compile="auto"` was decided when the run began."""
    if wanted["framework"]["compile"] == "auto":
        wanted = {**wanted, "framework": {**wanted["framework"], "compile": settings["framework"]["compile"]}}
    return settings == wanted
