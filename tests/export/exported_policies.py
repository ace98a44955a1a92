"""Untrained policies with weights and statistics that matter, for every cell of the product that acts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from lockstep import ALGORITHMS, Policy, get_config
from lockstep.connectors import PreviousActions, PreviousRewards
from lockstep.data.actions import mask_size
from lockstep.modules import RLModule, default_module_class

COVER = Path(__file__).parents[1] / "product/cover.json"
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "Box": spaces.Box(-2.0, 2.0, (4,), np.float32),
    "image": spaces.Box(0, 255, (10, 8, 3), np.uint8),
    "Discrete": spaces.Discrete(7, start=2),
    "Dict": spaces.Dict(
        {
            "place": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
            "kind": spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3))),
        }
    ),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(4, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(np.float32([-2.0, 0.0]), np.float32([1.0, 3.0])),
    "Dict": spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1.0, 2.0, (2,), np.float32)}),
    "Tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"pick": spaces.Discrete(3, start=5)})]),
}
MEMORIES: dict[str, dict[str, Any]] = {
    "no memory": {},
    "lstm": {"recurrent": "lstm", "recurrent_size": 8},
    "gru": {"recurrent": "gru", "recurrent_size": 8},
    "attention": {"attention": {"size": 16, "num_heads": 2, "memory": 4, "hidden_size": 16}},
}
MODEL = {"hiddens": (16,), "critic_hiddens": (8,), "conv_filters": ((4, 3, 2),), "image_hiddens": (16,)}
CONNECTORS = ("none", "frames", "actions", "rewards")


def make_policy(
    algorithm: str,
    observations: spaces.Space[Any],
    actions: spaces.Space[Any],
    *,
    model: dict[str, Any] | None = None,
    env_to_module: Any = None,
    module_to_env: Any = None,
    mask: bool = False,
    exploration: str | None = None,
    dtype: str = "float32",
    **environment: Any,
) -> Policy:
    """Return a policy whose weights and statistics were moved; `ValueError` where the configuration refuses it."""
    if mask:
        parts = dict(observations.spaces) if isinstance(observations, spaces.Dict) else {"seen": observations}
        allowed = spaces.Box(0, 1, (mask_size(actions),), np.int8)
        observations = spaces.Dict({**parts, "action_mask": allowed})
    config = get_config(algorithm).debugging(seed=1).environment(**environment).framework(dtype=dtype)
    if exploration is not None:
        config.env_runners(exploration=exploration)
    config.rl_module(model_config={**MODEL, **(model or {})})
    if env_to_module is not None:
        config.env_runners(env_to_module_connector=env_to_module)
    if module_to_env is not None:
        config.env_runners(module_to_env_connector=module_to_env)
    group = config.build_learner_group(spaces=(observations, actions))
    policy = Policy(config, group, observation_space=observations, action_space=actions)
    move(policy)
    return policy


def move(policy: Policy) -> None:
    """Move weights, so that actions differ from one observation to the next, and statistics."""
    generator = torch.Generator().manual_seed(3)
    for part in policy.acting.values():
        for parameter in part.module.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        if part.connectors.obs.has_statistics:
            space = batch_space(part.stored_observation_space, 50)
            space.seed(1)
            part.connectors.update(as_plain(space.sample()), None)


def as_plain(tree: Any) -> Any:
    """Return a sample as plain dicts and tuples."""
    if isinstance(tree, dict):
        return {key: as_plain(part) for key, part in tree.items()}
    return tuple(map(as_plain, tree)) if isinstance(tree, tuple) else tree


# -- the product ---


def cells() -> Iterator[tuple[str, ...]]:
    """Yield (algorithm, observations, actions, mask, memory, normalised, connectors): what matters to acting.

    They are cells of the product's cover. Networks of one class act alike: of all cells together each pair of levels
    occurs, and with each class of network each level; each algorithm has at least two.
    """
    without_connectors = {config.algorithm for config in ALGORITHMS if config.is_offline or config.needs_teacher}
    seen: set[Any] = set()
    number: Counter[str] = Counter()
    for row in json.loads(COVER.read_text()):
        algorithm, observations, actions, mask, memory, _, _, normalized, *_ = row
        connectors = CONNECTORS[number.total() % len(CONNECTORS)]
        if algorithm in without_connectors or (connectors == "frames" and observations == "Discrete"):
            connectors = "none"
        moved = "normalised" if normalized in ("observations", "both") else "as it is"
        cell = (algorithm, observations, actions, mask, memory, moved, connectors)
        kind = module_of(algorithm, memory)
        levels = list(enumerate(cell[1:]))
        new = {*combinations(levels, 2), *((kind, level) for level in levels)}
        if new - seen or number[algorithm] < 2:
            seen |= new
            number[algorithm] += 1
            yield cell


@cache
def module_of(algorithm: str, memory: str) -> type[RLModule]:
    """Return the class of the network that acts."""
    return get_config(algorithm).module_class or default_module_class({**MODEL, **MEMORIES[memory]})


def policy_of(cell: tuple[str, ...]) -> Policy:
    """Return the policy of a cell."""
    algorithm, observations, actions, mask, memory, normalized, connectors = cell

    def added(observation_space: Any, action_space: Any) -> Any:
        return PreviousActions(action_space) if connectors == "actions" else PreviousRewards()

    return make_policy(
        algorithm,
        OBSERVATIONS[observations],
        ACTIONS[actions],
        model=MEMORIES[memory],
        mask=mask == "mask",
        env_to_module=added if connectors in ("actions", "rewards") else None,
        normalize_observations=normalized == "normalised",
        frame_stack=3 if connectors == "frames" else 1,
    )
