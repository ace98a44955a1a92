"""`ExportedPolicy`: acts with an artefact from its files alone, many rows at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.export.formats import read
from lockstep.export.graph import NOISE, REWARD, STATE_IN, STATE_OUT, ExportError

CARD, CHECKPOINT = "card.json", "checkpoint"
"""beside the artefact: what it is, and the policy that it was made of, from which a new run can begin"""


class ExportedPolicy:
    """Acts for rows of observations `[B, ...]` as the policy did that was exported.

    `card` has what `card.json` says. What is remembered of a row (a recurrent state, a stack of frames) follows it from
    call to call, until `reset`.
    """

    def __init__(self, folder: str | Path) -> None:
        """Read an artefact. `ExportError` naming the file that is missing or damaged."""
        self.folder = Path(folder)
        self.card = read_card(self.folder)
        path = self.folder / self.card["file"]
        names = [str(port["name"]) for port in self.card["observation"]]
        names += [REWARD] * self.card["reads_reward"] + [NOISE] * bool(self.card["noise"])
        self._run = read(path, [*names, *(str(port["name"]) for port in self.card["state"])])
        self._state: dict[str, np.ndarray] | None = None
        self.rng = np.random.default_rng()

    def reset(self, rows: Any = None) -> None:
        """Begin episodes in these rows (an index or several); None: in all, whose number may be another then."""
        if rows is None:
            self._state = None
        elif self._state is not None:
            for name, initial in self._initial(1).items():
                self._state[name][rows] = initial

    def compute_actions(
        self, observations: Any, rewards: np.ndarray | None = None, noise: np.ndarray | None = None
    ) -> Any:
        """Return the environment's actions `[B, ...]`, built like the action space.

        `rewards` `[B]` are those of the step before, for a policy that reads them; `noise` `[B, D]` takes the place of
        what is drawn here.
        """
        found = dict(zip(self.card["outputs"], self._run(self.inputs_of(observations, rewards, noise))))
        self._state = {
            port["name"]: found[STATE_OUT + port["name"].removeprefix(STATE_IN)].copy() for port in self.card["state"]
        }
        return _built(self.card["action"], found)

    def draw_noise(self, number: int) -> np.ndarray:
        """Draw the numbers `[number, D]` that select the actions of rows."""
        drawn = [getattr(self.rng, kind)(size=(number, size)) for kind, size in self.card["noise"]]
        return np.concatenate(drawn, axis=1).astype(np.float32)

    def inputs_of(self, observations: Any, rewards: np.ndarray | None, noise: np.ndarray | None) -> dict[str, Any]:
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


def load_export(folder: str | Path) -> ExportedPolicy:
    """Return what acts with an artefact; `ExportError` naming the file that is missing or damaged."""
    return ExportedPolicy(folder)


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


def _leaf(observations: Any, port: Mapping[str, Any]) -> np.ndarray:
    for key in port["path"]:
        observations = observations[key]
    return np.ascontiguousarray(observations, port["dtype"])


def _built(tree: Any, found: Mapping[str, np.ndarray]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _built(part, found) for key, part in tree.items()}
    return tuple(_built(part, found) for part in tree) if isinstance(tree, list) else found[tree]
