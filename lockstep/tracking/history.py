"""History of a run's epochs in pieces, so that each checkpoint writes only the new ones."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.state.checkpoint import CheckpointError, SealedTree
from lockstep.tracking.statistics import EpochStats

_BASE = 8
"""A piece has a power of this many epochs. Thus there are few pieces, and an epoch is written again only when its piece
grows: four or five times in a run of 10,000 epochs."""
_NAME = "epochs_"
"""Prefix of the pieces' names in a checkpoint."""


class _Piece(SealedTree):
    """Consecutive epochs. Their states are computed when the piece is written, and not stored here."""

    __slots__ = ("epochs",)

    def __init__(self, epochs: Sequence[EpochStats]) -> None:
        super().__init__()
        self.epochs = tuple(epochs)

    def content(self) -> dict[str, Any]:
        return {"epochs": [stats.get_state() for stats in self.epochs]}

    def is_of(self, epochs: Sequence[EpochStats]) -> bool:
        """Return whether the piece holds exactly these objects."""
        return all(old is new for old, new in zip(self.epochs, epochs, strict=True))


class HistoryPieces:
    """Pieces of a history in the last checkpoint. The next one links to those that are the same (`SealedTree`)."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], _Piece] = {}

    def by_name(self, history: Sequence[EpochStats]) -> dict[str, SealedTree]:
        """Return the statistics of all epochs as a folder of a checkpoint, for `write_checkpoint`."""
        before = self._pieces
        self._pieces = {}
        for start, size in _blocks(len(history)):
            epochs = history[start : start + size]
            piece = before.get((start, size))
            # An asynchronous evaluation replaces its epoch's entry when it ends: equal positions are not enough.
            if piece is None or not piece.is_of(epochs):
                piece = _Piece(epochs)
            self._pieces[start, size] = piece
        return {f"{_NAME}{start:09d}": piece for (start, _), piece in self._pieces.items()}


def joined_history(folder: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the states of all epochs from a folder of `HistoryPieces.by_name`.

    Raises `CheckpointError`: the folder does not hold `number` epochs.
    """
    states: list[dict[str, Any]] = []
    for name in sorted(folder):
        if name.startswith(_NAME):
            states += folder[name]["epochs"]
    if len(states) != number:
        raise CheckpointError(f"damaged checkpoint: its history has {len(states)} epochs, not {number}")
    return states


def _blocks(number: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of the blocks that `number` epochs are divided into, the largest powers of `_BASE` first.

    As many blocks have a size as the digit of that place in `number`, written in base `_BASE`.
    """
    size = 1
    while size * _BASE <= number:
        size *= _BASE
    start = 0
    while start < number:
        while size > number - start:
            size //= _BASE
        yield start, size
        start += size
