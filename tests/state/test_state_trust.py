"""What a file may name: words, signatures, kinds, and where modules come from."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import stat
import subprocess
import textwrap
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from warm import run_python

from lockstep.state import signatures, trust
from lockstep.state.trust import FileNames, Kind, NameInFile, UntrustedError

MAPPING = Kind("a subclass of dict", (dict,))
ONLY_MAPPING = Kind("a subclass of dict", (dict,), takes_others=False)
OWN = {"environment": {"env": "my_game:make", "env_config": {"size": 3}}, "training": {"lr": 0.1}}


class Nested(dict):
    class Inner(dict):
        pass

    @property
    def asked(self):
        raise AssertionError("a name asks no property")


def make_mapping():
    return {}


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """A home folder of the test's own, and no word in the environment."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.delenv("LOCKSTEP_TRUST", raising=False)
    return folder


def names_of(tree=None, *, word=False, file="config.json"):
    return FileNames(file, tree or {}, word)


# -- signatures ---


def test_the_key_is_made_once_and_only_its_owner_can_read_it(home):
    assert not (home / "config").exists()
    first = signatures.signature_of(OWN)
    key = home / "config" / "lockstep" / "trust.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert len(key.read_bytes()) == 32
    assert signatures.signature_of(OWN) == first
    assert [each.name for each in key.parent.iterdir()] == ["trust.key"]


def _sign(payload):
    return signatures.signature_of(payload)


def test_processes_that_begin_together_make_one_key(home):
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        found = pool.map(_sign, [OWN] * 8)
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode, content", [(0o644, b"x" * 32), (0o640, b"x" * 32), (0o600, b"short"), (0o600, b"")])
def test_a_key_that_others_can_read_or_that_is_none_is_not_used(home, mode, content):
    key = home / "config" / "lockstep" / "trust.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(content)
    key.chmod(mode)
    with pytest.warns(RuntimeWarning, match="nobody else can read"):
        assert signatures.signature_of(OWN) is None
    with pytest.warns(RuntimeWarning, match="nobody else can read"):
        assert not signatures.is_signature(OWN, "0" * 64)
    assert key.read_bytes() == content


def test_without_a_home_folder_nothing_is_signed_and_the_word_is_needed(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    assert signatures.signature_of(OWN) is None
    assert trust.signed(OWN) == OWN
    assert not names_of(trust.signed(OWN)).is_trusted
    assert names_of(trust.signed(OWN), word=True).is_trusted
    assert not (tmp_path / "missing").exists()
    with pytest.raises(ValueError, match="no key"):
        signatures.write_signatures(tmp_path, [OWN])


def test_own_names_are_recognised_after_json_and_other_options_may_change():
    made = json.loads(json.dumps(trust.signed(OWN)))
    assert names_of(made).is_trusted
    made["training"]["lr"] = 0.5
    assert names_of(made).is_trusted


def _change(*path, to):
    def change(tree):
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        _change("environment", "env", to="my_game:other"),
        _change("environment", "env_config", "size", to=4),
        _change("environment", "env_config", to={}),
        _change("environment", "env", to=None),
        _change("training", "lr", to={"__import__": "os:getpid"}),
        _change("rl_module", to={"model_config": {"encoder": "nets:Large"}}),
        _change("signature", to="0" * 64),
        _change("signature", to=None),
        _change("signature", to=["a"]),
    ],
)
def test_a_changed_name_or_argument_makes_the_signature_invalid(change):
    made = trust.signed(copy.deepcopy(OWN))
    change(made)
    assert not names_of(made).is_trusted


def test_a_signature_of_another_user_does_not_count(monkeypatch, tmp_path):
    made = trust.signed(OWN)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert not names_of(made).is_trusted
    signatures.signature_of(OWN)
    assert not names_of(made).is_trusted


@pytest.mark.parametrize(
    "tree",
    [
        {"environment": {"env": "CartPole-v1", "env_config": {"size": 3}}},
        {"spec": {"module_class": "lockstep.modules:Anything", "model_config": {"hiddens": [64]}}},
        {"rl_module": {"model_config": {"encoder": "nature"}}},
    ],
)
def test_what_needs_no_signature_has_none_and_makes_no_key(home, tree):
    assert trust.signed(tree) == tree
    assert not (home / "config").exists()


def test_arrays_and_tuples_are_signed_by_value():
    made = trust.signed({"env": "a:B", "env_config": {"goal": np.arange(3.0), "sizes": (1, 2)}})
    assert names_of({**made, "env_config": {"goal": np.arange(3.0), "sizes": [1, 2]}}).is_trusted
    assert not names_of({**made, "env_config": {"goal": np.arange(3.0) + 1, "sizes": [1, 2]}}).is_trusted


def test_a_folder_can_hold_the_signatures_of_files_below_it(tmp_path):
    inner = tmp_path / "run" / "checkpoints" / "step_1"
    inner.mkdir(parents=True)
    assert not names_of(OWN, file=inner).is_trusted
    signatures.write_signatures(tmp_path / "run", [trust.named_objects(OWN)])
    assert names_of(OWN, file=inner).is_trusted
    assert not names_of(OWN, file=tmp_path / "other").is_trusted
    for content in ("{", '{"signatures": 3}', '{"signatures": [3]}', "[]"):
        (tmp_path / "run" / "signatures.json").write_text(content)
        assert not names_of(OWN, file=inner).is_trusted


@pytest.mark.parametrize("value, trusted", [("1", True), ("0", False), ("", False)])
def test_the_word_may_come_from_the_environment(monkeypatch, value, trusted):
    monkeypatch.setenv("LOCKSTEP_TRUST", value)
    assert names_of().is_trusted is trusted


