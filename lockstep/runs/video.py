"""Videos of evaluation episodes: `record_video` writes one, `VideoCallback` one every few evaluations."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.config.base import BaseConfig
from lockstep.options.checks import check_wholes, install_hint
from lockstep.policy.policy import Policy
from lockstep.rollout.collector import Collector
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer.callbacks import Callback, EvaluationEnd, RunStart

FORMATS = (".mp4", ".gif")
GIF_MAX_FPS = 50
"""GIF counts in hundredths of a second, and viewers slow down what is faster than this"""


def record_video(
    policy: Policy,
    path: str | Path,
    *,
    num_episodes: int = 1,
    explore: bool = False,
    seed: int = 0,
) -> CollectStats:
    """Play whole episodes in one environment of its own, write their frames to `path`, return their statistics.

    Frames per second are those of the environment's metadata, else 30. Nothing is left at `path` where it fails.

    Raises `ValueError` for another ending than .mp4 and .gif, and for an environment that cannot render frames;
    `ImportError` where the extra `video` is not installed; `OSError` where the file cannot be written.
    """
    if not isinstance(policy, Policy) or policy.is_multi_agent:
        raise ValueError(f"policy={policy!r} is not allowed; videos are of one agent")
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"a video's name must end in {' or '.join(FORMATS)}, not {target.name!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    envs = _rendering_envs(policy.config)
    part = target.with_name(f".{target.stem}.part{target.suffix.lower()}")
    try:
        envs.reset([seed])
        _frame(envs)  # raises where it cannot be filmed, before a file is made
        writer = _open_writer(part, envs)
        try:
            collector = Collector(
                policy,
                envs,
                exploration_noise=explore,
                streams=RandomStreams(seed).child("video"),
                on_step_hook=lambda step: writer.append_data(_frame(envs)),
            )
            collector.reset()
            writer.append_data(_frame(envs))
            stats = collector.collect(n_episode=num_episodes, reset_before_collect=False)
        finally:
            writer.close()
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
        envs.close()
    return stats


class VideoCallback(Callback):
    """Writes `directory/step_<environment step>.mp4` after every `interval`-th evaluation, the first included.

    The episodes are played beside the run, in an environment and with random streams of their own.
    """

    def __init__(
        self, directory: str | Path, *, interval: int = 5, num_episodes: int = 1, suffix: str = ".mp4", seed: int = 0
    ) -> None:
        self.interval, self.num_episodes = check_wholes(interval=interval, num_episodes=num_episodes)
        if suffix not in FORMATS:
            raise ValueError(f"suffix={suffix!r} is not allowed; choose one of {', '.join(FORMATS)}")
        self.directory, self.suffix, self.seed = Path(directory), suffix, seed
        self.num_evaluations = 0
        self._policy: Policy | None = None

    def on_run_start(self, event: RunStart) -> None:
        self._policy = event.trainer.policy

    def on_evaluation_end(self, event: EvaluationEnd) -> None:
        if self._policy is not None and self.num_evaluations % self.interval == 0:
            path = self.directory / f"step_{event.position:012d}{self.suffix}"
            record_video(self._policy, path, num_episodes=self.num_episodes, seed=self.seed)
        self.num_evaluations += 1

    def get_state(self) -> Mapping[str, Any]:
        return {"num_evaluations": self.num_evaluations}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.num_evaluations = int(state["num_evaluations"])


def _rendering_envs(config: BaseConfig) -> Any:
    """Make one environment with `render_mode="rgb_array"`, in this process."""
    config = config.copy().env_runners(vectorize_mode="auto")
    try:
        return config.make_envs(1, render_mode="rgb_array")
    except TypeError as error:
        raise ValueError(
            f"{config.environment.env!r} cannot be filmed: it does not take render_mode='rgb_array' ({error})"
        ) from error


def _frame(envs: Any) -> np.ndarray:
    frame = envs.render()
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
        raise ValueError(
            "the environment cannot be filmed: with render_mode='rgb_array' its render() must give a uint8 array "
            f"[height, width, 3], not {type(frame).__name__}"
        )
    return frame


def _open_writer(path: Path, envs: Any) -> Any:
    env = next(iter(getattr(envs, "envs", ())), None)
    fps = float(getattr(env, "metadata", {}).get("render_fps") or 30.0)
    try:
        from imageio import v2 as imageio

        if path.suffix == ".gif":
            return imageio.get_writer(path, mode="I", duration=1000.0 / min(fps, GIF_MAX_FPS), loop=0)
        return imageio.get_writer(path, mode="I", fps=fps, macro_block_size=2)
    except ImportError as error:
        raise ImportError(f"videos need more packages: {install_hint('video')} ({error})") from error
