"""Small functions: random seeds, devices, schedules over the remaining progress, checks of spaces and statistics."""

from __future__ import annotations

import platform
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep import __version__
from lockstep_sb3.common.logger import HumanOutputFormat, KVWriter, Logger, TensorBoardOutputFormat
from lockstep_sb3.common.moved import moved_name
from lockstep_sb3.common.type_aliases import PyTorchObs, Schedule, TrainFreq, TrainFrequencyUnit

# -- seeds and devices ---


def set_random_seed(seed: int, using_cuda: bool = False) -> None:
    """Seed Python, NumPy and torch. Lockstep's own random numbers depend on the option `seed` of an algorithm only.

    With `using_cuda` cuDNN uses deterministic algorithms.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    if using_cuda:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def get_device(device: torch.device | str = "auto") -> torch.device:
    """Return a device. "auto" is the GPU if there is one, else the CPU.

    A CUDA device on a machine without CUDA becomes the CPU, with a warning.
    """
    has_cuda = torch.cuda.is_available()
    if str(device) == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    wanted = torch.device(device)
    if wanted.type == "cuda" and not has_cuda:
        warnings.warn(f"device={str(device)!r}: CUDA is not available here, so the CPU is used", stacklevel=2)
        return torch.device("cpu")
    return wanted


def get_system_info(print_info: bool = True) -> tuple[dict[str, str], str]:
    """Return the versions of the system and of libraries, by name and as text. `print_info` also prints the text."""
    versions = {
        "OS": f"{platform.platform()} {platform.version()}",
        "Python": platform.python_version(),
        "Lockstep": __version__,
        "PyTorch": torch.__version__,
        "GPU Enabled": str(torch.cuda.is_available()),
        "Numpy": np.__version__,
        "Gymnasium": gym.__version__,
    }
    text = "".join(f"- {name}: {version}\n" for name, version in versions.items())
    if print_info:
        sys.stdout.write(f"{text}\n")
    return versions, text


# -- schedules ---


@dataclass(frozen=True)
class LinearSchedule:
    """Schedule that is linear from `start` to `end` over the first `end_fraction` of the run, and then constant."""

    start: float
    end: float
    end_fraction: float

    def __call__(self, progress_remaining: float) -> float:
        progress = 1.0 - progress_remaining
        if progress >= self.end_fraction:
            return self.end
        return self.start + progress / self.end_fraction * (self.end - self.start)


@dataclass(frozen=True)
class ConstantSchedule:
    """Schedule that always has the same value."""

    val: float

    def __call__(self, progress_remaining: float) -> float:
        return self.val


class FloatSchedule:
    """Schedule of a number or of another schedule, whose values are always Python floats.

    Raises `TypeError` for anything else.
    """

    def __init__(self, value_schedule: Schedule | float) -> None:
        if isinstance(value_schedule, FloatSchedule):
            self.value_schedule: Schedule = value_schedule.value_schedule
        elif callable(value_schedule):
            self.value_schedule = value_schedule
        else:
            self.value_schedule = ConstantSchedule(float(value_schedule))

    def __call__(self, progress_remaining: float) -> float:
        return float(self.value_schedule(progress_remaining))

    def __repr__(self) -> str:
        return f"FloatSchedule({self.value_schedule})"


@dataclass
class ChangingSchedule:
    """Schedule whose `function` may be replaced while it is in use."""

    function: Schedule

    def __call__(self, progress_remaining: float) -> float:
        return self.function(progress_remaining)


get_linear_fn = LinearSchedule
constant_fn = ConstantSchedule
get_schedule_fn = FloatSchedule


@dataclass
class StepSchedule:
    """Schedule over environment steps, made from a `function` of the remaining progress.

    `total[0]` is the number of steps of the run. It is 0 before `learn`, when the remaining progress is 1.
    """

    is_of_steps: ClassVar[bool] = True
    """For `lockstep.options.Schedule`: it is called with a step, and may rise as far as it likes."""

    function: Callable[[float], float]
    total: list[int]

    def __call__(self, step: int) -> float:
        progress_remaining = max(0.0, 1.0 - step / self.total[0]) if self.total[0] else 1.0
        return float(self.function(progress_remaining))


def update_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameter groups of an optimizer."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


# -- statistics and tensors ---


def explained_variance(y_pred: np.ndarray, y_true: np.ndarray) -> float:
    """Return the share of the variance of `y_true` `[N]` that `y_pred` `[N]` explains; NaN if it has no variance.

    1 is a perfect prediction, 0 is as good as a constant, and less is worse.
    """
    variance = float(np.var(y_true))
    return float(1.0 - np.var(y_true - y_pred) / variance) if variance else float("nan")


def safe_mean(arr: Any) -> float:
    """Return the mean of a list or array; NaN if it is empty."""
    return float(np.mean(arr)) if len(arr) else float("nan")


def get_parameters_by_name(model: nn.Module, included_names: Iterable[str]) -> list[Tensor]:
    """Return the parameters and buffers of a module whose names contain one of `included_names`."""
    parts = list(included_names)
    return [value for name, value in model.state_dict().items() if any(part in name for part in parts)]


def zip_strict(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Return `zip` of iterables, which raises `ValueError` if their lengths differ."""
    return zip(*iterables, strict=True)


