"""`train`: from two names to a trained agent and its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.algorithms import get_config
from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.policy import Policy
from lockstep.state.checkpoint import newest_checkpoint, read_checkpoint
from lockstep.tracking import RunFolder, plot_runs
from lockstep.tracking.statistics import EpochStats, InfoStats
from lockstep.trainer.build import build_onpolicy_trainer, restore_trainer
from lockstep.trainer.callbacks import Callback
from lockstep.trainer.onpolicy import OnpolicyTrainer


@dataclass(frozen=True)
class TrainResult:
    """What a run gave."""

    policy: Policy
    info: InfoStats
    path: Path
    """the run's folder"""

    @property
    def history(self) -> tuple[EpochStats, ...]:
        """One entry for each epoch."""
        return self.info.history


def train(
    algorithm: str | AlgorithmConfig,
    env: Any = None,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    num_envs: int | None = None,
    root: str | Path = "runs",
    callbacks: Sequence[Callback] = (),
    settings: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Trains and returns the policy, the history and the run's folder.

    `algorithm`: a name such as "ppo", or a configuration. `env`: an id, class or function. `settings`: more options
    by path, `{"training.lr": 1e-3}`. Raises `ValueError` for unknown names (with a suggestion).
    """
    config = algorithm.copy() if isinstance(algorithm, AlgorithmConfig) else get_config(algorithm)
    if env is not None:
        config.environment(env)
    if total_steps is not None:
        config.reporting(total_steps=total_steps)
    if seed is not None:
        config.debugging(seed=seed)
    if num_envs is not None:
        config.env_runners(num_envs_per_env_runner=num_envs)
    for path, value in (settings or {}).items():
        config.set_path(path, value)
    config.validate()
    folder = new_folder(config, root)
    trainer = build_onpolicy_trainer(config, folder=folder, callbacks=callbacks)
    return run_in_folder(trainer, folder)


def new_folder(config: AlgorithmConfig, root: str | Path) -> RunFolder:
    """A new run's folder with its `config.json`."""
    name = config.env if isinstance(config.env, str) else getattr(config.env, "__name__", type(config.env).__name__)
    try:
        plain = config.to_dict()
    except ValueError:
        plain = config.copy().environment(env=name).to_dict()
    return RunFolder.create(root, algo=config.algorithm, env=str(name), seed=config.seed, config=plain)


def run_in_folder(trainer: OnpolicyTrainer, folder: RunFolder) -> TrainResult:
    """Runs to the end; writes `summary.json` and `curve.png` whatever ends the run."""
    try:
        info = trainer.run()
    finally:
        write_summary(trainer, folder)
    return TrainResult(trainer.policy, info, folder.path)


def write_summary(trainer: OnpolicyTrainer, folder: RunFolder) -> None:
    """Returns, speed by stage, how the run ended; and the curve where matplotlib is installed."""
    info = trainer.info()
    timing = info.timing
    last = None if trainer.last_test is None else trainer.last_test.returns_stat
    stages = {
        "environment": timing.env_time,
        "acting": timing.act_time,
        "storing": max(0.0, timing.train_time_collect - timing.env_time - timing.act_time),
        "update": timing.train_time_update,
        "evaluation": timing.test_time,
    }
    folder.write_summary(
        {
            **info.to_dict(),
            "final_return": None if last is None else last.mean,
            "final_return_std": None if last is None else last.std,
            "steps_per_second": timing.update_speed,
            "seconds_by_stage": stages,
        }
    )
    try:
        plot_runs([folder.path], folder.curve_path)
    except (ImportError, ValueError):
        return


def resume(path: str | Path, *, total_steps: int | None = None, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Continues the run in a folder from its newest intact checkpoint, bit by bit."""
    trainer, folder = load_trainer(path, total_steps=total_steps, callbacks=callbacks)
    return run_in_folder(trainer, folder)


def load_trainer(
    path: str | Path, *, total_steps: int | None = None, callbacks: Sequence[Callback] = ()
) -> tuple[OnpolicyTrainer, RunFolder]:
    """The trainer of a run's folder at its newest intact checkpoint. `ValueError` where there is none."""
    folder = RunFolder.open(path)
    config = get_config(folder.algo).update_from_dict(folder.config)
    if total_steps is not None:
        config.reporting(total_steps=total_steps, steps_per_epoch=config.steps_per_epoch or _epoch_of(config))
    checkpoint = folder.newest_checkpoint()
    if checkpoint is None:
        raise ValueError(f"{folder.path} has no intact checkpoint to go on from; start a new run")
    trainer = build_onpolicy_trainer(config, folder=folder, callbacks=callbacks, resume=True)
    restore_trainer(trainer, checkpoint)
    return trainer, folder


def _epoch_of(config: AlgorithmConfig) -> int:
    return max(int(config.train_batch_size), int(config.total_steps) // 10)


def load_policy(path: str | Path) -> Policy:
    """The best policy of a run's folder, or the policy in a checkpoint."""
    path = Path(path)
    if (path / "config.json").exists() and (path / "best").exists():
        best = newest_checkpoint(path / "best")
        path = best or newest_checkpoint(path / "checkpoints") or path
    folders = read_checkpoint(path)
    if "policy" not in folders:
        raise ValueError(f"{path} holds no policy; give a run's folder, its best/policy or one of its checkpoints")
    config_data = folders["policy"]["state"]["config"]
    config = get_config(config_data["algorithm"]).update_from_dict(config_data)
    policy = config.build_policy()
    policy.set_checkpoint_folders(folders)
    return policy
