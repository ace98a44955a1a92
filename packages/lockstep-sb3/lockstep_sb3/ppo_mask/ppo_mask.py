"""`MaskablePPO` of sb3-contrib: PPO that only takes actions which the environment's masks allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from lockstep.envs import StepResult, VectorBoundary
from lockstep_sb3.algorithms import PPO
from lockstep_sb3.common.maskable.boundary import (
    MaskedBoundary,
    choices_of,
    masked_space,
    num_entries,
    with_masks,
    without_masks,
)
from lockstep_sb3.common.maskable.utils import get_action_masks, is_masking_supported


@dataclass(eq=False, repr=False)
class MaskablePPO(PPO):
    """Proximal policy optimization with action masks (Huang & Ontanon 2022, https://arxiv.org/abs/2006.14171).

    The environment has a method `action_masks()`, which returns an entry for each choice (see `get_action_masks`).
    An `ActionMasker` adds such a method. Forbidden actions have the probability 0 when acting and in the loss.
    """

    policy_package = "ppo_mask"
    takes_own_policies = False

    def network_spaces(self) -> tuple[Any, Any]:
        choices = choices_of(self.action_space)
        return masked_space(self.observation_space, choices), choices

    def make_boundary(self, venv: Any) -> VectorBoundary:
        return MaskedBoundary(super().make_boundary(venv), partial(get_action_masks, venv))

    def learn(  # type: ignore[override]  # the order of sb3-contrib, in which `use_masking` comes first
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = -1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train the model, and return it. Parameters are those of `PPO.learn` and:

        Args:
            use_masking: Respect the masks of the environments. False allows every action.

        Raises:
            ValueError: An environment has no method `action_masks`.
        """
        if self.env is not None:
            if use_masking and not is_masking_supported(self.env):
                raise ValueError(
                    "MaskablePPO.learn: the environment has no method action_masks(); add one, wrap it in an "
                    "ActionMasker, or call learn(use_masking=False)"
                )
            boundary: Any = self.boundary
            boundary.uses_masks = use_masking
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    def _on_vector_step(self, result: StepResult) -> None:
        super()._on_vector_step(without_masks(result))

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """Return actions for one observation or a batch of observations, and `state`, which is not changed.

        Args:
            observation: The observation or observations.
            state: Has no effect.
            episode_start: Has no effect.
            deterministic: Take the most likely of the allowed actions.
            action_masks: Mask `[entries]` of one observation, or masks `[B, entries]`. None allows every action.
        """
        batch, is_single = self.as_batch(observation)
        leaf = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
        num_choices = num_entries(choices_of(self.action_space))
        masks = np.ones((np.shape(leaf)[0], num_choices), np.int8)
        if action_masks is not None:
            given = np.asarray(action_masks)
            if given.size != masks.size:
                raise ValueError(
                    f"action_masks has the shape {given.shape}; it must be {masks.shape}, one entry for each choice"
                )
            masks = given.reshape(masks.shape).astype(bool).astype(np.int8)

        actions = self.lockstep.compute_actions(with_masks(batch, masks), explore=not deterministic)
        actions = actions.astype(self.action_space.dtype)
        return (actions[0] if is_single else actions), state
