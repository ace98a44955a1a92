"""What `doctor` makes of records: whether a run learns, what it refuses, what it leaves alone."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import lockstep
from lockstep import PPOConfig
from lockstep.diagnosis import findings
from lockstep.diagnosis.records import RunRecords
from lockstep.tracking import RunFolder, RunFolderError


def record(scope, step, **data):
    """One line of metrics.jsonl."""
    kind = {"update": "gradient_step", "info": "epoch"}.get(scope, "env_step")
    return {"scope": scope, "step_type": kind, "step": step, "wall_s": 0.0, "data": data}


def returns(step, mean, std=10.0, count=20, scope="test"):
    """The record of some episodes."""
    of = {"mean": mean, "std": std, "min": mean - std, "max": mean + std, "count": count}
    values = {f"returns_stat/{name}": value for name, value in of.items()}
    return record(scope, step, n_collected_episodes=count, **values, **{"lens_stat/mean": 100.0})


def written(root, records, config=None, env="Nowhere-v0"):
    """A run's folder with these records."""
    config = config or PPOConfig().environment(env)
    folder = RunFolder.create(root, algo=config.algorithm, env=env, seed=0, config=config.named_options())
    folder.metrics_path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return folder.path


CURVES = [
    ([10, 20, 60, 100, 150, 200], None, True),
    ([10, 12, 9, 11, 10, 12], None, False),
    ([10, 200, 200, 100, 30, 20], None, False),
    ([10, 60, 100, 100, 100, 100], None, True),
    ([10, 60, 100, 100, 100, 100], 475, False),
    ([10, 20, 60, 100, 150, 200], 475, True),
    ([500, 500, 500, 500, 500, 500], 475, True),
    ([10], None, None),
    ([], None, None),
]


@pytest.mark.parametrize(("curve", "expected", "learns"), CURVES)
def test_a_run_learns_where_it_gains_and_has_not_stopped_short(curve, expected, learns, tmp_path):
    path = written(tmp_path, [returns(1000 * k, mean) for k, mean in enumerate(curve)] or [record("save", 0)])
    assert lockstep.doctor(path, expected_return=expected).learns is learns


def test_the_expected_return_is_that_of_the_run_or_of_gymnasium(tmp_path):
    records = [returns(0, 1.0)]
    assert RunRecords(written(tmp_path, records)).expected_return() is None
    assert RunRecords(written(tmp_path, records, env="CartPole-v1")).expected_return() == 475
    config = PPOConfig().environment("CartPole-v1").evaluation(stop_return=200.0)
    assert RunRecords(written(tmp_path, records, config, "CartPole-v1")).expected_return() == 200


def test_training_episodes_tell_where_nothing_is_evaluated(tmp_path):
    path = written(tmp_path, [returns(1000 * k, 10.0 + 50 * k, scope="train") for k in range(5)])
    found = lockstep.doctor(path)
    assert found.learns
    assert found.progress.startswith("5 records of training: mean return 10 at step 0, 210 at step 4,000")


STUCK = [returns(1000 * k, 10.0, scope="train") for k in range(5)]
CLIPPED = {"gradients_default_optimizer_share_clipped": 0.95, "gradients_default_optimizer_global_norm": 5.0}


def test_symptoms_are_findings_only_if_a_run_does_not_learn(tmp_path):
    update, config = record("update", 100, **CLIPPED), PPOConfig().environment("Nowhere-v0").training(grad_clip=0.5)
    (found,) = lockstep.doctor(written(tmp_path, [*STUCK, update], config)).findings
    assert (found.code, found.in_words) == ("clipped_gradients", "possible")
    assert "95% of gradients were longer than training.grad_clip=0.5, 10 times as long" in found.evidence
    better = [returns(1000 * k, 10.0 + 50 * k, scope="train") for k in range(5)]
    assert lockstep.doctor(written(tmp_path, [*better, update], config)).findings == ()


def test_the_most_certain_finding_comes_first(tmp_path):
    update = record("update", 100, vf_loss=1e12, default_optimizer_learning_rate=0.0, **CLIPPED)
    found = lockstep.doctor(written(tmp_path, [*STUCK, update])).findings
    assert [each.code for each in found] == ["zero_learning_rate", "value_explodes", "clipped_gradients"]
    assert [each.certainty for each in found] == sorted((each.certainty for each in found), reverse=True)


def test_a_run_that_has_not_begun_to_learn_yet_has_no_finding(tmp_path):
    config = lockstep.DQNConfig().environment("Nowhere-v0").reporting(total_steps=50_000)
    path = written(tmp_path, [returns(step, 10.0, scope="train") for step in (400, 800)], config)
    assert lockstep.doctor(path).findings == ()
    RunFolder.open(path).write_summary({"stop_reason": "interrupted"})
    assert lockstep.doctor(path).findings[0].code == "never_started"


def test_what_cannot_be_looked_at_is_said(tmp_path):
    found = lockstep.doctor(written(tmp_path, STUCK))
    assert found.note == "it has no intact checkpoint"
    assert found.lines()[-1] == "Networks and rewards were not looked at closely: it has no intact checkpoint."


def test_refused_runs_are_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"no run at .*nothing: it has no config.json"):
        lockstep.doctor(tmp_path / "nothing")
    path = written(tmp_path, [])
    with pytest.raises(RunFolderError, match=f"the run in {path} is empty: metrics.jsonl has no record"):
        lockstep.doctor(path)
    (path / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"has no metrics\.jsonl"):
        lockstep.doctor(path)
    with pytest.raises(ValueError, match="expected_return='high' is not allowed"):
        lockstep.doctor(path, expected_return="high")


def test_the_folder_stays_as_it_is_and_the_answer_too(tmp_path):
    settings = {"training.train_batch_size": 512, "reporting.steps_per_epoch": 512}
    path = lockstep.train("ppo", "CartPole-v1", total_steps=1024, root=tmp_path, settings=settings).path
    before = {file: file.read_bytes() for file in sorted(Path(path).rglob("*")) if file.is_file()}
    assert lockstep.doctor(path) == lockstep.doctor(path)
    assert {file: file.read_bytes() for file in sorted(Path(path).rglob("*")) if file.is_file()} == before
    assert lockstep.doctor(path, play=False).note == "the environment was not played"


def test_the_share_of_clipped_gradients_is_counted_over_gradient_steps():
    config = PPOConfig().environment("CartPole-v1").training(grad_clip=3.7, train_batch_size=64, minibatch_size=16)
    trainer = config.build_trainer()
    trainer.training_step()
    series = trainer.policy.learner_group.learner.last_series
    norms = series["default_policy", "gradients_default_optimizer_global_norm"]
    assert len(norms) == 4 * config.training.num_epochs
    found = trainer.policy.last_results["default_policy"]["gradients_default_optimizer_share_clipped"]
    assert 0.0 < found < 1.0
    assert found == np.mean(np.array(norms) > 3.7)


def test_the_page_has_every_finding():
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    codes = re.findall(r'RunFinding\(\s*"(\w+)"', Path(findings.__file__).read_text())
    assert len(codes) == 13
    assert sorted(re.findall(r"^\| `(\w+)` \|.*\|.*\|.*\|$", page, re.MULTILINE)) == sorted(codes)
