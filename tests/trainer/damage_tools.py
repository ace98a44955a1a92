"""Damage to files, and values that were read as bytes that can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Space

from lockstep.data.spaces import describe_space

LONGEST_BLOCK = 64
HEAD = 512
"""Bytes at either end of a file in which half of the damage is: formats have their headers and directories there."""


def _place(content: bytearray, rng: np.random.Generator) -> int:
    """Return a position in a file."""
    size = len(content)
    ends = min(size, HEAD)
    where = rng.integers(4)
    if where == 0:
        return int(rng.integers(ends))
    if where == 1:
        return size - 1 - int(rng.integers(ends))
    return int(rng.integers(size))


def _block(content: bytearray, rng: np.random.Generator) -> slice:
    start = _place(content, rng)
    return slice(start, start + int(rng.integers(1, LONGEST_BLOCK)))


def flip_bit(content: bytearray, rng: np.random.Generator) -> None:
    """Flip one bit."""
    content[_place(content, rng)] ^= 1 << int(rng.integers(8))


def replace_byte(content: bytearray, rng: np.random.Generator) -> None:
    """Put any other byte in the place of one."""
    content[_place(content, rng)] ^= int(rng.integers(1, 256))


def replace_letter(content: bytearray, rng: np.random.Generator) -> None:
    """Put a character that JSON may hold in the place of a byte."""
    content[_place(content, rng)] = rng.choice(list(b"019-.e,:{}[]\"'\\ naI"))


def truncate(content: bytearray, rng: np.random.Generator) -> None:
    """Cut the file off."""
    del content[_place(content, rng) :]


def zero_block(content: bytearray, rng: np.random.Generator) -> None:
    """Write zeros over a block."""
    block = _block(content, rng)
    content[block] = bytes(len(content[block]))


def drop_block(content: bytearray, rng: np.random.Generator) -> None:
    """Leave a block out."""
    del content[_block(content, rng)]


def double_block(content: bytearray, rng: np.random.Generator) -> None:
    """Write a block twice."""
    block = _block(content, rng)
    content[block.start : block.start] = content[block]


def swap_blocks(content: bytearray, rng: np.random.Generator) -> None:
    """Exchange two blocks of the same length."""
    first, second = _place(content, rng), _place(content, rng)
    room = min(abs(first - second), len(content) - max(first, second), int(rng.integers(1, LONGEST_BLOCK)))
    for offset in range(room):
        one, other = first + offset, second + offset
        content[one], content[other] = content[other], content[one]


KINDS_OF_DAMAGE: Sequence[Callable[[bytearray, np.random.Generator], None]] = (
    *(flip_bit, flip_bit, flip_bit, replace_byte, replace_byte, replace_letter, replace_letter),
    *(truncate, zero_block, drop_block, double_block, swap_blocks),
)
"""single bytes more often than blocks"""


def damage(file: Path, rng: np.random.Generator) -> str:
    """Damage a file, and return what was done; "" where the content is the same."""
    before = file.read_bytes()
    if not before:
        return ""
    content = bytearray(before)
    kind = KINDS_OF_DAMAGE[rng.integers(len(KINDS_OF_DAMAGE))]
    kind(content, rng)
    if content == before:
        return ""
    file.write_bytes(content)
    shared = min(len(before), len(content))
    first = next((at for at in range(shared) if before[at] != content[at]), shared)
    near = slice(max(0, first - 24), first + 24)
    return f"{kind.__name__} at {first} of {len(before)} bytes: {before[near]!r} became {bytes(content[near])!r}"


def bits(value: Any) -> bytes:
    """Return a value as bytes: two values that were read are the first where these are."""
    return b"\0".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if isinstance(value, Mapping):
        for key in value:
            yield repr(key).encode()
            yield from _pieces(value[key])
        yield b"}"
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _pieces(part)
        yield b"]"
    elif isinstance(value, torch.Tensor):
        yield f"{value.dtype} {list(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype == object:
        yield from _pieces(value.tolist())
    elif isinstance(value, np.ndarray | np.generic):
        yield f"{value.dtype} {list(value.shape)}".encode()
        yield value.tobytes()
    elif isinstance(value, Space):
        yield from _pieces(describe_space(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _pieces(getattr(value, field.name))
    elif isinstance(value, bytes):
        yield value
    elif value is None or isinstance(value, bool | int | float | str):
        yield repr(value).encode()
    else:
        raise TypeError(f"{type(value)} cannot be compared")
