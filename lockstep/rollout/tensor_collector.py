"""`TensorCollector`: collects rollouts of tensor environments on their device, in one CUDA graph."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.envs.tensor import TensorBoundary
from lockstep.ops.graphs import Captured
from lockstep.rollout.base_collector import no_copies_of_collectors
from lockstep.rollout.callbacks import EnvironmentCallback, EnvironmentEvents
from lockstep.rollout.errors import MalformedBufferError
from lockstep.rollout.protocols import ActingPolicy, sole_part
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats


class TensorCollector:
    """Steps tensor environments and writes what happens into a `TensorRollout`, without a copy to the host.

    Every collect takes the same number of vector steps; on a CUDA device that can hold them in a graph the third and
    all later ones are one launch. What crosses to the host is what ended: returns and lengths.

    Args:
        policy: acts by drawing from its distribution; without memory.
        env: the environments, on the device of the policy's network.
        num_steps: vector steps of each collect.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        env: TensorBoundary,
        num_steps: int,
        exploration_noise: bool = False,
        raise_on_nan_in_buffer: bool = True,
        *,
        seed: int | None = None,
        streams: RandomStreams | None = None,
    ) -> None:
        self.policy, self.env, self.tensors = policy, env, env.tensors
        part = sole_part(policy)
        part.check_spaces(env.observation_space, env.action_space)
        where = next(part.module.parameters()).device
        if where != self.tensors.device:
            raise ValueError(
                f"the policy's network is on {where}, and the environments are on {self.tensors.device}; make both on "
                "one device (framework(device=...), or the environments' own argument)"
            )
        self.exploration_noise, self.raise_on_nan_in_buffer = exploration_noise, raise_on_nan_in_buffer
        self.is_seeded = seed is not None or streams is not None
        self.streams = RandomStreams(secrets.randbits(63) if seed is None else seed) if streams is None else streams
        self.num_resets = self.episodes_cut = 0
        self._is_begun = False
        self.num_envs: int = env.num_envs
        self.reset_stat()
        self.observation_space = env.observation_space
        first = self.tensors.get_observations()
        self._obs = torch.empty_like(first)
        actions = self._act(part, first)
        self._buffer = TensorRollout(num_steps, first, actions, has_next_obs=self.tensors.gives_final_obs)
        device, number = first.device, self.num_envs
        self._sums = torch.zeros(number, dtype=torch.float64, device=device)
        """[B] returns of the episodes under way"""
        self._steps_so_far = torch.zeros(number, dtype=torch.float64, device=device)
        """[B] their lengths, floats as they go to the host together"""
        self._ended = torch.zeros(2, num_steps, number, dtype=torch.float64, device=device)
        """[2, T, B] return and length of the episode that ended there; a length of 0: none did"""
        self._collects: dict[bool, Captured[tuple[Tensor, Tensor]]] = {}
        self._of_module: Any = None

    @property
    def buffer(self) -> TensorRollout:
        """The rollout; it cannot be replaced."""
        return self._buffer

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        raise ValueError(f"a TensorCollector writes into a rollout of its own, not into {buffer!r}; leave it out")

    def set_callbacks(self, callbacks: Sequence[EnvironmentCallback], runner: Any = None) -> None:
        """Raise `ValueError` for callbacks that watch single environments or episodes."""
        if not EnvironmentEvents(callbacks, runner or self).is_empty:
            raise ValueError(
                "callbacks that watch environments or episodes see nothing of a rollout that stays on its device; "
                "leave them out, or take environments that are no tensors"
            )

    @property
    def explores(self) -> bool:
        """Are actions drawn, rather than the most likely ones taken?"""
        return bool(self.exploration_noise or getattr(self.policy, "is_exploring", False))

    def reseed(self, streams: RandomStreams) -> None:
        """Take these random streams from now on, beginning with their first reset."""
        self.streams, self.num_resets, self.is_seeded = streams, 0, True
        self._collects.clear()

    # -- resets ---

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """Begin new episodes everywhere, seeded from the collector's streams; empty rollout and counters if asked."""
        self.env.check_open()
        if reset_buffer:
            self._buffer.clear()
        if reset_stats:
            self.reset_stat()
        self._obs.copy_(self.tensors.reset(self.streams.seed(f"env_reset/{self.num_resets}")))
        self.num_resets += 1
        self._sums.zero_()
        self._steps_so_far.zero_()
        self._is_begun = True

    def reset_stat(self) -> None:
        """Set the counters to zero."""
        self.collect_step = self.collect_episode = 0
        self.collect_time = 0.0

    def close(self) -> None:
        """Close the environments (a second call does nothing). Collects and resets raise `RuntimeError` then."""
        self.env.close()

    __reduce__ = no_copies_of_collectors

    # -- collecting ---

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        *,
        random: bool = False,
        reset_before_collect: bool | None = None,
        then: Callable[[], None] | None = None,
    ) -> CollectStats:
        """Collect the vector steps that the rollout has room for; `n_step` must be as many.

        `then`: called when all is launched and before the host waits for it, to launch what reads the rollout.

        Raises `ValueError` for another amount, for episodes and for random actions, `MalformedBufferError` for NaN.
        """
        amount = self._buffer.num_steps * self.num_envs
        if n_step is None or n_episode is not None or random or -(-n_step // self.num_envs) != self._buffer.num_steps:
            raise ValueError(
                f"a TensorCollector collects {amount} steps each time, by its policy's actions; it was asked for "
                f"n_step={n_step}, n_episode={n_episode}, random={random}"
            )
        self.env.check_open()
        if reset_before_collect or not self._is_begun:
            self.reset(reset_stats=False)
        self._buffer.weights_seq_no = self.policy.weights_seq_no
        rollout = self._captured()
        counts, ended = rollout()
        self._buffer.size = self._buffer.num_steps
        if then is not None:
            then()
        number, num_bad = counts.tolist()  # the one wait for the device
        returns, lens = ended[:, :number].cpu().numpy()
        if self.raise_on_nan_in_buffer and num_bad:
            self._is_begun, self._buffer.size = False, 0
            raise MalformedBufferError(
                f"{num_bad} numbers among the observations and rewards of the rollout are not finite; look at what the "
                "environments return, or pass raise_on_nan_in_buffer=False"
            )
        seconds = rollout.seconds
        self.collect_step += amount
        self.collect_episode += number
        self.collect_time += seconds
        return CollectStats(number, amount, seconds, returns=returns, lens=lens)

    def _captured(self) -> Captured[tuple[Tensor, Tensor]]:
        """Return what collects; made anew where another network acts."""
        part, explores = sole_part(self.policy), self.explores
        if part.module is not self._of_module:
            self._of_module = part.module
            self._collects = {}
        if explores not in self._collects:
            generators = [self._generator]
            if self.tensors.capturable:
                generators.append(self.tensors.generator)  # type: ignore[attr-defined]
            self._collects[explores] = Captured(
                lambda: self._rollout(part, explores),
                self.tensors.device,
                generators,
                can_capture=self.tensors.capturable,
            )
        return self._collects[explores]

    @property
    def _generator(self) -> torch.Generator:
        return self.streams.torch("exploration", self.tensors.device)

    @torch.no_grad()
    def _act(self, part: Any, obs: Tensor, explores: bool = False) -> Tensor:
        """Return actions as learned from."""
        dtype = next(part.module.parameters()).dtype
        seen = part.connectors.obs(obs)
        batch = {Columns.OBS: seen.to(dtype) if seen.is_floating_point() else seen}
        inputs = part.module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS]
        dist = part.module.action_dist_cls.from_inputs(inputs)
        actions: Tensor = dist.sample(self._generator) if explores else dist.mode()
        return actions

    def _to_env(self, part: Any, actions: Tensor) -> Tensor:
        """Return actions as the environments take them."""
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            return actions + int(space.start) if space.start else actions
        sent = actions.reshape(len(actions), *(space.shape or ()))
        if isinstance(space, spaces.Box):
            sent = sent.to(torch.float32)
        pipeline = part.connectors.actions
        return sent if pipeline is None else pipeline(sent)

    @torch.no_grad()
    def _rollout(self, part: Any, explores: bool) -> tuple[Tensor, Tensor]:
        """Take all vector steps. Returns how many episodes ended and how many numbers are not finite, `[2]`, and
        returns and lengths of those episodes, `[2, T * B]` of which the first ones count."""
        rollout, obs = self._buffer, self._obs.clone()
        for t in range(rollout.num_steps):
            rollout.obs[t].copy_(obs)
            actions = self._act(part, obs, explores)
            obs, rewards, dones, extras = self.tensors.step(self._to_env(part, actions))
            rollout.actions[t].copy_(actions)
            rollout.rewards[t].copy_(rewards)
            rollout.cuts[t].copy_(dones)
            torch.gt(dones, extras["time_outs"], out=rollout.terminateds[t])
            if rollout.next_obs is not None:
                rollout.next_obs[t].copy_(extras["final_obs"])
            self._sums.add_(rewards)
            self._steps_so_far.add_(1)
            self._ended[0, t].copy_(self._sums)
            torch.mul(self._steps_so_far, dones, out=self._ended[1, t])
            self._sums.masked_fill_(dones, 0.0)
            self._steps_so_far.masked_fill_(dones, 0)
        self._obs.copy_(obs)
        rollout.last_obs.copy_(obs)
        numbers = [each for each in (rollout.rewards, rollout.obs) if each.is_floating_point()]
        num_bad = torch.stack([each.numel() - each.isfinite().sum() for each in numbers]).sum()
        ended, number = front_of(self._ended.flatten(1), rollout.cuts.flatten())
        return torch.stack([number, num_bad]), ended

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return environments (None where they cannot tell their state), episodes, random streams and counters.

        `ValueError` while there is data to be learned from.
        """
        if self._buffer.size:
            raise ValueError(
                "a collector can be saved between an update and the next collect only, not with data in it"
            )
        return {
            "env": self.tensors.get_state() if self._is_begun else None,
            "returns": self._sums.cpu().numpy().copy(),
            "lengths": self._steps_so_far.cpu().numpy().copy(),
            "streams": self.streams.get_state(),
            "num_resets": self.num_resets,
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`; environments without a state begin new episodes."""
        self._is_begun, self.episodes_cut = False, 0
        if state["env"] is not None:
            self.tensors.set_state(state["env"])
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if state["env"] is None:
            self.episodes_cut = int(np.count_nonzero(state["lengths"]))
            return
        self._obs.copy_(self.tensors.get_observations())
        self._sums.copy_(torch.from_numpy(np.array(state["returns"])))
        self._steps_so_far.copy_(torch.from_numpy(np.array(state["lengths"])))
        self._is_begun = True


def front_of(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return `values` `[K, N]` with the chosen columns first, in their order, and how many these are (0-d int64).

    Without a wait for the device, which `values[:, chosen]` needs to know its shape. The other columns are arbitrary.
    """
    number = chosen.cumsum(0)
    places = torch.where(chosen, number - 1, chosen.numel())  # all others share one place behind the last
    front = values.new_zeros(len(values), chosen.numel() + 1)
    return front.scatter_(1, places.expand_as(values), values), number[-1]
