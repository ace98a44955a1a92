"""Statistics of a run's epochs in pieces, so that each checkpoint writes only what is new."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.state.checkpoint import CheckpointError, SealedTree
from lockstep.tracking.statistics import EpochStats

_BASE = 8
"""Each piece has a power of this many epochs. So there are few pieces, and an epoch is written again only when its
piece grows: four or five times in a run of 10,000 epochs."""
_NAME = "epochs_"


class _Piece(SealedTree):
    """Some epochs in a row. Their states are made when the piece is written, and not kept."""

    __slots__ = ("epochs",)

    def __init__(self, epochs: Sequence[EpochStats]) -> None:
        super().__init__()
        self.epochs = tuple(epochs)

    def content(self) -> dict[str, Any]:
        return {"epochs": [stats.get_state() for stats in self.epochs]}

    def is_of(self, epochs: Sequence[EpochStats]) -> bool:
        """Return whether the piece holds just these objects."""
        return all(old is new for old, new in zip(self.epochs, epochs, strict=True))


class HistoryPieces:
    """Keeps the pieces that were given out, which later checkpoints share (`SealedTree`)."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], _Piece] = {}

    def by_name(self, history: Sequence[EpochStats]) -> dict[str, SealedTree]:
        """Return the statistics of all epochs as a folder of a checkpoint, for `write_checkpoint`."""
        before, self._pieces = self._pieces, {}
        for start, size in _blocks(len(history)):
            epochs = history[start : start + size]
            piece = before.get((start, size))
            # An epoch's entry is replaced where its evaluation, made beside training, ends later.
            self._pieces[start, size] = piece if piece is not None and piece.is_of(epochs) else _Piece(epochs)
        return {f"{_NAME}{start:09d}": piece for (start, _), piece in self._pieces.items()}


def joined_history(folder: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the states of all epochs from a folder that `HistoryPieces.by_name` gave.

    Raises `CheckpointError`: it does not hold `number` epochs.
    """
    found = [state for name in sorted(folder) if name.startswith(_NAME) for state in folder[name]["epochs"]]
    if len(found) != number:
        raise CheckpointError(f"damaged checkpoint: its history has {len(found)} epochs, not {number}")
    return found


def _blocks(number: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of the blocks that `number` epochs are cut into, as the digits of a number are."""
    size = 1
    while size * _BASE <= number:
        size *= _BASE
    start = 0
    while start < number:
        while size > number - start:
            size //= _BASE
        yield start, size
        start += size
