"""Contract data.md: promises that hold for every kind of batch (numpy, torch, sequences, several modules)."""

import tracemalloc

import numpy as np
import pytest

from lockstep.data import MiniBatchIterator, MultiAgentBatch, SampleBatch, concat_samples, shard_batch


def rows_batch(kind, n=12, first=0):
    number = np.arange(first, first + n)
    columns = {"row": number, "obs": {"x": number * 1.0, "y": (number[:, None] * [1, 2])}, "eps_id": number // 5}
    batch = SampleBatch(columns)
    return batch.to_torch() if kind == "torch" else batch


def sequence_batch(kind, lengths=(3, 1, 4, 2, 2)):
    batch = rows_batch("numpy", sum(lengths))
    batch = SampleBatch(dict(batch), seq_lens=np.array(lengths), state_in=np.arange(len(lengths)) * 10.0)
    return batch.to_torch() if kind == "torch" else batch


def numbers(batch):
    """Row numbers of a batch, after a check that its columns still belong together."""
    flat = batch.copy(shallow=True).unpad()
    row = np.asarray(flat["row"])
    np.testing.assert_array_equal(np.asarray(flat["obs"]["x"]), row)
    np.testing.assert_array_equal(np.asarray(flat["obs"]["y"]), row[:, None] * [1, 2])
    return row.tolist()


# ---- joining ----


def test_concat_makes_one_allocation_for_each_column_and_no_copies_between():
    parts = [SampleBatch(a=np.zeros((1000, 8)), b=np.zeros((1000, 8))) for _ in range(20)]
    size = sum(part.size_bytes() for part in parts)
    tracemalloc.start()
    joined = concat_samples(parts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert joined.size_bytes() == size
    assert size <= peak < size + 50_000


def test_concat_samples_is_a_static_method_of_both_batches_too():
    parts = [rows_batch("numpy", 3), rows_batch("numpy", 2, 3)]
    assert numbers(SampleBatch.concat_samples(parts)) == numbers(parts[0].concat(parts[1])) == [0, 1, 2, 3, 4]
    several = MultiAgentBatch.concat_samples([MultiAgentBatch({"m": part}, 2) for part in parts])
    assert numbers(several["m"]) == [0, 1, 2, 3, 4]
    assert several.env_steps() == 4


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_parts_keep_the_marks_of_training_and_grad_updates(kind):
    batch = sequence_batch(kind)
    batch.set_training(True)
    batch.num_grad_updates = 3.0
    parts = [batch[0:4], batch.copy(), batch.copy(shallow=True), batch.timeslices(num_slices=2)[1], batch.to_numpy()]
    parts += [batch.take_sequences(np.array([2, 0])), batch[3:3]]
    for part in [*parts, concat_samples([batch, batch])]:
        assert part.is_training
        assert part.num_grad_updates == 3.0


# ---- one row as model input ----


def test_single_step_input_takes_the_columns_that_are_asked_for():
    batch = SampleBatch(obs=[1.0, 2.0], new_obs=[2.0, 3.0], actions=[4, 5], t=[7, 8])
    row = batch.get_single_step_input_dict({"seen": "obs", "t": None, "before": "prev_actions"})
    assert {name: column.tolist() for name, column in row.items()} == {
        "seen": [3.0], "t": [8], "before": [5], "seq_lens": [1],
    }  # fmt: skip
    assert batch.get_single_step_input_dict({"obs": "obs"}, index=-2)["obs"].tolist() == [1.0]


@pytest.mark.parametrize("pad", [False, True])
def test_single_step_input_has_the_state_of_the_rows_own_sequence(pad):
    batch = sequence_batch("numpy", (3, 1, 4))
    if pad:
        batch.right_zero_pad(5)
    for row, state in [(0, 0.0), (2, 0.0), (3, 10.0), (4, 20.0), (7, 20.0)]:
        taken = batch.get_single_step_input_dict({"row": None, "state_in": None}, index=row)
        assert taken["row"].tolist() == [row]
        assert taken["state_in"].tolist() == [state]


# ---- cutting into minibatches and shards ----


def _each_kind():
    for kind in ("numpy", "torch"):
        yield pytest.param(rows_batch(kind), id=f"{kind} rows")
        yield pytest.param(sequence_batch(kind), id=f"{kind} sequences")
        yield pytest.param(sequence_batch(kind).right_zero_pad(5), id=f"{kind} padded")
        modules = {"a": rows_batch(kind, 12), "b": rows_batch(kind, 6, 100)}
        yield pytest.param(MultiAgentBatch(modules, 12), id=f"{kind} modules")


EACH_KIND = list(_each_kind())


def all_numbers(batch):
    parts = [batch] if isinstance(batch, SampleBatch) else batch.policy_batches.values()
    return [number for part in parts for number in numbers(part)]


@pytest.mark.parametrize("batch", EACH_KIND)
def test_minibatches_visit_every_row_once_in_each_epoch_and_in_order(batch):
    seen = [number for part in MiniBatchIterator(batch, num_epochs=3, minibatch_size=1) for number in all_numbers(part)]
    expected = all_numbers(batch)
    assert sorted(seen) == sorted(expected * 3)
    if isinstance(batch, SampleBatch):
        assert seen == expected * 3


@pytest.mark.parametrize("batch", EACH_KIND)
def test_shuffled_minibatches_visit_every_row_once_in_each_epoch(batch):
    def visited(seed):
        options = {"num_epochs": 2, "minibatch_size": 1, "shuffle_batch_per_epoch": True}
        iterator = MiniBatchIterator(batch, rng=np.random.default_rng(seed), **options)
        return [number for part in iterator for number in all_numbers(part)]

    assert sorted(visited(0)) == sorted(all_numbers(batch) * 2)
    assert visited(0) == visited(0)
    assert visited(0) != visited(1)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
@pytest.mark.parametrize("batch", EACH_KIND)
def test_shards_hold_every_row_once_in_order_and_are_views(batch, num_shards):
    before = all_numbers(batch)
    shards = shard_batch(batch, num_shards)
    assert len(shards) == num_shards
    if isinstance(batch, SampleBatch):
        assert [number for shard in shards for number in numbers(shard)] == before
        first = next(shard for shard in shards if len(shard))
        assert np.shares_memory(np.asarray(first["row"]), np.asarray(batch["row"]))
    else:
        for module in batch:
            assert [n for shard in shards for n in numbers(shard[module])] == numbers(batch[module])
        assert sum(shard.env_steps() for shard in shards) == batch.env_steps()
    assert all_numbers(batch) == before
