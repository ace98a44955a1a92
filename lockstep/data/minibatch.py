"""Cutting batches into minibatches and shards. Pure: the same arguments (and generator state) give the same rows."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.options.checks import check_whole

EpisodeT = TypeVar("EpisodeT", SingleAgentEpisode, MultiAgentEpisode)


def minibatch_indices(
    num_rows: int,
    minibatch_size: int | None,
    num_epochs: int = 1,
    shuffle: bool = False,
    rng: np.random.Generator | None = None,
) -> Iterator[np.ndarray]:
    """Iterate over the row numbers of each minibatch: int64 views on one array for each pass.

    Each of `num_epochs` passes has `num_rows // minibatch_size` minibatches. Unshuffled, the rows left over in one
    pass come first in the next; shuffled, every pass has its own permutation (one call of `rng.permutation`) and a
    random remainder is left out. A batch smaller than `minibatch_size` is one minibatch, and so is the whole batch
    where `minibatch_size` is None (`shuffle` is ignored then). Without rows there is no minibatch.

    Raises `ValueError` for a size or number of passes below 1, or `shuffle` without `rng`.
    """
    for rows in multi_minibatch_indices({"": num_rows}, minibatch_size, num_epochs, shuffle, rng):
        yield rows[""]


def minibatches_per_pass(num_rows: Mapping[str, int], minibatch_size: int | None) -> int:
    """Return how many minibatches one pass over rows of several modules has, by the rule of `minibatch_indices`."""
    largest = max(num_rows.values(), default=0)
    if minibatch_size is None or minibatch_size >= largest:
        return int(largest > 0)
    return largest // minibatch_size


def multi_minibatch_indices(
    num_rows: Mapping[str, int],
    minibatch_size: int | None,
    num_epochs: int = 1,
    shuffle: bool = False,
    rng: np.random.Generator | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Iterate over the row numbers of each minibatch by module, as in `minibatch_indices`.

    A minibatch holds `minibatch_size` rows of the largest module and of the others their proportion; modules
    without rows are left out.
    """
    _check(num_rows, minibatch_size, num_epochs, shuffle, rng)
    sizes = {module_id: rows for module_id, rows in num_rows.items() if rows}
    if not sizes:
        return
    largest = max(sizes.values())
    size = largest if minibatch_size is None else min(minibatch_size, largest)
    per_pass = minibatches_per_pass(sizes, minibatch_size)
    shuffle = shuffle and minibatch_size is not None
    streams = {} if shuffle else {key: np.arange(rows) for key, rows in sizes.items()}
    if num_epochs > 1:  # two times, so that a piece that runs over the end is one slice
        streams = {key: np.concatenate([index, index]) for key, index in streams.items()}
    for epoch in range(num_epochs):
        if shuffle and rng is not None:
            streams = {key: rng.permutation(rows) for key, rows in sizes.items()}
        done = 0 if shuffle else epoch * per_pass
        for number in range(done, done + per_pass):
            minibatch = {}
            for key, rows in sizes.items():
                start = number * size * rows // largest
                stop = (number + 1) * size * rows // largest
                if stop > start:
                    first = start % rows
                    minibatch[key] = streams[key][first : first + stop - start]
            yield minibatch


def _check(
    num_rows: Mapping[str, int],
    minibatch_size: int | None,
    num_epochs: int,
    shuffle: bool,
    rng: np.random.Generator | None,
) -> None:
    check_whole("minibatch_size", minibatch_size, 1, optional=True)
    check_whole("num_epochs", num_epochs, 1)
    if any(rows < 0 for rows in num_rows.values()):
        raise ValueError(f"numbers of rows cannot be negative: {dict(num_rows)}")
    if shuffle and minibatch_size is not None and rng is None:
        raise ValueError("shuffle=True needs a numpy random generator `rng`")


