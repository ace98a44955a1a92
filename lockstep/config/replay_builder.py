"""`ReplayBuilder`: from the options of replay to a replay buffer and its relabelling of goals."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import gymnasium as gym

from lockstep.envs import goal_functions
from lockstep.envs.config import EnvironmentSection
from lockstep.envs.make import single_env_factory
from lockstep.replay import ReplayBuffer
from lockstep.replay.config import ReplaySection
from lockstep.replay.hindsight import Hindsight


@dataclass
class ReplayBuilder:
    """Builds replay buffers, as the options say."""

    replay: ReplaySection[Any]
    _: KW_ONLY
    is_off_policy: bool
    """Whether the algorithm learns from replay. Else it may be filled with data, but nothing draws sequences."""

    def build(
        self,
        num_envs: int,
        *,
        seed: int,
        gamma: float,
        remembers: bool | None,
        num_frames: int,
        hindsight: Hindsight | None,
    ) -> ReplayBuffer:
        """Build an empty buffer.

        Args:
            num_envs: number of its sub-buffers, one for each environment.
            seed: seed of its random numbers.
            gamma: discount of its n-step returns.
            remembers: whether the network that learns from it has a memory; None where that is not known.
            num_frames: frames in a stack. Each frame is stored once, except where sequences are drawn.
            hindsight: relabels goals.
        """
        section = self.replay
        asks_for_sequences = section.sequence_length is not None if remembers is None else remembers
        in_sequences = self.is_off_policy and asks_for_sequences
        sequence_length, burn_in = section.sequences() if in_sequences else (None, 0)
        stack_num = 1 if in_sequences else num_frames
        return ReplayBuffer(
            section.capacity,
            buffer_num=num_envs,
            stack_num=stack_num,
            save_only_last_obs=stack_num > 1,
            n_step=section.n_step,
            gamma=gamma,
            sequence_length=sequence_length,
            burn_in=burn_in,
            ignore_obs_next=section.ignore_obs_next or stack_num > 1,
            storage=section.storage,
            hindsight=hindsight,
            priorities=section.priorities(),
            seed=seed,
        )

    def build_hindsight(self, section: EnvironmentSection[Any]) -> Hindsight:
        """Build the relabelling with the environment's `compute_reward`; `ValueError` where it has none."""
        replay = self.replay
        finished = isinstance(section.env, gym.Env)
        env = section.env if finished else single_env_factory(section.env, section.env_config)()
        try:
            compute_reward, compute_terminated = goal_functions(env)
        except ValueError:
            if not finished:
                env.close()
            raise
        return Hindsight(
            compute_reward,
            future_k=replay.her_future_k,
            strategy=replay.her_strategy,
            compute_terminated=compute_terminated,
        )
