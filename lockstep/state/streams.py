"""A tree of named random streams that grows from one seed.

A stream depends on the seed and on its name, not on when it was created or on how much others were used. So
an evaluation, a logger or one more environment cannot change the numbers that training sees.
"""

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lockstep.options.checks import check_whole


class _GeneratorLock:
    """The lock of torch's global generator, which a process that is forked while it is held gets as a free one."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.RLock()


_GENERATOR = _GeneratorLock()


@contextmanager
def global_generator(seed: int | None = None, *, keep: bool = True) -> Iterator[None]:
    """Have torch's global generator for this thread alone, seeded with `seed`, and leave it as it was.

    Networks are built with it: torch's own initialisers know no other. So threads that build at once take turns.

    `keep=False`: it goes on from where it is, and stays where it comes to.
    """
    with _GENERATOR.lock, torch.random.fork_rng(devices=[], enabled=keep):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


def _derive(key: bytes, kind: str, name: str, index: int = 0) -> bytes:
    """Return a key below `key`, which depends on all of these and on nothing else."""
    digest = hashlib.sha256(key)
    for part in (kind.encode(), name.encode("utf-8", "surrogatepass"), str(index).encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


class RandomStreams:
    """Independent random streams by name, all derived from one seed.

    `numpy`, `torch` and `child` return the same object whenever the same name is asked for; `seed` and
    `seeds` are pure functions of the seed and the name. A numpy stream, a torch stream and a child of one
    name are independent of each other.

    Args:
        seed: a whole number of any size, zero or larger.
        key: of a child; None at the root.

    Raises:
        ValueError: the seed is no whole number, or negative.
    """

    def __init__(self, seed: int, key: bytes | None = None) -> None:
        self.root_seed: int = check_whole("seed", seed, 0)
        self._key = key or hashlib.sha256(b"lockstep streams" + str(self.root_seed).encode()).digest()
        self._numpy: dict[str, np.random.Generator] = {}
        self._torch: dict[tuple[str, str], torch.Generator] = {}
        self._children: dict[str, RandomStreams] = {}

    def __repr__(self) -> str:
        return f"RandomStreams(seed={self.root_seed}, key={self._key.hex()[:8]})"

    def numpy(self, name: str) -> np.random.Generator:
        """Return the numpy generator (PCG64) of this name."""
        if name not in self._numpy:
            self._numpy[name] = self._new_numpy(name)
        return self._numpy[name]

    def torch(self, name: str, device: str | torch.device = "cpu") -> torch.Generator:
        """Return the torch generator of this name on a device."""
        place = (name, str(torch.device(device)))
        if place not in self._torch:
            self._torch[place] = torch.Generator(device=device).manual_seed(self._torch_seed(name))
        return self._torch[place]

    def seed(self, name: str) -> int:
        """Return a seed for something outside (an environment, say): 0 <= seed < 2**31, so that it fits an int32."""
        return self.seeds(name, 1)[0]

    def seeds(self, name: str, n: int) -> list[int]:
        """Return `n` different seeds as `seed` gives them; the first ones stay the same when `n` grows."""
        found: dict[int, None] = {}
        index = 0
        while len(found) < n:
            found[int.from_bytes(_derive(self._key, "seed", name, index)[:4], "little") >> 1] = None
            index += 1
        return list(found)

    def child(self, name: str) -> "RandomStreams":
        """Return the tree of streams below this name (part of this tree's state)."""
        if name not in self._children:
            self._children[name] = RandomStreams(self.root_seed, _derive(self._key, "child", name))
        return self._children[name]

    def get_state(self) -> dict[str, Any]:
        """Return seed and position of every stream created so far, children included, as checkpoints can hold them."""
        torch_states: dict[str, dict[str, torch.Tensor]] = {}
        for (name, device), generator in self._torch.items():
            torch_states.setdefault(name, {})[device] = generator.get_state()
        return {
            "root_seed": self.root_seed,
            "key": self._key.hex(),
            "numpy": {name: generator.bit_generator.state for name, generator in self._numpy.items()},
            "torch": torch_states,
            "children": {name: child.get_state() for name, child in self._children.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Return every stream to a saved position.

        Generators that were handed out are changed in place, so whoever holds one continues with it. A
        stream that did not exist when the state was saved goes back to its beginning.
        """
        fields = {"root_seed", "key", "numpy", "torch", "children"}
        if set(state) != fields:
            raise ValueError(f"state of random streams: expected the fields {sorted(fields)}, got {sorted(state)}")
        self.root_seed = int(state["root_seed"])
        self._key = bytes.fromhex(state["key"])
        for name in {*self._numpy, *state["numpy"]}:
            position = state["numpy"].get(name) or self._new_numpy(name).bit_generator.state
            self.numpy(name).bit_generator.state = position
        saved = {(name, device): at for name, devices in state["torch"].items() for device, at in devices.items()}
        for name, device in {*self._torch, *saved}:
            generator = self.torch(name, device)
            if (name, device) in saved:
                generator.set_state(saved[name, device])
            else:
                generator.manual_seed(self._torch_seed(name))
        for name in {*self._children, *state["children"]}:
            key = _derive(self._key, "child", name)
            unused = {"root_seed": self.root_seed, "key": key.hex(), "numpy": {}, "torch": {}, "children": {}}
            self.child(name).set_state(state["children"].get(name, unused))

    def _new_numpy(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(int.from_bytes(_derive(self._key, "numpy", name), "little")))

    def _torch_seed(self, name: str) -> int:
        return int.from_bytes(_derive(self._key, "torch", name)[:8], "little") >> 1
