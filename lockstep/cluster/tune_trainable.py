"""`trainable`: a configuration as a class that Ray Tune trains, checkpoints and changes on the way."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from lockstep.options.checks import install_hint
from lockstep.options.schedules import ConfiguredValueWarning


class TunedConfig(Protocol):
    """What `trainable` needs of a configuration."""

    def copy(self) -> Self:
        """Return a copy."""

    def set_path(self, path: str, value: object) -> Any:
        """Set one option, `"training.lr"`."""

    def build_trainer(self) -> Any:
        """Return the trainer."""


def trainable(config: TunedConfig) -> type[Any]:
    """Return a class for `ray.tune.Tuner`; its parameters are options by path, `{"training.lr": tune.loguniform(...)}`.

    One step is one epoch. Its result has `episode_return_mean` (of the last evaluation, where there was one),
    `training_iteration`, `env_steps`, `gradient_steps`, and `done` at the end of the run. A checkpoint is a full one: a
    trial that is restored goes on bit by bit; with population-based training it goes on with another trial's weights
    and its own settings, of which only those may change that `lockstep.resume` can.

    Raises `ImportError` where Ray Tune is not installed.
    """
    try:
        tune = importlib.import_module("ray.tune")
    except ImportError as error:
        raise ImportError(f"this needs Ray Tune: {install_hint('raytune')}") from error

    class Trainable(tune.Trainable):  # type: ignore[name-defined]
        """Trains with the options of one trial."""

        def setup(self, config_of_trial: Mapping[str, Any]) -> None:
            """Build the trainer."""
            options = config.copy()
            for path, value in config_of_trial.items():
                options.set_path(path, value)
            self.trainer = options.build_trainer()
            self.epochs: Iterator[Any] = iter(self.trainer)

        def step(self) -> dict[str, Any]:
            """Train for one epoch."""
            next(self.epochs, None)
            trainer, found = self.trainer, self.trainer.last_test
            result = {"env_steps": trainer.env_step, "gradient_steps": trainer.gradient_step}
            result["done"] = trainer.position >= trainer.steps_in_all
            if found is not None and found.returns_stat is not None:
                result["episode_return_mean"] = found.returns_stat.mean
            return result

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Write a full checkpoint."""
            self.trainer.save_to_path(Path(checkpoint_dir) / "run")

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            """Go on from a full checkpoint, with the options of this trial."""
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConfiguredValueWarning)  # other options are what was asked for
                self.trainer.restore_from_path(Path(checkpoint_dir) / "run")
            self.epochs = iter(self.trainer)

        def reset_config(self, new_config: Mapping[str, Any]) -> bool:
            """Take other options; a checkpoint is loaded next."""
            self.cleanup()
            self.setup(new_config)
            return True

        def cleanup(self) -> None:
            """Close the environments."""
            self.trainer.close()

    return Trainable
