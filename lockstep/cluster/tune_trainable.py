"""`trainable`: makes a class for Ray Tune from a configuration."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from lockstep.options.checks import install_hint
from lockstep.options.schedules import ConfiguredValueWarning


class TunedConfig(Protocol):
    """Protocol of a configuration that `trainable` accepts."""

    def copy(self) -> Self:
        """Return a copy of the configuration."""

    def set_path(self, path: str, value: object) -> Any:
        """Set one option by its path, such as `"training.lr"`."""

    def build_trainer(self) -> Any:
        """Build the trainer."""


def trainable(config: TunedConfig) -> type[Any]:
    """Return a class for `ray.tune.Tuner` that trains a configuration.

    Its parameters are options by path: `{"training.lr": tune.loguniform(...)}`. One step is one epoch. The result of a
    step contains `episode_return_mean` of the last evaluation (if there was one), `training_iteration`, `env_steps`,
    `gradient_steps`, and `done` at the end of the run.

    Checkpoints are full ones: a restored trial continues with identical results. In population-based training a trial
    continues with another trial's weights and its own settings; only the settings that `lockstep.resume` can change may
    differ.

    Raises:
        ImportError: Ray Tune is not installed.
    """
    try:
        tune = importlib.import_module("ray.tune")
    except ImportError as error:
        raise ImportError(f"this needs Ray Tune: {install_hint('raytune')}") from error

    class Trainable(tune.Trainable):  # type: ignore[name-defined]
        """Trial of Ray Tune: a run with the options of the trial."""

        def setup(self, trial_options: Mapping[str, Any]) -> None:
            """Build the trainer."""
            trial_config = config.copy()
            for path, value in trial_options.items():
                trial_config.set_path(path, value)
            self.trainer = trial_config.build_trainer()
            self.epochs: Iterator[Any] = iter(self.trainer)

        def step(self) -> dict[str, Any]:
            """Train for one epoch."""
            next(self.epochs, None)
            trainer = self.trainer
            result = {"env_steps": trainer.env_step, "gradient_steps": trainer.gradient_step}
            result["done"] = trainer.position >= trainer.steps_in_all
            last_test = trainer.last_test
            if last_test is not None and last_test.returns_stat is not None:
                result["episode_return_mean"] = last_test.returns_stat.mean
            return result

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Write a full checkpoint."""
            self.trainer.save_to_path(Path(checkpoint_dir) / "run")

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            """Restore a full checkpoint, with the options of this trial."""
            with warnings.catch_warnings():
                # Population-based training changes options on purpose.
                warnings.simplefilter("ignore", ConfiguredValueWarning)
                self.trainer.restore_from_path(Path(checkpoint_dir) / "run")
            self.epochs = iter(self.trainer)

        def reset_config(self, new_config: Mapping[str, Any]) -> bool:
            """Build the trainer again with other options. Ray Tune loads a checkpoint next."""
            self.cleanup()
            self.setup(new_config)
            return True

        def cleanup(self) -> None:
            """Close the environments."""
            self.trainer.close()

    return Trainable