class MiniBatchIterator:
    """Minibatches of a `SampleBatch` or `MultiAgentBatch`, by the rule of `minibatch_indices`.

    A batch with `seq_lens` is cut between sequences: `minibatch_size` counts sequences then. Minibatches are views
    where their rows lie together, else one gather. Each use of `iter()` starts anew (and draws new permutations).

    `MultiAgentBatch` minibatches count the rows of their largest module as environment steps.
    """

    def __init__(
        self,
        batch: SampleBatch | MultiAgentBatch,
        *,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._batch = batch
        self._modules: dict[str, SampleBatch] = (
            {"": batch} if isinstance(batch, SampleBatch) else dict(batch.policy_batches)
        )
        self._rows = {key: num_units(part) for key, part in self._modules.items()}
        self._options: tuple[Any, ...] = (minibatch_size, num_epochs, shuffle_batch_per_epoch, rng)
        _check(self._rows, *self._options)

    def __iter__(self) -> Iterator[SampleBatch | MultiAgentBatch]:
        for rows in multi_minibatch_indices(self._rows, *self._options):
            parts = {key: take_units(self._modules[key], index) for key, index in rows.items()}
            if isinstance(self._batch, SampleBatch):
                yield parts[""]
            else:
                yield MultiAgentBatch(parts, max(part.count for part in parts.values()))


def num_units(batch: SampleBatch) -> int:
    """Return what a minibatch counts: sequences where there are any, else rows."""
    seq_lens = batch.get(Columns.SEQ_LENS)
    return len(batch) if seq_lens is None else len(seq_lens)


def take_units(batch: SampleBatch, index: np.ndarray) -> SampleBatch:
    """Return sequences or rows by number; a view where the numbers are consecutive."""
    rows: slice | np.ndarray = index
    if len(index) and index[-1] - index[0] == len(index) - 1 and bool(np.all(np.diff(index) == 1)):
        rows = slice(int(index[0]), int(index[-1]) + 1)
    return batch.take_sequences(rows) if Columns.SEQ_LENS in batch else batch[rows]


@overload
def shard_batch(batch: SampleBatch, num_shards: int) -> list[SampleBatch]: ...
@overload
def shard_batch(batch: MultiAgentBatch, num_shards: int) -> list[MultiAgentBatch]: ...
def shard_batch(batch: SampleBatch | MultiAgentBatch, num_shards: int) -> Any:
    """Return `num_shards` views that together hold every row once, in order; sizes differ by at most one row.

    Batches with `seq_lens` are cut between sequences, a `MultiAgentBatch` module by module (its environment steps
    are shared out likewise). A shard may be empty. `ValueError` for `num_shards < 1`.
    """
    check_whole("num_shards", num_shards, 1)
    if isinstance(batch, SampleBatch):
        cut = batch.take_sequences if Columns.SEQ_LENS in batch else batch.__getitem__
        return [cut(part) for part in _shares(num_units(batch), num_shards)]
    parts = {module_id: shard_batch(part, num_shards) for module_id, part in batch.policy_batches.items()}
    return [
        MultiAgentBatch({module_id: part[i] for module_id, part in parts.items()}, steps.stop - steps.start)
        for i, steps in enumerate(_shares(batch.env_steps(), num_shards))
    ]


def _shares(total: int, num_shards: int) -> list[slice]:
    """Return `range(total)` in consecutive runs whose lengths differ by at most one."""
    return [slice(i * total // num_shards, (i + 1) * total // num_shards) for i in range(num_shards)]


def shard_episodes(
    episodes: Sequence[EpisodeT],
    num_shards: int,
    len_lookback_buffer: int | None = None,
    *,
    cut: bool = True,
) -> list[list[EpisodeT]]:
    """Share episodes out so that the shards' steps differ by at most one; the longer shards come last.

    The longest episode goes to the shard with the fewest steps. One that would overshoot is cut there: both pieces
    are views, and the second looks back as far as the whole one did (or `len_lookback_buffer` steps). With `cut=False`
    episodes stay whole and the steps are balanced as far as that goes: a network with memory needs it, since its state
    at a cut is not known. The given episodes are not changed. `ValueError` for `num_shards < 1`.
    """
    check_whole("num_shards", num_shards, 1)
    share, longer = divmod(sum(len(episode) for episode in episodes), num_shards)
    room = [share + (shard >= num_shards - longer) for shard in range(num_shards)]
    loads = [0] * num_shards
    shards: list[list[EpisodeT]] = [[] for _ in range(num_shards)]
    waiting = sorted(((len(episode), -order, episode) for order, episode in enumerate(episodes)), key=lambda w: w[:2])
    while waiting:
        length, order, episode = waiting.pop()
        open_shards = [shard for shard in range(num_shards) if loads[shard] < room[shard]] or range(num_shards)
        shard = min(open_shards, key=loads.__getitem__)
        left = room[shard] - loads[shard]
        if length > left and cut:
            rest = episode.slice(slice(left, length), len_lookback_buffer=len_lookback_buffer)
            insort(waiting, (length - left, order, rest), key=lambda w: w[:2])
            episode, length = episode.slice(slice(0, left)), left
        shards[shard].append(episode)
        loads[shard] += length
    return shards
