"""`TensorStepper`: steps tensor environments on their device, as one CUDA graph for each collect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.data.row_share import RowShare
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trees import Tree, allocate, copy_into, leaves_of_space, map_pair, map_tree, num_items
from lockstep.envs.errors import step_error
from lockstep.envs.tensor import TensorBoundary, TensorEnv, final_observations
from lockstep.ops.graphs import CapturedFunction
from lockstep.replay import TensorReplay
from lockstep.rollout.callbacks import EnvironmentEvents, Episode
from lockstep.rollout.errors import MalformedBufferError, not_finite, refuse_row
from lockstep.rollout.protocols import ActingLike, sole_part
from lockstep.rollout.stepper import StepMode, Stepper
from lockstep.rollout.tensor_episodes import TensorEpisodes
from lockstep.rollout.tensor_exploration import TensorExplorationState, TensorPolicy
from lockstep.rollout.tensor_memory import TensorMemory
from lockstep.rollout.tensor_recording import TensorRecording
from lockstep.state.streams import RandomStreams

Rows = TypeVar("Rows", np.ndarray, Tensor)


class TensorStepper(Stepper):
    """Stepper of tensor environments, which stores steps in a buffer on their device without a copy to the host.

    `run` launches all vector steps of a collect at once. On a CUDA device, and if the environments' operations can be
    captured, the third collect captures them in a graph, and later collects are one launch. `end_collect` waits for the
    device and reads which episodes ended. In between, an update can be launched on the same device.

    With several ranks, amounts and statistics refer to the environments of all ranks.

    Args:
        policy: The policy, with its network on the device of the environments.
        env: The environments.
        streams: Random streams for the seeds of episodes and for exploration.
        num_steps: Number of vector steps of each collect.
        replay: Keyword arguments of a `TensorReplay` to store steps in; None for a `TensorRollout`.
        share: The part of all environments that this rank has; see `TensorCollector`.

    Raises:
        ValueError: Environments and network are on different devices, or several ranks share environments that do not
            draw random numbers for the rows of all ranks.
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
            # `TensorEnv.draw` draws numbers for the rows of all ranks and takes its own. With another `draw` a row
            # would get other numbers than in one process.
            if not isinstance(env.tensors, TensorEnv) or type(env.tensors).draw is not TensorEnv.draw:
                raise ValueError(
                    f"{type(env.tensors).__name__} cannot be shared out over {share.number} ranks: the random numbers "
                    "of a row would be others than in one process; take a TensorEnv that draws as TensorEnv does, or "
                    "one process"
                )
            env.tensors.share = share
        super().__init__(policy, env, streams, (share.rank * env.num_envs, share.number * env.num_envs))
        # The amounts and statistics of a collect refer to the environments of all ranks.
        self.num_envs = self.num_envs_in_all
        self.agents_of_modules = {}
        self.num_steps = num_steps
        self.share = share
        self.tensors = env.tensors
        self._is_ours = isinstance(env.tensors, TensorEnv) and type(env.tensors).__module__.startswith("lockstep.")
        """Whether the environments are Lockstep's own, which write only into their own memory, and return new tensors.
        Users' environments get a copy of the actions, which they may write into before the actions are stored."""
        self._returns_copies = type(env.tensors).__module__.startswith("lockstep.")
        """Whether the environments never write into observations that they have returned."""
        part = sole_part(policy)
        part.check_spaces(env.observation_space, env.action_space)
        first_parameter = next(part.module.parameters())
        network_device = first_parameter.device
        if network_device != self.tensors.device:
            raise ValueError(
                f"the policy's network is on {network_device}, and the environments are on {self.tensors.device}; "
                "make both on one device (framework(device=...), or the environments' own argument)"
            )

        self._network_dtype = first_parameter.dtype
        """Dtype of the network's parameters. The network would have to search its modules for it in each step."""
        self._exploring: TensorExplorationState | None = None
        """State of correlated exploration noise; None if the noise of each step is independent."""
        state = {} if part.exploration is None else part.exploration.initial_state(env.num_envs)
        if state:
            self._exploring = TensorExplorationState(state, env.num_envs, network_device)

        self._memory: TensorMemory | None = None
        """States of the policy's memory; None for a policy without one."""
        if part.is_stateful:
            if replay is not None or not part.module.reads_begins:
                raise ValueError(
                    f"{type(part.module).__name__} has a memory; on a device it must read the column 'begins', and "
                    "learn from rollouts (PPO, A2C, IMPALA, APPO); take Collector for steps on the host"
                )
            self._memory = TensorMemory(part.module, env.num_envs)

        self._recording = TensorRecording(part.recorded, env.num_envs, network_device)
        """Connectors whose output is stored, with their memories."""
        raw_obs = self._in_space_order(self.tensors.get_observations())
        self._obs: Tree = map_tree(torch.empty_like, raw_obs)
        """`[B, ...]` observations of the environments before the next step, always at the same addresses, which a graph
        reads."""
        first_obs = self._recording.stored(raw_obs, self._recording.memories)[0]
        first_actions = self._act(part, first_obs)
        self.is_replay = replay is not None
        """Whether steps are stored in a `TensorReplay`. Only then actions may be random: an on-policy algorithm
        learns from a rollout, whose actions have to come from the policy."""
        self._buffer: TensorRollout | TensorReplay
        if replay is None:
            state = None if self._memory is None else self._memory.state
            self._buffer = TensorRollout(num_steps, first_obs, first_actions, share, state)
        else:
            new_rows = part.connectors.new_rows_on_device(num_steps, env.num_envs, network_device)
            self._buffer = TensorReplay(
                first_obs=first_obs, first_actions=first_actions, share=share, new_rows=new_rows, **replay
            )
        device = self.tensors.device
        self._running = TensorEpisodes(num_steps, env.num_envs, device)
        self._captured: dict[tuple[bool, bool], CapturedFunction[tuple[Tensor, Tensor]]] = {}
        """Functions that take the steps of a collect, by `(explores, random)`."""
        self._network: tuple[Any, list[int]] | None = None
        """Network of these functions, and the addresses of its parameters. A graph is valid for these only."""
        self._exploration_level = torch.zeros((), device=device)
        """0-d exploration level, such as the scale of noise. A tensor, so that it may change without a new graph."""
        self._ended_episodes: tuple[Any, Any] = (), ()
        """Returns and lengths of the episodes that ended in the last collect."""

    def _in_space_order(self, obs: Tree) -> Tree:
        """Return observations `[B, ...]` with their entries in the order of the space, as columns are stored.

        Raises:
            ValueError: The observations have other entries or shapes than their space.
        """
        name = f"the observation of {type(self.tensors).__name__}"
        for space, leaf, path in leaves_of_space(self.env.observation_space, obs, name):
            expected = (self.env.num_envs, *(space.shape or ()))
            if tuple(leaf.shape) != expected:
                raise ValueError(f"{path} has shape {tuple(leaf.shape)}, its space says {expected} ({space})")
        return map_pair(lambda _, leaf: leaf, allocate(self.env.observation_space, 0), obs)

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Space of the stored observations."""
        space: spaces.Space[Any] = sole_part(self.policy).stored_observation_space
        return space

    @property
    def buffer(self) -> TensorRollout | TensorReplay:
        """Buffer that steps are stored in. It cannot be replaced."""
        return self._buffer

    def set_buffer(self, buffer: object, raise_on_nan: bool) -> None:
        """Raise `ValueError` unless `buffer` is the stepper's own buffer."""
        if buffer is not self._buffer:
            raise ValueError(f"a TensorCollector writes into a buffer of its own, not into {buffer!r}; leave it out")

    def empty_buffer(self, keep_statistics: bool) -> None:
        self._buffer.clear()

    def set_events(self, events: EnvironmentEvents | None) -> None:
        """Raise `ValueError` for callbacks that handle events of environments or episodes."""
        if events is not None:
            raise ValueError(
                "callbacks that watch environments or episodes see nothing of a rollout that stays on its device; "
                "leave them out, or take environments that are no tensors"
            )

    def running_episodes(self) -> Sequence[Episode]:
        """Return an empty list: episodes are not recorded for callbacks."""
        return []

    def reseed(self, streams: RandomStreams) -> None:
        super().reseed(streams)
        # The graphs contain the generators of the old streams.
        self._captured.clear()

    def reset(self) -> None:
        copy_into(self._obs, self.tensors.reset(self.streams.seed(f"env_reset/{self.num_resets}")))
        self.num_resets += 1
        self._running.forget()
        if self._exploring is not None:
            self._exploring.forget()
        if self._memory is not None:
            self._memory.forget()
        self._recording.forget()
        self._buffer.cut()
        self.episodes.is_begun = True

    # -- a collect ---

    def check_amount(self, n_step: int | None, n_episode: int | None, random: bool) -> None:
        is_other_amount = n_step is None or -(-n_step // self.num_envs) != self.num_steps
        is_refused_random = random and not self.is_replay
        if is_other_amount or n_episode is not None or is_refused_random:
            raise ValueError(
                f"a TensorCollector collects {self.num_steps * self.num_envs} steps each time, random ones into a "
                f"replay buffer only; it was asked for n_step={n_step}, n_episode={n_episode}, random={random}"
            )

    def begin_collect(self, mode: StepMode) -> None:
        super().begin_collect(mode)
        self._buffer.begin_collect(self.policy.weights_seq_no)

    def run(self, most: int) -> int:
        """Launch all vector steps of a collect, and return the number of steps in them. `most` is ignored."""
        self._collecting = self.captured(self.mode.explores, random=self.mode.random)
        self._counts, self._returns_and_lens = self._collecting()
        self._buffer.count(self.num_steps)
        self.episodes.vector_steps += self.num_steps
        return self.num_steps * self.num_envs

    def end_collect(self) -> dict[str, Any]:
        """Wait for the device, and read the returns and lengths of the ended episodes.

        Raises `MalformedBufferError` for values that are not finite.
        """
        num_ended, num_bad = self._counts.tolist()  # the one wait for the device in a collect
        returns, lens = self._returns_and_lens[:, :num_ended].cpu().numpy()
        if self.share.number > 1:
            returns, lens, num_bad = self._gather_ended(returns, lens, num_bad)
        if self.mode.raise_on_nan and num_bad:
            self._refuse_first_bad_row()
            # Not reached if this rank has such a value: the call above has raised then.
            raise MalformedBufferError(
                f"{num_bad} numbers among the observations and rewards of a collect are not finite, in environments of "
                "other ranks; look at what they return, or pass raise_on_nan_in_buffer=False"
            )
        self._ended_episodes = returns, lens
        return {}

    def _refuse_first_bad_row(self) -> None:
        """Raise `MalformedBufferError` for the first value of this rank that is not finite, if there is one."""
        steps = {name: column.cpu().numpy() for name, column in self._buffer.last_steps(self.num_steps).items()}
        values = not_finite(steps.items())
        if values:
            first = min(values, key=attrgetter("origin"))
            t, b = first.position[:2]
            column = first.column
            # A replay may hold less than a collect: its column then has only the last steps.
            refuse_row(first.name, self.num_steps - len(column) + t, self.rows.start + b, column[t, b])

    def _gather_ended(self, returns: np.ndarray, lens: np.ndarray, num_bad: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the results of all ranks: returns and lengths `[E]`, and the number of values that are not finite.

        Episodes are in the order of one collector of all environments: by vector step and then by environment.

        Args:
            returns: Returns of the episodes that ended in this rank.
            lens: Lengths of these episodes.
            num_bad: Number of values of this rank that are not finite.
        """
        steps, envs = (index.cpu().numpy() for index in self._running.ended_in())
        keys = steps * self.num_envs + self.rows.start + envs
        parts = self.share.gather({"keys": keys, "returns": returns, "lens": lens, "num_bad": num_bad})
        order = np.argsort(np.concatenate([part["keys"] for part in parts]))
        all_returns = np.concatenate([part["returns"] for part in parts])[order]
        all_lens = np.concatenate([part["lens"] for part in parts])[order]
        return all_returns, all_lens, sum(part["num_bad"] for part in parts)

    def take_log(self) -> dict[str, tuple[float, int]]:
        return self.tensors.take_log()

    def ended_episodes(self) -> tuple[Any, Any]:
        return self._ended_episodes

    def seconds_since(self, started: float) -> float:
        """Return the duration of the steps on the device in seconds, without other work that was launched after
        them."""
        return self._collecting.seconds

    def abandon_collect(self) -> None:
        self._buffer.abandon_collect()

    @property
    def num_rows(self) -> int:
        """Always 0: steps are dropped by whole collects only, in `abandon_collect`."""
        return 0

    def drop_after(self, first: int) -> None:
        """Do nothing: a collect that fails is dropped by `abandon_collect`."""

    # -- the steps of a collect, as a graph contains them ---

    def captured(self, explores: bool, *, random: bool = False) -> CapturedFunction[tuple[Tensor, Tensor]]:
        """Return the function that takes all vector steps of a collect.

        It is built again if the policy has another network, or if the network's parameters are at other addresses.

        Args:
            explores: Whether the policy samples its actions.
            random: Whether actions are drawn uniformly from the action space.
        """
        part = sole_part(self.policy)
        if part.exploration is not None:
            self._exploration_level.fill_(part.exploration_level)
        network = part.module, [parameter.data_ptr() for parameter in part.module.parameters()]
        if network != self._network:
            self._network = network
            self._network_dtype = next(part.module.parameters()).dtype
            self._captured = {}
        if (explores, random) not in self._captured:
            # A graph has to know the generators that it draws from, to advance them with each launch.
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
        """Random generator of exploration on the device."""
        return self.streams.torch("exploration", self.tensors.device)

    @torch.no_grad()
    def _act(self, part: Any, obs: Tree, explores: bool = False) -> Tensor:
        """Return the policy's actions as learned from, for observations `[B, ...]`."""
        dtype = self._network_dtype

        def in_network_dtype(leaf: Tensor) -> Tensor:
            return leaf.to(dtype) if leaf.is_floating_point() else leaf

        network_obs = map_tree(in_network_dtype, part.observations(obs))
        policy = TensorPolicy(part, network_obs, self._generator, self.share, self._memory)
        if not explores:
            return policy.distribution().mode()
        exploration = part.exploration
        if exploration is None:
            return policy.sample()

        num_rows = num_items(obs) * self.share.number
        numbers = exploration.draw_on_device(num_rows, self._exploration_level, self._generator)
        noise = self.share.of(numbers)
        if self._exploring is not None:
            noise = self._exploring.advance(exploration, noise)
        actions: Tensor = exploration.act_on_device(policy, noise.to(dtype))
        return actions

    def _random(self, part: Any) -> Callable[[Tree], Tensor]:
        """Return a function `act(obs)` that draws actions, as learned from, uniformly from the action space.

        Of choices only those that the action mask in the observations allows are drawn, if there is one.
        """
        space: Any = self.env.action_space
        device = self.tensors.device

        def uniform(*shape: int) -> Tensor:
            numbers = torch.rand(shape[0] * self.share.number, *shape[1:], generator=self._generator, device=device)
            return self.share.of(numbers)

        if isinstance(space, spaces.Discrete) and carries_mask(self.env.observation_space):
            return lambda obs: allowed_choices(obs[ACTION_MASK], uniform(num_items(obs)))
        if isinstance(space, spaces.Discrete):
            return lambda obs: (uniform(num_items(obs)) * int(space.n)).long()
        low, high = (torch.as_tensor(bound.reshape(-1), device=device) for bound in (space.low, space.high))
        if part.connectors.actions is not None and part.connectors.actions.rescales:
            # The policy's actions are in [-1, 1], and the connector rescales them to the bounds of the space.
            low, high = -torch.ones_like(low), torch.ones_like(high)
        return lambda obs: uniform(num_items(obs), len(low)) * (high - low) + low

    def _to_env(self, part: Any, actions: Tensor) -> Tensor:
        """Return actions as the environments take them, for actions as learned from."""
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            return actions + int(space.start) if space.start else actions
        env_actions = actions.reshape(len(actions), *(space.shape or ()))
        if isinstance(space, spaces.Box):
            env_actions = env_actions.to(torch.float32)
        pipeline = part.connectors.actions
        return env_actions if pipeline is None else pipeline(env_actions)

    @torch.no_grad()
    def _rollout(self, part: Any, act: Callable[[Tree], Tensor]) -> tuple[Tensor, Tensor]:
        """Take all vector steps of a collect.

        Nothing here may wait for the device, and all shapes are fixed, so that a graph can contain the operations.

        Returns:
            The number of ended episodes and the number of values that are not finite, `[2]`; the returns and lengths of
            the ended episodes, `[2, T * B]`, in the first columns.
        """
        buffer = self._buffer
        obs = map_tree(torch.Tensor.clone, self._obs)
        for t in range(self.num_steps):
            stored_obs, memories = self._recording.stored(obs, self._recording.memories)
            buffer.begin_step(t, stored_obs)
            if self._memory is not None:
                cast(TensorRollout, buffer).write_memory(t, self._memory.state, self._memory.begins)
            actions = act(stored_obs)
            acted_on = obs
            env_actions = self._to_env(part, actions)
            if not self._is_ours:
                env_actions = env_actions.clone()
            if not (self._returns_copies or self.tensors.gives_final_obs):
                acted_on = map_tree(torch.Tensor.clone, obs)
            try:
                obs, rewards, dones, extras = self.tensors.step(env_actions)
            except SystemExit as error:
                # Some simulators call `sys.exit` on errors. Unchanged it would end the run as if all had gone well.
                raise step_error(
                    error, backend=self.env.backend, env_index=None, action=env_actions, during="step"
                ) from error
            if not self._is_ours:
                self.tensors.check_final_observations(obs, dones, extras)
            final_obs = final_observations(acted_on, obs, dones, extras)
            # The last observation of an episode continues its memory. The next observation begins a new memory.
            stored_final_obs = self._recording.stored(final_obs, memories)[0]
            self._recording.after_step(memories, dones)
            buffer.end_step(t, actions, rewards, dones, {**extras, "final_obs": stored_final_obs})
            self._running.step(t, rewards, dones)
            if self._exploring is not None:
                self._exploring.after_step(dones)
            if self._memory is not None:
                self._memory.after_step(dones)
        copy_into(self._obs, obs)
        num_bad = buffer.end(self.num_steps)
        returns_and_lens, num_ended = self._running.ended()
        return torch.stack([num_ended, num_bad]), returns_and_lens

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "env": self._env_state() if self.episodes.is_begun else None,
            "returns": self._gather_rows(self._running.returns.cpu().numpy().copy()),
            "lengths": self._gather_rows(self._running.lengths.cpu().numpy().copy()),
        }
        if self._exploring is not None:
            state["exploring"] = self._exploring.get_state(self._gather_rows)
        if self._recording.memories:
            state["recording"] = self._recording.get_state(self._gather_rows)
        if self._memory is not None:
            state["memory"] = self._memory.get_state(self._gather_rows)
        return state

    def _env_state(self) -> dict[str, Any] | None:
        """Return the environments' state with the rows of all ranks; None if they do not support saving it."""
        state = self.tensors.get_state()
        if self.share.number == 1 or state is None:
            return state
        tensors = {name: self._gather_rows(tensor) for name, tensor in state["state"].items()}
        return {**state, "state": tensors, "episode_length_buf": self._gather_rows(state["episode_length_buf"])}

    def _gather_rows(self, rows: Rows) -> Rows:
        """Return the rows `[B, ...]` of all ranks, an array or a tensor as this rank's `rows`."""
        if self.share.number == 1:
            return rows
        parts = self.share.gather(rows)
        if isinstance(rows, Tensor):
            return torch.cat(parts)
        return np.concatenate(parts)

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.episodes.is_begun = False
        self.episodes_cut = 0
        # The environments come first: they may refuse the state, and then nothing else must have changed.
        env_state = state["env"]
        if env_state is not None:
            if self.share.number > 1:
                tensors = {name: self.share.of(tensor) for name, tensor in env_state["state"].items()}
                episode_lengths = self.share.of(env_state["episode_length_buf"])
                env_state = {**env_state, "state": tensors, "episode_length_buf": episode_lengths}
            self.tensors.set_state(env_state)
        self.streams.set_state(state["streams"])
        self.num_resets = int(state["num_resets"])
        if env_state is None:
            self.episodes_cut = int(np.count_nonzero(state["lengths"]))
            return
        copy_into(self._obs, self.tensors.get_observations())
        self._running.returns.copy_(self.share.of(torch.from_numpy(np.array(state["returns"]))))
        self._running.lengths.copy_(self.share.of(torch.from_numpy(np.array(state["lengths"]))))
        if self._exploring is not None and "exploring" in state:
            self._exploring.set_state(state["exploring"], self.share)
        if self._recording.memories:
            self._recording.set_state(state["recording"], self.share)
        if self._memory is not None:
            self._memory.set_state(state["memory"], self.share)
        self.episodes.is_begun = True


def allowed_choices(mask: Tensor, uniforms: Tensor) -> Tensor:
    """Return one of the allowed choices for each row, all of them equally likely; int64 `[B]`.

    Where a mask allows nothing, the first choice is returned.

    Args:
        mask: `[B, choices]`, not 0 where a choice is allowed.
        uniforms: Numbers `[B]` in [0, 1).
    """
    is_allowed = mask != 0
    number = is_allowed.cumsum(1)  # the number of allowed choices up to this one
    drawn = (uniforms * number[:, -1]).long() + 1
    return (is_allowed & (number == drawn.unsqueeze(1))).long().argmax(1)
