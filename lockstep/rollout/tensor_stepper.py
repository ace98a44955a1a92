"""`TensorStepper`: steps tensor environments on their device, in one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.row_share import RowShare
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.envs.errors import step_error
from lockstep.envs.tensor import TensorBoundary, TensorEnv, final_observations
from lockstep.modules.action_dist import ActionDist
from lockstep.ops.graphs import CapturedFunction
from lockstep.replay import TensorReplay
from lockstep.rollout.callbacks import EnvironmentEvents, Episode
from lockstep.rollout.errors import MalformedBufferError, not_finite, refuse_row
from lockstep.rollout.protocols import ActingLike, sole_part
from lockstep.rollout.stepper import StepMode, Stepper
from lockstep.rollout.tensor_episodes import TensorEpisodes
from lockstep.state.streams import RandomStreams

Rows = TypeVar("Rows", np.ndarray, Tensor)


class TensorStepper(Stepper):
    """Steps tensor environments, and writes the steps into a buffer on their device, without a copy to the host.

    Every run takes all vector steps of a collect; on a CUDA device that can hold them in a graph, the third and all
    later ones are one launch. `run` only launches them. `end_collect` waits for the device, and reads which episodes
    ended: so an update can be launched in between.

    With several ranks, amounts and statistics are of the environments of all ranks. `TensorCollector` describes
    `share`.

    Raises `ValueError` where environments and network are on different devices, and for a `share` of environments that
    do not draw by rows.
    """

    rounds_up = False

    def __init__(
        self,
        policy: ActingLike,
        env: TensorBoundary,
        streams: RandomStreams,
        num_steps: int,
        replay: Mapping[str, Any] | None,
        share: RowShare,
    ) -> None:
        if share.number > 1:
            if not isinstance(env.tensors, TensorEnv) or type(env.tensors).draw is not TensorEnv.draw:
                raise ValueError(
                    f"{type(env.tensors).__name__} cannot be shared out over {share.number} ranks: the random numbers "
                    "of a row would be others than in one process; take a TensorEnv that draws as TensorEnv does, or "
                    "one process"
                )
            env.tensors.share = share
        super().__init__(policy, env, streams, (share.rank * env.num_envs, share.number * env.num_envs))
        # The collector's amounts and statistics are those of all ranks.
        self.num_envs = self.num_envs_in_all
        self.agents_of_modules = {}
        self.num_steps = num_steps
        self.share = share
        self.tensors = env.tensors
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

        first = self.tensors.get_observations()
        self._obs = torch.empty_like(first)
        actions = self._act(part, first)
        self.is_replay = replay is not None
        """Whether steps are stored in a `TensorReplay`, which takes random actions too."""
        self._buffer: TensorRollout | TensorReplay
        if replay is None:
            self._buffer = TensorRollout(num_steps, first, actions, share)
        else:
            self._buffer = TensorReplay(first_obs=first, first_actions=actions, share=share, **replay)
        self._running = TensorEpisodes(num_steps, env.num_envs, first.device)
        self._captured: dict[tuple[bool, bool], CapturedFunction[tuple[Tensor, Tensor]]] = {}
        """by whether actions are explored, and whether they are random: what takes the steps of a collect"""
        self._acting: tuple[Any, list[int]] | None = None
        """the network that these act with, and the addresses of its parameters: a graph is valid for these only"""
        self._level = torch.zeros((), device=first.device)
        """0-d, how much is explored"""
        self._ended_episodes: tuple[Any, Any] = (), ()

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Space of the observations."""
        space: spaces.Space[Any] = self.env.observation_space
        return space

    @property
    def buffer(self) -> TensorRollout | TensorReplay:
        """Where steps are stored; it cannot be replaced."""
        return self._buffer

    def set_buffer(self, buffer: object, raise_on_nan: bool) -> None:
        """Raise `ValueError` for another buffer than its own."""
        if buffer is not self._buffer:
            raise ValueError(f"a TensorCollector writes into a buffer of its own, not into {buffer!r}; leave it out")

    def empty_buffer(self, keep_statistics: bool) -> None:
        self._buffer.clear()

    def set_events(self, events: EnvironmentEvents | None) -> None:
        """Raise `ValueError` for callbacks that watch single environments or episodes."""
        if events is not None:
            raise ValueError(
                "callbacks that watch environments or episodes see nothing of a rollout that stays on its device; "
                "leave them out, or take environments that are no tensors"
            )

    def running_episodes(self) -> Sequence[Episode]:
        """Return none: no callback watches them."""
        return []

    def reseed(self, streams: RandomStreams) -> None:
        """Use these random streams from the next reset on. Graphs hold the generators of the streams before."""
        super().reseed(streams)
        self._captured.clear()

    def reset(self) -> None:
        """Begin new episodes everywhere. Those under way are left here: nothing is estimated across this boundary."""
        self._obs.copy_(self.tensors.reset(self.streams.seed(f"env_reset/{self.num_resets}")))
        self.num_resets += 1
        self._running.forget()
        self._buffer.cut()
        self.episodes.is_begun = True

    # -- a collect ---

    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:
        is_other = n_step is None or -(-n_step // self.num_envs) != self.num_steps
        if is_other or n_episode is not None or (random and not self.is_replay):
            raise ValueError(
                f"a TensorCollector collects {self.num_steps * self.num_envs} steps each time, random ones into a "
                f"replay buffer only; it was asked for n_step={n_step}, n_episode={n_episode}, random={random}"
            )

    def begin_collect(self, mode: StepMode) -> None:
        super().begin_collect(mode)
        self._buffer.begin_collect(self.policy.weights_seq_no)

    def run(self, most: int) -> int:
        """Launch all vector steps of a collect; return how many steps these are."""
        self._collecting = self.captured(self.mode.explores, random=self.mode.random)
        self._counts, self._returns_and_lens = self._collecting()
        self._buffer.count(self.num_steps)
        self.episodes.vector_steps += self.num_steps
        return self.num_steps * self.num_envs

    def end_collect(self) -> dict[str, Any]:
        """Wait for the device, and read which episodes ended. `MalformedBufferError` for values that are not finite."""
        number, num_bad = self._counts.tolist()  # the one wait for the device
        returns, lens = self._returns_and_lens[:, :number].cpu().numpy()
        if self.share.number > 1:
            returns, lens, num_bad = self._of_all_ranks(returns, lens, num_bad)
        if self.mode.raise_on_nan and num_bad:
            self._refuse_first_bad_row()
            raise MalformedBufferError(
                f"{num_bad} numbers among the observations and rewards of a collect are not finite, in environments of "
                "other ranks; look at what they return, or pass raise_on_nan_in_buffer=False"
            )
        self._ended_episodes = returns, lens
        return {}

    def _refuse_first_bad_row(self) -> None:
        """Raise `MalformedBufferError` for the first value of this rank that is not finite. Waits for the device."""
        steps = {name: column.cpu().numpy() for name, column in self._buffer.last_steps(self.num_steps).items()}
        found = not_finite(steps.items())
        if found:
            _, name, (t, b, *_), column = min(found, key=itemgetter(0))
            refuse_row(name, self.num_steps - len(column) + t, self.rows.start + b, column[t, b])

    def _of_all_ranks(self, returns: np.ndarray, lens: np.ndarray, num_bad: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return returns and lengths of the episodes that ended in any rank `[E]`, in the order of one collector, and
        how many numbers are not finite in all ranks."""
        steps, envs = (index.cpu().numpy() for index in self._running.ended_in())
        places = steps * self.num_envs + self.rows.start + envs
        parts = self.share.gather({"places": places, "returns": returns, "lens": lens, "num_bad": num_bad})
        order = np.argsort(np.concatenate([part["places"] for part in parts]))
        returns, lens = (np.concatenate([part[name] for part in parts])[order] for name in ("returns", "lens"))
        return returns, lens, sum(part["num_bad"] for part in parts)

    def ended_episodes(self) -> tuple[Any, Any]:
        return self._ended_episodes

    def seconds_since(self, started: float) -> float:
        """Return the seconds of the steps on their device, which other launches may have followed."""
        return self._collecting.seconds

    def abandon_collect(self) -> None:
        self._buffer.abandon_collect()

    @property
    def num_rows(self) -> int:
        """0: steps are dropped by whole collects only."""
        return 0

    def drop_after(self, first: int) -> None:
        """Do nothing: a collect that fails is dropped by `abandon_collect`."""

    # -- the steps, as a graph holds them ---

    def captured(self, explores: bool, *, random: bool = False) -> CapturedFunction[tuple[Tensor, Tensor]]:
        """Return the function that takes all vector steps of a collect.

        It is made again where another network acts, or where the network's parameters are at other addresses.
        """
        part = sole_part(self.policy)
        if part.exploration is not None:
            self._level.fill_(part.exploration_level)
        acting = part.module, [parameter.data_ptr() for parameter in part.module.parameters()]
        if acting != self._acting:
            self._acting = acting
            self._captured = {}
        if (explores, random) not in self._captured:
            generators = [self._generator]
            if self.tensors.capturable:
                generators.append(self.tensors.generator)  # type: ignore[attr-defined]
            act = self._random(part) if random else partial(self._act, part, explores=explores)
            rollout = partial(self._rollout, part, act)
            self._captured[explores, random] = CapturedFunction(
                rollout, self.tensors.device, generators, can_capture=self.tensors.capturable
            )
        return self._captured[explores, random]

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
        """Return a function that draws random actions as learned from, with equal chances, for any observations."""
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
        buffer = self._buffer
        obs = self._obs.clone()
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
                t, actions, rewards, dones, {**extras, "final_obs": final_observations(acted_on, obs, dones, extras)}
            )
            self._running.step(t, rewards, dones)
        self._obs.copy_(obs)
        num_bad = buffer.end(self.num_steps)
        ended, number = self._running.ended()
        return torch.stack([number, num_bad]), ended

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        return {
            "env": self._env_state() if self.episodes.is_begun else None,
            "returns": self._of_all_rows(self._running.returns.cpu().numpy().copy()),
            "lengths": self._of_all_rows(self._running.lengths.cpu().numpy().copy()),
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
        self.episodes.is_begun = False
        self.episodes_cut = 0
        if (env := state["env"]) is not None:
            if self.share.number > 1:
                own = {name: self.share.of(tensor) for name, tensor in env["state"].items()}
                env = {**env, "state": own, "episode_length_buf": self.share.of(env["episode_length_buf"])}
            self.tensors.set_state(env)
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        if state["env"] is None:
            self.episodes_cut = int(np.count_nonzero(state["lengths"]))
            return
        self._obs.copy_(self.tensors.get_observations())
        self._running.returns.copy_(self.share.of(torch.from_numpy(np.array(state["returns"]))))
        self._running.lengths.copy_(self.share.of(torch.from_numpy(np.array(state["lengths"]))))
        self.episodes.is_begun = True
