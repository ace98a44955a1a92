"""Contract, section 2: what a `SampleBatch` accepts, refuses and gives back."""

import copy
import pickle

import numpy as np
import pytest
import torch

from lockstep.data import Columns, MultiAgentBatch, SampleBatch


def make(rows=10, **extra):
    return SampleBatch(
        obs=np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
        actions=np.arange(rows),
        terminateds=np.zeros(rows, bool),
        truncateds=np.zeros(rows, bool),
        **extra,
    )


def test_class_attributes_name_the_columns():
    assert SampleBatch.OBS == Columns.OBS == "obs"
    assert SampleBatch.NEXT_OBS == "new_obs"
    names = {
        *("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "infos", "eps_id", "env_id"),
        *("agent_index", "unroll_id", "t", "seq_lens", "action_logp", "action_prob", "action_dist_inputs"),
        *("vf_preds", "values_bootstrapped", "prev_actions", "prev_rewards", "obs_embeds", "returns_to_go"),
        *("attention_masks", "actions_for_env", "agent_id", "module_id", "state_in", "state_out", "embeddings"),
        *("advantages", "value_targets", "intrinsic_rewards", "loss_mask", "weights_seq_no", "weights"),
        *("batch_indexes", "dones"),
    }
    declared = {value for key, value in vars(Columns).items() if key.isupper()}
    assert names <= declared  # the contract's, and those that later layers added


@pytest.mark.parametrize(
    "columns",
    [
        {"terminateds": [True, False, False], "truncateds": [False, True, False]},
        {"terminateds": [True, True, False]},
        {"truncateds": [True, True, False]},
        {"dones": [True, True, False], "terminateds": [False, False, False]},  # dones that are given are kept
    ],
    ids=["both", "terminateds", "truncateds", "dones"],
)
def test_dones_reads_from_the_flags_there_are(columns):
    batch = SampleBatch(columns)
    assert batch["dones"].tolist() == batch.get("dones").tolist() == [True, True, False]
    assert ("dones" in batch) == ("dones" in columns)


def test_lists_and_numbers_become_arrays_and_trees_stay():
    batch = SampleBatch({"a": [1, 2], "obs": {"x": [1.0, 2.0], "y": (np.zeros((2, 3)), [0, 1])}}, rewards=[0.5, 1.5])
    assert batch["a"].dtype == np.int64
    assert isinstance(batch["obs"]["x"], np.ndarray)
    assert isinstance(batch["obs"]["y"], tuple)
    assert SampleBatch(a=3)["a"].tolist() == [3]
    assert len(batch) == 2


def test_a_list_of_nested_rows_is_stacked():
    batch = SampleBatch(obs=[{"x": np.zeros(3), "n": 1}, {"x": np.ones(3), "n": 2}])
    assert batch["obs"]["x"].shape == (2, 3)
    assert batch["obs"]["n"].tolist() == [1, 2]


def test_infos_may_be_objects():
    batch = SampleBatch(actions=[0, 1], infos=[{"a": 1}, [1, 2]])
    assert batch["infos"].dtype == object
    assert batch[1:]["infos"][0] == [1, 2]


def test_a_ragged_column_set_later_raises_and_leaves_the_batch_as_it_was():
    batch = make(4)
    with pytest.raises(ValueError, match=r"'obs' and 'actions' have 4 and 5 rows"):
        batch["actions"] = np.zeros(5)
    assert batch["actions"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="'rewards'"):
        batch["rewards"] = np.zeros(3)
    assert "rewards" not in batch
    with pytest.raises(ValueError, match="'rewards'"):
        batch.update(rewards=np.zeros(3))
    assert "rewards" not in batch
    with pytest.raises(ValueError):
        batch |= {"rewards": np.zeros(3)}
    with pytest.raises(ValueError):
        batch.setdefault("rewards", np.zeros(3))


def test_len_count_and_steps_are_live():
    batch = make(4)
    assert len(batch) == batch.count == batch.env_steps() == batch.agent_steps() == 4
    batch["seq_lens"] = np.array([3, 1])
    assert len(batch) == 4
    del batch["seq_lens"]
    for name in list(batch):
        del batch[name]
    assert len(batch) == batch.count == 0
    batch["obs"] = np.zeros((7, 1))
    assert len(batch) == batch.count == 7


def test_state_columns_have_one_row_for_each_sequence():
    batch = make(5, seq_lens=[2, 3], state_in=np.zeros((2, 8)), state_out_0=np.zeros((2, 4)))
    assert len(batch) == 5
    assert batch.max_seq_len == 3


def test_marks_of_training_and_grad_updates():
    batch = make(_is_training=True, _num_grad_updates=2.5)
    assert batch.is_training
    batch.set_training(False)
    assert not batch.is_training
    assert batch.num_grad_updates == 2.5
    assert not batch.time_major
    assert not batch.zero_padded
    assert batch.max_seq_len is None


def test_rows_iterates_dicts():
    batch = make(3, infos=[{"i": i} for i in range(3)])
    rows = list(batch.rows())
    assert len(rows) == 3
    assert rows[2]["obs"].tolist() == [4.0, 5.0]
    assert rows[1]["infos"] == {"i": 1}


def test_rows_skip_padding_and_columns_of_sequences():
    batch = make(5, seq_lens=[2, 3], state_in=np.zeros((2, 8))).right_zero_pad(4)
    rows = list(batch.rows())
    assert [int(row["actions"]) for row in rows] == [0, 1, 2, 3, 4]
    assert "state_in" not in rows[0]
    assert rows[0]["seq_lens"] == 1


def test_columns_gives_a_list():
    batch = make(3)
    actions, obs = batch.columns(["actions", "obs"])
    assert actions is batch["actions"]
    assert obs is batch["obs"]


def test_copy_is_deep_for_tensors_and_objects_too():
    batch = SampleBatch(a=np.zeros(2), b=torch.zeros(2), obs={"x": np.zeros(2)}, infos=[{"k": [1]}, {}])
    deep, shallow = batch.copy(), batch.copy(shallow=True)
    batch["a"][0] = 1
    batch["b"][0] = 1
    batch["obs"]["x"][0] = 1
    batch["infos"][0]["k"].append(2)
    assert deep["a"][0] == deep["b"][0] == deep["obs"]["x"][0] == 0
    assert deep["infos"][0] == {"k": [1]}
    assert shallow["a"][0] == shallow["b"][0] == shallow["obs"]["x"][0] == 1
    shallow["obs"]["z"] = np.zeros(2)
    assert "z" not in batch["obs"]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_a_batch_travels_with_its_marks(duplicate):
    batch = make(5, seq_lens=[2, 3]).right_zero_pad(4)
    other = duplicate(batch)
    assert type(other) is SampleBatch
    assert other.zero_padded
    assert other.max_seq_len == 4
    np.testing.assert_array_equal(other["obs"], batch["obs"])


def test_to_device_works_in_place_and_narrows_float64():
    batch = SampleBatch(a=np.zeros(2), b=np.zeros(2, np.int64), s=["x", "y"], infos=[{}, {}], obs={"x": np.ones(2)})
    assert batch.to_device("cpu") is batch
    assert batch["a"].dtype == torch.float32
    assert batch["b"].dtype == torch.int64
    assert batch["obs"]["x"].dtype == torch.float32
    assert isinstance(batch["infos"], np.ndarray)
    assert isinstance(batch["s"], np.ndarray)
    assert SampleBatch(a=np.zeros(2)).to_device("cpu", keep_dtype=True)["a"].dtype == torch.float64


def test_to_torch_and_to_numpy_share_memory():
    batch = SampleBatch(a=np.zeros(3), obs=(np.zeros((3, 2), np.float32),), infos=[{}] * 3)
    as_torch = batch.to_torch()
    as_torch["a"][0] = 5
    as_torch["obs"][0][1, 1] = 7
    assert batch["a"][0] == 5
    assert as_torch.to_numpy()["obs"][0][1, 1] == 7
    assert as_torch.to_numpy()["a"].base is not None
    assert isinstance(batch["a"], np.ndarray)


def test_to_torch_takes_read_only_and_reversed_arrays():
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    batch = SampleBatch(a=frozen, b=np.arange(3)[::-1]).to_torch()
    assert batch["a"].tolist() == [0, 1, 2]
    assert batch["b"].tolist() == [2, 1, 0]


def test_size_bytes_counts_all_leaves():
    batch = SampleBatch(a=np.zeros(4, np.float32), b=torch.zeros(4, 2), obs={"x": np.zeros(4)})
    assert batch.size_bytes() == 16 + 32 + 32
    small = SampleBatch(infos=[{"k": "a"}]).size_bytes()
    assert SampleBatch(infos=[{"k": "a" * 1000}]).size_bytes() == small + 999


def test_as_multi_agent_wraps_under_a_module_id():
    batch = make(4)
    whole = batch.as_multi_agent()
    assert isinstance(whole, MultiAgentBatch)
    assert whole["default_policy"] is batch
    assert whole.env_steps() == 4
    assert list(batch.as_multi_agent("p1")) == ["p1"]
    assert list(batch.as_multi_agent(None)) == ["default_policy"]


def test_single_step_input_dict_last_is_the_input_after_the_last_row():
    batch = SampleBatch(
        obs=[[0.0], [1.0]], new_obs=[[1.0], [2.0]], actions=[3, 4], rewards=[5.0, 6.0], prev_actions=[2, 3],
        prev_rewards=[0.0, 5.0], seq_lens=[2], state_in=[[7.0]], state_out=[[8.0]],
    )  # fmt: skip
    row = batch.get_single_step_input_dict()
    assert {name: column.tolist() for name, column in row.items()} == {
        "obs": [[2.0]], "prev_actions": [4], "prev_rewards": [6.0], "state_in": [[8.0]], "seq_lens": [1],
    }  # fmt: skip
    first = batch.get_single_step_input_dict(index=0)
    assert first["obs"].tolist() == [[0.0]]
    assert first["state_in"].tolist() == [[7.0]]
    assert batch.get_single_step_input_dict({"x": "actions"}, index=1)["x"].tolist() == [4]


def test_is_terminated_or_truncated_and_is_single_trajectory():
    batch = make(3)
    assert not batch.is_terminated_or_truncated()
    assert batch.is_single_trajectory()
    batch["truncateds"][-1] = True
    assert batch.is_terminated_or_truncated()
    assert batch.is_single_trajectory()
    batch["terminateds"][1] = True
    assert not batch.is_single_trajectory()
    assert SampleBatch(truncateds=[False, True]).is_terminated_or_truncated()
    assert not SampleBatch(obs=[1, 2], eps_id=[0, 1]).is_single_trajectory()


def test_summary_has_one_line_for_each_column():
    logp = np.full(200, -0.694, np.float32)
    logp[0], logp[1] = -0.701, -0.685
    batch = SampleBatch(action_logp=logp, obs={"x": torch.ones(200, 2)}, infos=[{"a": 1}] * 200)
    lines = batch.summary().splitlines()
    expected = "'action_logp': np.ndarray((200,), dtype=float32, min=-0.701, max=-0.685, mean=-0.694)"
    assert lines[0] == "SampleBatch(200 rows)"
    assert lines[1].strip() == expected
    assert lines[2].strip() == "'obs/x': torch.Tensor((200, 2), dtype=float32, min=1.000, max=1.000, mean=1.000)"
    assert "{'a': 1}" in lines[3]
    assert repr(batch) == batch.summary()
    assert len(lines) == 4
    assert repr(SampleBatch()) == "SampleBatch(0 rows)"
    assert "(0,)" in repr(SampleBatch(a=np.zeros(0)))
