"""Plots of the episodes that `Monitor` has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep_sb3.common.extras import naming_extra
from lockstep_sb3.common.monitor import load_results as load_results

X_TIMESTEPS = "timesteps"
X_EPISODES = "episodes"
X_WALLTIME = "walltime_hrs"
POSSIBLE_X_AXES = [X_TIMESTEPS, X_EPISODES, X_WALLTIME]
EPISODES_WINDOW = 100
"""Number of episodes in the moving mean of a plot."""


def rolling_window(array: np.ndarray, window: int) -> np.ndarray:
    """Return all windows `[..., T - window + 1, window]` of the last dimension of an array `[..., T]`."""
    return np.lib.stride_tricks.sliding_window_view(array, window, axis=-1)


def window_func(
    var_1: np.ndarray, var_2: np.ndarray, window: int, func: Callable[..., Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the last x of each window, and `func(windows, axis=-1)` of the y values.

    Args:
        var_1: x values `[T]`.
        var_2: y values `[T]`.
        window: Number of values in a window.
        func: Function of windows such as `np.mean`.
    """
    return var_1[window - 1 :], func(rolling_window(var_2, window), axis=-1)


def ts2xy(data_frame: Any, x_axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the x values of the episodes (steps, numbers or hours), and their returns."""
    if x_axis not in POSSIBLE_X_AXES:
        raise ValueError(f"x_axis={x_axis!r} is unknown; allowed: {', '.join(POSSIBLE_X_AXES)}")
    columns = {
        X_TIMESTEPS: data_frame.l.cumsum().to_numpy(),
        X_EPISODES: np.arange(len(data_frame)),
        X_WALLTIME: data_frame.t.to_numpy() / 3600.0,
    }
    return columns[x_axis], data_frame.r.to_numpy()


def plot_curves(
    xy_list: Sequence[tuple[np.ndarray, np.ndarray]], x_axis: str, title: str, figsize: tuple[int, int] = (8, 2)
) -> None:
    """Plot the returns of several runs with matplotlib, with the moving mean of 100 episodes if there are as many."""
    with naming_extra("plot_curves", "monitor"):
        from matplotlib import pyplot as plt

    plt.figure(title, figsize=figsize)
    for x, y in xy_list:
        plt.scatter(x, y, s=2)
        if len(x) >= EPISODES_WINDOW:
            plt.plot(*window_func(x, y, EPISODES_WINDOW, np.mean))
    plt.xlim(left=0)
    plt.title(title)
    plt.xlabel(x_axis)
    plt.ylabel("Episode return")
    plt.tight_layout()


def plot_results(
    dirs: Sequence[str], num_timesteps: int | None, x_axis: str, task_name: str, figsize: tuple[int, int] = (8, 2)
) -> None:
    """Plot the returns of the episodes in each folder with matplotlib.

    Args:
        dirs: Folders with files of `Monitor`.
        num_timesteps: Number of steps after which episodes are left out; None plots all.
        x_axis: One of `POSSIBLE_X_AXES`.
        task_name: Title of the figure.
        figsize: Width and height of the figure in inches.
    """
    xy_list = []
    for folder in dirs:
        table = load_results(folder)
        if num_timesteps is not None:
            table = table[table.l.cumsum() <= num_timesteps]
        xy_list.append(ts2xy(table, x_axis))
    plot_curves(xy_list, x_axis, task_name, figsize)
