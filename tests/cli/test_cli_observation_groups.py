"""Commands on a run whose policy and critic see different entries of an observation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_tools import Said

from lockstep.export import load_export

GROUPS = 'rl_module.observation_groups={"policy": ["proprio"], "critic": ["proprio", "load"]}'
PROBE = "lockstep/PrivilegedProbe-v0"


@pytest.mark.long
def test_a_run_with_groups_is_trained_examined_exported_and_resumed(
    lockstep: Callable[..., Said], tmp_path: Path
) -> None:
    small = ("--set", "training.train_batch_size=256", "--set", "training.num_epochs=2")
    said = lockstep("train", "ppo", PROBE, "--total-steps", "512", "--set", GROUPS, *small)
    assert said.code == 0, said.err
    assert "policy sees proprio, critic sees proprio, load" in said.out
    (run,) = (tmp_path / "runs").iterdir()

    for command in ("doctor", "eval"):
        said = lockstep(command, str(run))
        assert said.code == 0, said.err
    said = lockstep("export", str(run), "--format", "torch")
    assert said.code == 0, said.err
    card = json.loads((run / "export_torch" / "card.json").read_text())
    assert [entry["name"] for entry in card["observation"]] == ["obs/proprio"]
    assert load_export(run / "export_torch").card["observation"] == card["observation"]
    assert card["observation_groups"] == {"policy": ["proprio"], "critic": ["proprio", "load"]}
    page = (run / "export_torch" / "README.md").read_text()
    assert "policy saw `proprio`; critic saw `proprio`, `load`" in page

    said = lockstep("resume", str(run), "--total-steps", "768")
    assert said.code == 0, said.err
    other = GROUPS.replace('["proprio"]', '["load"]')
    said = lockstep("resume", str(run), "--set", other, "--total-steps", "1024")
    assert said.code == 2
    assert "rl_module.observation_groups.policy=['load'] (the run has ['proprio']) cannot be changed" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "ppo", PROBE, "--set", 'rl_module.observation_groups={"policy": ["wheels"]}'), "names 'wheels'"),
        (("train", "dqn", PROBE, "--set", GROUPS), "has a group for 'critic', which dqn"),
        (("eject", "ppo", PROBE, "--set", GROUPS), "cannot be ejected"),
    ],
)
def test_groups_that_do_not_fit_are_refused_by_commands(
    lockstep: Callable[..., Said], words: tuple[str, ...], message: str
) -> None:
    said = lockstep(*words)
    assert said.code == 2
    assert message in said.err
