"""Batches that do not fit: the message names module, column, what was given, what was expected, what to override."""

import numpy as np
import pytest
from gymnasium import spaces
from learner_parts import (
    MODULE,
    ValueLearner,
    assert_same,
    parameters,
    ppo_batch,
    ppo_config,
    spec,
    value_batch,
    value_learner,
)

from lockstep import A2CConfig
from lockstep.learner.config import TrainingSection

ROWS = 24


@pytest.mark.parametrize(
    "column, wrong, given, expected",
    [
        ("obs", np.zeros((ROWS, 4), np.float32), (ROWS, 4), (ROWS, 3)),
        ("obs", np.zeros(ROWS, np.float32), (ROWS,), (ROWS, 3)),
        ("obs", np.zeros((ROWS, 1, 3), np.float32), (ROWS, 1, 3), (ROWS, 3)),
        ("actions", np.zeros((ROWS, 1), np.int64), (ROWS, 1), (ROWS,)),
        ("advantages", np.zeros((ROWS, 1)), (ROWS, 1), (ROWS,)),
        ("value_targets", np.zeros((ROWS, 2)), (ROWS, 2), (ROWS,)),
        ("action_logp", np.zeros((ROWS, 3)), (ROWS, 3), (ROWS,)),
    ],
)
def test_column_of_a_wrong_shape_names_module_column_given_expected_and_method(column, wrong, given, expected):
    learner, batch = ppo_config().build_learner(), ppo_batch(ROWS)
    before = parameters(learner)
    batch[column] = wrong
    with pytest.raises(ValueError) as refused:
        learner.update_from_batch(batch)
    for part in (f"module {MODULE!r}", f"column {column!r}", f"shape {given}", f"expected {expected}",
                 "PPOLearner.required_columns", "PPOLearner.compute_loss_for_module"):  # fmt: skip
        assert part in str(refused.value)
    assert_same(parameters(learner), before)
    assert learner.weights_seq_no == 0


@pytest.mark.parametrize(
    "space, shape", [(spaces.Box(-1, 1, (2,), np.float32), (ROWS, 2)), (spaces.MultiDiscrete([2, 3]), (ROWS, 2))]
)
def test_actions_must_be_of_the_action_spaces_shape(space, shape):
    config = A2CConfig().environment(observation_space=spaces.Box(-1, 1, (3,), np.float32), action_space=space)
    learner, batch = config.rl_module(model_config={"hiddens": (4,)}).build_learner(), ppo_batch(ROWS)
    with pytest.raises(ValueError, match=rf"'actions' has shape \({ROWS},\), expected \({ROWS}, 2\)"):
        learner.update_from_batch(batch)
    batch["actions"] = np.zeros(shape, np.float32 if isinstance(space, spaces.Box) else np.int64)
    assert learner.update_from_batch(batch)[MODULE]["num_module_steps_trained"] == ROWS


class OwnColumns(ValueLearner):
    """Takes two targets for each row, and says so."""

    def required_columns(self, module_id):
        return ("obs",)

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return self.masked_mean((fwd_out["vf_preds"] - batch["value_targets"].mean(-1)).square(), batch)


def test_loss_with_columns_of_its_own_says_so_by_overriding_the_two_methods():
    batch = value_batch()
    batch["value_targets"] = np.stack([batch["value_targets"]] * 2, -1)
    own, plain = value_learner(OwnColumns), value_learner()
    own.update_from_batch(batch)
    plain.update_from_batch(value_batch())
    for first, second in zip(parameters(own).values(), parameters(plain).values()):
        np.testing.assert_allclose(first, second, atol=1e-12)


@pytest.mark.parametrize(
    "use",
    [
        lambda learner: learner.update_from_batch(value_batch()),
        lambda learner: learner.update_from_episodes([]),
        lambda learner: learner.get_state(),
        lambda learner: learner.set_state({}),
        lambda learner: learner.save_to_path("somewhere"),
        lambda learner: learner.restore_from_path("somewhere"),
        lambda learner: learner.add_module(module_id="b", module_spec=spec()),
        lambda learner: learner.remove_module("b"),
        lambda learner: learner.get_optimizers_for_module("b"),
    ],
)
def test_everything_of_an_unbuilt_learner_raises_runtime_error(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value_learner().save_to_path("somewhere")
    learner = ValueLearner(config=TrainingSection(), module_spec=spec())
    with pytest.raises(RuntimeError, match=r"this learner is not built; call build\(\) first"):
        use(learner)
