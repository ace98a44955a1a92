"""`TensorCollector`: collects steps of tensor environments on their device, in one CUDA graph."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.envs.errors import step_error
from lockstep.envs.tensor import TensorBoundary, TensorEnv, arrived_at
from lockstep.modules.action_dist import ActionDist
from lockstep.ops.graphs import Captured
from lockstep.replay import TensorReplay
from lockstep.rollout.base_collector import epsilon_by_module, no_copies_of_collectors
from lockstep.rollout.callbacks import EnvironmentCallback, EnvironmentEvents
from lockstep.rollout.errors import MalformedBufferError
from lockstep.rollout.protocols import ActingLike, CollectorTraits, acting_parts, sole_part
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats

Rows = TypeVar("Rows", np.ndarray, Tensor)


class TensorCollector(CollectorTraits):
    """Steps tensor environments and writes what happens into a `TensorRollout`, or into a `TensorReplay`, without a
    copy to the host.

    Every collect takes the same number of vector steps; on a CUDA device that can hold them in a graph the third and
    all later ones are one launch. What crosses to the host is what ended: returns and lengths.

    Args:
        policy: acts by drawing from its distribution, or by an exploration that draws on a device; without memory.
        env: the environments, on the device of the policy's network.
        num_steps: vector steps of each collect.
        replay: `capacity`, `n_step` and `gamma` of a `TensorReplay`; None: a rollout.
        share: which of the environments of several ranks these are. Each rank has a collector, and all make the same
            calls: rows, actions and statistics are those of one collector with the environments of all, and so is its
            state. `ValueError` for environments that do not draw by rows (`TensorEnv` does).
    """

    launches_updates = True

    def __init__(
        self,
        policy: ActingLike,
        env: TensorBoundary,
        num_steps: int,
        exploration_noise: bool = False,
        raise_on_nan_in_buffer: bool = True,
        *,
        replay: Mapping[str, Any] | None = None,
        seed: int | None = None,
        streams: RandomStreams | None = None,
        share: RowShare = ALL_ROWS,
    ) -> None:
        self.policy, self.env, self.tensors, self.share = policy, env, env.tensors, share
        if share.number > 1:
            if not isinstance(env.tensors, TensorEnv) or type(env.tensors).draw is not TensorEnv.draw:
                raise ValueError(
                    f"{type(env.tensors).__name__} cannot be shared out over {share.number} ranks: the random numbers "
                    "of a row would be others than in one process; take a TensorEnv that draws as TensorEnv does, or "
                    "one process"
                )
            env.tensors.share = share
        is_ours = isinstance(env.tensors, TensorEnv) and type(env.tensors).__module__.startswith("lockstep.")
        self._copies_actions = not is_ours
        """Whether the environments may write into the actions that they get, which are stored afterwards."""
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
        self.num_envs: int = env.num_envs * share.number
        """environments, of all ranks"""
        self.reset_stat()
        self.observation_space = env.observation_space
        first = self.tensors.get_observations()
        self._obs = torch.empty_like(first)
        actions = self._act(part, first)
        self.num_steps = num_steps
        self._buffer: TensorRollout | TensorReplay
        if replay is None:
            self._buffer = TensorRollout(num_steps, first, actions, share)
        else:
            self._buffer = TensorReplay(first_obs=first, first_actions=actions, share=share, **replay)
        device, number = first.device, env.num_envs
        self._sums = torch.zeros(number, dtype=torch.float64, device=device)
        """[B] returns of the episodes under way"""
        self._steps_so_far = torch.zeros(number, dtype=torch.float64, device=device)
        """[B] their lengths, floats as they go to the host together"""
        self._ended = torch.zeros(2, num_steps, number, dtype=torch.float64, device=device)
        """[2, T, B] return and length of the episode that ended there; a length of 0: none did"""
        self._collects: dict[tuple[bool, bool], Captured[tuple[Tensor, Tensor]]] = {}
        """by whether actions are explored, and whether they are random"""
        self._acting: Any = None
        """the network that these act with, and where its parameters are: a graph takes both for granted"""
        self._level = torch.zeros((), device=device)
        """0-d, how much is explored"""

    @property
    def buffer(self) -> TensorRollout | TensorReplay:
        """Where steps are written; it cannot be replaced."""
        return self._buffer

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        raise ValueError(f"a TensorCollector writes into a buffer of its own, not into {buffer!r}; leave it out")

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
        """Begin new episodes everywhere, seeded from the collector's streams; empty buffer and counters if asked."""
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
        """Collect `num_steps` vector steps; `n_step` must be as many. Random actions are for a replay buffer.

        `then`: called when all is launched and before the host waits for it, to launch what reads the buffer.

        Raises `ValueError` for another amount and for episodes, `MalformedBufferError` for NaN.
        """
        amount, is_replay = self.num_steps * self.num_envs, isinstance(self._buffer, TensorReplay)
        is_other = n_step is None or -(-n_step // self.num_envs) != self.num_steps
        if is_other or n_episode is not None or (random and not is_replay):
            raise ValueError(
                f"a TensorCollector collects {amount} steps each time, random ones into a replay buffer only; it was "
                f"asked for n_step={n_step}, n_episode={n_episode}, random={random}"
            )
        self.env.check_open()
        if reset_before_collect or not self._is_begun:
            self.reset(reset_buffer=False, reset_stats=False)
        if isinstance(self._buffer, TensorRollout):
            self._buffer.weights_seq_no = self.policy.weights_seq_no
        captured = self._captured(random)
        epsilon = epsilon_by_module(acting_parts(self.policy), 0.0, random) if random or self.explores else {}
        counts, ended = captured()
        self._buffer.count(self.num_steps)
        if then is not None:
            then()
        number, num_bad = counts.tolist()  # the one wait for the device
        returns, lens = ended[:, :number].cpu().numpy()
        if self.share.number > 1:
            returns, lens, num_bad = self._of_all_ranks(returns, lens, num_bad)
            number = len(returns)
        if self.raise_on_nan_in_buffer and num_bad:
            self._is_begun = False
            self._buffer.drop(self.num_steps)
            raise MalformedBufferError(
                f"{num_bad} numbers among the observations and rewards of a collect are not finite; look at what the "
                "environments return, or pass raise_on_nan_in_buffer=False"
            )
        seconds = captured.seconds
        self.collect_step += amount
        self.collect_episode += number
        self.collect_time += seconds
        return CollectStats(number, amount, seconds, returns=returns, lens=lens, epsilon=epsilon)

    def _of_all_ranks(self, returns: np.ndarray, lens: np.ndarray, num_bad: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return returns and lengths of the episodes that ended in any rank `[E]`, in the order of one collector, and
        how many numbers are not finite in all ranks."""
        times, rows = self._ended[1].nonzero().cpu().numpy().T
        places = times * self.num_envs + self.share.rank * self.env.num_envs + rows
        parts = self.share.gather({"places": places, "returns": returns, "lens": lens, "num_bad": num_bad})
        order = np.argsort(np.concatenate([part["places"] for part in parts]))
        returns, lens = (np.concatenate([part[name] for part in parts])[order] for name in ("returns", "lens"))
        return returns, lens, sum(part["num_bad"] for part in parts)

    def _captured(self, random: bool = False) -> Captured[tuple[Tensor, Tensor]]:
        """Return what collects; made anew where another network acts, or its parameters lie elsewhere."""
        part, explores = sole_part(self.policy), self.explores
        if part.exploration is not None:
            self._level.fill_(part.exploration_level)
        acting = part.module, [parameter.data_ptr() for parameter in part.module.parameters()]
        if acting != self._acting:
            self._acting, self._collects = acting, {}
        if (explores, random) not in self._collects:
            generators = [self._generator]
            if self.tensors.capturable:
                generators.append(self.tensors.generator)  # type: ignore[attr-defined]
            act = self._random(part) if random else partial(self._act, part, explores=explores)
            collect, device = partial(self._rollout, part, act), self.tensors.device
            can_capture = self.tensors.capturable
            self._collects[explores, random] = Captured(collect, device, generators, can_capture=can_capture)
        return self._collects[explores, random]

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
        actions: Tensor
        if not explores:
            actions = dist.mode()
        elif part.exploration is None:
            actions = self._sample(part.module.action_dist_cls, inputs)
        else:
            noise = part.exploration.draw_on_device(len(obs) * self.share.number, self._level, self._generator)
            actions = dist.sample_with_noise(self.share.of(noise).to(inputs.dtype))
        return actions

    def _sample(self, action_dist: ActionDist, inputs: Tensor) -> Tensor:
        """Draw actions for the rows of all ranks, each row's from its own numbers, and return the own ones."""
        number = self.share.number
        everyone = inputs if number == 1 else inputs.repeat(number, *[1] * (inputs.ndim - 1))
        return self.share.of(action_dist.from_inputs(everyone).sample(self._generator))

    def _random(self, part: Any) -> Callable[[Tensor], Tensor]:
        """Return what draws random actions as learned from, with equal chances, whatever the observations."""
        space: Any = self.env.action_space
        device = self.tensors.device

        def numbers(*shape: int) -> Tensor:
            drawn = torch.rand(shape[0] * self.share.number, *shape[1:], generator=self._generator, device=device)
            return self.share.of(drawn)

        if isinstance(space, spaces.Discrete):
            return lambda obs: (numbers(len(obs)) * int(space.n)).long()
        low, high = (torch.as_tensor(bound.reshape(-1), device=device) for bound in (space.low, space.high))
        if part.connectors.actions is not None and part.connectors.actions.rescales:
            low, high = -torch.ones_like(low), torch.ones_like(high)
        return lambda obs: numbers(len(obs), len(low)) * (high - low) + low

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
    def _rollout(self, part: Any, act: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Take all vector steps. Returns how many episodes ended and how many numbers are not finite, `[2]`, and
        returns and lengths of those episodes, `[2, T * B]` of which the first ones count."""
        buffer, obs = self._buffer, self._obs.clone()
        for t in range(self.num_steps):
            buffer.begin_step(t, obs)
            actions = act(obs)
            acted_on = obs
            sent = self._to_env(part, actions)
            if self._copies_actions:
                sent = sent.clone()
            try:
                obs, rewards, dones, extras = self.tensors.step(sent)
            except SystemExit as error:  # it would end a run as if all had gone well
                backend = self.env.backend
                raise step_error(error, backend=backend, env_index=None, action=sent, during="step") from error
            buffer.end_step(
                t, actions, rewards, dones, {**extras, "final_obs": arrived_at(acted_on, obs, dones, extras)}
            )
            self._sums.add_(rewards)
            self._steps_so_far.add_(1)
            self._ended[0, t].copy_(self._sums)
            torch.mul(self._steps_so_far, dones, out=self._ended[1, t])
            self._sums.masked_fill_(dones, 0.0)
            self._steps_so_far.masked_fill_(dones, 0)
        self._obs.copy_(obs)
        num_bad = buffer.end(self.num_steps)
        ended, number = front_of(self._ended.flatten(1), self._ended[1].flatten() > 0)
        return torch.stack([number, num_bad]), ended

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return environments (None where they cannot tell their state), episodes, random streams and counters.

        `ValueError` while there is a rollout to be learned from.
        """
        if isinstance(self._buffer, TensorRollout) and self._buffer.size:
            raise ValueError(
                "a collector can be saved between an update and the next collect only, not with data in it"
            )
        return {
            "env": self._env_state() if self._is_begun else None,
            "returns": self._of_all_rows(self._sums.cpu().numpy().copy()),
            "lengths": self._of_all_rows(self._steps_so_far.cpu().numpy().copy()),
            "streams": self.streams.get_state(),
            "num_resets": self.num_resets,
            "counters": [self.collect_step, self.collect_episode, self.collect_time],
        }

    def _env_state(self) -> dict[str, Any] | None:
        """Return the environments' state, of all ranks."""
        state = self.tensors.get_state()
        if self.share.number == 1 or state is None:
            return state
        tensors = {name: self._of_all_rows(tensor) for name, tensor in state["state"].items()}
        return {**state, "state": tensors, "episode_length_buf": self._of_all_rows(state["episode_length_buf"])}

    def _of_all_rows(self, own: Rows) -> Rows:
        """Return an array or a tensor `[B, ...]` of all ranks' rows, of own ones."""
        if self.share.number == 1:
            return own
        parts = self.share.gather(own)
        if isinstance(own, Tensor):
            return torch.cat(parts)
        return np.concatenate(parts)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`; environments without a state begin new episodes."""
        self._is_begun, self.episodes_cut = False, 0
        if (env := state["env"]) is not None:
            if self.share.number > 1:
                own = {name: self.share.of(tensor) for name, tensor in env["state"].items()}
                env = {**env, "state": own, "episode_length_buf": self.share.of(env["episode_length_buf"])}
            self.tensors.set_state(env)
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        self.collect_step, self.collect_episode, self.collect_time = state["counters"]
        if state["env"] is None:
            self.episodes_cut = int(np.count_nonzero(state["lengths"]))
            return
        self._obs.copy_(self.tensors.get_observations())
        self._sums.copy_(self.share.of(torch.from_numpy(np.array(state["returns"]))))
        self._steps_so_far.copy_(self.share.of(torch.from_numpy(np.array(state["lengths"]))))
        self._is_begun = True


def front_of(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return `values` `[K, N]` with the chosen columns first, in their order, and how many these are (0-d int64).

    Without a wait for the device, which `values[:, chosen]` needs to know its shape. The other columns are arbitrary.
    """
    number = chosen.cumsum(0)
    places = torch.where(chosen, number - 1, chosen.numel())  # all others share one place behind the last
    front = values.new_zeros(len(values), chosen.numel() + 1)
    return front.scatter_(1, places.expand_as(values), values), number[-1]
