"""`VecVideoRecorder`: records videos of a vector environment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_sb3.common.extras import naming_extra
from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper


class VecVideoRecorder(VecEnvWrapper):
    """Wrapper that records a video of all environments when `record_video_trigger` says so.

    A video is the file `<video_folder>/<name_prefix>-step-<first>-to-step-<last>.mp4`. It needs imageio with ffmpeg:
    `pip install "lockstep-sb3[video]"`.

    Args:
        venv: Vector environment with the render mode "rgb_array".
        video_folder: Folder of the videos, which is made.
        record_video_trigger: Function of the number of steps so far, which says whether a video begins.
        video_length: Number of steps in a video.
        name_prefix: First part of the names of the files.
    """

    def __init__(
        self,
        venv: VecEnv,
        video_folder: str | Path,
        record_video_trigger: Callable[[int], bool],
        video_length: int = 200,
        name_prefix: str = "rl-video",
    ) -> None:
        super().__init__(venv)
        if self.render_mode != "rgb_array":
            raise ValueError(
                f"the environments have render_mode={self.render_mode!r}; a video needs render_mode='rgb_array'"
            )
        self.record_video_trigger = record_video_trigger
        self.video_folder = str(Path(video_folder).resolve())
        Path(self.video_folder).mkdir(parents=True, exist_ok=True)
        self.video_length = video_length
        self.name_prefix = name_prefix
        self.step_id = 0
        self.recording = False
        self.recorded_frames: list[np.ndarray] = []
        self.video_name = ""
        self.video_path = ""
        self.frames_per_sec = self._frame_rate()

    def _frame_rate(self) -> int:
        """Return the frames in a second that the environments ask for."""
        try:
            metadata = self.venv.get_attr("metadata")[0]
        except (AttributeError, RuntimeError):
            metadata = {}
        return int(metadata.get("render_fps", 30))

    def reset(self) -> Any:
        obs = self.venv.reset()
        if self.record_video_trigger(self.step_id):
            self._start_recording()
        return obs

    def step_wait(self) -> VecEnvStepReturn:
        answer = self.venv.step_wait()
        self.step_id += 1
        if self.recording:
            self._capture_frame()
            if len(self.recorded_frames) > self.video_length:
                self._stop_recording()
        elif self.record_video_trigger(self.step_id):
            self._start_recording()
        return answer

    def _start_recording(self) -> None:
        """Begin a video with the present frame. One that is being recorded is written first."""
        self._stop_recording()
        last = self.step_id + self.video_length
        self.video_name = f"{self.name_prefix}-step-{self.step_id}-to-step-{last}.mp4"
        self.video_path = str(Path(self.video_folder) / self.video_name)
        self.recording = True
        self._capture_frame()

    def _capture_frame(self) -> None:
        """Add the present frame to the video."""
        frame = self.venv.render()
        if frame is not None:
            self.recorded_frames.append(frame)

    def _stop_recording(self) -> None:
        """Write the video that is being recorded, if there is one."""
        frames = self.recorded_frames
        self.recording = False
        self.recorded_frames = []
        if not frames:
            return
        with naming_extra("VecVideoRecorder", "video"):
            import imageio.v2 as imageio

            # imageio would ask for it only when it writes.
            import imageio_ffmpeg  # type: ignore[import-untyped, unused-ignore] # noqa: F401

        sys.stdout.write(f"Saving video to {self.video_path}\n")
        # ffmpeg would scale frames to a multiple of 16 pixels. Players only need an even number.
        even: list[Any] = [frame[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]
        # Renamed when complete, so that a file that is there can be played.
        part = Path(self.video_path).with_suffix(".part.mp4")
        imageio.mimwrite(part, even, fps=self.frames_per_sec, macro_block_size=1)
        part.rename(self.video_path)

    def close(self) -> None:
        """Write the video that is being recorded, and close the environments."""
        self._stop_recording()
        self.venv.close()
