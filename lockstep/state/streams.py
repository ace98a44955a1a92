"""Tree of named random streams that are derived from one seed.

A stream depends on the seed and on its name. It does not depend on when it was created or on how much other streams
were used. So an evaluation, a logger or one more environment cannot change the random numbers of training.
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
    """Lock of torch's global generator that a forked process gets unlocked.

    A process that is forked while another thread holds a lock would wait for that thread forever: it has no copy of it.
    """

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Replace the lock by a new one that nobody holds."""
        self.lock = threading.RLock()


_GENERATOR = _GeneratorLock()


@contextmanager
def global_generator(seed: int | None = None, *, keep: bool = True) -> Iterator[None]:
    """Context in which this thread alone uses torch's global generator, which is restored afterwards.

    Networks are built with it, because torch's initialisers draw from no other. So threads that build networks at the
    same time take turns.

    Args:
        seed: Seed of the generator within the block. None continues from its current state.
        keep: Whether the generator is restored at the end of the block.
    """
    with _GENERATOR.lock, torch.random.fork_rng(devices=[], enabled=keep):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


def _derive(key: bytes, kind: str, name: str, index: int = 0) -> bytes:
    """Return a new key, which depends on all arguments and on nothing else."""
    digest = hashlib.sha256(key)
    # With the length of each part in front, ("ab", "c") and ("a", "bc") give different keys.
    for part in (kind.encode(), name.encode("utf-8", "surrogatepass"), str(index).encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


class RandomStreams:
    """Independent random streams by name, all derived from one seed.

    `numpy`, `torch` and `child` return the same object in each call with the same name. `seed` and `seeds` depend only
    on the seed and the name. A numpy stream, a torch stream and a child of the same name are independent of each other.

    Args:
        seed: A whole number of any size, zero or larger.
        key: Key that a child's streams are derived from. None for the root of the tree.

    Raises:
        ValueError: The seed is not a whole number, or is negative.
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
        """Return the numpy generator (PCG64) with this name."""
        if name not in self._numpy:
            self._numpy[name] = self._new_numpy(name)
        return self._numpy[name]

    def torch(self, name: str, device: str | torch.device = "cpu") -> torch.Generator:
        """Return the torch generator with this name on a device."""
        key = (name, str(torch.device(device)))
        if key not in self._torch:
            self._torch[key] = torch.Generator(device=device).manual_seed(self._torch_seed(name))
        return self._torch[key]

    def seed(self, name: str) -> int:
        """Return a seed for an object of another library, such as an environment: 0 <= seed < 2**31, an int32."""
        return self.seeds(name, 1)[0]

    def seeds(self, name: str, n: int) -> list[int]:
        """Return `n` different seeds like `seed`. The first ones stay the same when `n` grows."""
        seeds: dict[int, None] = {}  # a dict, which keeps the order and drops a seed that occurs again
        index = 0
        while len(seeds) < n:
            digest = _derive(self._key, "seed", name, index)
            seeds[int.from_bytes(digest[:4], "little") >> 1] = None
            index += 1
        return list(seeds)

    def child(self, name: str) -> "RandomStreams":
        """Return the tree of streams below this name, whose state is part of this tree's state."""
        if name not in self._children:
            self._children[name] = RandomStreams(self.root_seed, _derive(self._key, "child", name))
        return self._children[name]

    def get_state(self) -> dict[str, Any]:
        """Return the seed and the states of all streams created so far, including those of children."""
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
        """Restore the state of every stream.

        Generators are changed in place, so an object that holds one continues with the restored state. A stream that
        did not exist when the state was saved is set back to its beginning, as if it had not been used.
        """
        fields = {"root_seed", "key", "numpy", "torch", "children"}
        if set(state) != fields:
            raise ValueError(f"state of random streams: expected the fields {sorted(fields)}, got {sorted(state)}")
        self.root_seed = int(state["root_seed"])
        self._key = bytes.fromhex(state["key"])
        for name in {*self._numpy, *state["numpy"]}:
            position = state["numpy"].get(name) or self._new_numpy(name).bit_generator.state
            self.numpy(name).bit_generator.state = position

        saved_torch = {}
        for name, devices in state["torch"].items():
            for device, position in devices.items():
                saved_torch[name, device] = position
        for name, device in {*self._torch, *saved_torch}:
            generator = self.torch(name, device)
            if (name, device) in saved_torch:
                generator.set_state(saved_torch[name, device])
            else:
                generator.manual_seed(self._torch_seed(name))

        for name in {*self._children, *state["children"]}:
            # The key comes from the restored one: a child that was not saved belongs to the restored seed as well.
            key = _derive(self._key, "child", name)
            unused = {"root_seed": self.root_seed, "key": key.hex(), "numpy": {}, "torch": {}, "children": {}}
            self.child(name).set_state(state["children"].get(name, unused))

    def _new_numpy(self, name: str) -> np.random.Generator:
        """Return a new numpy generator at the beginning of its stream."""
        return np.random.Generator(np.random.PCG64(int.from_bytes(_derive(self._key, "numpy", name), "little")))

    def _torch_seed(self, name: str) -> int:
        """Return the seed of a torch generator, below 2**63: it goes through a signed int64."""
        return int.from_bytes(_derive(self._key, "torch", name)[:8], "little") >> 1
