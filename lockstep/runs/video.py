"""Videos of evaluation episodes: `record_video` writes one, `VideoCallback` writes them during a run."""

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
DEFAULT_FPS = 30.0
"""Frames per second of an environment whose metadata gives no `render_fps`."""
GIF_MAX_FPS = 50
"""Highest frame rate of a GIF: its delays are whole hundredths of a second, and viewers slow down delays below two."""


def record_video(
    policy: Policy,
    path: str | Path,
    *,
    num_episodes: int = 1,
    explore: bool = False,
    seed: int = 0,
) -> CollectStats:
    """Play whole episodes in a new environment, write their frames to `path`, and return the episodes' statistics.

    The video has the frame rate of the environment's metadata, or 30 frames a second. On an error no file is left at
    `path`.

    Args:
        policy: Policy of one agent that acts.
        path: File to write; its ending chooses the format, .mp4 or .gif.
        num_episodes: Number of episodes in the video.
        explore: Whether the policy samples its actions as in training. By default it takes its best action.
        seed: Seed of the environment and of the policy's random numbers.

    Raises:
        ValueError: the ending is another one, or the environment cannot render frames.
        ImportError: the extra `video` is not installed.
        OSError: the file cannot be written.
    """
    if not isinstance(policy, Policy) or policy.is_multi_agent:
        raise ValueError(f"policy={policy!r} is not allowed; videos are of one agent")
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"a video's name must end in {' or '.join(FORMATS)}, not {target.name!r}")

    target.parent.mkdir(parents=True, exist_ok=True)
    _render_without_display()
    envs = _rendering_envs(policy.config)
    # Written under another name and renamed when complete, so that a video that is there can be played.
    part = target.with_name(f".{target.stem}.part{target.suffix.lower()}")
    try:
        envs.reset([seed])
        _frame(envs)  # an environment that cannot be filmed raises here, before a file is made
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
    """Callback that writes `directory/step_<environment step>.mp4` after every `interval`-th evaluation.

    The first evaluation is one of them. The episodes are played in an additional environment with separate random
    streams, so that a run with videos has the same bits as one without.

    Args:
        directory: Folder of the videos.
        interval: Number of evaluations from one video to the next.
        num_episodes: Number of episodes in each video.
        suffix: Format of the videos, `".mp4"` or `".gif"`.
        seed: Seed of each video's environment and policy.
    """

    def __init__(
        self, directory: str | Path, *, interval: int = 5, num_episodes: int = 1, suffix: str = ".mp4", seed: int = 0
    ) -> None:
        self.interval, self.num_episodes = check_wholes(interval=interval, num_episodes=num_episodes)
        if suffix not in FORMATS:
            raise ValueError(f"suffix={suffix!r} is not allowed; choose one of {', '.join(FORMATS)}")
        self.directory = Path(directory)
        self.suffix = suffix
        self.seed = seed
        self.num_evaluations = 0
        """Number of evaluations that have ended."""
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


def _render_without_display() -> None:
    """Let pygame and MuJoCo render on a machine without a screen. Variables that the user has set are kept."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not has_display:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")


def _rendering_envs(config: BaseConfig) -> Any:
    """Make a vector of one environment with `render_mode="rgb_array"`, in this process."""
    config = config.copy().env_runners(vectorize_mode="auto")
    try:
        return config.make_envs(1, render_mode="rgb_array")
    except TypeError as error:
        raise ValueError(
            f"{config.environment.env!r} cannot be filmed: it does not take render_mode='rgb_array' ({error})"
        ) from error


def _frame(envs: Any) -> np.ndarray:
    """Return the current frame of the environment, uint8 [height, width, 3]."""
    try:
        frame = envs.render()
    except Exception as error:
        raise ValueError(
            f"the environment cannot be filmed: with render_mode='rgb_array' its render() raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
        raise ValueError(
            "the environment cannot be filmed: with render_mode='rgb_array' its render() must give a uint8 array "
            f"[height, width, 3], not {type(frame).__name__}"
        )
    return frame


def _open_writer(path: Path, envs: Any) -> Any:
    """Return imageio's writer for a file, with the frame rate of the environment."""
    env = next(iter(getattr(envs, "envs", ())), None)
    metadata = getattr(env, "metadata", {})
    fps = float(metadata.get("render_fps") or DEFAULT_FPS)
    try:
        from imageio import v2 as imageio

        if path.suffix == ".gif":
            return imageio.get_writer(path, mode="I", duration=1000.0 / min(fps, GIF_MAX_FPS), loop=0)
        # Video codecs need even sizes; imageio's default of 16 would scale the frames more than necessary.
        return imageio.get_writer(path, mode="I", fps=fps, macro_block_size=2)
    except ImportError as error:  # imageio, or its ffmpeg plugin when a writer is opened
        raise ImportError(f"videos need more packages: {install_hint('video')} ({error})") from error
