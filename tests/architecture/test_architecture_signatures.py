"""Public names keep the signatures of the last version, or the changelog names them."""

from __future__ import annotations

from signatures import (
    CHANGELOG,
    GONE,
    Change,
    changes,
    is_named,
    newest_section,
    options_of_today,
    public_objects,
    released_signatures,
    signature_now,
    signature_text,
    unnamed,
    versions,
)

import lockstep


def test_every_changed_signature_is_named_in_the_changelog():
    found = unnamed(changes(released_signatures()[1]), newest_section(CHANGELOG.read_text()))
    assert not found, (
        f"{len(found)} public names or options changed since {released_signatures()[0]}. Name each in code in the "
        "newest section of CHANGELOG.md (`name`, `Class.member`, `section.option`), or undo the change:\n"
        + "\n".join(map(str, found))
    )


def test_the_stored_signatures_are_those_of_the_last_version():
    newest, last, *_ = versions(CHANGELOG.read_text())
    assert newest == lockstep.__version__
    assert released_signatures()[0] == last, (
        "write them with the code of that version: tests/architecture/signatures.py"
    )


def test_names_of_both_packages_and_options_of_all_algorithms_are_compared():
    modules = {path.rpartition(".")[0] for path, _ in public_objects()}
    assert {"lockstep", "lockstep.trainer", "lockstep.replay", "lockstep_sb3"} <= modules
    owners = {path.partition(": ")[0] for path in options_of_today()}
    assert {config.algorithm for config in lockstep.ALGORITHMS} <= owners


def test_a_lost_name_a_changed_parameter_and_a_changed_default_are_found():
    released = {
        "lockstep.load_policy": "(path, *, trust=True)",
        "lockstep.load_policies": "()",
        "lockstep.Policy.compute_everything": "()",
        "lockstep.trainer.SeedEnded": signature_now("lockstep.runs.SeedEnded"),
        "every algorithm: debugging.seed": "1",
        "ppo: training.clip_param": "0.3",
        "ppo: training.no_such_option": "0.3",
    }
    assert [(change.path, change.now) for change in changes(released)] == [
        ("lockstep.load_policy", "(path, *, trust=False)"),
        ("lockstep.load_policies", GONE),
        ("lockstep.Policy.compute_everything", GONE),
        ("ppo: debugging.seed", "0"),
        ("ppo: training.clip_param", "0.2"),
        ("ppo: training.no_such_option", GONE),
    ]


def test_signatures_show_parameters_and_defaults_without_types():
    def with_all(a: int, /, b: str = "x", *rest: int, c: float = 1.0, d: type = dict, **more: int) -> None:
        """Take a parameter of each kind."""

    assert signature_text(with_all) == "(a, /, b='x', *args, c=1.0, d=dict, **kwargs)"
    assert signature_text(lockstep.Policy.stored_observation_space) == "property"
    assert "repeat_per_collect" in signature_text(lockstep.OnpolicyTrainer)


def test_a_change_is_named_by_code_of_the_newest_section_only():
    changelog = (
        "# Changelog\n\n## 2.0\n\n`load_policy`, `BaseTrainer.run`, `training(lr=...)`, tune\n\n## 1.0\n\n`tune`\n"
    )
    section = newest_section(changelog)
    assert versions(changelog) == ["2.0", "1.0"]
    named = [
        path
        for path in (
            "lockstep.load_policy",
            "lockstep.OnpolicyTrainer.run",
            "ppo: training.lr",
            "lockstep.tune",
            "lockstep.Policy.run",
            "ppo: replay.lr",
        )
        if is_named(Change(path, "", ""), section)
    ]
    assert named == ["lockstep.load_policy", "lockstep.OnpolicyTrainer.run", "ppo: training.lr"]
