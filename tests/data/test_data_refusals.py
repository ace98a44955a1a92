"""What is given wrongly is named: column, row, agent or argument, what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lockstep.data import MultiAgentBatch, SampleBatch, SingleAgentEpisode


def batch(**changed: Any) -> SampleBatch:
    columns = {
        "obs": np.arange(4.0),
        "new_obs": np.arange(1.0, 5.0),
        "actions": np.array([0, 1, 0, 1]),
        "rewards": np.ones(4, np.float32),
        "terminateds": np.zeros(4, bool),
        "truncateds": np.zeros(4, bool),
        "eps_id": np.array(["a"] * 4),
        "t": np.arange(4),
    }
    return SampleBatch({**columns, **changed})


def episode() -> SingleAgentEpisode:
    return SingleAgentEpisode.from_sample_batch(batch())


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: SampleBatch([1, 2]), TypeError, "cannot convert dictionary"),
        (lambda: SampleBatch(actions=[None, 1]), TypeError, "column 'actions', row 0: None does not go"),
        (lambda: SampleBatch(actions=["x", 1]), TypeError, "column 'actions', row 1: 1 does not go"),
        (lambda: SampleBatch(obs=[{"s": [1, 2]}, {"s": [1]}]), ValueError, "the rows of 'obs/s' cannot be stacked"),
        (lambda: batch().timeslices(2.5), ValueError, "size=2.5"),
        (lambda: batch().timeslices(num_slices=0), ValueError, "num_slices=0"),
        (lambda: batch().to_device("nowhere"), RuntimeError, "nowhere"),
        (lambda: MultiAgentBatch({1: batch()}, 4), TypeError, "module 1 has a SampleBatch; each module id, a string"),  # type: ignore[dict-item]
        (lambda: episode().cut(1.5), ValueError, "len_lookback_buffer=1.5"),  # type: ignore[arg-type]
        (lambda: episode().cut(-1), ValueError, "len_lookback_buffer=-1"),
        (lambda: episode().slice(slice(1, 3), len_lookback_buffer=-2), ValueError, "len_lookback_buffer=-2"),
        (lambda: episode().concat_episode(3), TypeError, "concat_episode takes a SingleAgentEpisode, not 3"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_refused_by_name(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert words in str(raised.value)


def test_rows_that_are_no_run_of_steps_make_no_episode() -> None:
    with pytest.raises(ValueError, match="column 't', row 2: 5 does not follow 1"):
        SingleAgentEpisode.from_sample_batch(batch(t=np.array([0, 1, 5, 6])))
    with pytest.raises(ValueError, match="column 'new_obs', row 1 is not column 'obs', row 2"):
        SingleAgentEpisode.from_sample_batch(batch(new_obs=np.array([1.0, 9.0, 3.0, 4.0])))


def test_a_nan_in_the_observations_follows_itself() -> None:
    obs = np.array([0.0, np.nan, 2.0, 3.0])
    made = SingleAgentEpisode.from_sample_batch(batch(obs=obs, new_obs=np.array([np.nan, 2.0, 3.0, 4.0])))
    np.testing.assert_array_equal(made.get_observations(), [0.0, np.nan, 2.0, 3.0, 4.0])


def test_whole_numbers_as_new_rewards_stay_what_rewards_are() -> None:
    made = episode()
    made.set_rewards(new_data=[1, 2, 3, 4])
    assert made.get_rewards().dtype == np.float32
    assert made.get_rewards().tolist() == [1, 2, 3, 4]


def test_texts_are_shown_as_texts() -> None:
    assert "head=['a', 'a', 'a', ...]" in batch().summary()


def test_an_array_of_objects_is_taken_as_it_is() -> None:
    objects = np.array([None, {"a": 1}], dtype=object)
    assert SampleBatch(rewards=[0.0, 1.0], notes=objects)["notes"] is objects
