"""Programs and files with the names that the package had until version 0.2, `lockstep.compat.sb3`."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile

import pytest
from small_tasks import Copy

import lockstep_sb3
from lockstep_sb3 import PPO
from lockstep_sb3.common.torch_layers import BaseFeaturesExtractor

MODULES = ("common.env_util", "common.vec_env.wrappers", "ppo.policies", "common.policies", "algorithms")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_by_its_old_name_is_the_same_module(name):
    assert importlib.import_module(f"lockstep.compat.sb3.{name}") is importlib.import_module(f"lockstep_sb3.{name}")


def test_old_names_warn():
    code = "import warnings; warnings.simplefilter('error', DeprecationWarning); import lockstep.compat.sb3.common"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "DeprecationWarning: lockstep.compat.sb3 has moved: import from lockstep_sb3" in done.stderr
    with pytest.warns(DeprecationWarning, match="import PPO from lockstep_sb3"):
        assert importlib.import_module("lockstep.compat").PPO is lockstep_sb3.PPO


@pytest.mark.parametrize("imported", ["lockstep.compat.sb3.common.vec_env", "lockstep.compat.PPO"])
def test_without_the_package_old_names_say_what_to_install(imported, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("lockstep_sb3", "lockstep.compat"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lockstep_sb3", None)
    owner, _, name = imported.rpartition(".")
    with pytest.raises(ModuleNotFoundError):
        getattr(importlib.import_module(owner), name)


def test_archives_name_the_package(tmp_path):
    """Those with an old name are the cases `door` of `tests/past`."""
    PPO("MlpPolicy", Copy(), n_steps=16, batch_size=16, n_epochs=1).save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        texts = b"".join(archive.read(name) for name in archive.namelist())
    assert b'"lockstep_sb3:PPO"' in texts
    assert b"lockstep.compat" not in texts
    assert type(PPO.load(tmp_path / "model")) is PPO


def test_an_extractor_of_the_package_is_named_by_a_public_folder():
    from lockstep.state.names import name_of

    assert name_of(BaseFeaturesExtractor) == "lockstep_sb3.common:BaseFeaturesExtractor"
