"""`Monitor`, which writes returns and lengths of episodes to a file, and `load_results`, which reads the file."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from lockstep_sb3.common.extras import naming_extra
from lockstep_sb3.common.files import naming_damage

EPISODE = ("r", "l", "t")
"""Columns of a file: return, length, and seconds since the monitor was created."""

__all__ = ["LoadMonitorResultsError", "Monitor", "ResultsWriter", "get_monitor_files", "load_results"]


class LoadMonitorResultsError(FileNotFoundError):
    """Signal that a folder has no file of a `Monitor`."""


class ResultsWriter:
    """File of episodes, with a line for each.

    Args:
        filename: Path of the file. Unless it ends in "monitor.csv", this is added: `<filename>/monitor.csv` for a
            folder, else `<filename>.monitor.csv`.
        header: Facts about the run, which the first line has as JSON.
        extra_keys: Columns after those for return, length and time.
        override_existing: Replace a file that exists. False appends to it.
    """

    def __init__(
        self,
        filename: str | Path = "",
        header: Mapping[str, Any] | None = None,
        extra_keys: Sequence[str] = (),
        override_existing: bool = True,
    ) -> None:
        path = Path(filename)
        if not path.name.endswith(Monitor.EXT):
            path = path / Monitor.EXT if path.is_dir() else path.with_name(f"{path.name}.{Monitor.EXT}")
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = override_existing or not path.exists()
        self.file_handler = path.open("w" if override_existing else "a", newline="")
        self.logger = csv.DictWriter(self.file_handler, [*EPISODE, *extra_keys], lineterminator="\n")
        if is_new:
            self.file_handler.write(f"#{json.dumps(dict(header or {}))}\n")
            self.logger.writeheader()
        self.file_handler.flush()

    def write_row(self, epinfo: Mapping[str, Any]) -> None:
        """Write the line of an episode."""
        self.logger.writerow(dict(epinfo))
        self.file_handler.flush()

    def close(self) -> None:
        """Close the file."""
        self.file_handler.close()


class Monitor(gym.Wrapper):
    """Wrapper that adds return and length of an episode to its last info, as `info["episode"]`, and may write a file.

    Args:
        env: Environment to wrap.
        filename: File of the episodes (see `ResultsWriter`); None for no file.
        allow_early_resets: Whether `reset` may be called before an episode has ended.
        reset_keywords: Options of `reset` that are written with the episode. `reset` must get each of them.
        info_keywords: Keys of the last info that are written with the episode.
        override_existing: Replace a file that exists. False appends to it.
    """

    EXT = "monitor.csv"

    def __init__(
        self,
        env: gym.Env,
        filename: str | Path | None = None,
        allow_early_resets: bool = True,
        reset_keywords: Sequence[str] = (),
        info_keywords: Sequence[str] = (),
        override_existing: bool = True,
    ) -> None:
        super().__init__(env)
        self.t_start = time.time()
        self.allow_early_resets = allow_early_resets
        self.reset_keywords = tuple(reset_keywords)
        self.info_keywords = tuple(info_keywords)
        self.results_writer: ResultsWriter | None = None
        if filename is not None:
            header = {"t_start": self.t_start, "env_id": None if env.spec is None else env.spec.id}
            extra_keys = (*self.reset_keywords, *self.info_keywords)
            self.results_writer = ResultsWriter(filename, header, extra_keys, override_existing)
        self.rewards: list[float] = []
        """Rewards of the present episode."""
        self.needs_reset = True
        self.total_steps = 0
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        self.episode_times: list[float] = []
        """Seconds from the start of the monitor to the end of each episode."""
        self.current_reset_info: dict[str, Any] = {}
        """Values of `reset_keywords` in the present episode."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Raises `RuntimeError` for an early reset that is not allowed."""
        if not self.allow_early_resets and not self.needs_reset:
            raise RuntimeError(
                "reset() was called before the episode has ended; use Monitor(env, allow_early_resets=True) to allow it"
            )
        for key in self.reset_keywords:
            if kwargs.get(key) is None:
                raise ValueError(f"reset() needs the option {key!r}, which is in the reset_keywords of Monitor")
            self.current_reset_info[key] = kwargs[key]
        self.rewards = []
        self.needs_reset = False
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and record the episode if it ends."""
        if self.needs_reset:
            raise RuntimeError("the episode has ended; call reset() before step()")
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.rewards.append(float(reward))
        self.total_steps += 1
        if terminated or truncated:
            self.needs_reset = True
            info = {**info, "episode": self._record_episode(info)}
        return obs, reward, terminated, truncated, info

    def _record_episode(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Record the episode that has ended with this info, and return its row of the file."""
        seconds = time.time() - self.t_start
        self.episode_returns.append(sum(self.rewards))
        self.episode_lengths.append(len(self.rewards))
        self.episode_times.append(seconds)
        episode = {"r": round(self.episode_returns[-1], 6), "l": self.episode_lengths[-1], "t": round(seconds, 6)}
        episode |= {key: info[key] for key in self.info_keywords}
        episode |= self.current_reset_info
        if self.results_writer is not None:
            self.results_writer.write_row(episode)
        return episode

    def close(self) -> None:
        """Close the environment and the file."""
        super().close()
        if self.results_writer is not None:
            self.results_writer.close()

    def get_total_steps(self) -> int:
        """Return the number of steps so far."""
        return self.total_steps

    def get_episode_rewards(self) -> list[float]:
        """Return the returns of all episodes."""
        return self.episode_returns

    def get_episode_lengths(self) -> list[int]:
        """Return the lengths of all episodes."""
        return self.episode_lengths

    def get_episode_times(self) -> list[float]:
        """Return the seconds from the start of the monitor to the end of each episode."""
        return self.episode_times


def get_monitor_files(path: str | Path) -> list[str]:
    """Return the paths of all files `*monitor.csv` in a folder."""
    return [str(file) for file in sorted(Path(path).glob(f"*{Monitor.EXT}"))]


def load_results(path: str | Path) -> Any:
    """Return the episodes of all files `*monitor.csv` in a folder as a pandas table, ordered by time.

    Times are the seconds since the first of the monitors was made.

    Raises:
        ValueError: a file is damaged; the error names it.
        LoadMonitorResultsError: there is no file.
    """
    with naming_extra("load_results", "monitor"):
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    files = get_monitor_files(path)
    if not files:
        raise LoadMonitorResultsError(f"{path} has no file *{Monitor.EXT}; a Monitor(env, {str(path)!r}) writes one")
    tables = []
    starts = []
    for file in files:
        with naming_damage(Path(file), "file of Monitor"), Path(file).open(encoding="utf-8") as lines:
            header = json.loads(lines.readline().removeprefix("#"))
            starts.append(float(header["t_start"]))
            table = pd.read_csv(lines)
            table[[*EPISODE]] = table[[*EPISODE]].astype({"r": float, "l": int, "t": float})
            table["t"] += starts[-1]
        tables.append(table)
    with_episodes = [table for table in tables if len(table)] or tables[:1]
    episodes = pd.concat(with_episodes).sort_values("t").reset_index()
    episodes["t"] -= min(starts)
    return episodes
