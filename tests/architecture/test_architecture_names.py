"""The public names: they exist, are documented, and importing them is light."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from algorithm_list import COMMAND, classes_by_file, listed, written
from architecture_checks import declared_names
from moved_table import PAGE, TABLE, table
from public_names import NAMES, RENAMED, as_table, find, is_same, moved_names, new_path, saved_names, shown_in
from signatures import object_at

ROOT = Path(__file__).parents[2]
OLD_NAMES_ONLY = "compat"
"""The folder that has nothing but old names of `lockstep_sb3`."""
FOLDERS = sorted(path.parent.name for path in (ROOT / "lockstep").glob("*/__init__.py"))
PACKAGES = {
    "lockstep": ROOT / "lockstep",
    **{f"lockstep.{name}": ROOT / "lockstep" / name for name in FOLDERS if name != OLD_NAMES_ONLY},
    "lockstep_sb3": ROOT / "packages/lockstep-sb3/lockstep_sb3",
}
HEAVY = (
    *("ray", "tensorboard", "wandb", "mlflow", "matplotlib", "pandas", "numba", "tyro", "rich", "scipy", "imageio"),
    *("pyarrow", "minari", "h5py", "tensordict", "lz4", "pettingzoo"),
    *("onnx", "onnxruntime", "onnxscript", "huggingface_hub"),
)
LIGHT = {"lockstep", "numpy", "gymnasium", "farama_notifications", "safetensors", "filelock"}
"""what `import lockstep` may load beside torch (and what Cython adds by itself)"""
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
    names = declared_names((PACKAGES[package] / "__init__.py").read_text())
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
def test_classes_of_the_trainer_contract_are_in_their_public_folder(package, names):
    assert set(names.split()) <= set(importlib.import_module(package).__all__)


def test_the_package_loads_the_names_that_type_checkers_read():
    """They read the imports under `TYPE_CHECKING`; at run time the names are found in a list of modules."""
    import lockstep

    tree = ast.parse((ROOT / "lockstep/__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {}
    for node in block.body:
        for each in node.names:
            imported[each.name] = getattr(importlib.import_module(node.module), each.name)

    assert set(imported) == set(lockstep.__all__) - {"__version__"}
    for name, value in imported.items():
        assert getattr(lockstep, name) is value, name


def test_importing_lockstep_is_light():
    """Beside torch it loads numpy, gymnasium and safetensors. The seconds are measured by the benchmarks."""
    code = (
        "import sys, torch; before = set(sys.modules); import lockstep; lockstep.train;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert "lockstep" in packages
    assert packages - sys.stdlib_module_names - LIGHT <= {each for each in packages if "cython" in each}
    assert not packages & set(HEAVY)


def test_the_help_of_the_command_does_without_torch_and_the_library():
    code = "import sys; from lockstep.cli import main; main(['--help']); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    modules = done.stdout.splitlines()[-1].split()
    assert not {"torch", "numpy", "gymnasium"} & set(modules)
    assert {name for name in modules if name.startswith("lockstep")} == {
        *("lockstep", "lockstep._version", "lockstep.cli", "lockstep.cli.commands", "lockstep.cli.exit_codes")
    }


@pytest.mark.parametrize(
    "first",
    (
        "from lockstep.algorithms import PPOConfig; config = PPOConfig()",
        "from lockstep.builder import AlgorithmConfig; config = AlgorithmConfig.of_algorithm('ppo')",
    ),
)
def test_what_a_script_imports_first_changes_nothing(first):
    """Trainers are built, algorithms found and objects named as if the whole library had been imported."""
    code = (
        f"{first}; from lockstep.state.names import name_of; from lockstep.learner.learner import Learner;"
        "trainer = config.environment('CartPole-v1').build_trainer();"
        "print(type(trainer).__name__, name_of(type(config)), name_of(Learner), name_of(type(trainer)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout.split() == [
        "OnpolicyTrainer",
        "lockstep:PPOConfig",
        "lockstep:Learner",
        "lockstep:OnpolicyTrainer",
    ]


def test_importing_the_folders_that_files_name_is_light():
    code = (
        "import sys; from lockstep.state.old_names import OLD_NAMES; from lockstep.state.trust import import_object;"
        "[import_object(name) for name in OLD_NAMES if not name.startswith('lockstep.compat')];"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout.split() == ["[]"]


def test_the_list_of_algorithms_is_what_its_command_writes():
    for path, text in written().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not what `{COMMAND}` writes"


def test_the_classes_of_every_algorithm_are_exported():
    import lockstep

    of_files = {name for names in classes_by_file().values() for name in names}
    lacking = (of_files - set(lockstep.algorithms.__all__)) | (set(listed()) - set(lockstep.__all__))
    assert not lacking, f"`{COMMAND}` exports {sorted(lacking)}"


# -- names of the revision before ---


def lost(table: Mapping[str, list[str]], renamed: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the names of a table `{module: names}`: gone, or another object than its new name."""
    for module, names in table.items():
        for name in ["", *names]:
            path = f"{module}.{name}".rstrip(".")
            try:
                warned = is_alias(module, name)
                if path == (now := new_path(path, renamed)):
                    if warned:
                        yield f"{path} warns, and is not in the table of renamed names"
                elif not is_same(find(module, name), find(*split(now, is_module=not name))):
                    yield f"{path} is another object than {now}"
            except (ImportError, AttributeError) as error:
                if not is_extra(error):
                    yield f"{path} is gone: {error}"