# -- kinds ---


def test_a_class_of_the_kind_needs_no_word():
    assert names_of().find("option", "collections:OrderedDict", MAPPING) is OrderedDict
    assert names_of().find("option", f"{__name__}:Nested.Inner", MAPPING) is Nested.Inner


@pytest.mark.parametrize(
    "name, kind, words",
    [
        ("subprocess:Popen", MAPPING, ("option", "subprocess:Popen", "config.json", "trust=True", "--trust")),
        (f"{__name__}:make_mapping", MAPPING, ("a function, not a subclass of dict", "trust=True")),
        ("os:environ", MAPPING, ("an object", "trust=True")),
        ("os:path", MAPPING, ("a module", "trust=True")),
        ("os:path.join", MAPPING, ("an object", "trust=True")),
        (f"{__name__}:Nested.asked.fget", MAPPING, ("an object", "trust=True")),
        ("os:getcwd", None, ("os:getcwd", "trust=True", "LOCKSTEP_TRUST=1")),
        ("collections:OrderedDict", None, ("trust=True",)),
    ],
)
def test_other_objects_need_the_word_and_the_error_says_so(name, kind, words):
    with pytest.raises(UntrustedError) as error:
        names_of().find("option", name, kind)
    assert all(word in str(error.value) for word in words)
    assert names_of(word=True).find("option", name, kind) is trust.import_object(name)


@pytest.mark.parametrize(
    "name, kind, error",
    [
        ("subprocess:Popen", ONLY_MAPPING, UntrustedError),
        ("no_such_module_at_all:Class", MAPPING, ModuleNotFoundError),
        ("no_such_module_at_all:function", None, ModuleNotFoundError),
        ("collections:NoSuchClass", MAPPING, AttributeError),
        ("collections:OrderedDict.no_such_part", MAPPING, AttributeError),
        (".relative:Class", MAPPING, ModuleNotFoundError),
        ("", MAPPING, ModuleNotFoundError),
        (3, MAPPING, ValueError),
    ],
)
def test_the_word_is_named_only_where_it_would_help(name, kind, error):
    with pytest.raises(error) as raised:
        names_of().find("option", name, kind)
    assert "trust=True" not in str(raised.value)


def test_a_name_that_is_looked_up_later_remembers_its_file():
    names = names_of()
    late = names.text("environment.env", "subprocess:Popen")
    for name in (late, copy.deepcopy({"env": late})["env"], pickle.loads(pickle.dumps(late))):
        assert name == "subprocess:Popen"
        with pytest.raises(UntrustedError, match=r"environment\.env in config\.json"):
            trust.find_named("environment.env", name, MAPPING)
    assert trust.find_named("environment.env", "subprocess:Popen", MAPPING) is subprocess.Popen
    assert not isinstance(names.text("environment.env", "CartPole-v1"), NameInFile)
    assert not isinstance(names_of(word=True).text("environment.env", "subprocess:Popen"), NameInFile)


def test_what_a_stranger_named_is_not_signed_when_it_is_written_again():
    late = names_of().text("environment.env", "my_game:make")
    assert "signature" not in trust.signed({"environment": {"env": late}})


# -- modules ---


def run_in(folder: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run code in a folder, which then is on `sys.path` as ''."""
    return run_python(["-c", textwrap.dedent(code)], cwd=folder, env={**os.environ, **more})


HOSTILE = "from pathlib import Path\nPath('MARKER').touch()\nclass Found(dict): pass\n"


@pytest.mark.parametrize("layout", ["evil.py", "evil/__init__.py", "evil/part.py"])
def test_no_module_of_the_current_folder_is_imported_for_a_file(tmp_path, layout):
    path = tmp_path / layout
    path.parent.mkdir(exist_ok=True)
    path.write_text(HOSTILE)
    module = "evil.part" if "part" in layout else "evil"
    done = run_in(
        tmp_path,
        f"""
        from lockstep.state import trust
        kind = trust.Kind("a subclass of dict", (dict,))
        try:
            trust.FileNames("config.json", {{}}).find("option", "{module}:Found", kind)
        except trust.UntrustedError as error:
            print(error)
        """,
    )
    assert "is in the current folder" in done.stdout, done.stderr
    assert "trust=True" in done.stdout
    assert not (tmp_path / "MARKER").exists()


def test_imports_of_an_installed_module_ignore_the_current_folder(tmp_path):
    here, installed = tmp_path / "here", tmp_path / "installed"
    for folder in (here, installed):
        folder.mkdir()
    (here / "optional_extra.py").write_text(HOSTILE)
    (installed / "package_of_somebody.py").write_text(
        "try:\n    import optional_extra\nexcept ImportError:\n    pass\nclass Found(dict): pass\n"
    )
    done = run_in(
        here,
        """
        from lockstep.state import trust
        kind = trust.Kind("a subclass of dict", (dict,))
        print(trust.FileNames("config.json", {}).find("option", "package_of_somebody:Found", kind))
        import optional_extra  # what the user's program imports is free
        """,
        PYTHONPATH=os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(installed)]),
    )
    assert "package_of_somebody.Found" in done.stdout, done.stderr
    assert (here / "MARKER").exists()


def test_own_names_come_from_the_current_folder_too(tmp_path):
    (tmp_path / "mine.py").write_text("class Found(dict): pass\ndef make(): return Found()\n")
    code = """
        from lockstep.state import trust
        names = trust.FileNames("config.json", trust.signed({"env": "mine:make"}))
        print(names.find("option", "mine:make", None)())
        """
    assert run_in(tmp_path, code).stdout == "{}\n"
