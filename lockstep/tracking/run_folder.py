"""`RunFolder`: the folder of one run, with its configuration, records, checkpoints and summary."""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep._version import __version__
from lockstep.state.checkpoint import (
    ERROR,
    MANIFEST,
    CheckpointError,
    carried_checkpoint,
    checkpoints_in,
    copy_checkpoint,
    newest_checkpoint,
    read_manifest,
)
from lockstep.state.names import with_current_names
from lockstep.state.replace import readable_path
from lockstep.state.trust import without_signature
from lockstep.tracking.records import from_strict_json, leaves, write_json
from lockstep.tracking.run_lock import RunLock

_PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "numba",
    "safetensors",
    "ray",
    "envpool",
    "mujoco",
    "ale-py",
    "box2d",
    "pettingzoo",
)
"""Packages whose versions a run records."""

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
BEST = "best"
OBJECT = "__import__"
"""Key in config.json for a class or function, whose value is its module and name."""
NAMED_RUNS = 5
"""Number of runs that an error message names at most."""


class RunFolderError(ValueError):
    """Error for a run folder that cannot be read. The message says which folder and why."""


def versions() -> dict[str, str]:
    """Return the versions of Python, Lockstep and all packages that can change a result, without importing them."""
    result = {"python": platform.python_version(), "platform": platform.platform(), "lockstep": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            result[package] = importlib.metadata.version(package)
    return result


def git_revision(directory: str | os.PathLike[str] = ".") -> str | None:
    """Return the commit that is checked out in a directory, with `-dirty` if files differ; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


class RunFolder:
    """Folder of one run, made by `create` and opened again by `open`.

    It holds `config.json` (algorithm, environment, options and versions), `metrics.jsonl`, `checkpoints/`, `best/`,
    `summary.json` and `curve.png`.

    Attributes:
        path: the folder.
        metrics_path, checkpoints, best, summary_path, curve_path: paths of its parts.
        algo: name of the algorithm.
        env: name of the environment.
        seed: seed of the run.
        config: whole configuration as JSON values, without the user's signature.
        info: whole content of config.json.
        lock: lock that is held by the process that trains the run.
    """

    def __init__(self, path: Path, info: Mapping[str, Any]) -> None:
        self.path = path
        self.metrics_path = path / METRICS
        self.checkpoints = path / CHECKPOINTS
        self.best = path / BEST
        self.summary_path = path / "summary.json"
        self.curve_path = path / "curve.png"
        self.lock = RunLock(path)
        self.info = dict(info)
        self.algo = str(info["algo"])
        self.env = str(info["env"])
        self.seed = info["seed"]
        self.config = with_current_names(without_signature(info["config"]))

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str] = "runs",
        *,
        algo: str,
        env: str,
        seed: int | None,
        config: Mapping[str, Any],
        init_from: str | None = None,
        run_id: str | None = None,
    ) -> "RunFolder":
        """Make the folder `root/<algo>_<env>_s<seed>_<time>/` with its config.json, and return the run.

        Two runs that start within one second get different folders.

        Args:
            root: folder of all runs.
            algo, env, seed: algorithm, environment and seed, which name the folder.
            config: whole configuration as JSON values.
            init_from: checkpoint that the initial weights come from.
            run_id: id of the job that continues the run when it is started again.

        Raises:
            OSError: the folder cannot be made or written. No part of it is left.
            TypeError: the configuration is not plain JSON. No part of the folder is left.
        """
        created = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(created))
        name = "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-.") or "x" for part in (algo, env))
        parent = Path(root).absolute()
        info = {
            "algo": algo,
            "env": env,
            "seed": seed,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(created)),
            "git_revision": git_revision(),
            "versions": versions(),
            "config": dict(config),
        }
        if init_from is not None:
            info["init_from"] = init_from
        if run_id is not None:
            info["run_id"] = run_id
        parent.mkdir(parents=True, exist_ok=True)
        path = _make_unused(parent, f"{name}_s{seed}_{stamp}")
        try:
            for inner in (CHECKPOINTS, BEST):
                (path / inner).mkdir()
            write_json(path / CONFIG, info)
            (path / METRICS).touch()
        except BaseException:
            # This includes KeyboardInterrupt: an incomplete folder would be taken for a run.
            shutil.rmtree(path, ignore_errors=True)
            raise
        return cls(path, info)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Return the run in an existing folder, or the only run in a folder of runs.

        Raises `RunFolderError`: there is no run or several, or its config.json is damaged.
        """
        root = find_run(path).absolute()
        try:
            info = json.loads((root / CONFIG).read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RunFolderError(f"no run at {root}: it has no config.json") from error
        except ValueError as error:
            raise RunFolderError(f"{root / 'config.json'} is damaged: {error}") from error
        if not isinstance(info, dict) or not {"algo", "env", "seed", "config"} <= set(info):
            raise RunFolderError(f"{root / 'config.json'} is not the config of a lockstep run")
        return cls(root, info)

    def settings(self) -> dict[str, Any]:
        """Return the options by path, with `init_from` and the changes of options during the run (`changed`)."""
        settings = {path: value for path, value in leaves(self.config, value_key=OBJECT) if value != {}}
        if self.info.get("init_from") is not None:
            settings["init_from"] = self.info["init_from"]
        changes = []
        for entry in self.info.get("history") or ():
            for path, change in entry["changes"].items():
                changes.append(f"{path}={change['after']} from step {entry['step']}")
        if changes:
            settings["changed"] = "; ".join(changes)
        return settings

    @property
    def task(self) -> str:
        """Name of the environment, followed by its options."""
        options = (self.config.get("environment") or {}).get("env_config") or {}
        return " ".join([self.env, *(f"{name}={value}" for name, value in sorted(options.items()))])

    @property
    def is_offline(self) -> bool:
        """Whether the run learns from recorded data, so that its steps are gradient steps."""
        return bool((self.config.get("offline_data") or {}).get("input_"))

    def checkpoint_path(self, env_step: int) -> Path:
        """Return the path of the checkpoint at an environment step. Names of checkpoints sort by step."""
        return self.checkpoints / f"step_{env_step:012d}"

    @property
    def error_checkpoint(self) -> Path:
        """Path of the checkpoint that is written when an error ends the run, separate from the regular ones."""
        return self.checkpoints / ERROR

    @property
    def best_policy(self) -> Path:
        """Path of the policy that had the best evaluation."""
        return self.best / "policy"

    def newest_checkpoint(self) -> Path | None:
        """Return the newest intact checkpoint, None if there is none. A warning names each damaged one."""
        return newest_checkpoint(self.checkpoints)

    def carried_best(self) -> dict[str, Path]:
        """Return the parts of `best/` that a checkpoint carries, by name, for `write_checkpoint`."""
        has_best = (readable_path(self.best_policy) / MANIFEST).exists()
        return {BEST: self.best_policy} if has_best else {}

    def restore_best(self, checkpoint: Path, *, has_best: bool) -> None:
        """Restore `best/policy` to the best policy at the time of a checkpoint.

        The run may have found a better one after the checkpoint. A run that continues from there with other settings
        may never reach it, and must not report it as its own.

        Args:
            checkpoint: checkpoint from which the run continues. Checkpoints of version 0.2 carry no policy; with them
                `best/policy` stays as it is.
            has_best: whether there was an evaluation before the checkpoint.
        """
        if read_manifest(checkpoint)["format"] == 1:
            return
        try:
            carried = carried_checkpoint(checkpoint, BEST)
        except CheckpointError as error:
            warnings.warn(f"{self.best_policy} stays as it is: {error}", RuntimeWarning, stacklevel=2)
            return
        if carried is None:
            if not has_best:
                shutil.rmtree(readable_path(self.best_policy), ignore_errors=True)
            return
        # Equal manifests mean equal files, which need not be copied.
        with contextlib.suppress(OSError):
            if (readable_path(self.best_policy) / MANIFEST).read_bytes() == (carried / MANIFEST).read_bytes():
                return
        copy_checkpoint(carried, self.best_policy)

    def record_changes(self, config: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
        """Write a changed configuration to config.json, with an entry in its `history` that describes the change.

        An entry that is the last one already is not added again: the run may have been killed after this call.

        Raises `OSError`: config.json cannot be written, and stays as it was.
        """
        self.lock.check()
        history = list(self.info.get("history", ()))
        if not self.has_recorded(entry):
            history.append(dict(entry))
        info = {**self.info, "config": dict(config), "history": history}
        write_json(self.path / CONFIG, info)
        self.info = info
        self.config = without_signature(config)

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """Restarts of the run by its job, the first one first: `step`, `time` and `reason` of each."""
        return list(self.info.get("restarts", ()))

    def record_restart(self, step: int, reason: str) -> None:
        """Write to config.json that a job continues the run at a step, and report all restarts in a warning.

        Raises `OSError`: config.json cannot be written, and stays as it was.
        """
        self.lock.check()
        restart = {"step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "reason": reason}
        info = {**self.info, "restarts": [*self.restarts, restart]}
        write_json(self.path / CONFIG, info)
        self.info = info
        times = "time" if len(self.restarts) == 1 else "times"
        warnings.warn(
            f"{self.path.name}: restarted {len(self.restarts)} {times}, now at step {step:,}: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )

    def write_settings(self, config: Mapping[str, Any]) -> None:
        """Write the configuration with the defaults that were chosen when the trainer was built.

        `config` is changed in place. Loggers of services have the same object, and read it when they send their first
        record.

        Raises `OSError`: config.json cannot be written, and stays as it was.
        """
        info = {**self.info, "config": dict(config)}
        write_json(self.path / CONFIG, info)
        self.info = info
        self.config.clear()
        self.config.update(without_signature(config))

    def has_recorded(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the last entry of the history has the same step and changes."""
        last = (self.info.get("history") or [{}])[-1]
        return all(last.get(name) == entry[name] for name in ("step", "changes"))

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write a summary to summary.json, with the seed, versions and git revision of the run.

        Raises `OSError`: it cannot be written, and an older summary stays as it was.
        """
        self.lock.check()
        fields = ("algo", "env", "seed", "created", "git_revision", "versions")
        of_run = {key: self.info.get(key) for key in fields}
        write_json(self.summary_path, {**of_run, **summary})
        return self.summary_path

    def ended_at(self) -> tuple[int, int] | None:
        """Return environment and gradient steps at the end of the run, None for a run that may continue."""
        try:
            summary = self.read_summary()
        except RunFolderError:
            return None
        if summary.get("stop_reason") in ("interrupted", "error"):
            return None
        return summary.get("train_step", 0), summary.get("gradient_step", 0)

    def ending_text(self, summary: Mapping[str, Any]) -> str:
        """Return in words why the run has ended, from the `stop_reason` of its summary."""
        reason = summary.get("stop_reason")
        if reason == "max_epoch":
            return "all steps done"
        if reason == "stop_fn":
            stop_return = (self.config.get("evaluation") or {}).get("stop_return")
            return "reached the return" if stop_return is None else f"reached the return {stop_return:g}"
        return str(reason)

    def read_summary(self) -> dict[str, Any]:
        """Return the content of summary.json.

        Raises `RunFolderError`: the run has none yet, or it is damaged.
        """
        try:
            return dict(from_strict_json(json.loads(self.summary_path.read_bytes())))
        except FileNotFoundError as error:
            raise RunFolderError(f"{self.path} has no summary.json yet: the run has not ended") from error
        except (OSError, ValueError) as error:
            raise RunFolderError(f"cannot read {self.summary_path}: {error}") from error


def find_run(path: str | os.PathLike[str]) -> Path:
    """Return the folder of the only run in a folder of runs, or `path` itself if it is a run or holds none.

    Raises `RunFolderError`, which names the runs, if there are several.
    """
    folder = Path(path)
    runs = [] if (folder / CONFIG).exists() else sorted(file.parent for file in folder.glob(f"*/{METRICS}"))
    if len(runs) > 1:
        named = ", ".join(run.name for run in runs[:NAMED_RUNS])
        if len(runs) > NAMED_RUNS:
            named += ", ..."
        raise RunFolderError(f"{folder} is not a run: it has no {CONFIG}; it holds {len(runs)} runs, give one: {named}")
    return runs[0] if runs else folder


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of all runs below a folder at any depth, sorted by path; an empty list for a run's folder."""
    if (folder / CONFIG).exists():
        return []
    runs = []
    for path, subfolders, files in os.walk(folder):
        if CONFIG in files and METRICS in files:
            runs.append(Path(path))
            subfolders.clear()  # a run holds no other runs
    return sorted(runs)


def stage_seconds(summary: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return `(seconds, share)` of each stage of a run that has ended, the longest first, from its summary.

    Time outside all stages is attributed to "checkpoints, logs".
    """
    stages = {name: float(value) for name, value in (summary.get("seconds_by_stage") or {}).items()}
    total = max(float(summary["timing"]["total_time"]), sum(stages.values()))
    stages["checkpoints, logs"] = total - sum(stages.values())
    rows = sorted(stages.items(), key=lambda row: -row[1])
    return {name: (value, value / total if total else 0.0) for name, value in rows}


def prune_checkpoints(directory: Path, keep: int) -> None:
    """Delete all but the newest `keep` (at least 1) of the checkpoints `step_*` in a directory.

    They are ordered by attempt and steps, as in `newest_checkpoint`. Checkpoints without a readable manifest are the
    oldest.
    """
    checkpoints = [path for path in checkpoints_in(directory, unreadable_first=False) if path.name.startswith("step_")]
    for old in checkpoints[keep:]:
        shutil.rmtree(readable_path(old), ignore_errors=True)


def _make_unused(parent: Path, name: str) -> Path:
    """Make and return a new folder with this name, or with a number after it if the name is taken."""
    path = parent / name
    number = 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            path = parent / f"{name}-{number}"
        else:
            return path
