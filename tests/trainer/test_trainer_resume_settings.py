"""Going on with a run under other settings, and finishing one that was killed before its end was noted."""

import json
import warnings

import pytest
from algorithm_cases import WITH_ATOMS
from parts import fast_if
from scenario_tools import KINDS, config_of
from trainer_tools import digest, learned, records_of

from lockstep import get_config
from lockstep.runs.run import check_changes, option_changes, prepare_resume, prepare_run, resume
from lockstep.state import ConfiguredValueWarning
from lockstep.tracking import RunFolder

STEPS = 48


def run_of(folder, kind="on", **sections):
    """A finished run of 48 steps, 16 in each epoch."""
    config = config_of(kind)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return prepare_run(config, folder).finish()


def rate_of(policy):
    (optimizer,) = policy.learner_group.learner.optimizers
    return optimizer.optimizer.param_groups[0]["lr"]


def files_of(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def edit(path, section, **options):
    info = json.loads((path / "config.json").read_text())
    info["config"][section] |= options
    (path / "config.json").write_text(json.dumps(info))


def history_of(path):
    entries = RunFolder.open(path).info.get("history", [])
    return [(e["step"], {name: (c["before"], c["after"]) for name, c in e["changes"].items()}) for e in entries]


@pytest.mark.parametrize("kind", fast_if("off".__eq__, KINDS))
def test_a_schedule_that_ended_with_the_run_is_stretched_when_extended(kind, folder):
    other = {"entropy_coeff": [[0, 0.1], [10, 0.0]]} if kind == "on" else {"epsilon": [[0, 1.0], [10, 0.1]]}
    first = run_of(folder, kind, training={"lr": [[0, 0.01], [STEPS, 0.0]], **other})
    assert rate_of(first.policy) == 0.0
    longer = prepare_resume(first.path, total_steps=2 * STEPS)
    assert longer.config.lr == [[0, 0.01], [2 * STEPS, 0.0]]
    assert longer.sources[-1] == "training.lr stretched to 96 steps"
    (name,) = other
    assert getattr(longer.config, name) == other[name], "it ended before"
    run = longer.build()
    assert rate_of(run.trainer.policy) == pytest.approx(0.005)
    info = run.finish().info
    assert info.train_step == 2 * STEPS
    assert prepare_resume(first.path, total_steps=3 * STEPS).config.lr == [[0, 0.01], [3 * STEPS, 0.0]]


def test_a_schedule_that_is_given_is_not_stretched(folder):
    path = run_of(folder, training={"lr": [[0, 0.01], [STEPS, 0.0]]}).path
    given = [[0, 0.01], [STEPS, 0.001]]
    assert prepare_resume(path, total_steps=96, settings={"training.lr": given}).config.lr == given


def test_a_learning_rate_of_0_before_the_last_update_is_a_warning():
    build = config_of("on").training(lr=[[0, 0.01], [32, 0.0]]).build_trainer
    with pytest.warns(RuntimeWarning, match=r"training\.lr is 0 at step 40 of 48, where updates are still to come"):
        build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config_of("on").training(lr=[[0, 0.01], [STEPS, 0.0]]).build_trainer()


@pytest.mark.parametrize("kind", fast_if("on".__eq__, KINDS))
def test_restored_settings_are_used_and_written_into_the_history(kind, folder):
    path = run_of(folder, kind, training={"lr": 0.01, "adam_epsilon": 1e-8}).path
    settings = {"training.lr": 0.002, "training.adam_epsilon": 1e-5}
    if kind == "on":
        settings["training.entropy_coeff"] = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is asked for is no warning
        result = resume(path, total_steps=64, settings=settings)
    learner = result.policy.learner_group.learner
    assert rate_of(result.policy) == 0.002
    assert next(iter(learner.optimizers)).optimizer.param_groups[0]["eps"] == 1e-5
    if kind == "on":
        assert float(learner.coefficient("default_policy", "entropy_coeff")) == 0.5
    ((step, changes),) = history_of(path)
    assert (step, changes["training.lr"], changes["reporting.total_steps"]) == (STEPS, (0.01, 0.002), (STEPS, 64))
    assert "training.lr=0.002 (was 0.01)" in result.sources[1]
    assert rate_of(resume(path, total_steps=80).policy) == 0.002, "the run keeps them"


def test_an_edited_config_is_used_with_a_warning_and_noted_once(folder):
    path = run_of(folder, training={"lr": 0.01}).path
    edit(path, "training", lr=0.002)
    edit(path, "reporting", total_steps=64)
    with pytest.warns(RuntimeWarning, match=r"config\.json is not as it was .* training\.lr=0\.002 \(was 0\.01\)"):
        trainer = prepare_resume(path).build().trainer
    assert (rate_of(trainer.policy), trainer.steps_in_all) == (0.002, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the process ended before its first checkpoint: known by now
        prepare_resume(path).build()
    assert [step for step, _ in history_of(path)] == [STEPS]


@pytest.mark.parametrize(
    "option, value, words",
    [
        ("rl_module.model_config.hiddens", [8], r"the run has \[4\].*keeps its networks"),
        ("env_runners.num_envs_per_env_runner", 4, "the run has 2.*environments"),
        ("environment.env", "CartPole-v1", "--from RUN"),
        ("environment.normalize_observations", True, "--from RUN"),
        ("debugging.seed", 1, "random numbers"),
        ("framework.dtype", "float64", "networks"),
        ("training.optimizer", "sgd", "the state of its optimizers"),
        ("reporting.loggers", ["jsonl", "tensorboard"], "records"),
        ("evaluation.evaluation_num_envs", 1, "environments"),
        ("training.gamma", 2.0, "between 0 and 1"),
        ("training.lrr", 1.0, "did you mean 'lr'"),
    ],
)
@pytest.mark.parametrize("edited", [False, True])
def test_an_option_that_a_run_keeps_is_refused_by_name_and_nothing_changes(shared_folder, option, value, words, edited):
    if not list(shared_folder.iterdir()):
        run_of(shared_folder)
    (path,) = shared_folder.iterdir()
    kept = (path / "config.json").read_bytes()
    section, _, name = option.partition(".")
    if edited:
        edit(path, section, **({"model_config": {"hiddens": value}} if "." in name else {name: value}))
    before, settings = files_of(path), {} if edited else {option: value}
    try:
        with pytest.raises(ValueError, match=words) as caught:
            resume(path, total_steps=64, settings=settings)
        assert option.rpartition(".")[2] in str(caught.value)
        assert files_of(path) == before
    finally:
        (path / "config.json").write_bytes(kept)


@pytest.mark.parametrize("kind", ["sac", WITH_ATOMS, "ppo"])
def test_options_with_adapted_state_are_named_by_each_algorithm(kind):
    before = get_config(kind).environment("CartPole-v1")
    name = before.first_values[0]
    after = before.copy().training(**{name: 0.75 if kind != WITH_ATOMS else 7})
    with pytest.raises(ValueError, match=rf"training\.{name}=.* what has become of it"):
        check_changes(option_changes(before, after), after.first_values)


def test_planning_the_resume_of_a_finished_run_changes_nothing(folder):
    path = run_of(folder).path
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"scope": "own", "step": 1, "data": {}}\n{"torn')
    before = files_of(path)
    assert prepare_resume(path).is_finished
    assert prepare_resume(path, total_steps=STEPS).is_finished
    assert not prepare_resume(path, total_steps=64).is_finished
    with pytest.raises(ValueError, match=r"total_steps=32 is not allowed; .* has 48 steps already"):
        resume(path, total_steps=32)
    assert files_of(path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_between_its_last_checkpoint_and_its_end_is_finished(kind, folder):
    whole, killed = run_of(folder / "whole", kind), run_of(folder / "killed", kind)
    lines = (killed.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    saved = max(number for number, line in enumerate(lines) if '"scope": "save"' in line)
    (killed.path / "metrics.jsonl").write_text("".join(lines[:saved]))  # as after a kill before the record
    (killed.path / "summary.json").unlink()
    result = resume(killed.path)
    assert (result.info.train_step, result.info.stop_reason) == (STEPS, "max_epoch")
    assert records_of(killed.path) == records_of(whole.path)
    summaries = [RunFolder.open(run.path).read_summary() for run in (whole, killed)]
    assert all(one["final_return"] == -4.0 and one["stop_reason"] == "max_epoch" for one in summaries)
    assert digest(result.policy.get_state()) == digest(whole.policy.get_state())
    assert prepare_resume(killed.path).is_finished


def test_a_run_killed_after_its_score_stopped_it_ends_with_that_reason(folder):
    path = run_of(folder, evaluation={"stop_return": -5.0}).path
    assert RunFolder.open(path).read_summary()["stop_reason"] == "stop_fn"
    assert prepare_resume(path).end_reason is None, "asked for after its end, it goes on"


def test_extending_a_run_by_settings_equals_the_longer_run_bit_for_bit(folder):
    short, whole = run_of(folder / "short"), run_of(folder / "whole", reporting={"total_steps": 64})
    longer = prepare_resume(short.path, total_steps=64).build().trainer
    longer.run()
    assert learned(longer) == digest(whole.policy.get_state())


def test_a_restored_policy_keeps_the_configured_learning_rate_and_says_so(folder):
    policy = config_of("on").training(lr=0.01, entropy_coeff=0.1).build_policy()
    path = policy.save_to_path(folder / "policy")
    other = config_of("on").training(lr=0.002, entropy_coeff=0.3).build_policy()
    with pytest.warns(ConfiguredValueWarning, match=r"learning rate of .* is 0\.002, as configured; .* with 0\.01"):
        other.restore_from_path(path)
    assert rate_of(other) == 0.002
    assert float(other.learner_group.learner.coefficient("default_policy", "entropy_coeff")) == pytest.approx(0.3)
    same = config_of("on").training(lr=0.01, entropy_coeff=0.1).build_policy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.restore_from_path(path)


def test_a_learning_rate_set_by_hand_survives_an_equal_configuration(folder):
    policy, again = (config_of("on").training(lr=0.01).build_policy() for _ in range(2))
    next(iter(policy.learner_group.learner.optimizers)).set_lr(0.123)
    again.restore_from_path(policy.save_to_path(folder / "policy"))
    assert rate_of(again) == 0.123
