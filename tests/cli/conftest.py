"""One small run of two seeds for all tests of the command line, and the command in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_tools import SMALL, Said, Trained, run_process

from lockstep.cli import main


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two seeds, trained by a real process whose output is no terminal."""
    home = tmp_path_factory.mktemp("trained")
    arguments = ("train", "ppo", "CartPole-v1", *SMALL, "--seeds", "2", "--logger", "tensorboard", "--num-envs", "4")
    done = run_process(*arguments, cwd=home)
    return Trained(done.stdout, done.stderr, done.returncode, sorted((home / "runs").glob("*")))


@pytest.fixture
def lockstep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        code = main(arguments)
        return Said(code, *capfd.readouterr())

    return run
