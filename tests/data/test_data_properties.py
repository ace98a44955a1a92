"""Identities of the data layer on random batches and episodes."""

from itertools import pairwise

import numpy as np
from episode_makers import readable
from hypothesis import given
from hypothesis import strategies as st
from parts import examples

from lockstep.data import SampleBatch, SingleAgentEpisode, concat_samples
from lockstep.data.trees import map_tree, to_numpy_leaf, trees_equal

FAST = examples(80)


@st.composite
def batches(draw, with_sequences=None):
    """Flat batches, numpy or torch, nested, with or without sequences; column `a` numbers the rows."""
    if with_sequences is None:
        with_sequences = draw(st.booleans())
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8)) if with_sequences else None
    rows = sum(lengths) if lengths else draw(st.integers(1, 25))
    columns = {
        "a": np.arange(rows),
        "obs": {"x": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 1, "y": (np.arange(rows) * 3.0 + 1,)},
        "infos": [{"i": i} for i in range(rows)],
    }
    if lengths:
        columns |= {"seq_lens": np.array(lengths), "state_in": np.arange(len(lengths) * 2.0).reshape(-1, 2)}
    batch = SampleBatch(columns)
    return batch.to_torch() if draw(st.booleans()) else batch


def equal(first, second):
    as_numpy = [map_tree(to_numpy_leaf, dict(batch)) for batch in (first, second)]
    marks = [(batch.zero_padded, batch.time_major, batch.max_seq_len, len(batch)) for batch in (first, second)]
    infos = [columns.pop("infos").tolist() for columns in as_numpy]
    return infos[0] == infos[1] and marks[0] == marks[1] and trees_equal(*as_numpy)


@FAST
@given(batch=batches(), size=st.integers(1, 9), number=st.integers(1, 6))
def test_concat_of_splits_is_the_identity(batch, size, number):
    assert equal(concat_samples(batch.timeslices(size)), batch)
    assert equal(concat_samples(batch.timeslices(num_slices=number)), batch)
    assert equal(concat_samples(list(batch.split(size))), batch)


@FAST
@given(batch=batches(), data=st.data())
def test_slices_partition_the_batch(batch, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(batch)), max_size=5)))
    bounds = [0, *cuts, len(batch)]
    parts = [batch[start:stop] for start, stop in pairwise(bounds)]
    assert equal(concat_samples(parts), batch)


@FAST
@given(batch=batches(with_sequences=False), key=st.slices(30))
def test_a_slice_has_the_rows_that_numpy_takes(batch, key):
    expected = np.arange(len(batch))[key]
    part = batch[key]
    assert list(part) == list(batch)
    assert part["a"].tolist() == expected.tolist()
    assert [info["i"] for info in part["infos"]] == expected.tolist()
    assert part["obs"]["y"][0].tolist() == (expected * 3.0 + 1).tolist()


@FAST
@given(batch=batches(with_sequences=True), more=st.integers(0, 3))
def test_padding_and_unpadding_is_the_identity(batch, more):
    padded = batch.copy().right_zero_pad(batch.max_seq_len + more)
    assert len(padded) == len(batch)
    assert len(padded["a"]) == len(batch["seq_lens"]) * (batch.max_seq_len + more)
    assert int(padded["obs"]["x"].sum()) == int(batch["obs"]["x"].sum())
    assert equal(padded.copy().unpad(), batch)
    spread = batch.copy().right_zero_pad(batch.max_seq_len + more, exclude_states=False)
    assert equal(spread.unpad(), batch)


@FAST
@given(batch=batches(with_sequences=True), more=st.integers(0, 2), size=st.integers(1, 9))
def test_padded_batches_split_and_concat_like_flat_ones(batch, more, size):
    padded = batch.copy().right_zero_pad(batch.max_seq_len + more)
    assert equal(concat_samples(padded.timeslices(size)), padded)
    assert [len(part) for part in padded.timeslices(size)] == [len(part) for part in batch.timeslices(size)]


@FAST
@given(batch=batches(), seed=st.integers(0, 2**31))
def test_shuffle_is_a_permutation_of_whole_rows(batch, seed):
    mixed = batch.copy().shuffle(seed)
    order = mixed["a"].tolist()
    assert sorted(order) == batch["a"].tolist()
    assert [info["i"] for info in mixed["infos"]] == order
    assert mixed["obs"]["x"][:, 0].tolist() == [2.0 * i + 1 for i in order]
    if "seq_lens" in batch:
        starts = np.cumsum([0, *batch["seq_lens"].tolist()])
        state_of = {int(starts[k]): batch["state_in"][k].tolist() for k in range(len(batch["seq_lens"]))}
        position = 0
        for length, state in zip(mixed["seq_lens"].tolist(), mixed["state_in"].tolist()):
            first = order[position]
            assert order[position : position + length] == list(range(first, first + length))
            assert state == state_of[first]
            position += length


