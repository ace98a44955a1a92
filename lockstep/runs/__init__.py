"""Runs on disk: begin and resume a run, train several seeds side by side, record videos, sign a run."""

from lockstep.runs.run import TrainResult, load_policy, resume
from lockstep.runs.seeds import SeedBegun, SeedEnded, SeedProgress, run_seeds
from lockstep.runs.trust import trust_run
from lockstep.runs.video import VideoCallback, record_video

__all__ = [
    "SeedBegun",
    "SeedEnded",
    "SeedProgress",
    "TrainResult",
    "VideoCallback",
    "load_policy",
    "record_video",
    "resume",
    "run_seeds",
    "trust_run",
]
