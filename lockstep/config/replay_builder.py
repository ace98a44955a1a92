"""`ReplayBuilder`: builds a replay buffer, and its relabelling of goals, from the options of replay."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import gymnasium as gym

from lockstep.envs import goal_functions
from lockstep.envs.config import EnvironmentSection
from lockstep.envs.make import single_env_factory
from lockstep.envs.tensor import TensorVecEnv
from lockstep.replay import ReplayBuffer
from lockstep.replay.config import ReplaySection
from lockstep.replay.hindsight import Hindsight


@dataclass
class ReplayBuilder:
    """Builder of replay buffers from the options."""

    replay: ReplaySection[Any]
    _: KW_ONLY
    is_off_policy: bool
    """Whether the algorithm learns from replay. Otherwise a buffer may hold data, but no sequences are drawn."""

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
            num_envs: Number of sub-buffers, one for each environment.
            seed: Seed of the buffer's random numbers.
            gamma: Discount of n-step returns.
            remembers: Whether the network that learns from the buffer has a memory. None if that is not known.
            num_frames: Number of frames in a stack. Each frame is stored once, unless sequences are drawn.
            hindsight: Relabelling of goals, or None.
        """
        section = self.replay
        if remembers is None:
            # A network class of the user's own: `sequence_length` says that it has a memory.
            needs_sequences = section.sequence_length is not None
        else:
            needs_sequences = remembers

        sequence_length: int | None = None
        burn_in = 0
        stack_num = num_frames
        if self.is_off_policy and needs_sequences:
            sequence_length, burn_in = section.sequences()
            # Rows of a sequence are read as they are stored, so the stacks must be stored.
            stack_num = 1
        return ReplayBuffer(
            section.capacity,
            buffer_num=num_envs,
            stack_num=stack_num,
            save_only_last_obs=stack_num > 1,
            n_step=section.n_step,
            gamma=gamma,
            sequence_length=sequence_length,
            burn_in=burn_in,
            # The next frame of a stack is in the following row already.
            ignore_obs_next=section.ignore_obs_next or stack_num > 1,
            storage=section.storage,
            hindsight=hindsight,
            priorities=section.priorities(),
            seed=seed,
        )

    def build_hindsight(self, section: EnvironmentSection[Any]) -> Hindsight:
        """Build the relabelling of goals, with the environment's `compute_reward`.

        Raises:
            ValueError: The environment has no `compute_reward`.
        """
        is_made = isinstance(section.env, gym.Env)
        env = section.env if is_made else single_env_factory(section.env, section.env_config)()
        try:
            # An environment made here stays open: the functions are its methods.
            return self.build_hindsight_of(env)
        except ValueError:
            if not is_made:
                env.close()
            raise

    def build_hindsight_of(self, env: gym.Env[Any, Any] | TensorVecEnv) -> Hindsight:
        """Build the relabelling of goals with the `compute_reward` of this environment.

        Raises:
            ValueError: The environment has no `compute_reward`.
        """
        replay = self.replay
        compute_reward, compute_terminated = goal_functions(env)
        return Hindsight(
            compute_reward,
            future_k=replay.her_future_k,
            strategy=replay.her_strategy,
            compute_terminated=compute_terminated,
        )