def is_extra(error: Exception) -> bool:
    """Whether an import failed because an extra is not installed."""
    return isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("lockstep")


def is_alias(module: str, name: str) -> bool:
    """Whether Lockstep gives a `DeprecationWarning` for the name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        find(module, name)
    return any(each.category is DeprecationWarning and "lockstep" in str(each.message) for each in caught)


def split(path: str, *, is_module: bool) -> tuple[str, str]:
    """Return the module and the name in a dotted path."""
    owner, _, name = path.rpartition(".")
    return (path, "") if is_module else (owner, name)


@pytest.mark.parametrize("where, table", saved_names().items())
def test_no_public_name_is_lost(where, table):
    problems = list(lost(table, RENAMED))
    assert not problems, (
        f"{len(problems)} names of {NAMES.name} ({where}); rename with an alias, and enter it into RENAMED of "
        "public_names.py:\n" + "\n".join(problems)
    )


def test_a_name_that_is_gone_or_another_object_is_found():
    table = {"lockstep.envs": ["make_vector", "make_vectors"], "lockstep.env": ["make"], "lockstep.data": ["gae"]}
    renamed = {"lockstep.data": "lockstep.ops", "lockstep.envs.make_vector": "lockstep.envs.check_environment"}
    found = [problem.partition(":")[0] for problem in lost(table, renamed)]
    assert found == [
        "lockstep.envs.make_vector is another object than lockstep.envs.check_environment",
        "lockstep.envs.make_vectors is gone",
        "lockstep.env is gone",
        "lockstep.env.make is gone",
        "lockstep.data.gae is gone",
    ]


def test_a_renamed_module_renames_all_in_it_that_has_no_entry_of_its_own():
    renamed = {"lockstep.a": "lockstep.b.c", "lockstep.a.X": "lockstep.b.Y"}
    paths = ("lockstep.a", "lockstep.a.f", "lockstep.a.X", "lockstep.about.f")
    assert [new_path(path, renamed) for path in paths] == [
        "lockstep.b.c",
        "lockstep.b.c.f",
        "lockstep.b.Y",
        "lockstep.about.f",
    ]


def test_names_are_read_from_imports_and_from_words():
    text = """
    from lockstep.envs import (
        make_vector,  # the boundary
        CountingEnv as Env,
    )
    from lockstep.eject import eject, nothing_of_this_name

`lockstep.trainer.video`, `lockstep.Policy.from_checkpoint`, `lockstep.state.trust._hidden`, lockstep.train("ppo").
"""
    assert as_table(shown_in([text])) == {
        "lockstep": ["Policy", "train"],
        "lockstep.eject": ["eject"],
        "lockstep.envs": ["CountingEnv", "make_vector"],
        "lockstep.state.trust": [],
        "lockstep.trainer.video": [],
    }


# -- names that have moved ---


def test_the_page_about_the_last_version_has_every_moved_name():
    assert TABLE.search(PAGE.read_text())[2] == table(), "`python tests/architecture/moved_table.py` writes it"


def test_every_moved_name_leads_to_the_object_of_its_new_name():
    for old, new in moved_names().items():
        owner = object_at(old.rpartition(".")[0])
        if inspect.isclass(owner):  # an old method calls the new one
            assert {old.rpartition(".")[2], new.rpartition(".")[2]} <= set(dir(owner)), old
        else:
            assert is_same(object_at(old), object_at(new)), old
