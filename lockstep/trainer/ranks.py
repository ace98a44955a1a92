"""Training on several torchrun ranks: configuration, connection, common end, and restart of an interrupted job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.cluster.torchrun import RankInfo, join_ranks
from lockstep.learner.many.reduction import Reducer
from lockstep.state.trust import without_signature
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import CONFIG, RunFolderError
from lockstep.trainer.callbacks import Callback, Event, RunStart, Stop, TrainerView


def config_on_ranks(config: AlgorithmConfig, num_ranks: int | None = None) -> AlgorithmConfig:
    """Return the configuration with which each rank builds its part of a run. For one rank it is `config` itself.

    Args:
        config: configuration of the whole run.
        num_ranks: number of ranks. Defaults to the number with which torchrun started this process.

    Raises:
        ValueError: the configuration asks for another number of learners, for env runners on Ray, or for a number of
            environments that the ranks cannot share evenly.
    """
    if num_ranks is None:
        num_ranks = RankInfo.of_process().world_size
    if num_ranks == 1:
        return config

    num_learners = config.learners.num_learners
    if num_learners not in (0, num_ranks):
        raise ValueError(
            f"learners.num_learners={num_learners} is not allowed on {num_ranks} ranks, each of which has one; leave "
            f"it out, or start {num_learners} ranks"
        )
    runner_options = (
        ("env_runners.num_env_runners", config.env_runners.num_env_runners),
        ("evaluation.evaluation_num_env_runners", config.evaluation.evaluation_num_env_runners),
    )
    for name, value in runner_options:
        if value:
            raise ValueError(f"{name}={value} is not allowed on ranks, each of which steps its share; leave it out")

    num_envs = config.env_runners.num_envs
    if num_envs % num_ranks and not config.is_offline:
        raise ValueError(
            f"{num_envs} environments cannot be split evenly over {num_ranks} ranks; give num_envs="
            f"{-(-num_envs // num_ranks) * num_ranks}, or start a number of ranks that divides them"
        )
    # In each rank the learner is in the process itself. The ranks reduce over the process group of torchrun.
    return config.copy().learners(num_learners=0)


def join(config: AlgorithmConfig) -> Reducer:
    """Return the reducer that connects this process with the other ranks, or one for a single process."""
    rank_info = RankInfo.of_process()
    device = torch.device(config.framework.device)
    has_own_gpu = False
    if device.type == "cuda" and rank_info.world_size > 1:
        num_gpus = torch.cuda.device_count()
        torch.cuda.set_device(rank_info.local_rank % num_gpus)
        has_own_gpu = rank_info.local_world_size <= num_gpus
    return join_ranks(
        rank_info,
        timeout_s=config.learners.learner_timeout_s,
        # In the first reduction after a collect, a rank also waits for the slowest environments of all others.
        meeting_timeout_s=max(config.learners.learner_timeout_s, config.env_runners.sample_timeout_s),
        backend="nccl" if has_own_gpu else "gloo",  # NCCL refuses ranks that share a GPU
    )


class RankSynchronizer(Callback):
    """Callback that ends the run on all ranks after the same event, whichever rank was asked to stop.

    It must be the last callback, because it reads the stop reason that the others have set.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._trainer: TrainerView | None = None

    def on_event(self, event: Event) -> Stop:
        if not event.is_on_all_ranks:  # a rank that waited for the others here would wait forever
            return None
        super().on_event(event)
        reason = None if self._trainer is None else self._trainer.stop_reason
        reasons = self._reducer.gather(reason)
        return next((reason for reason in reasons if reason is not None), None)

    def on_run_start(self, event: RunStart) -> None:
        self._trainer = event.trainer


def find_run_of_job(root: str | Path, config: Mapping[str, Any]) -> Path | None:
    """Return the newest run that this torchrun job has begun with a configuration, or None if there is none.

    A restarted job continues this run. A run that is complete is returned only if torchrun has restarted the ranks: the
    restart came after the end of the run, and must not begin another one.

    Args:
        root: folder that contains the folders of runs.
        config: settings of the run, as its `config.json` contains them.
    """
    rank_info = RankInfo.of_process()
    if rank_info.run_id is None:
        return None
    expected = json.loads(json.dumps(without_signature(config)))
    newest = None
    for file in sorted(Path(root).glob(f"*/{CONFIG}"), key=lambda file: file.stat().st_mtime):
        try:
            folder = RunFolder.open(file.parent)
        except RunFolderError:
            continue
        is_of_job = folder.info.get("run_id") == rank_info.run_id
        if is_of_job and _are_equal(folder.config, expected) and folder.newest_checkpoint() is not None:
            # Files are in the order of their age, so the last one decides, also if it must not be continued.
            may_continue = rank_info.num_restarts or folder.ended_at() is None
            newest = folder.path if may_continue else None
    return newest


def _are_equal(settings: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether a run has the expected settings.

    `compile="auto"` matches both values: the run has stored the choice that was made when it began.
    """
    if expected["framework"]["compile"] == "auto":
        chosen = settings["framework"]["compile"]
        expected = {**expected, "framework": {**expected["framework"], "compile": chosen}}
    return settings == expected
