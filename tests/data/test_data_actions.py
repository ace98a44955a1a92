"""Actions as learned from and as an environment takes them."""

import numpy as np
import pytest
from gymnasium import spaces

from lockstep.data.actions import ActionForm
from lockstep.state import read_checkpoint, write_checkpoint

PENDULUM = spaces.Box(-2.0, 2.0, (1,), np.float32)
UNEVEN = spaces.Box(np.array([[-2.0, 0.0], [1.0, 5.0]]), np.array([[4.0, 1.0], [1.0, 9.0]]), dtype=np.float64)
SAME = [
    (PENDULUM, False),
    (spaces.Box(-1.0, 1.0, (3,), np.float32), True),
    (spaces.Discrete(4), False),
    (spaces.MultiDiscrete([3, 2]), False),
    (spaces.MultiBinary(4), False),
]
APART = [
    (PENDULUM, True, [[-1.0], [0.5]], [[-2.0], [1.0]]),
    (UNEVEN, True, [[-1.0, 0.0, 0.0, 1.0]], [[[-2.0, 0.5], [1.0, 9.0]]]),
    (spaces.Box(-1.0, 1.0, (2, 2), np.float32), True, [[-1.0, 0.5, 0.0, 1.0]], [[[-1.0, 0.5], [0.0, 1.0]]]),
    (spaces.Box(-3.0, 3.0, (), np.float32), False, [[-2.5], [1.0]], [-2.5, 1.0]),
    (spaces.Discrete(3, start=5), False, [0, 2], [5, 7]),
    (spaces.MultiDiscrete([3, 2], start=[1, -1]), False, [[0, 1], [2, 0]], [[1, 0], [3, -1]]),
    (spaces.MultiDiscrete([[3, 2]]), False, [[0, 1]], [[[0, 1]]]),
    (spaces.MultiBinary((2, 2)), False, [[0, 1, 1, 0]], [[[0, 1], [1, 0]]]),
]


@pytest.mark.parametrize(("space", "rescaled"), SAME)
def test_where_nothing_sets_them_apart_there_is_no_form(space, rescaled):
    assert ActionForm.of(space, rescaled) is None


@pytest.mark.parametrize(("space", "rescaled", "learned", "taken"), APART)
def test_actions_become_those_of_the_environment_and_back(space, rescaled, learned, taken):
    form = ActionForm.of(space, rescaled)
    learned, taken = np.array(learned, space.dtype), np.array(taken, space.dtype)
    np.testing.assert_allclose(form.to_env(learned), taken)
    assert form.to_env(learned).dtype == space.dtype
    assert all(space.contains(one) for one in form.to_env(learned)) or space.shape == ()
    np.testing.assert_allclose(form.from_env(taken), learned)


@pytest.mark.parametrize(("space", "rescaled", "learned", "taken"), APART)
def test_a_form_in_a_checkpoint_is_the_same_again(space, rescaled, learned, taken, tmp_path):
    form = ActionForm.of(space, rescaled)
    write_checkpoint(tmp_path / "form", {"": {"form": form.get_state()}})
    again = ActionForm.from_state(read_checkpoint(tmp_path / "form")[""]["form"])
    assert again == form
    assert again is not form
    assert again != ActionForm(spaces.Discrete(2))
    assert ActionForm.from_state(None) is None
