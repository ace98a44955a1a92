"""The logger of Weights & Biases. wandb (an extra) is imported when the first record is written."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.state.messages import install_hint
from lockstep.tracking.numbered import NumberedLogger, new_run_id

_AXES = {"train": "env_step", "test": "env_step", "update": "gradient_step", "info": "epoch", "save": "env_step"}


class WandbLogger(NumberedLogger):
    """Sends records to a run of Weights & Biases.

    Names are the scoped ones (`test/returns_stat/mean`); each scope is drawn over its own step: `env_step`,
    `gradient_step` or `epoch`. How many records the run has is kept in `wandb/lockstep-<run_id>.json` below `dir`, and
    online by the service too.

    Args:
        project, name, entity: as `wandb.init` takes them.
        run_id: the run to continue; None begins one.
        config: the run's configuration.
        dir: where wandb keeps its files; None: the environment variable `WANDB_DIR`, else the working directory.
        mode: "online", "offline" or "disabled"; None: as wandb is set up (`WANDB_MODE`).
        settings: further settings of wandb by name.
        intervals: as `BaseLogger`.

    Raises:
        ValueError: an unknown mode.
        ImportError: at the first record, when wandb is not installed.
    """

    def __init__(
        self,
        project: str = "lockstep",
        name: str | None = None,
        *,
        entity: str | None = None,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        dir: str | os.PathLike[str] | None = None,
        mode: str | None = None,
        settings: Mapping[str, Any] | None = None,
        **intervals: Any,
    ) -> None:
        super().__init__(run_id or new_run_id(), config, **intervals)
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"mode={mode!r} is not allowed; choose 'online', 'offline', 'disabled' or None")
        self.project, self.name, self.entity, self.mode = project, name, entity, mode
        self.dir = Path(dir or os.environ.get("WANDB_DIR") or ".").absolute()
        self.settings = dict(settings or {})
        self._run: Any = None

    @property
    def run(self) -> Any:
        """wandb's run, begun when it is first asked for."""
        if self._run is None:
            self._run = self._begin()
        return self._run

    def _begin(self) -> Any:
        try:
            import wandb
        except ImportError as error:
            raise ImportError(f"WandbLogger needs wandb: {install_hint('wandb')}") from error
        self.dir.mkdir(parents=True, exist_ok=True)
        mode: Any = self.mode or os.environ.get("WANDB_MODE")
        while any(self.dir.glob(f"wandb/*run-{time.strftime('%Y%m%d_%H%M%S')}-{self.run_id}")):
            time.sleep(0.05)  # wandb names its folders by the second, and writes over one that is there
        run = wandb.init(
            project=self.project,
            name=self.name,
            entity=self.entity,
            id=self.run_id,
            config=self.config,
            dir=str(self.dir),
            mode=mode,
            resume="allow" if mode in (None, "online") else None,
            reinit="create_new",
            settings=wandb.Settings(**self.settings),
        )
        for axis in dict.fromkeys(_AXES.values()):
            run.define_metric(axis, hidden=True)
        for scope, axis in _AXES.items():
            run.define_metric(f"{scope}/*", step_metric=axis)
        return run

    @property
    def _progress_path(self) -> Path:
        return self.dir / "wandb" / f"lockstep-{self.run_id}.json"

    def _progress(self) -> Mapping[str, Any]:
        try:
            kept: dict[str, Any] = json.loads(self._progress_path.read_bytes())
        except (FileNotFoundError, ValueError):
            kept = {}
        return {**kept, "records": max(int(kept.get("records", 0)), int(self.run.step))}

    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        self.run.log({**values, step_type: step}, step=number)
        path = self._progress_path
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(progress))
        os.replace(part, path)

    def _close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