@torch.no_grad()
def polyak_update(params: Iterable[Tensor], target_params: Iterable[Tensor], tau: float) -> None:
    """Move each target parameter by the share `tau` of its distance towards the parameter, in place.

    Raises `ValueError` if their numbers differ.
    """
    for param, target in zip_strict(params, target_params):
        target.lerp_(param, tau)


def obs_as_tensor(obs: np.ndarray | Mapping[str, np.ndarray], device: torch.device | str) -> PyTorchObs:
    """Return observations as tensors on a device. `TypeError` for anything but an array or a dict of arrays."""
    if isinstance(obs, np.ndarray):
        return torch.as_tensor(obs, device=device)
    if isinstance(obs, Mapping):
        return {key: torch.as_tensor(part, device=device) for key, part in obs.items()}
    raise TypeError(f"obs is a {type(obs).__name__}; it must be an array or a dict of arrays")


# -- runs ---


def get_latest_run_id(log_path: str = "", log_name: str = "") -> int:
    """Return the largest number of the folders `<log_name>_<number>` in a folder; 0 if there are none."""
    numbers = [0]
    for path in Path(log_path).glob("*"):
        name, _, number = path.name.rpartition("_")
        if name == log_name and number.isdigit():
            numbers.append(int(number))
    return max(numbers)


def configure_logger(
    verbose: int = 0, tensorboard_log: str | None = None, tb_log_name: str = "", reset_num_timesteps: bool = True
) -> Logger:
    """Return a logger, which writes to the folder `<tb_log_name>_<number>` of TensorBoard.

    Args:
        verbose: Print values too, from 1 on.
        tensorboard_log: Folder of all runs. None writes to no files.
        tb_log_name: Name of the run.
        reset_num_timesteps: Take the next number. False continues in the last folder.
    """
    outputs: list[KVWriter] = [HumanOutputFormat(sys.stdout)] if verbose >= 1 else []
    if tensorboard_log is None:
        return Logger(None, outputs)
    number = max(get_latest_run_id(tensorboard_log, tb_log_name) + reset_num_timesteps, 1)
    folder = str(Path(tensorboard_log) / f"{tb_log_name}_{number}")
    logger = Logger(folder, [*outputs, TensorBoardOutputFormat(folder)])
    logger.log(f"Logging to {folder}")
    return logger


def should_collect_more_steps(train_freq: TrainFreq, num_collected_steps: int, num_collected_episodes: int) -> bool:
    """Return whether steps or episodes are missing until the next update."""
    if train_freq.unit == TrainFrequencyUnit.STEP:
        return num_collected_steps < train_freq.frequency
    return num_collected_episodes < train_freq.frequency


# -- spaces ---


def check_for_correct_spaces(env: Any, observation_space: gym.Space, action_space: gym.Space) -> None:
    """Raise `ValueError` if an environment has other spaces than these."""
    for name, expected in (("observation_space", observation_space), ("action_space", action_space)):
        found = getattr(env, name)
        if found != expected:
            raise ValueError(f"the environment has {name} {found}, expected {expected}")


def is_vectorized_observation(observation: Any, observation_space: gym.Space) -> bool:
    """Return whether `observation` is a batch of observations, and not one observation.

    Raises `ValueError` if its shape is neither.
    """
    if isinstance(observation_space, spaces.Dict):
        found = {key: is_vectorized_observation(observation[key], part) for key, part in observation_space.items()}
        if len(set(found.values())) != 1:
            raise ValueError(f"some parts of the observation are batches and others are not: {found}")
        return next(iter(found.values()))
    shape: Sequence[int] = np.shape(observation)
    if tuple(shape) == observation_space.shape:
        return False
    if tuple(shape[1:]) == observation_space.shape:
        return True
    raise ValueError(f"an observation has shape {tuple(shape)}; {observation_space} needs {observation_space.shape}")


_MOVED = {"OverSteps": "lockstep_sb3.common.utils:StepSchedule"}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
