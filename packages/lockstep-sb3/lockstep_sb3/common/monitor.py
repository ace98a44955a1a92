"""`Monitor`, which writes returns and lengths of episodes to a file, and `load_results`, which reads the file."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import RecordEpisodeStatistics

from lockstep_sb3.common.files import naming_damage

EPISODE = ("r", "l", "t")
"""Columns of a file: return, length, and seconds since the monitor was created."""


class Monitor(RecordEpisodeStatistics):
    """Wrapper that adds return and length of an episode to its last info, as `info["episode"]`.

    It also writes a line to `<filename>/monitor.csv`, if `filename` is a folder, or to `<filename>.monitor.csv`.
    """

    def __init__(self, env: gym.Env, filename: str | Path | None = None, *, info_keywords: Sequence[str] = ()) -> None:
        super().__init__(env)
        self._keywords = info_keywords
        self._began = time.time()
        self._path: Path | None = None
        if filename is not None:
            path = Path(filename)
            self._path = path / "monitor.csv" if path.is_dir() else path.with_name(f"{path.name}.monitor.csv")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            header = json.dumps({"t_start": self._began})
            self._path.write_text(f"#{header}\n{','.join((*EPISODE, *info_keywords))}\n")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and record the episode if it ends."""
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            episode = info["episode"]
            episode["t"] = round(time.time() - self._began, 6)
            episode |= {key: info[key] for key in self._keywords}
            if self._path is not None:
                with self._path.open("a", newline="") as file:
                    csv.writer(file).writerow(episode.values())
        return obs, reward, terminated, truncated, info


def load_results(path: str | Path) -> Any:
    """Return the episodes of all files `*monitor.csv` in a folder as a pandas table, ordered by time.

    Raises:
        ValueError: a file is damaged; the error names it.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    tables = []
    for file in sorted(Path(path).glob("*monitor.csv")):
        with naming_damage(file, "file of Monitor"):
            table = pd.read_csv(file, skiprows=1)
            table[[*EPISODE]].astype(float)  # raises an error unless the columns exist and hold numbers
        tables.append(table)
    if not tables:
        raise FileNotFoundError(f"{path} has no file *monitor.csv; a Monitor(env, {str(path)!r}) writes one")
    return pd.concat(tables).sort_values("t").reset_index(drop=True)
