"""`Glimpse`: what the networks of a run's newest checkpoint do in a few hundred steps of its environment."""

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
from lockstep.policy import Policy
from lockstep.rollout import Collector
from lockstep.runs.run import load_policy
from lockstep.state.streams import RandomStreams
from lockstep.tracking import RunFolder

NUM_ENVS, NUM_STEPS, MAX_SECONDS = 4, 128, 10.0
"""environments, vector steps in each, and seconds after which it ends all the same"""
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU)
STILL = 1e-4
"""a unit whose outputs differ by less over all observations is dead"""
AT_BOUND = 0.99


@dataclass(frozen=True)
class Layer:
    """The hidden units of one layer, and how many are dead: the same output for each observation."""

    name: str
    units: int
    dead: int


@dataclass
class Glimpse:
    """What was seen. `note` says why nothing more was; parts that were not seen are empty."""

    note: str | None = None
    action_space: Any = None
    """what the module acts in"""
    is_squashed: bool = False
    broken: list[str] = field(default_factory=list)
    """parameters, rewards and observations that are not finite"""
    rewards: np.ndarray | None = None
    """[N], as the environment gives them"""
    obs_scale: float | None = None
    """root mean square of observations that are plain numbers, as the network sees them"""
    at_bounds: float | None = None
    """share of the components of most likely actions that lie at a bound of the action space, or beyond"""
    layers: list[Layer] = field(default_factory=list)

    @classmethod
    def of_run(cls, folder: RunFolder, *, play: bool, trust: bool = False) -> Glimpse:
        """Load the newest checkpoint and play with it; what is not possible is noted, not raised.

        Of a run that ended with an error it is the state at the error, which shows the cause.
        """
        checkpoint = folder.newest_checkpoint()
        if folder.error_checkpoint.is_dir() and folder.summary_path.exists():
            if folder.read_summary().get("stop_reason") == "error":
                checkpoint = folder.error_checkpoint
        if checkpoint is None:
            return cls("it has no intact checkpoint")
        try:
            policy = load_policy(checkpoint, trust=trust)
        except Exception as error:  # networks of the user's own, classes that are gone, another version
            return cls(f"its checkpoint could not be loaded ({type(error).__name__}: {error})")
        seen = cls()
        for name, param in policy.learner_group.learner.module.named_parameters():
            if not torch.isfinite(param).all():
                seen.broken.append(f"the parameter {name}")
        if policy.is_multi_agent or policy.is_stateful:
            seen.note = f"networks {'of several agents' if policy.is_multi_agent else 'with memory'} are not looked at"
            return seen
        seen.action_space, seen.is_squashed = _acted_in(policy)
        if seen.broken:
            return seen
        if not play or policy.config.environment.env is None:
            seen.note = "the environment was not played"
            return seen
        try:
            seen.play(policy)
        except Exception as error:  # of the environment, which may be gone or broken
            seen.note = f"playing its environment failed ({type(error).__name__}: {error})"
        return seen

    def play(self, policy: Policy) -> None:
        """Collect some steps, and look at rewards, observations, actions and hidden units."""
        policy.config.set_num_threads()
        with policy.config.make_envs(NUM_ENVS) as envs:
            streams = RandomStreams(0).child("doctor")
            collector = Collector(policy, envs, exploration_noise=True, raise_on_nan_in_buffer=False, streams=streams)
            store = RolloutStore(NUM_STEPS, envs.num_envs, collector.observation_space, envs.action_space)
            collector.buffer = store
            began = time.perf_counter()
            while store.size < NUM_STEPS and time.perf_counter() - began < MAX_SECONDS:
                collector.collect(n_step=16 * envs.num_envs)
        rows = np.flatnonzero(store.valid[: store.size].reshape(-1))

        def flat(leaf: np.ndarray) -> np.ndarray:
            return leaf[: store.size].reshape(-1, *leaf.shape[2:])[rows]

        rewards, obs = flat(store.rewards), map_tree(flat, store.obs)
        if not np.isfinite(rewards).all():
            self.broken.append("rewards of the environment")
            return
        self.rewards = rewards
        part = policy.acting[next(iter(policy.acting))]
        columns = part.learning_columns(SampleBatch({Columns.OBS: obs, Columns.ACTIONS: flat(store.actions)}))
        batch = {name: map_tree(policy.learner_group.learner.to_tensor, column) for name, column in columns.items()}
        self._look_at_networks(part.module, batch)

    @torch.no_grad()
    def _look_at_networks(self, module: RLModule, batch: dict[str, Any]) -> None:
        seen = batch[Columns.OBS]
        if isinstance(seen, Tensor) and seen.is_floating_point() and seen.dim() == 2:
            self.obs_scale = float(seen.square().mean().sqrt())
        with _watched(module) as outputs:
            inputs = module.forward_train(dict(batch))
        if type(module).compute_values is not RLModule.compute_values:
            with _watched(module, but=outputs) as of_values:
                module.compute_values(dict(batch))
            outputs |= of_values
        if not isinstance(seen, Tensor) or bool((seen != seen[:1]).any()):  # else no unit has a reason to vary
            self.layers = [_layer(name, output) for name, output in outputs.items()]
        self._look_at_actions(module, inputs.get(Columns.ACTION_DIST_INPUTS))

    def _look_at_actions(self, module: RLModule, inputs: Tensor | None) -> None:
        space = self.action_space
        if not isinstance(space, spaces.Box) or inputs is None:
            return
        actions = module.action_dist_cls.from_inputs(inputs).mode().cpu().numpy()
        if not self.is_squashed:
            low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
            bounded = np.isfinite(low) & np.isfinite(high)
            if not bounded.any():
                return
            low, high, actions = low[bounded], high[bounded], actions.reshape(len(actions), -1)[:, bounded]
            actions = (actions - (low + high) / 2.0) / ((high - low) / 2.0)
        self.at_bounds = float((np.abs(actions) >= AT_BOUND).mean())


def _acted_in(policy: Policy) -> tuple[Any, bool]:
    """Return the space that the module acts in, and whether its actions are squashed to [-1, 1]."""
    part = policy.acting[next(iter(policy.acting))]
    actions = part.connectors.actions
    return (
        policy.action_space if actions is None else actions.module_space,
        bool(getattr(part.module.action_dist_cls, "squashed", False)),
    )


@contextmanager
def _watched(module: nn.Module, but: Collection[str] = ()) -> Iterator[dict[str, Tensor]]:
    """Yield the outputs of all activations by name, but for some, filled while it is entered.

    One that is called for several layers has names with their numbers.
    """
    outputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def keep(name: str, output: Tensor) -> None:
        calls[name] += 1
        outputs[name if calls[name] == 1 else f"{name} (layer {calls[name]})"] = output

    handles = [
        layer.register_forward_hook(lambda layer, inputs, output, name=name: keep(name, output))
        for name, layer in module.named_modules()
        if type(layer) in ACTIVATIONS and name not in but
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _layer(name: str, output: Tensor) -> Layer:
    """Count dead units in outputs `[N, H]`, `[K, N, H]` of K networks, or `[N, C, height, width]` of a convolution."""
    values = output.transpose(0, 1).flatten(1) if output.dim() == 4 else output.movedim(-2, -1).flatten(0, -2)
    dead = (values.amax(-1) - values.amin(-1)) < STILL
    return Layer(name, len(values), int(dead.sum()))
