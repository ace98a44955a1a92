"""The table of the columns that losses read: each row is refused by its name, shape and values."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from learner_parts import BOX, MODULE, ppo_config

from lockstep.learner.inputs import LOSS_INPUTS, check_columns, check_read

SHAPED = [name for name, each in LOSS_INPUTS.items() if each.row_shape is not None]


@pytest.fixture(scope="module")
def module():
    return ppo_config().build_learner().module[MODULE]


def columns(**more):
    shapes = dict.fromkeys(SHAPED, ()) | {"obs": BOX.shape}
    return {name: torch.zeros(4, *shape) for name, shape in shapes.items()} | more


def test_columns_of_the_shapes_in_the_table_are_accepted(module):
    assert check_columns(columns(), SHAPED, module, MODULE, "AnyLearner") is None


@pytest.mark.parametrize("name", SHAPED)
def test_a_column_of_another_shape_is_refused_by_name(name, module):
    wrong = columns()[name].unsqueeze(-1)
    with pytest.raises(ValueError, match=rf"column {name!r} has shape \(4, .*, expected \(4"):
        check_columns(columns(**{name: wrong}), SHAPED, module, MODULE, "AnyLearner")


@pytest.mark.parametrize("name", LOSS_INPUTS)
def test_a_column_that_is_not_there_is_refused_by_name(name, module):
    present = {key: value for key, value in columns().items() if key != name}
    with pytest.raises(KeyError, match=rf"lacks \['{name}'\]"):
        check_columns(present, [name], module, MODULE, "AnyLearner")


def test_actions_outside_the_space_are_refused_and_masked_ones_are_not(module):
    actions, mask = torch.tensor([0, 1, 2, 3]), torch.tensor([True, True, True, False])
    assert check_columns(columns(actions=actions, loss_mask=mask), SHAPED, module, MODULE, "AnyLearner") is None
    with pytest.raises(ValueError, match=r"'actions' has 3 at row 3; allowed are whole numbers 0 to 2"):
        check_columns(columns(actions=actions), SHAPED, module, MODULE, "AnyLearner")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("wrong", [-1, -128, 3, 127])
def test_an_action_out_of_range_is_refused_in_every_integer_type(module, dtype, wrong):
    actions = torch.tensor([0, 2, wrong, 1], dtype=dtype)
    with pytest.raises(ValueError, match=rf"'actions' has {wrong} at row 2"):
        check_columns(columns(actions=actions), SHAPED, module, MODULE, "AnyLearner")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_unsigned_actions_are_accepted(module, dtype):
    actions = torch.tensor([0, 1, 1, 0], dtype=dtype)
    assert check_columns(columns(actions=actions), SHAPED, module, MODULE, "AnyLearner") is None


def test_every_batch_is_checked_and_by_the_spaces_and_columns_of_now():
    module = ppo_config().build_learner().module[MODULE]
    for _ in range(2):
        check_columns(columns(), SHAPED, module, MODULE, "AnyLearner")
        with pytest.raises(ValueError, match=r"'rewards' has shape \(4, 1\)"):
            check_columns(columns(rewards=torch.zeros(4, 1)), SHAPED, module, MODULE, "AnyLearner")
    odd = columns(rewards=torch.zeros(4, 1))
    without = [name for name in SHAPED if name != "rewards"]
    assert check_columns(odd, without, module, MODULE, "AnyLearner") is None
    module.action_space = Discrete(9)
    assert check_columns(columns(actions=torch.full((4,), 8)), SHAPED, module, MODULE, "AnyLearner") is None
    module.observation_space = Box(-1, 1, (7,))
    with pytest.raises(ValueError, match=r"'obs' has shape .*, expected \(4, 7\)"):
        check_columns(columns(), SHAPED, module, MODULE, "AnyLearner")


@pytest.mark.parametrize("name", [name for name, each in LOSS_INPUTS.items() if each.from_network])
def test_missing_outputs_are_reported_as_those_of_the_network(name):
    with pytest.raises(ValueError, match=f"AnyLearner needs what AnyNet.forward_train does not return: {name}"):
        check_read(name, {MODULE: {"logits": 1}}, {MODULE: {"obs": np.zeros(4)}}, {MODULE: "AnyNet"}, "AnyLearner")
