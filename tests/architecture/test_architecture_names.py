"""The public names: they exist, are documented, and importing them is light."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from architecture_checks import declared_names

ROOT = Path(__file__).parents[2]
PACKAGES = ["lockstep", *(f"lockstep.{path.parent.name}" for path in sorted((ROOT / "lockstep").glob("*/__init__.py")))]
HEAVY = (
    *("ray", "tensorboard", "wandb", "mlflow", "matplotlib", "pandas", "numba", "tyro", "rich", "scipy", "imageio"),
    *("pyarrow", "minari", "h5py", "tensordict", "lz4", "pettingzoo"),
    *("onnx", "onnxruntime", "onnxscript", "huggingface_hub"),
)
MAX_IMPORT_SECONDS = 0.5
NAMES_OF_THE_CONTRACT = {
    "lockstep": "OnpolicyTrainer OffpolicyTrainer OfflineTrainer BaseTrainer Policy policy_within_training_step "
    "Collector AsyncCollector",
    "lockstep.trainer": "RunStart CollectEnd UpdateEnd EvaluationEnd CheckpointSaved EpochEnd RunEnd gather_info "
    "test_episode",
    "lockstep.tracking": "SequenceSummaryStats CollectStatsBase CollectStats TrainingStats TimingStats InfoStats "
    "EpochStats BaseLogger LazyLogger JsonlLogger TensorboardLogger WandbLogger MLflowLogger MultiLogger MovAvg "
    "RunningMeanStd TraceLogger torch_param_hash",
    "lockstep.replay": "ReplayBuffer VectorReplayBuffer PrioritizedReplayBuffer PrioritizedVectorReplayBuffer "
    "HERReplayBuffer",
    "lockstep.rollout": "MalformedBufferError",
}
"""the contract of trainers, collectors, buffers and loggers"""


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_folder_declares_exists_and_is_documented(package):
    names = declared_names((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    assert names, f"{package} has no __all__"
    assert len(names) == len(set(names))
    module = importlib.import_module(package)
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            doc = inspect.getdoc(value) or ""
            assert doc, f"{package}.{name} has no docstring"
            assert not doc.startswith(f"{name}("), f"{package}.{name} has only the docstring of a dataclass"


@pytest.mark.parametrize("package, names", NAMES_OF_THE_CONTRACT.items())
def test_classes_that_the_trainer_contract_names_are_in_the_folder_where_a_user_looks(package, names):
    assert set(names.split()) <= set(importlib.import_module(package).__all__)


def test_the_package_declares_all_that_its_init_imports():
    import lockstep

    public = {
        name
        for name, value in vars(lockstep).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }  # fmt: skip
    assert public == set(lockstep.__all__) - {"__version__"}


def fresh_import() -> tuple[float, list[str]]:
    """Return the processor's seconds of `import lockstep` after torch in a new process, and the heavy packages loaded.

    Bytecode is written: where that is forbidden (PYTHONDONTWRITEBYTECODE), each process would compile all our sources,
    which is done once for an installed package.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = (
        "import json, sys, time, torch; t = time.process_time(); import lockstep; t = time.process_time() - t;"
        f"print(json.dumps([t, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True, env=environment
    )
    seconds, loaded = json.loads(done.stdout)
    return seconds, loaded


def test_importing_lockstep_is_light():
    for _ in range(3):  # what else the machine does costs cache, and with it processor time: try again
        seconds, loaded = fresh_import()
        assert not loaded
        if seconds < MAX_IMPORT_SECONDS:
            break
    assert 0.02 < seconds < MAX_IMPORT_SECONDS


def test_the_configuration_of_every_algorithm_is_exported():
    import lockstep

    assert {config.__name__ for config in lockstep.ALGORITHMS} <= set(lockstep.__all__)
