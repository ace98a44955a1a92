"""`ExportedPolicy`: acts with an artefact from its files alone, many rows at once."""

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
from lockstep.state.trust import HOW_TO_TRUST, SIGNATURE, UntrustedError, is_signature, trusts_files

CARD, CHECKPOINT = "card.json", "checkpoint"
"""beside the artefact: what it is, and the policy that it was made of, from which a new run can begin"""
ONNX = ".onnx"
EVALUATED = ("torch",)
"""Formats whose files can run code where they are loaded."""
NOISES = ("gumbel", "logistic", "standard_normal")
"""Methods of numpy's generators that draw the noise of an export."""
MAX_ELEMENTS = 2**28
"""Numbers of an observation, a state or the noise of one row, at most."""


class ExportedPolicy:
    """Acts for rows of observations `[B, ...]` as the policy did that was exported.

    `card` has what `card.json` says. What is remembered of a row (a recurrent state, a stack of frames) follows it from
    call to call, until `reset`.
    """

    def __init__(self, folder: str | Path, *, trust: bool = False) -> None:
        """Read an artefact. See `load_export`."""
        self.folder = Path(folder)
        self.card = read_card(self.folder)
        path = self.folder / self.card["file"]
        _check_card(self.card, path)
        _check_trusted(self.card, path, trust)
        names = [str(port["name"]) for port in self.card["observation"]]
        names += [REWARD] * self.card["reads_reward"] + [NOISE] * bool(self.card["noise"])
        self._run = read(path, [*names, *(str(port["name"]) for port in self.card["state"])])
        self._state: dict[str, np.ndarray] | None = None
        self.rng = np.random.default_rng()

    def reset(self, rows: Indices = None) -> None:
        """Begin episodes in these rows (an index or several); None: in all, whose number may be another then."""
        if rows is None:
            self._state = None
        elif self._state is not None:
            for name, initial in self._initial(1).items():
                self._state[name][rows] = initial

    def compute_actions(
        self, observations: Tree, rewards: np.ndarray | None = None, noise: np.ndarray | None = None
    ) -> Any:
        """Return the environment's actions `[B, ...]`, built like the action space.

        `rewards` `[B]` are those of the step before, for a policy that reads them; `noise` `[B, D]` takes the place of
        what is drawn here.
        """
        found = dict(zip(self.card["outputs"], self._run(self.inputs_of(observations, rewards, noise))))
        self._state = {port["name"]: found[_state_out(port)].copy() for port in self.card["state"]}
        return _built(self.card["action"], found)

    def draw_noise(self, number: int) -> np.ndarray:
        """Draw the numbers `[number, D]` that select the actions of rows."""
        drawn = [getattr(self.rng, kind)(size=(number, size)) for kind, size in self.card["noise"]]
        return np.concatenate(drawn, axis=1).astype(np.float32)

    def inputs_of(self, observations: Tree, rewards: np.ndarray | None, noise: np.ndarray | None) -> dict[str, Any]:
        """Return all inputs of the next call by name, with what is remembered of each row."""
        inputs = {port["name"]: _leaf(observations, port) for port in self.card["observation"]}
        number = len(next(iter(inputs.values())))
        if self.card["reads_reward"]:
            inputs[REWARD] = np.zeros(number, np.float32) if rewards is None else np.asarray(rewards, np.float32)
        if self.card["noise"]:
            inputs[NOISE] = self.draw_noise(number) if noise is None else noise
        return {**inputs, **(self._initial(number) if self._state is None else self._state)}

    def _initial(self, number: int) -> dict[str, np.ndarray]:
        return {
            port["name"]: np.broadcast_to(np.asarray(port["initial"], port["dtype"]), (number, *port["shape"])).copy()
            for port in self.card["state"]
        }


def load_export(folder: str | Path, *, trust: bool = False) -> ExportedPolicy:
    """Return what acts with an artefact.

    torch evaluates expressions in a torch export (`.pt2`), so it is loaded only with `trust=True` (or
    `LOCKSTEP_TRUST=1`) or where the same user has written it. An ONNX file is data and needs neither.

    Raises:
        ExportError: a file that is missing or damaged, by name.
        UntrustedError: a torch export that somebody else has written.
    """
    return ExportedPolicy(folder, trust=trust)


