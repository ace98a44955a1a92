"""`ActingPolicy`: a network with the transforms around it, which acts; a `Policy` learns, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lockstep.algorithms.observations import checked_observations
from lockstep.connectors import FrameStack, ModuleConnectors, RescaleActions
from lockstep.data.actions import ActionForm
from lockstep.data.columns import Columns
from lockstep.data.trees import map_tree
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.modules import ActingWeights, Actor, EpsilonGreedy, RecurrentActor, RLModule, make_actor
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig


class ActingPolicy:
    """Acts with `module` as `config` says; what an env runner has of a policy.

    Acting reads the parameters' own memory, so new values are acted on at once.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        module: RLModule,
        connectors: ModuleConnectors,
        *,
        observation_space: Any,
        action_space: Any,
    ) -> None:
        self.config = config
        self.observation_space, self.action_space = observation_space, action_space
        frames = config.environment.frame_stack
        self._seen_space = observation_space if frames == 1 else FrameStack(frames, observation_space).observation_space
        self.timesteps: dict[str, int] = {STEPS_SAMPLED: 0}
        self.is_stateful = module.is_stateful()
        self._dist = module.action_dist_cls
        self._exploration = config.exploration(action_space)
        self._version = 0
        self._training = False
        self.seed(config.debugging.seed)
        self._act_with(module, connectors)

    def _act_with(self, module: RLModule, connectors: ModuleConnectors) -> None:
        self.module, self.connectors = module, connectors
        self._actor = make_actor(module, connectors.obs)

    @property
    def act(self) -> Callable[..., np.ndarray]:
        """`act(obs, noise)`: actions as learned from `[B, ...]`, with the parameters that the module has now.

        To be taken anew for each collect: what is held longer may act with parameters that were replaced meanwhile.
        """
        return self._present_actor().act

    def _present_actor(self) -> Actor:
        if self._actor.is_stale():
            self._actor = make_actor(self.module, self.connectors.obs)
        return self._actor

    def seed(self, seed: int) -> None:
        """Begins the random numbers of `compute_actions` again."""
        self._rng = RandomStreams(seed).child("policy").numpy("compute_actions")

    @property
    def weights_seq_no(self) -> int:
        """Version of the weights that act."""
        return self._version

    @property
    def frame_stack(self) -> int:
        """How many observations of an environment make one that it acts on (`environment(frame_stack=)`)."""
        return int(self.config.environment.frame_stack)

    def set_weights(self, weights: ActingWeights) -> None:
        """Acts with these from now on. `ValueError` where they are of another network; nothing is changed then."""
        self.module.set_flat_weights(weights.flat)
        if weights.obs_state:
            self.connectors.obs.set_state(weights.obs_state)
        if weights.timesteps:
            self.timesteps = dict(weights.timesteps)
        self._version = weights.version

    @torch.no_grad()
    def action_logp(self, obs: Any, actions: np.ndarray) -> np.ndarray:
        """[N] log-probability of `actions` [N, ...] as learned from, for raw observations [N, ...].

        Not for a policy with memory.
        """
        batch = {Columns.OBS: map_tree(self._tensor, self.connectors.obs(obs))}
        dist = self._dist.from_inputs(self.module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS])
        logp: np.ndarray = dist.log_prob(self._tensor(actions)).cpu().numpy()
        return logp

    @torch.no_grad()
    def act_with_logp(self, obs: Any, noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """As `act`, and how likely each action was, `[B]`: from one pass through the network, whose weights may change
        at any time. Not for a policy with memory.
        """
        batch = {Columns.OBS: map_tree(self._tensor, self.connectors.obs(obs))}
        dist = self._dist.from_inputs(self.module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS])
        actions = dist.mode() if noise is None else dist.sample_with_noise(self._tensor(noise))
        return actions.cpu().numpy(), dist.log_prob(actions).cpu().numpy()

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.as_tensor(array)
        like = next(self.module.parameters())
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else None)

    @property
    def is_exploring(self) -> bool:
        """Is this a training step (see `within_training_step`), and exploration not switched off?"""
        return self._training and bool(self.config.env_runners.explore)

    def compute_actions(self, obs: Any, state: Any = None, explore: bool | None = None) -> Any:
        """Environment actions `[B, ...]` for raw observations `[B, ...]`.

        They are drawn with `explore=True`, the most likely ones with `explore=False`. None: drawn within a training
        step (`policy_within_training_step`), else the most likely ones. A recurrent policy returns `(actions, state)`;
        hand the state `{name: [B, ...]}` back with the next observations, None (or `get_initial_state(B)`) where
        episodes begin. Raises `ValueError` for observations or a state that do not fit, and for NaN.
        """
        return self.actions_of(*checked_observations(self._seen_space, obs, batched=True), state, explore)

    def compute_single_action(self, obs: Any, state: Any = None, explore: bool | None = False) -> Any:
        """The environment's action for one observation (a plain int for a Discrete space).

        A recurrent policy returns `(action, state)`; the state `{name: [...]}` goes back in with the next observation.
        """
        checked = checked_observations(self._seen_space, obs, batched=False)
        if state is not None:
            state = map_tree(lambda leaf: np.asarray(leaf)[None], state)
        result = self.actions_of(*checked, state, explore)
        action = result[0][0] if self.is_stateful else result[0]
        action = int(action) if action.ndim == 0 and action.dtype.kind in "iu" else action
        return (action, {name: leaf[0] for name, leaf in result[1].items()}) if self.is_stateful else action

    def actions_of(self, obs: Any, rows: int, state: Any, explore: bool | None) -> Any:
        """As `compute_actions`, for `rows` observations that are checked already."""
        explores = self.is_exploring if explore is None else explore
        noise = self.draw_noise(self._rng, (rows,)) if explores else None
        if not self.is_stateful:
            return self.to_env(self.act(obs, noise)).copy()
        actions, after = self.act_with_state(obs, noise, self._checked_state(state, rows))
        return self.to_env(actions).copy(), after

    def get_initial_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """A recurrent policy's state where episodes begin, `{name: [num_rows, ...]}`; empty for one without memory."""
        return self._actor.get_initial_state(num_rows) if isinstance(self._actor, RecurrentActor) else {}

    def act_with_state(
        self, obs: Any, noise: np.ndarray | None, state: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """As `act`, of a recurrent policy: actions as learned from, and the state after them."""
        actor = self._present_actor()
        if not isinstance(actor, RecurrentActor):
            raise TypeError(f"{type(self.module).__name__} has no memory; use act")
        return actor.act_with_state(obs, noise, state)

    def _checked_state(self, state: Any, rows: int) -> Mapping[str, np.ndarray]:
        expected = self.get_initial_state(rows)
        if state is None:
            return expected
        shapes = {name: np.shape(leaf) for name, leaf in state.items()} if isinstance(state, Mapping) else repr(state)
        wanted = {name: leaf.shape for name, leaf in expected.items()}
        if shapes != wanted:
            raise ValueError(f"the recurrent state has the shapes {shapes}, expected {wanted}; None begins episodes")
        return {name: np.asarray(state[name], leaf.dtype) for name, leaf in expected.items()}

    def draw_noise(
        self, rng: np.random.Generator, leading_shape: tuple[int, ...], epsilon: float | None = None
    ) -> np.ndarray:
        """Random numbers for `act`, for many steps at once; of action values with an `epsilon` other than training's.

        Raises `ValueError` for an `epsilon` where actions do not come from action values.
        """
        if epsilon is not None:
            if not isinstance(self._exploration, EpsilonGreedy):
                raise ValueError(f"epsilon={epsilon}: {self.config.algorithm} has no action values; leave it out")
            return EpsilonGreedy(epsilon, self._exploration.num_actions).draw_noise(rng, leading_shape, 0)
        if self._exploration is not None:
            return self._exploration.draw_noise(rng, leading_shape, self.timesteps[STEPS_SAMPLED])
        return self._dist.draw_noise(rng, leading_shape)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions as learned from -> actions as the environment takes them."""
        actions = self._dist.to_env(actions)
        return actions if self.connectors.actions is None else self.connectors.actions(actions)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The inverse (for actions drawn from the action space)."""
        inverse = getattr(self.connectors.actions, "inverse", None)
        return self._dist.from_env(actions if inverse is None else inverse(actions))

    @property
    def action_form(self) -> ActionForm | None:
        """What sets the actions that it learns from apart from the environment's; None: nothing."""
        return ActionForm.of(self.action_space, rescaled=isinstance(self.connectors.actions, RescaleActions))

    def check_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Raises `ValueError` with both where the environment's spaces are not the policy's."""
        for name, own, given in (
            ("observation", self.observation_space, observation_space),
            ("action", self.action_space, action_space),
        ):
            if own != given:
                raise ValueError(
                    f"the policy's {name} space is {own}, the environment's is {given}; use the environment that the "
                    "policy was made for"
                )

    @contextmanager
    def within_training_step(self, enabled: bool = True) -> Any:
        """The context in which `update` is allowed; gives the policy."""
        before, self._training = self._training, enabled
        try:
            yield self
        finally:
            self._training = before
