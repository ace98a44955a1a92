"""Draws the picture of docs/learner.md: one update call from top to bottom, and the hooks beside it.

python docs/images/draw_learner.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle

HERE = Path(__file__).resolve().parent
INK, FAINT = "#222222", "#777777"
STAGE, HOOK, LOOP = "#deebf7", "#fdebd3", "#f7f7f7"
LEFT, WIDTH, RIGHT = 0.6, 4.3, 5.7

STAGES: list[tuple[float, str, str, str]] = [
    (0.3, "episodes or a batch", "", ""),
    (1.4, "make the train batch, once", "prepare_batch", "values, advantages, targets: {column: [N, ...]}"),
    (2.5, "begin", "before_gradient_based_update", "schedules take their value at this time"),
    (4.0, "gather the rows of a minibatch", "", "one gather for each column"),
    (5.1, "forward", "forward_train", "{module: outputs}"),
    (6.2, "losses", "compute_losses, compute_loss_for_module", "{module: number}; means over all learners' rows"),
    (7.3, "backward, sum over learners", "compute_gradients", "{parameter: gradient}, views on one flat tensor"),
    (8.4, "clip", "postprocess_gradients(_for_module)", "per module; the dict stays complete"),
    (9.5, "step the optimizers", "apply_gradients", "nan_policy looks at each gradient first"),
    (11.2, "end", "after_gradient_based_update", "coefficients that adapt; then statistics move"),
    (12.3, "results", "", "one transfer to the host, plain numbers"),
]
STEP = 0.75


def box(axes: Any, x: float, y: float, width: float, text: str, colour: str, **style: Any) -> None:
    """A rounded box with a line of text; `y` grows downwards."""
    axes.add_patch(
        FancyBboxPatch((x, y), width, STEP, boxstyle="round,pad=0,rounding_size=0.12", facecolor=colour, edgecolor=INK,
                       linewidth=0.8)
    )  # fmt: skip
    axes.text(x + width / 2, y + STEP / 2, text, ha="center", va="center", color=INK, **{"fontsize": 9, **style})


def main() -> None:
    """Writes learner_update.png."""
    figure, axes = plt.subplots(figsize=(9.2, 7.0))
    axes.set_xlim(0, 17.2)
    axes.set_ylim(13.3, 0)
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    axes.add_patch(Rectangle((0.25, 3.55), 16.7, 7.3, facecolor=LOOP, edgecolor=FAINT, linewidth=0.8, linestyle="--"))
    axes.text(RIGHT, 3.78, "for each pass, for each minibatch", fontsize=8, color=FAINT, va="center")
    axes.text(
        RIGHT,
        10.55,
        "after each pass: should_stop_passes() ends the update early",
        fontsize=8,
        color=FAINT,
        va="center",
    )
    for (y, stage, hook, note), following in zip(STAGES, [*STAGES[1:], None]):
        box(axes, LEFT, y, WIDTH, stage, STAGE)
        if hook:
            box(axes, RIGHT, y, 5.6, hook, HOOK, family="monospace", fontsize=7.2)
            axes.plot([LEFT + WIDTH, RIGHT], [y + STEP / 2] * 2, color=FAINT, linewidth=0.8)
        if note:
            axes.text(11.55 if hook else RIGHT, y + STEP / 2, note, fontsize=7.8, color=FAINT, va="center")
        if following is not None:
            axes.annotate("", (LEFT + WIDTH / 2, following[0]), (LEFT + WIDTH / 2, y + STEP),
                          arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.8})  # fmt: skip
    box(axes, 11.55, 0.3, 1.6, "stage", STAGE)
    box(axes, 13.4, 0.3, 2.9, "hook to override", HOOK)
    figure.savefig(HERE / "learner_update.png", dpi=100, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
