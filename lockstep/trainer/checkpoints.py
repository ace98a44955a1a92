"""A trainer and its checkpoints: everything in one folder, and the way back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.trainer.state import check_collectors, set_collectors, states_to_put_back, tell_options

if TYPE_CHECKING:
    from lockstep.trainer.base import BaseTrainer


def save_trainer(trainer: BaseTrainer, path: str | Path) -> Path:
    """A full checkpoint: policy and all its state in its own folders, the trainer's in `trainer`.

    Records that the logger holds back for its next interval are part of the state, so that saving changes no record.
    """
    folders = {
        **trainer.policy.checkpoint_folders(),
        "trainer": {"state": trainer.get_state(), "made_by": {"algorithm": trainer.policy.config.algorithm}},
        **trainer.own_folders(),
    }
    if trainer.bad_batch is not None:
        folders["bad_batch"] = {"batch": trainer.bad_batch}
    counters = {name: getattr(trainer, name) for name in ("epoch", "env_step", "gradient_step", "stop_reason")}
    return write_checkpoint(path, folders, metadata=counters)


def restore_trainer(trainer: BaseTrainer, path: str | Path | None) -> None:
    """Continues a run bit by bit from a full checkpoint.

    Raises `ValueError`, and changes nothing, where it is damaged or of a run of another shape, and for None, which
    `newest_checkpoint` gives where there is no checkpoint. A warning where this trainer has other options.
    """
    if path is None:
        raise ValueError("path=None: there is no checkpoint to go on from (newest_checkpoint found none that is whole)")
    _restore(trainer, path, _folders_of_run(path))


def _folders_of_run(path: str | Path) -> dict[str, dict[str, Any]]:
    """`ValueError` for a checkpoint that is damaged or not of a whole run."""
    folders = read_checkpoint(path)
    if "trainer" not in folders:
        raise ValueError(f"{path} holds a policy only, not a whole run; give a folder below `checkpoints/`")
    return folders


def _restore(
    trainer: BaseTrainer, path: str | Path, folders: dict[str, dict[str, Any]], *, keep_record: bool = False
) -> None:
    made_by, own = folders["trainer"].get("made_by", {}).get("algorithm"), trainer.policy.config.algorithm
    if made_by is not None and made_by != own:
        raise ValueError(
            f"{path} is of a run of {made_by!r}, and this trainer's policy is of {own!r}; give it one of its own"
        )
    state = folders["trainer"]["state"]
    check_collectors(trainer, state)
    policy, collectors = trainer.policy.get_state(), states_to_put_back(trainer)
    trainer.policy.set_checkpoint_folders(folders)
    try:
        set_collectors(trainer, state)
        trainer.set_own_folders(folders)
    except BaseException:
        trainer.policy.set_state(policy)
        set_collectors(trainer, collectors)
        raise
    trainer.set_state(state)  # its collectors once more: they write boundaries into the buffer that is restored now
    tell_options(trainer, state.get("options", {}))  # checkpoints of earlier versions have none
    ended_early = state["stop_reason"] in ("interrupted", "error")
    if not keep_record and (ended_early or (state["stop_reason"] == "max_epoch" and not trainer.is_complete)):
        trainer.logger.drop_save()  # a run that never stopped has no such checkpoint
    else:  # A kill may have come between the checkpoint and its record; a record that is there is not doubled.
        epoch, env_step, gradient_step = state["saved_at"]
        trainer.logger.save_data(epoch, env_step, gradient_step, lambda *_: Path(path))
    _tell_boundary(trainer)


def resume_from_logger(trainer: BaseTrainer) -> bool:
    """Goes on from what the logger's last save names: everything, where that is a full checkpoint (then True).

    Else, with a warning where there should be one, the three counters of that save. `ValueError` for a full checkpoint
    that does not fit this trainer.
    """
    path, iterator = trainer.logger.last_checkpoint(), trainer._iterator
    if path is not None:
        try:
            folders = _folders_of_run(path)
        except (OSError, ValueError) as error:
            warnings.warn(
                f"resume_from_log: only the counters are restored, as {path} is no full checkpoint ({error})",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            _restore(trainer, path, folders, keep_record=True)  # by which the log would name it once more
            trainer._iterator = iterator  # this is called from within it
            return True
    counters = trainer.logger.restore_data()
    if path is None and any(counters):
        warnings.warn(
            "resume_from_log: only the counters are restored, as the log names no checkpoint: policy, optimizers and "
            "replay buffer are those given (CheckpointCallback writes full checkpoints)",
            RuntimeWarning,
            stacklevel=2,
        )
    trainer.epoch, trainer.env_step, trainer.gradient_step = counters
    return False


def _tell_boundary(trainer: BaseTrainer) -> None:
    """Says, and records, where running episodes could not be continued."""
    collector = trainer.train_collector
    if collector is None or not collector.episodes_cut:
        return
    cut = collector.episodes_cut
    warnings.warn(
        f"the state of the {collector.env.backend!r} environments is not in the checkpoint: {cut} running episodes end "
        "there (nothing is estimated across), and the run is not bit by bit the one that would never have stopped",
        RuntimeWarning,
        stacklevel=3,
    )
    trainer.logger.remark("env_step", trainer.env_step, {"save/episodes_cut": cut})
