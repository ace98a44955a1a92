"""Plots of the episodes that `Monitor` has written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep_sb3.common.monitor import load_results as load_results

X_TIMESTEPS = "timesteps"
X_EPISODES = "episodes"
X_WALLTIME = "walltime_hrs"


def ts2xy(data_frame: Any, x_axis: str) -> tuple[Any, Any]:
    """Return the x values of the episodes (steps, numbers or hours), and their returns."""
    columns = {X_TIMESTEPS: data_frame.l.cumsum(), X_EPISODES: data_frame.index, X_WALLTIME: data_frame.t / 3600.0}
    return columns[x_axis].to_numpy(), data_frame.r.to_numpy()


def plot_results(dirs: Sequence[str], num_timesteps: int | None, x_axis: str, task_name: str) -> None:
    """Plot the returns of the episodes in each folder with matplotlib. `num_timesteps` has no effect."""
    from matplotlib import pyplot as plt

    plt.figure(task_name)
    for folder in dirs:
        plt.plot(*ts2xy(load_results(folder), x_axis), label=str(folder))
    plt.xlabel(x_axis)
    plt.ylabel("Episode return")
