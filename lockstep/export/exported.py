"""`ExportedPolicy`: an artefact that acts from its files alone, for many rows at once."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data.indices import Indices
from lockstep.data.trees import Tree
from lockstep.export.formats import FILES, read
from lockstep.export.graph import NOISE, REWARD, STATE_IN, STATE_OUT, ExportError
from lockstep.state.signatures import HOW_TO_TRUST, is_signature, trusts_files
from lockstep.state.trust import SIGNATURE, UntrustedError

CARD = "card.json"
"""File that describes the artefact."""
CHECKPOINT = "checkpoint"
"""Folder with the checkpoint of the policy, from which a new run can begin."""
ONNX = ".onnx"
EVALUATED = ("torch",)
"""Formats whose files can run code when they are loaded."""
NOISES = ("gumbel", "logistic", "standard_normal")
"""Methods of numpy's generators that draw the noise of an export."""
MAX_ELEMENTS = 2**28
"""Largest number of values in an observation, a state or the noise of one row."""


class ExportedPolicy:
    """Policy from an artefact, which acts on rows of observations `[B, ...]` like the exported policy.

    The memory of each row (a recurrent state, a stack of frames) is kept from call to call until `reset`.

    Attributes:
        card: Content of `card.json`.
        rng: Generator of the noise that selects actions.
    """

    def __init__(self, folder: str | Path, *, trust: bool = False) -> None:
        """Read an artefact; see `load_export`."""
        self.folder = Path(folder)
        self.card = read_card(self.folder)
        path = self.folder / self.card["file"]
        _check_card(self.card, path)
        _check_trusted(self.card, path, trust)

        # The order of the inputs is that of `ActingGraph.inputs`.
        names = [str(port["name"]) for port in self.card["observation"]]
        if self.card["reads_reward"]:
            names.append(REWARD)
        if self.card["noise"]:
            names.append(NOISE)
        names += [str(port["name"]) for port in self.card["state"]]
        self._run = read(path, names)
        self._state: dict[str, np.ndarray] | None = None
        """State of each row, `{name: [B, ...]}`. None before the first call."""
        self.rng = np.random.default_rng()

    def reset(self, rows: Indices = None) -> None:
        """Begin new episodes in the given rows, or in all rows, whose number may change then."""
        if rows is None:
            self._state = None
        elif self._state is not None:
            for name, initial in self._initial_state(1).items():
                self._state[name][rows] = initial

    def compute_actions(
        self, observations: Tree, rewards: np.ndarray | None = None, noise: np.ndarray | None = None
    ) -> Any:
        """Return the environment's actions `[B, ...]`, with the structure of the action space.

        Args:
            observations: Raw observations `[B, ...]`.
            rewards: Rewards `[B]` of the step before, for a policy that reads them. Defaults to zeros.
            noise: Noise `[B, D]` that selects the actions. By default it is drawn from `rng`.

        Raises:
            ValueError: the policy would refuse an observation.
        """
        outputs = dict(zip(self.card["outputs"], self._run(self.inputs_of(observations, rewards, noise))))
        self._state = {port["name"]: outputs[_state_out(port)].copy() for port in self.card["state"]}
        return _action_from(self.card["action"], outputs)

    def draw_noise(self, number: int) -> np.ndarray:
        """Draw the noise `[number, D]` for that many rows."""
        parts = [getattr(self.rng, method)(size=(number, size)) for method, size in self.card["noise"]]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def inputs_of(self, observations: Tree, rewards: np.ndarray | None, noise: np.ndarray | None) -> dict[str, Any]:
        """Return all inputs of the next call by name, the state of each row included."""
        inputs = {port["name"]: _leaf(observations, port) for port in self.card["observation"]}
        number = len(next(iter(inputs.values())))
        if self.card["reads_reward"]:
            inputs[REWARD] = np.zeros(number, np.float32) if rewards is None else np.asarray(rewards, np.float32)
        if self.card["noise"]:
            inputs[NOISE] = self.draw_noise(number) if noise is None else noise
        inputs |= self._initial_state(number) if self._state is None else self._state
        return inputs

    def _initial_state(self, number: int) -> dict[str, np.ndarray]:
        """Return the state of that many rows at the start of an episode."""
        state = {}
        for port in self.card["state"]:
            initial = np.asarray(port["initial"], port["dtype"])
            state[port["name"]] = np.broadcast_to(initial, (number, *port["shape"])).copy()
        return state


def load_export(folder: str | Path, *, trust: bool = False) -> ExportedPolicy:
    """Return the policy of an artefact.

    Loading a torch export (`.pt2`) can run code, since torch evaluates expressions in it. So it is loaded only with
    `trust=True` (or `LOCKSTEP_TRUST=1`), or if the same user has written it. An ONNX file is data and needs neither.

    Raises:
        ExportError: a file is missing or damaged; names it.
        UntrustedError: the artefact is a torch export of somebody else.
    """
    return ExportedPolicy(folder, trust=trust)


