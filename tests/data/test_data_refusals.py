"""What is given wrongly is named: column, row, agent or argument, what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.data import MultiAgentBatch, SampleBatch, SingleAgentEpisode, concat_samples


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


def padded(length: int) -> SampleBatch:
    return batch(seq_lens=[3, 1]).right_zero_pad(length)


WINDOW = SimpleNamespace(data_col=None, shift_from=-3)


def episode() -> SingleAgentEpisode:
    return SingleAgentEpisode.from_sample_batch(batch())


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: SampleBatch(obs=np.zeros((3, 2)), actions=np.zeros(2)), ValueError, "'obs' and 'actions' have 3 and"),
        (lambda: SampleBatch(obs={"x": np.zeros(3), "y": np.zeros(2)}), ValueError, "'obs/x' and 'obs/y' have 3 and 2"),
        (lambda: SampleBatch(actions={1, 2}), TypeError, "'actions' is a set"),
        (lambda: SampleBatch(actions=None), TypeError, "'actions' is a NoneType"),
        (lambda: SampleBatch(obs=[[1, 2], [3]]), ValueError, "row 1 has shape (1,), row 0 has (2,)"),
        (lambda: SampleBatch(obs=[np.zeros(2), np.zeros(2), np.zeros(3)]), ValueError, "row 2 has shape (3,)"),
        (lambda: SampleBatch({1: np.zeros(2)}), TypeError, "column names are strings"),
        (lambda: batch().__setitem__(1, np.zeros(4)), TypeError, "column names are strings"),
        (lambda: batch().update({2: np.zeros(4)}), TypeError, "column names are strings"),
        (lambda: batch()["values"], KeyError, "no column 'values'; columns are"),
        (lambda: batch(seq_lens=[5, -1]), ValueError, "seq_lens must be one length"),
        (lambda: batch(seq_lens=[1.5, 2.5]), ValueError, "seq_lens must be one length"),
        (lambda: batch(seq_lens=[1, 2]), ValueError, "4 rows, seq_lens sum to 3"),
        (lambda: concat_samples([batch(), {}]), TypeError, "position 1 is a dict"),
        (lambda: concat_samples([padded(4), padded(5)]), ValueError, "max_seq_len is 4 at position 0 and 5"),
        (lambda: concat_samples([padded(4).unpad(), padded(4)]), ValueError, "zero_padded is False at position 0"),
        (lambda: concat_samples([batch(), batch().to_torch()]), TypeError, "is a torch tensor in the batches at [1]"),
        (lambda: concat_samples([batch(), batch(obs=np.zeros((4, 3)))]), ValueError, "'obs' cannot be joined"),
        (lambda: concat_samples([batch(obs={"x": [1] * 4}), batch(obs={"y": [1] * 4})]), ValueError, "'obs' is a dict"),
        (lambda: batch()[[0, 4]], IndexError, "row 4 is outside of 4 rows"),
        (lambda: batch()[np.array([True] * 3)], IndexError, "the mask has 3 entries"),
        (lambda: batch()[3], TypeError, "not by 3"),
        (lambda: batch()[["a", "b"]], TypeError, "rows are picked by"),
        (lambda: batch().timeslices(), ValueError, "exactly one of size and num_slices"),
        (lambda: batch().timeslices(3, 2), ValueError, "exactly one of size and num_slices"),
        (lambda: batch().timeslices(0), ValueError, "size=0"),
        (lambda: padded(2), ValueError, "max_seq_len=2"),
        (lambda: batch().right_zero_pad(4), ValueError, "no column 'seq_lens'"),
        (lambda: batch().get_single_step_input_dict(index=4), IndexError, "row 4 is outside"),
        (lambda: batch().get_single_step_input_dict({"nothing": None}), KeyError, "no column 'nothing'"),
        (lambda: batch().get_single_step_input_dict({"obs": WINDOW}), ValueError, "several rows (shift_from=-3)"),
        (lambda: MultiAgentBatch({"p": {}}, 4), TypeError, "module 'p' has a dict"),  # type: ignore[dict-item]
        (lambda: MultiAgentBatch({"p": batch()}, -1), ValueError, "env_steps=-1"),
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
