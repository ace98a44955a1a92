"""Functions that cut batches into minibatches, and batches and episodes into shards.

They are pure: equal arguments and an equal generator state give the same rows on every machine.
"""

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
    """Iterate over the row numbers of each minibatch, as int64 views on one array for each pass.

    Each of the `num_epochs` passes has `num_rows // minibatch_size` minibatches. Without `shuffle`, rows left over in
    one pass come first in the next pass. With `shuffle`, every pass has a new permutation (one call of
    `rng.permutation`), and the remainder of each permutation is left out.

    A batch smaller than `minibatch_size` is one minibatch. `minibatch_size=None` makes the whole batch one minibatch,
    and `shuffle` is ignored then. Without rows there is no minibatch.

    Raises:
        ValueError: `minibatch_size` or `num_epochs` is below 1, or `shuffle` is set without `rng`.
    """
    for rows in multi_minibatch_indices({"": num_rows}, minibatch_size, num_epochs, shuffle, rng):
        yield rows[""]


def minibatches_per_pass(num_rows: Mapping[str, int], minibatch_size: int | None) -> int:
    """Return the number of minibatches in one pass over the rows of several modules; see `minibatch_indices`."""
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
    """Iterate over the row numbers of each minibatch by module; see `minibatch_indices`.

    A minibatch holds `minibatch_size` rows of the largest module, and a proportional number of rows of the other
    modules. Modules without rows are left out.
    """
    _check_options(num_rows, minibatch_size, num_epochs, shuffle, rng)
    sizes = {module_id: rows for module_id, rows in num_rows.items() if rows}
    if not sizes:
        return

    largest = max(sizes.values())
    size = largest if minibatch_size is None else min(minibatch_size, largest)
    per_pass = minibatches_per_pass(sizes, minibatch_size)

    shuffle = shuffle and minibatch_size is not None
    streams = {} if shuffle else {key: np.arange(rows) for key, rows in sizes.items()}
    if num_epochs > 1:
        # The rows twice in a row: a minibatch that crosses the end of a pass is one slice, and thus a view.
        streams = {key: np.concatenate([index, index]) for key, index in streams.items()}

    for epoch in range(num_epochs):
        if shuffle and rng is not None:
            streams = {key: rng.permutation(rows) for key, rows in sizes.items()}
        # Without shuffling, the passes are one endless stream of rows.
        first_number = 0 if shuffle else epoch * per_pass
        for number in range(first_number, first_number + per_pass):
            minibatch = {}
            for key, rows in sizes.items():
                # Bounds are rounded down together, so that minibatches of a small module neither overlap nor leave
                # rows out.
                start = number * size * rows // largest
                stop = (number + 1) * size * rows // largest
                if stop > start:
                    first = start % rows
                    minibatch[key] = streams[key][first : first + stop - start]
            yield minibatch


