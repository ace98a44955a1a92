"""Contract, section 3: `MultiAgentBatch`."""

import numpy as np
import pytest
import torch

from lockstep.data import MultiAgentBatch, SampleBatch, concat_samples_into_ma_batch, convert_ma_batch_to_sample_batch


def part(rows, offset=0):
    return SampleBatch(a=np.arange(rows) + offset)


def make():
    return MultiAgentBatch({"p": part(4), "q": part(2, 10)}, 5)


def test_counts_steps_of_the_environment_and_of_agents():
    batch = make()
    assert len(batch) == batch.count == batch.env_steps() == 5
    assert batch.agent_steps() == 6


def test_reading_by_module_id():
    batch = make()
    assert list(batch) == ["p", "q"]
    assert batch["q"]["a"].tolist() == [10, 11]
    assert "p" in batch
    assert "r" not in batch


def test_timeslices_align_modules_on_episode_and_t():
    first = SampleBatch(a=np.arange(5), eps_id=["z", "z", "z", "b", "b"], t=[0, 1, 2, 0, 1])
    late = SampleBatch(a=np.arange(3) + 10, eps_id=["z", "z", "b"], t=[2, 3, 1])
    slices = MultiAgentBatch({"p": first, "q": late}, 6).timeslices(2)
    got = [{module: piece[module]["a"].tolist() for module in piece} for piece in slices]
    assert got == [{"p": [0, 1]}, {"p": [2], "q": [10, 11]}, {"p": [3, 4], "q": [12]}]
    assert [piece.env_steps() for piece in slices] == [2, 2, 2]
    odd = MultiAgentBatch({"p": first, "q": late}, 6).timeslices(4)
    assert [piece.env_steps() for piece in odd] == [4, 2]
    assert MultiAgentBatch({}, 0).timeslices(3) == []


def test_timeslices_gather_rows_that_are_out_of_order():
    batch = SampleBatch(a=np.arange(4), eps_id=[0, 0, 0, 0], t=[2, 0, 3, 1])
    slices = MultiAgentBatch({"p": batch}, 4).timeslices(2)
    assert [piece["p"]["a"].tolist() for piece in slices] == [[1, 3], [0, 2]]


@pytest.mark.parametrize("layout", ["flat", "padded", "time_major"])
def test_timeslices_keep_sequences_whole_in_the_slice_of_their_last_row(layout):
    first = SampleBatch(
        a=np.arange(6), eps_id=[0] * 6, t=np.arange(6), seq_lens=[2, 3, 0, 1], state_in=np.array([0.0, 2.0, 9.0, 5.0])
    )
    second = SampleBatch(a=np.arange(4) + 10, eps_id=[0] * 4, t=[0, 1, 4, 5])
    if layout != "flat":
        first.right_zero_pad(3)
    if layout == "time_major":
        steps = {name: first[name].reshape(4, 3).T for name in ("a", "eps_id", "t")}
        first = SampleBatch({**first, **steps}, _time_major=True)
    slices = MultiAgentBatch({"p": first, "q": second}, 6).timeslices(2)
    got = [{module: piece[module].copy(shallow=True).unpad()["a"].tolist() for module in piece} for piece in slices]
    assert got == [{"p": [0, 1], "q": [10, 11]}, {"p": [2, 3, 4, 5], "q": [12, 13]}]
    assert [piece["p"]["seq_lens"].tolist() for piece in slices] == [[2], [3, 1]]
    assert [piece["p"]["state_in"].tolist() for piece in slices] == [[0.0], [2.0, 5.0]]
    assert [piece.env_steps() for piece in slices] == [2, 4]


def test_wrap_as_needed_keeps_a_lone_default_module_plain():
    batch = part(3)
    assert MultiAgentBatch.wrap_as_needed({"default_policy": batch}, 3) is batch
    assert isinstance(MultiAgentBatch.wrap_as_needed({"p": batch}, 3), MultiAgentBatch)


def test_concat_samples_adds_environment_steps_and_joins_modules():
    joined = MultiAgentBatch.concat_samples([make(), MultiAgentBatch({"q": part(1, 20), "r": part(1)}, 2), part(3)])
    assert joined.env_steps() == 10
    assert joined["q"]["a"].tolist() == [10, 11, 20]
    assert sorted(joined) == ["default_policy", "p", "q", "r"]
    assert len(concat_samples_into_ma_batch([])) == 0


def test_copy_to_device_and_size():
    batch = make()
    deep, shallow = batch.copy(), batch.copy(shallow=True)
    batch["p"]["a"][0] = 99
    assert deep["p"]["a"][0] == 0
    assert shallow["p"]["a"][0] == 99
    assert deep.env_steps() == 5
    assert batch.size_bytes() == 6 * 8
    assert deep.to_device("cpu") is deep
    assert isinstance(deep["q"]["a"], torch.Tensor)


def test_as_multi_agent_is_itself_and_repr_shows_modules():
    batch = make()
    assert batch.as_multi_agent() is batch.as_multi_agent(None) is batch
    with pytest.raises(ValueError, match=r"module_id='q' is not allowed: this batch has the modules \['p', 'q'\]"):
        batch.as_multi_agent("q")
    lines = repr(batch).splitlines()
    assert lines[0] == "MultiAgentBatch(5 env steps, 6 agent steps)"
    assert lines[1] == "'p': SampleBatch(4 rows)"
    assert "'a': np.ndarray((4,)" in lines[2]


def test_convert_ma_batch_to_sample_batch_only_for_the_default_module():
    batch = part(2)
    assert convert_ma_batch_to_sample_batch(batch.as_multi_agent()) is batch
    assert convert_ma_batch_to_sample_batch(batch) is batch