def signed_part(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the signature of an export covers: its file, by the checksum."""
    return {"export": card["sha256"]}


def _check_trusted(card: Mapping[str, Any], path: Path, trust: bool) -> None:
    if path.suffix == ONNX or trusts_files(trust) or is_signature(signed_part(card), card.get(SIGNATURE), path):
        return
    raise UntrustedError(
        f"{path} is a torch export, and loading it can run code that it holds: it has no signature of yours. If you "
        f"trust who made it, {HOW_TO_TRUST}; an ONNX export needs no trust"
    )


def _check_card(card: Mapping[str, Any], path: Path) -> None:
    """Raise `ExportError` for a card that asks for what no export of Lockstep has."""
    try:
        names = [port["name"] for part in ("observation", "state", "actions") for port in card[part]]
        sizes = [math.prod(port["shape"]) for part in ("observation", "state", "actions") for port in card[part]]
        sizes.append(sum(size for _, size in card["noise"]))
        is_sound = (
            card["file"] in FILES.values()
            and all(isinstance(name, str) for name in names)
            and all(0 <= size <= MAX_ELEMENTS for size in sizes)
            and all(kind in NOISES for kind, _ in card["noise"])
            and all(np.dtype(port["dtype"]).kind in "biuf" for port in (*card["observation"], *card["state"]))
            and all(isinstance(port["path"], list) for port in card["observation"])
            and isinstance(card["reads_reward"], bool)
            and card["outputs"] == [*(port["name"] for port in card["actions"]), *map(_state_out, card["state"])]
            and set(_leaves(card["action"])) <= set(card["outputs"])
        )
        for port in card["state"]:
            np.broadcast_to(np.asarray(port["initial"], port["dtype"]), port["shape"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(f"{path.parent / CARD} is damaged ({error}); export the policy again") from error
    if not is_sound:
        raise ExportError(
            f"{path.parent / CARD} is damaged: it names another file, kind of noise, dtype or output than exports "
            f"have, or more than {MAX_ELEMENTS:,} numbers in a row; export the policy again"
        )


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of an artefact whose file is as it was written; `ExportError` otherwise."""
    try:
        card = dict(json.loads((folder / CARD).read_text()))
        path, expected = folder / card["file"], card["sha256"]
    except FileNotFoundError as error:
        raise ExportError(
            f"{folder} is no export: it has no {CARD}; give the folder that policy.export wrote"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{folder / CARD} is damaged ({error}); export the policy again") from error
    if not path.is_file():
        raise ExportError(f"{path} is missing; export the policy again")
    found = sha256_of(path)
    if found != expected:
        raise ExportError(
            f"{path} is damaged: its SHA-256 is {found[:12]}..., and {CARD} says {str(expected)[:12]}...; export the "
            "policy again"
        )
    return card


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _leaf(observations: Tree, port: Mapping[str, Any]) -> np.ndarray:
    """Return one input `[B, ...]` from observations. `ValueError` for what the policy would refuse too."""
    low, high = port.get("low", -np.inf), port.get("high", np.inf)
    try:
        for key in port["path"]:
            observations = observations[key]
        given = np.asarray(observations)
        with np.errstate(all="ignore"):  # what a cast changes is compared below
            array = np.ascontiguousarray(given, port["dtype"])
        if given.dtype.kind in "biuf" and given.shape[1:] == tuple(port["shape"]) and given.ndim > 0:
            is_kept = array.dtype.kind == "f" or np.array_equal(array, given)
            is_inside = (array >= low) & (array <= high)  # False for NaN
            if is_kept and is_inside.all():
                return array
    except (LookupError, TypeError, ValueError, ArithmeticError):
        pass
    shape = f"[{', '.join(map(str, ('B', *port['shape'])))}]"
    raise ValueError(f"{port['name']} must be {port['dtype']} {shape} from {low} to {high}; not {observations!r:.150}")


def _state_out(port: Mapping[str, str]) -> str:
    """Return the name of the output that has the state after a step."""
    return STATE_OUT + port["name"].removeprefix(STATE_IN)


def _leaves(tree: object) -> Iterator[object]:
    """Yield the names of outputs that actions are built from."""
    if isinstance(tree, Mapping | list):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _leaves(part)
    else:
        yield tree


def _built(tree: Tree, found: Mapping[str, np.ndarray]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _built(part, found) for key, part in tree.items()}
    return tuple(_built(part, found) for part in tree) if isinstance(tree, list) else found[tree]
