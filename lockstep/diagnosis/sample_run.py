"""Sample run of a policy: what the networks of a run's newest checkpoint do in a few hundred environment steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.data.columns import Columns
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import map_tree
from lockstep.modules import RLModule
from lockstep.modules.layers import ACTIVATION_CLASSES
from lockstep.policy import Policy
from lockstep.rollout import Collector
from lockstep.runs.run import load_policy
from lockstep.state.streams import RandomStreams
from lockstep.tracking import RunFolder

NUM_ENVS = 4
NUM_STEPS = 128
"""Steps in each environment."""
MAX_SECONDS = 10.0
"""Time after which a sample run ends before `NUM_STEPS`, so that a slow environment does not hold up the user."""
ACTIVATIONS = tuple(set(ACTIVATION_CLASSES.values()) - {nn.Identity})
"""Activations whose outputs are examined for dead units."""
DEAD_RANGE = 1e-4
"""A unit is dead if its outputs for all observations lie within this range."""
BOUND_SHARE = 0.99
"""An action is at the bound of its space from this share of the way to it."""


@dataclass(frozen=True)
class LayerUnits:
    """Numbers of hidden units in a layer, and of dead ones, which have the same output for every observation."""

    name: str
    units: int
    dead: int


@dataclass
class SampleRun:
    """Measurements of a policy and its environment. Those that could not be made are None or empty."""

    note: str | None = None
    """Why measurements are missing; None if all were made."""
    action_space: Any = None
    """Space that the module acts in."""
    is_squashed: bool = False
    """Whether the module's actions are squashed to [-1, 1]."""
    not_finite: list[str] = field(default_factory=list)
    """Parameters and rewards with NaN or infinite numbers, in words."""
    rewards: np.ndarray | None = None
    """Rewards as the environment gives them, [N]."""
    observation_rms: float | None = None
    """Root mean square of the observations as the network sees them, if they are vectors of numbers."""
    share_at_bounds: float | None = None
    """Share of the components of the most likely actions that are at a bound of the action space, or beyond it."""
    layers: list[LayerUnits] = field(default_factory=list)

    @classmethod
    def of_run(cls, folder: RunFolder, *, play: bool, trust: bool = False) -> SampleRun:
        """Measure the newest checkpoint of a run, or the state at the error if the run ended with one.

        Errors become the `note`: `doctor` still has the records to examine.

        Args:
            folder: Folder of the run, which is not changed.
            play: Whether to play in the environment. Without it, only the parameters are examined.
            trust: Whether to accept all objects that the checkpoint names.
        """
        checkpoint = folder.newest_checkpoint()
        if folder.error_checkpoint.is_dir() and folder.summary_path.exists():
            if folder.read_summary().get("stop_reason") == "error":
                checkpoint = folder.error_checkpoint  # it shows the cause
        if checkpoint is None:
            return cls("it has no intact checkpoint")
        try:
            policy = load_policy(checkpoint, trust=trust)
        except Exception as error:  # e.g. a network of the user, a class that is gone, another version of Lockstep
            return cls(f"its checkpoint could not be loaded ({type(error).__name__}: {error})")

        sample = cls()
        for name, param in policy.learner_group.learner.module.named_parameters():
            if not torch.isfinite(param).all():
                sample.not_finite.append(f"the parameter {name}")
        if policy.is_multi_agent or policy.is_stateful:
            kind = "of several agents" if policy.is_multi_agent else "with memory"
            sample.note = f"networks {kind} are not looked at"
            return sample
        sample.read_action_space(policy)
        if sample.not_finite:
            return sample  # every other measurement would be NaN too

        if not play or policy.config.environment.env is None:
            sample.note = "the environment was not played"
            return sample
        try:
            sample.play(policy)
        except Exception as error:  # the environment may be gone or broken
            sample.note = f"playing its environment failed ({type(error).__name__}: {error})"
        return sample

    def play(self, policy: Policy) -> None:
        """Play with the policy, and measure rewards, observations, actions and hidden units."""
        policy.config.set_num_threads()
        store = self._played_steps(policy)
        is_valid = store.valid[: store.size].reshape(-1)
        rows = np.flatnonzero(is_valid)

        def flat(leaf: np.ndarray) -> np.ndarray:
            """Return the valid rows of a column [T, B, ...] as [N, ...]."""
            return leaf[: store.size].reshape(-1, *leaf.shape[2:])[rows]

        rewards = flat(store.rewards)
        obs = map_tree(flat, store.obs)
        if not np.isfinite(rewards).all():
            self.not_finite.append("rewards of the environment")
            return
        self.rewards = rewards

        acting = policy.acting[next(iter(policy.acting))]
        columns = acting.learning_columns(SampleBatch({Columns.OBS: obs, Columns.ACTIONS: flat(store.actions)}))
        to_tensor = policy.learner_group.learner.to_tensor
        batch = {name: map_tree(to_tensor, column) for name, column in columns.items()}
        self._measure_networks(acting.module, batch)

    @staticmethod
    def _played_steps(policy: Policy) -> RolloutStore:
        """Play with a policy that explores, and return the steps."""
        with policy.config.make_envs(NUM_ENVS) as envs:
            streams = RandomStreams(0).child("doctor")
            # NaN is one of the faults that are looked for, so it must not end the collection.
            collector = Collector(policy, envs, exploration_noise=True, raise_on_nan_in_buffer=False, streams=streams)
            store = RolloutStore(NUM_STEPS, envs.num_envs, collector.observation_space, envs.action_space)
            collector.buffer = store
            start_time = time.perf_counter()
            while store.size < NUM_STEPS and time.perf_counter() - start_time < MAX_SECONDS:
                collector.collect(n_step=16 * envs.num_envs)
        return store

    def read_action_space(self, policy: Policy) -> None:
        """Read the space that the module acts in, and whether its actions are squashed."""
        acting = policy.acting[next(iter(policy.acting))]
        action_connector = acting.connectors.actions
        self.action_space = policy.action_space if action_connector is None else action_connector.module_space
        self.is_squashed = bool(getattr(acting.module.action_dist_cls, "squashed", False))

    @torch.no_grad()
    def _measure_networks(self, module: RLModule, batch: dict[str, Any]) -> None:
        """Measure observations, hidden units and actions in one forward pass of the policy and of the critic."""
        obs = batch[Columns.OBS]
        if isinstance(obs, Tensor) and obs.is_floating_point() and obs.dim() == 2:
            self.observation_rms = float(obs.square().mean().sqrt())

        with _activation_outputs(module) as outputs:
            forward_out = module.forward_train(dict(batch))
        if module.overrides_compute_values:
            with _activation_outputs(module, skip=outputs) as critic_outputs:
                module.compute_values(dict(batch))
            outputs |= critic_outputs

        # If all observations are equal, every unit has the same output without being dead.
        observations_differ = not isinstance(obs, Tensor) or bool((obs != obs[:1]).any())
        if observations_differ:
            self.layers = [_count_dead_units(name, output) for name, output in outputs.items()]
        self._measure_actions(module, forward_out.get(Columns.ACTION_DIST_INPUTS))

    def _measure_actions(self, module: RLModule, dist_inputs: Tensor | None) -> None:
        """Measure how many of the most likely actions are at a bound. `dist_inputs`: [N, ...], as in the batch."""
        space = self.action_space
        if not isinstance(space, spaces.Box) or dist_inputs is None:
            return
        actions = module.action_dist_cls.from_inputs(dist_inputs).mode().cpu().numpy()
        if not self.is_squashed:
            # Scaled to [-1, 1] too. Components without bounds are left out.
            low = space.low.reshape(-1).astype(np.float64)
            high = space.high.reshape(-1).astype(np.float64)
            is_bounded = np.isfinite(low) & np.isfinite(high)
            if not is_bounded.any():
                return
            center = (low[is_bounded] + high[is_bounded]) / 2.0
            half_range = (high[is_bounded] - low[is_bounded]) / 2.0
            actions = (actions.reshape(len(actions), -1)[:, is_bounded] - center) / half_range
        self.share_at_bounds = float((np.abs(actions) >= BOUND_SHARE).mean())


