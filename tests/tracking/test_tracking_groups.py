"""Runs in groups: what differs, what it is called, what is refused."""

from pathlib import Path

import pytest
from tracked_runs import make_run

from lockstep.analysis.run_groups import differing_options, group_runs, open_runs
from lockstep.tracking import RunFolder


def labels(runs: list[RunFolder], **options) -> list[tuple[str, int]]:
    return [(group.label, len(group.runs)) for group in group_runs(runs, **options)]


def test_seeds_are_no_difference_and_algorithms_never_mix(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, algo, seed=seed) for algo in ("ppo", "a2c") for seed in range(2)]
    assert labels(runs) == [("PPO", 2), ("A2C", 2)]
    assert labels(runs, group_by=["training.lr"]) == [("PPO lr=0.001", 2), ("A2C lr=0.001", 2)]


def test_all_that_differs_within_an_environment_is_named(tmp_path: Path) -> None:
    model = {"model_config": {"hiddens": [64, 64]}}
    runs = [
        make_run(tmp_path, lr=1e-3, rl_module=model),
        make_run(tmp_path, lr=3e-5, rl_module=model),
        make_run(tmp_path, lr=3e-5, rl_module={"model_config": {"hiddens": [8]}}),
        make_run(tmp_path, env="Acrobot-v1", lr=1e-3, rl_module=model, reporting={"total_steps": 9}),
    ]
    assert differing_options(runs[:3]) == ["training.lr", "rl_module.model_config.hiddens"]
    assert labels(runs) == [
        ("PPO lr=0.001, hiddens=[64, 64]", 2),
        ("PPO lr=3e-05, hiddens=[64, 64]", 1),
        ("PPO lr=3e-05, hiddens=[8]", 1),
    ], "that a task has other steps is no difference between runs of one task"
    assert labels(runs, group_by=["training.lr"]) == [("PPO lr=0.001", 2), ("PPO lr=3e-05", 2)]


def test_options_of_one_name_get_their_sections(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, lr=value, replay={"lr": value}) for value in (1, 2)]
    assert labels(runs) == [("PPO training.lr=1, replay.lr=1", 1), ("PPO training.lr=2, replay.lr=2", 1)]


def test_initial_weights_and_later_changes_are_differences(tmp_path: Path) -> None:
    runs = [make_run(tmp_path), make_run(tmp_path), make_run(tmp_path)]
    runs[1].info["init_from"] = "runs/old"
    config = {**runs[2].config, "training": {"lr": 0.5}}
    changes = {"training.lr": {"before": 0.001, "after": 0.5}}
    runs[2].record_changes(config, {"step": 2000, "time": "", "changes": changes})
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["PPO 1", "PPO 2", "PPO 3"]
    assert [group.settings for group in groups] == [
        "lr=0.001, no init_from, no changed",
        "lr=0.001, init_from=runs/old, no changed",
        "lr=0.5, no init_from, changed=training.lr=0.5 from step 2000",
    ]


def test_an_own_class_has_its_name_and_a_default_none(tmp_path: Path) -> None:
    own = {"__import__": "a_long_package.of_mine:Mine"}
    network = {"model_config": {"encoder": {"__import__": "networks:SetTransformer"}}}
    runs = [
        make_run(tmp_path, rl_module={"model_config": {"encoder": None}}, learners={"learner_class": None}),
        make_run(tmp_path, rl_module={"model_config": {"encoder": None}}, learners={"learner_class": own}),
        make_run(tmp_path, rl_module=network, learners={"learner_class": None}),
    ]
    assert [label for label, _ in labels(runs)] == ["PPO", "PPO learner=Mine", "PPO encoder=SetTransformer"]


def test_many_options_become_a_number_and_settings(tmp_path: Path) -> None:
    values = [{"gamma": 0.9 + step / 100, "lambda_": 0.123456789 * step, "num_epochs": step} for step in (1, 2)]
    runs = [
        make_run(tmp_path, replay=each, learners={"some_long_name_of_an_option": 1e-4 * number})
        for number, each in enumerate(values)
    ]
    runs.append(make_run(tmp_path, "a2c"))
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["PPO 1", "PPO 2", "A2C"]
    assert groups[0].settings == "gamma=0.91, lambda_=0.123457, num_epochs=1, some_long_name_of_an_option=0"
    with pytest.raises(ValueError, match=r"2 labels for 3 groups.*PPO gamma=0\.91.*an_option=0\.0001"):
        group_runs(runs, labels=["a", "b"])


def test_the_signature_of_a_file_is_not_an_option(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, signature=text) for text in ("a", "b")]
    assert labels([RunFolder.open(run.path) for run in runs]) == [("PPO", 2)]


def test_an_option_with_parts_is_compared_part_by_part(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, environment={"env_config": options}) for options in ({}, {"gravity": 3})]
    assert [label for label, _ in labels(runs)] == ["PPO no gravity", "PPO gravity=3"]


def test_labels_that_are_given_are_one_for_each_group(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, lr=lr) for lr in (1, 2)]
    assert [label for label, _ in labels(runs, labels=["slow", "fast"])] == ["slow", "fast"]
    with pytest.raises(ValueError, match=r"1 labels for 2 groups of runs; .*: PPO lr=1; PPO lr=2"):
        group_runs(runs, labels=["slow"])


def test_long_values_are_cut_but_stay_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, lr=[[0, 1e-3]] * 20 + [[last, 0]]) for last in (1, 2)]
    first, second = (label for label, _ in labels(runs))
    assert len(first) < 60
    assert second == f"{first} (2)"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("lr", "did you mean 'training.lr'?"),
        ("training.lrr", "did you mean 'training.lr'?"),
        ("xyz", "these differ: training.lr"),
    ],
)
def test_unknown_options_to_group_by_are_answered_with_known_ones(tmp_path: Path, path: str, message: str) -> None:
    runs = [make_run(tmp_path, lr=lr) for lr in (1, 2)]
    with pytest.raises(ValueError, match=f"no run has an option '{path}' to group by; ") as error:
        group_runs(runs, group_by=[path])
    assert message in str(error.value)


def test_folders_are_opened_once_each(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert [found.path for found in open_runs(run.path)] == [run.path]
    with pytest.raises(ValueError, match="is given twice"):
        open_runs([run.path, run.path])
    with pytest.raises(ValueError, match="at least one run's folder"):
        open_runs([])
    (run.path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        open_runs(run.path)


def test_a_folder_of_runs_stands_for_its_evaluated_runs(tmp_path: Path) -> None:
    evaluated = [make_run(tmp_path, seed=seed) for seed in range(2)]
    begun = make_run(tmp_path, seed=2)
    begun.metrics_path.write_text("")
    with pytest.warns(UserWarning, match=f"left out: {begun.path.name}"):
        runs = open_runs(tmp_path)
    assert [run.path for run in runs] == sorted(run.path for run in evaluated)

    with pytest.raises(ValueError, match=r"none of the 3 runs .* has a record of 'update' yet"):
        open_runs(tmp_path, scope="update")
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="is given twice"):
        open_runs([tmp_path, evaluated[0].path])


def test_lock_files_and_a_return_to_stop_at_are_no_runs_and_no_difference(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, evaluation={"stop_return": value}).path for value in (None, 475)]
    lock = tmp_path / "trial_0000.lock"
    lock.touch()
    assert labels(open_runs([*runs, lock])) == [("PPO", 2)]