@FAST
@given(batch=batches())
def test_numpy_and_torch_give_the_same(batch):
    first, second = batch.to_numpy(), batch.to_torch()
    for change in (
        lambda one: one.copy().shuffle(3),
        lambda one: one[1:7],
        lambda one: concat_samples([one, one[:3]]),
        lambda one: one.timeslices(4)[0],
    ):
        assert equal(change(first), change(second))
    assert [row["a"].item() for row in first.rows()] == [row["a"].item() for row in second.rows()]


@FAST
@given(flags=st.lists(st.booleans(), min_size=1, max_size=30), by_id=st.booleans())
def test_split_by_episode_partitions_at_the_ends(flags, by_id):
    batch = SampleBatch(a=np.arange(len(flags)), terminateds=flags, truncateds=[False] * len(flags))
    if by_id:
        batch["eps_id"] = np.cumsum([0, *flags[:-1]])
    parts = batch.split_by_episode()
    assert [row for part in parts for row in part["a"].tolist()] == list(range(len(flags)))
    assert len(parts) == sum(flags[:-1]) + 1
    assert all(not part["terminateds"][:-1].any() for part in parts)


@st.composite
def episodes(draw):
    """Episodes with own storage, grown or given, or views with the last observation apart."""
    lookback, steps = draw(st.integers(0, 4)), draw(st.integers(0, 12))
    total = lookback + steps
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    observations = rng.normal(size=(total + 1, 2)).astype(np.float32)
    actions, rewards, extra = rng.integers(0, 5, total), rng.normal(size=total), rng.normal(size=total)
    ends = {"terminated": draw(st.booleans()) and steps > 0, "t_started": draw(st.integers(0, 9))}
    kind = draw(st.sampled_from(["given", "grown", "apart"]))
    extras = {"v": extra}
    if kind == "grown":
        episode = SingleAgentEpisode("e", t_started=ends["t_started"])
        episode.add_env_reset(observations[lookback])
        for i in range(lookback, total):
            episode.add_env_step(
                observations[i + 1], actions[i], rewards[i], terminated=ends["terminated"] and i == total - 1,
                extra_model_outputs={"v": extra[i]},
            )  # fmt: skip
        return episode
    if kind == "apart":
        return SingleAgentEpisode.view(
            id_="e", observations=observations[:-1], last_observation=observations[-1], actions=actions,
            rewards=rewards, extra_model_outputs=extras, len_lookback_buffer=lookback, **ends,
        )  # fmt: skip
    return SingleAgentEpisode(
        "e", observations=observations, actions=actions if total else None, rewards=rewards if total else None,
        extra_model_outputs=extras if total else None, len_lookback_buffer=lookback, **ends,
    )  # fmt: skip


@FAST
@given(episode=episodes(), data=st.data())
def test_slice_then_concat_is_the_same_episode(episode, data):
    whole = readable(episode)
    at = data.draw(st.integers(0, max(len(episode) - 1, 0)))
    if len(episode) == 0:
        return
    first, second = episode[:at], episode.slice(slice(at, None), len_lookback_buffer=data.draw(st.integers(0, 3)))
    assert len(first) + len(second) == len(episode)
    first.concat_episode(second)
    assert trees_equal(readable(first), whole)
    assert trees_equal(readable(episode), whole)


@FAST
@given(episode=episodes(), lookback=st.integers(0, 20), more=st.integers(0, 4))
def test_cut_then_concat_is_the_episode_that_was_never_cut(episode, lookback, more):
    if episode.is_done:
        return
    straight = SingleAgentEpisode.from_state(episode.get_state())
    tail = episode.cut(lookback)
    assert tail.t_started == episode.t
    for i in range(more):
        step = (np.full(2, i, np.float32), i, float(i))
        for one in (straight, tail):
            one.add_env_step(*step, truncated=i == more - 1, extra_model_outputs={"v": 0.5 * i})
    episode.concat_episode(tail)
    assert trees_equal(readable(episode), readable(straight))
    episode.validate()


@FAST
@given(episode=episodes())
def test_an_episode_as_a_batch_and_back_is_the_same_steps(episode):
    if len(episode) == 0:
        return
    back = SingleAgentEpisode.from_sample_batch(episode.get_sample_batch())
    assert trees_equal(readable(back), readable(episode.slice(slice(None), len_lookback_buffer=0)))


@FAST
@given(episode=episodes(), key=st.slices(16), fill=st.sampled_from([None, -1]))
def test_getters_agree_with_python_lists(episode, key, fill):
    observations = episode.get_observations().tolist()
    positive = all(part is None or part >= 0 for part in (key.start, key.stop)) and (key.step or 1) > 0
    if not positive:
        return
    got = episode.get_observations(key, fill=fill).tolist()
    if fill is None or key.stop is None:
        assert got == observations[key]
    else:
        wanted = range(key.start or 0, key.stop, key.step or 1)
        assert got == [observations[i] if i < len(observations) else [-1.0, -1.0] for i in wanted]