def _check_options(
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
    """Iterable of the minibatches of a `SampleBatch` or `MultiAgentBatch`; see `minibatch_indices`.

    A batch with `seq_lens` is cut between sequences, and `minibatch_size` counts sequences. A minibatch is a view if
    its rows are consecutive, else one gather. Each `iter()` begins again and draws new permutations.

    A minibatch of a `MultiAgentBatch` counts the rows of its largest module as environment steps.
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
        self._modules: dict[str, SampleBatch]
        self._is_single = False
        if batch.is_by_module:
            self._modules = dict(batch.policy_batches)
        else:
            # It is treated as the batch of one module.
            self._modules = {"": batch}
            self._is_single = True
        self._rows = {key: num_units(part) for key, part in self._modules.items()}
        self._options: tuple[Any, ...] = (minibatch_size, num_epochs, shuffle_batch_per_epoch, rng)
        _check_options(self._rows, *self._options)

    def __iter__(self) -> Iterator[SampleBatch | MultiAgentBatch]:
        for rows in multi_minibatch_indices(self._rows, *self._options):
            parts = {key: take_units(self._modules[key], index) for key, index in rows.items()}
            if self._is_single:
                yield parts[""]
            else:
                yield MultiAgentBatch(parts, max(part.count for part in parts.values()))


def num_units(batch: SampleBatch) -> int:
    """Return the number of units that minibatches count: sequences if the batch has `seq_lens`, else rows."""
    seq_lens = batch.get(Columns.SEQ_LENS)
    return len(batch) if seq_lens is None else len(seq_lens)


def take_units(batch: SampleBatch, index: np.ndarray) -> SampleBatch:
    """Return the sequences or rows with the numbers `index`; a view if the numbers are consecutive."""
    rows: slice | np.ndarray = index
    # The cheap comparison of the ends decides for nearly every shuffled minibatch.
    if len(index) and index[-1] - index[0] == len(index) - 1 and bool(np.all(np.diff(index) == 1)):
        rows = slice(int(index[0]), int(index[-1]) + 1)
    return batch.take_sequences(rows) if Columns.SEQ_LENS in batch else batch[rows]


@overload
def shard_batch(batch: SampleBatch, num_shards: int) -> list[SampleBatch]: ...
@overload
def shard_batch(batch: MultiAgentBatch, num_shards: int) -> list[MultiAgentBatch]: ...
def shard_batch(batch: SampleBatch | MultiAgentBatch, num_shards: int) -> Any:
    """Cut a batch into `num_shards` views that hold every row once, in order. Their sizes differ by at most one row.

    A batch with `seq_lens` is cut between sequences. Each module of a `MultiAgentBatch` is cut separately, and so is
    its number of environment steps. A shard may be empty.

    Raises:
        ValueError: `num_shards` is below 1.
    """
    check_whole("num_shards", num_shards, 1)
    if not batch.is_by_module:
        take = batch.take_sequences if Columns.SEQ_LENS in batch else batch.__getitem__
        return [take(share) for share in _shares(num_units(batch), num_shards)]

    shards_of_modules = {module_id: shard_batch(part, num_shards) for module_id, part in batch.policy_batches.items()}
    shards = []
    for number, env_steps in enumerate(_shares(batch.env_steps(), num_shards)):
        modules = {module_id: parts[number] for module_id, parts in shards_of_modules.items()}
        shards.append(MultiAgentBatch(modules, env_steps.stop - env_steps.start))
    return shards


def _shares(total: int, num_shards: int) -> list[slice]:
    """Return consecutive slices of `range(total)` whose lengths differ by at most one."""
    return [slice(i * total // num_shards, (i + 1) * total // num_shards) for i in range(num_shards)]


def shard_episodes(
    episodes: Sequence[EpisodeT],
    num_shards: int,
    len_lookback_buffer: int | None = None,
    *,
    cut: bool = True,
) -> list[list[EpisodeT]]:
    """Distribute episodes over shards whose numbers of steps differ by at most one; longer shards come last.

    The longest episode goes to the shard with the fewest steps. If it is longer than the room in the shard, it is cut:
    both pieces are views, and the second has the lookback of the whole episode (or `len_lookback_buffer` steps). The
    episodes themselves are not changed.

    With `cut=False` episodes stay whole, and the numbers of steps are balanced as well as possible. Networks with
    memory need it, since their state at a cut is unknown.

    Raises:
        ValueError: `num_shards` is below 1.
    """
    check_whole("num_shards", num_shards, 1)
    share, num_longer = divmod(sum(len(episode) for episode in episodes), num_shards)
    room = [share + (shard >= num_shards - num_longer) for shard in range(num_shards)]
    loads = [0] * num_shards
    shards: list[list[EpisodeT]] = [[] for _ in range(num_shards)]

    # Sorted by length; of equally long episodes the first is taken first. The order makes the result deterministic.
    waiting = [(len(episode), -order, episode) for order, episode in enumerate(episodes)]
    waiting.sort(key=lambda entry: entry[:2])
    while waiting:
        length, order, episode = waiting.pop()
        open_shards = [shard for shard in range(num_shards) if loads[shard] < room[shard]] or range(num_shards)
        shard = min(open_shards, key=loads.__getitem__)

        left = room[shard] - loads[shard]
        if length > left and cut:
            second = episode.slice(slice(left, length), len_lookback_buffer=len_lookback_buffer)
            insort(waiting, (length - left, order, second), key=lambda entry: entry[:2])
            episode = episode.slice(slice(0, left))
            length = left
        shards[shard].append(episode)
        loads[shard] += length
    return shards