def signed_part(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a card that its signature covers: the checksum, and with it the file."""
    return {"export": card["sha256"]}


def _check_trusted(card: Mapping[str, Any], path: Path, trust: bool) -> None:
    """Raise `UntrustedError` for a file that can run code and that neither the caller trusts nor the user signed."""
    if path.suffix == ONNX or trusts_files(trust) or is_signature(signed_part(card), card.get(SIGNATURE), path):
        return
    raise UntrustedError(
        f"{path} is a torch export, and loading it can run code that it holds: it has no signature of yours. If you "
        f"trust who made it, {HOW_TO_TRUST}; an ONNX export needs no trust"
    )


def _check_card(card: Mapping[str, Any], path: Path) -> None:
    """Raise `ExportError` unless a card has only values that exports of Lockstep have.

    A card may come from a stranger: it names a method to call and sizes to allocate.
    """
    try:
        ports = [*card["observation"], *card["state"], *card["actions"]]
        sizes = [math.prod(port["shape"]) for port in ports]
        sizes.append(sum(size for _, size in card["noise"]))
        is_sound = (
            card["file"] in FILES.values()
            and all(isinstance(port["name"], str) for port in ports)
            and all(0 <= size <= MAX_ELEMENTS for size in sizes)
            and all(method in NOISES for method, _ in card["noise"])
            and all(np.dtype(port["dtype"]).kind in "biuf" for port in (*card["observation"], *card["state"]))
            and all(isinstance(port["path"], list) for port in card["observation"])
            and isinstance(card["reads_reward"], bool)
            and card["outputs"] == [*(port["name"] for port in card["actions"]), *map(_state_out, card["state"])]
            and set(_leaves(card["action"])) <= set(card["outputs"])
        )
        for port in card["state"]:  # raises if the initial value does not fit the shape
            np.broadcast_to(np.asarray(port["initial"], port["dtype"]), port["shape"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(f"{path.parent / CARD} is damaged ({error}); export the policy again") from error
    if not is_sound:
        raise ExportError(
            f"{path.parent / CARD} is damaged: it names another file, kind of noise, dtype or output than exports "
            f"have, or more than {MAX_ELEMENTS:,} numbers in a row; export the policy again"
        )


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of an artefact, after a check of its file; `ExportError` if either is missing or damaged."""
    try:
        card = dict(json.loads((folder / CARD).read_text(encoding="utf-8")))
        path = folder / card["file"]
        expected = card["sha256"]
    except FileNotFoundError as error:
        raise ExportError(
            f"{folder} is no export: it has no {CARD}; give the folder that policy.export wrote"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{folder / CARD} is damaged ({error}); export the policy again") from error
    if not path.is_file():
        raise ExportError(f"{path} is missing; export the policy again")
    digest = sha256_of(path)
    if digest != expected:
        raise ExportError(
            f"{path} is damaged: its SHA-256 is {digest[:12]}..., and {CARD} says {str(expected)[:12]}...; export the "
            "policy again"
        )
    return card


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _leaf(observations: Tree, port: Mapping[str, Any]) -> np.ndarray:
    """Return one input `[B, ...]` from observations; `ValueError` for values that the policy would refuse."""
    low = port.get("low", -np.inf)
    high = port.get("high", np.inf)
    try:
        for key in port["path"]:
            observations = observations[key]
        values = np.asarray(observations)
        with np.errstate(all="ignore"):  # changes by the cast are compared below
            array = np.ascontiguousarray(values, port["dtype"])
        if values.dtype.kind in "biuf" and values.shape[1:] == tuple(port["shape"]) and values.ndim > 0:
            is_unchanged = array.dtype.kind == "f" or np.array_equal(array, values)
            is_inside = (array >= low) & (array <= high)  # False for NaN
            if is_unchanged and is_inside.all():
                return array
    except (LookupError, TypeError, ValueError, ArithmeticError):
        pass  # the message below names the part
    shape = f"[{', '.join(map(str, ('B', *port['shape'])))}]"
    raise ValueError(f"{port['name']} must be {port['dtype']} {shape} from {low} to {high}; not {observations!r:.150}")


def _state_out(port: Mapping[str, str]) -> str:
    """Return the name of the output with the next state of a port."""
    return STATE_OUT + port["name"].removeprefix(STATE_IN)


def _leaves(tree: object) -> Iterator[object]:
    """Yield the names in the tree of an action."""
    if isinstance(tree, Mapping | list):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _leaves(part)
    else:
        yield tree


def _action_from(tree: Tree, outputs: Mapping[str, np.ndarray]) -> Any:
    """Return the action whose tree of output names is `tree`. Lists of the card become tuples."""
    if isinstance(tree, Mapping):
        return {key: _action_from(part, outputs) for key, part in tree.items()}
    if isinstance(tree, list):
        return tuple(_action_from(part, outputs) for part in tree)
    return outputs[tree]