@contextmanager
def _activation_outputs(module: nn.Module, skip: Collection[str] = ()) -> Iterator[dict[str, Tensor]]:
    """Context manager with a dict that is filled with the outputs of all activations, by name.

    An activation that is called after several layers has a name with a number for each further call.

    `skip`: names of activations that are left out.
    """
    outputs: dict[str, Tensor] = {}
    num_calls: Counter[str] = Counter()

    def record(name: str, output: Tensor) -> None:
        num_calls[name] += 1
        key = name if num_calls[name] == 1 else f"{name} (layer {num_calls[name]})"
        outputs[key] = output

    handles = [
        layer.register_forward_hook(lambda layer, inputs, output, name=name: record(name, output))
        for name, layer in module.named_modules()
        if type(layer) in ACTIVATIONS and name not in skip
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _count_dead_units(name: str, output: Tensor) -> LayerUnits:
    """Count the dead units of a layer.

    `output`: [N, H], [K, N, H] for K networks in one, or [N, C, height, width] of a convolution, whose units are its
    C channels.
    """
    if output.dim() == 4:
        values = output.transpose(0, 1).flatten(1)
    else:
        values = output.movedim(-2, -1).flatten(0, -2)
    is_dead = (values.amax(-1) - values.amin(-1)) < DEAD_RANGE
    return LayerUnits(name, len(values), int(is_dead.sum()))
