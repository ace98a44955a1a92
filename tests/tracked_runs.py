"""Folders of runs that were never trained."""

import json
from pathlib import Path
from typing import Any

from lockstep.tracking import RunFolder


def make_run(
    root: Path,
    algo: str = "ppo",
    env: str = "CartPole-v1",
    seed: int = 0,
    *,
    scale: float = 1.0,
    lr: Any = 1e-3,
    ended: bool = False,
    **sections: dict[str, Any],
) -> RunFolder:
    """Make a run whose evaluation return is `scale` times the steps, 0 to 4,000, of as many milliseconds.

    Its training return is 0.
    """
    config = {"algorithm": algo, "training": {"lr": lr}, "debugging": {"seed": seed}, **sections}
    run = RunFolder.create(root, algo=algo, env=env, seed=seed, config=config)
    lines = []
    for step in range(0, 5000, 1000):
        evaluated = {"returns_stat/mean": scale * step, "returns_stat/std": 1.0, "lens_stat/mean": 3}
        for scope, data in (("test", evaluated), ("train", {"returns_stat/mean": 0.0})):
            record = {"scope": scope, "step_type": "env_step", "step": step, "wall_s": step / 1000, "data": data}
            lines.append(json.dumps(record) + "\n")
    run.metrics_path.write_text("".join(lines))
    if ended:
        run.write_summary(
            {
                "timing": {"total_time": 10.0},
                "seconds_by_stage": {"environment": 5.0, "update": 4.0},
                "steps_per_second": 400.0,
                "stop_reason": "max_epoch",
            }
        )
    return run
