"""Draws the pictures of docs/data.md.

    python docs/images/draw_data.py

Two environments, 6 steps: environment 0 plays episode A (4 steps) and then C, environment 1 plays B (3 steps) and
then D. Every picture shows the same 12 steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

HERE = Path(__file__).resolve().parent
COLOURS = {"A": "#9ecae1", "B": "#fdd0a2", "C": "#c7e9c0", "D": "#dadaeb", "0": "#ffffff"}
EPISODES = {"A": 4, "B": 3, "C": 2, "D": 3}
INK, FAINT = "#222222", "#777777"


def cell(
    axes: Any, x: float, y: float, text: str, *, colour: str = "#ffffff", width: float = 1.0, **style: Any
) -> None:
    """One box with a word in it; `y` grows downwards."""
    style = {"facecolor": colour, "edgecolor": INK, "linewidth": 0.8, **style}
    axes.add_patch(Rectangle((x, y), width, 1.0, **style))
    axes.text(x + width / 2, y + 0.5, text, ha="center", va="center", fontsize=9, color=INK)


def note(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    """A line of text."""
    axes.text(x, y, text, **{"ha": "left", "va": "center", "fontsize": 9, "color": INK, **style})


def canvas(width: float, height: float, columns: float, rows: float) -> tuple[Any, Any]:
    """A figure without axes; units are cells, the origin is at the top left."""
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    return figure, axes


def save(figure: Any, name: str) -> None:
    figure.savefig(HERE / name, dpi=130, metadata={"Software": None})
    plt.close(figure)


def draw_store() -> None:
    """Columns [T, B] of the rollout store."""
    figure, axes = canvas(7.6, 3.3, 21.7, 9.42)
    columns = (["A0", "A1", "A2", "A3", "C0", "C1"], ["B0", "B1", "B2", "D0", "D1", "D2"])
    for x, title, rows in ((2.0, "actions, rewards, flags", 6), (10.0, "obs", 7)):
        note(axes, x + 1.5, 0.5, f"{title}  [{'T' if rows == 6 else 'T + 1'}, B]", ha="center", fontweight="bold")
        for b, steps in enumerate(columns):
            note(axes, x + 1.5 * b + 0.75, 1.45, f"b = {b}", ha="center", color=FAINT)
            for t, step in enumerate([*steps, "C2" if b == 0 else "D3"][:rows]):
                cell(axes, x + 1.5 * b, 2 + t, step, colour=COLOURS[step[0]], width=1.5)
        for t in range(rows):
            note(axes, x - 0.25, 2.5 + t, f"t = {t}", ha="right", color=FAINT)
    note(axes, 17.6, 0.5, "beside them", ha="center", fontweight="bold")
    note(axes, 17.6, 1.45, "last observations", ha="center", color=FAINT)
    cell(axes, 16.85, 5, "B3", colour=COLOURS["B"], width=1.5)
    cell(axes, 16.85, 6, "A4", colour=COLOURS["A"], width=1.5)
    note(axes, 18.6, 5.5, "follows B2", color=FAINT)
    note(axes, 18.6, 6.5, "follows A3", color=FAINT)
    save(figure, "data_store.png")


def draw_flat() -> None:
    """Flat rows with seq_lens."""
    figure, axes = canvas(7.6, 1.95, 18.2, 4.67)
    x = 2.6
    note(axes, 2.3, 0.6, "rows", ha="right", fontweight="bold")
    note(axes, 2.3, 2.2, "seq_lens", ha="right", fontweight="bold")
    note(axes, 2.3, 3.8, "state_in", ha="right", fontweight="bold")
    for episode, length in EPISODES.items():
        for step in range(length):
            cell(axes, x + 1.25 * step, 0.1, f"{episode}{step}", colour=COLOURS[episode], width=1.25)
        axes.plot([x + 0.06, x + 1.25 * length - 0.06], [1.4, 1.4], color=INK, linewidth=1.2)
        middle = x + 1.25 * length / 2
        note(axes, middle, 2.2, str(length), ha="center")
        cell(axes, middle - 0.625, 3.3, f"h({episode}0)", colour=COLOURS[episode], width=1.25)
        x += 1.25 * length
    save(figure, "data_flat.png")


def draw_padded() -> None:
    """[B, T] with a mask."""
    figure, axes = canvas(7.6, 2.55, 18.2, 6.1)
    note(axes, 6.1, 0.5, "any column  [B, T]", ha="center", fontweight="bold")
    note(axes, 14.1, 0.5, "loss_mask  [B, T]", ha="center", fontweight="bold")
    for row, (episode, length) in reversed(list(enumerate(EPISODES.items()))):
        note(axes, 3.3, 1.7 + row, f"sequence {episode}", ha="right", color=FAINT)
        for step in reversed(range(4)):  # the zeros first, so that the frames of the others lie over theirs
            real = step < length
            style: dict[str, Any] = {} if real else {"hatch": "////", "edgecolor": "#bbbbbb", "zorder": 0.5}
            colour = COLOURS[episode] if real else COLOURS["0"]
            cell(
                axes,
                3.6 + 1.25 * step,
                1.2 + row,
                f"{episode}{step}" if real else "",
                colour=colour,
                **style,
                width=1.25,
            )
            cell(axes, 12.1 + step, 1.2 + row, "1" if real else "0", colour="#ffffff" if real else "#eeeeee")
    note(axes, 6.1, 5.65, "hatched: zeros", ha="center", color=FAINT)
    save(figure, "data_padded.png")


def draw_episode() -> None:
    """T + 1 observations, T of the rest; cut and lookback."""
    figure, axes = canvas(7.6, 3.2, 18.2, 7.66)
    for y, title, x, count, lookback in ((0.9, "episode", 3.4, 6, 0), (4.9, "cut(2)", 9.0, 5, 2)):
        note(axes, 0.2, y + 1.15, title, fontweight="bold")
        note(axes, x - 0.3, y + 0.5, "obs", ha="right", color=FAINT)
        note(axes, x - 0.3, y + 1.75, "actions, rewards", ha="right", color=FAINT)
        first = 0 if lookback == 0 else 4
        for i in range(count + 1):
            grey = i < lookback
            colour = "#eeeeee" if grey else COLOURS["A"]
            cell(axes, x + 1.4 * i, y, f"o{first + i}", colour=colour, width=1.4)
            if i < count:
                cell(axes, x + 0.7 + 1.4 * i, y + 1.25, f"a{first + i}", colour=colour, width=1.4)
    axes.plot([11.8, 11.8], [0.4, 7.4], color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    note(axes, 11.95, 0.35, "t = 6: cut here, o6 is in both")
    note(axes, 10.4, 4.45, "lookback", ha="center", color=FAINT)
    save(figure, "data_episode.png")


if __name__ == "__main__":
    draw_store()
    draw_flat()
    draw_padded()
    draw_episode()
