"""Section `replay` of a configuration: the replay buffer, and how often is learned from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from lockstep.options.schedules import Schedule, ScheduleLike
from lockstep.options.section import ConfigT, Section, option
from lockstep.replay.buffer import ReplayBuffer
from lockstep.replay.multi_agent import MultiAgentReplayBuffer
from lockstep.replay.tensor_replay import TensorReplay

if TYPE_CHECKING:
    from lockstep.replay.typed import ReplayOptions


@dataclass
class ReplaySection(Section[ConfigT]):
    """Options of the `replay` section; only algorithms that learn from a replay buffer have it."""

    name = "replay"

    capacity: int = option(100_000, ge=1)
    """Number of transitions that the buffer holds, over all environments."""
    learning_starts: int = option(1_000, ge=0)
    """Number of environment steps with random actions before the first gradient step."""
    update_per_step: float = option(0.25, gt=0, finite=True)
    """Number of gradient steps for each step collected after that. Fractions are carried over."""
    n_step: int = option(1, ge=1)
    """Number of rewards that are summed before a target bootstraps."""
    sequence_length: int | None = option(None, ge=1)
    """Number of steps of a sequence that a network with memory learns from; a batch counts sequences. Defaults to
    80."""
    burn_in: int | None = option(None, ge=0)
    """Number of steps before such a sequence that only fill the network's memory, at most `sequence_length`. Defaults
    to half of it."""
    prioritized: bool = False
    """Whether transitions are drawn in proportion to their errors (Schaul et al. 2016)."""
    alpha: float = option(0.6, ge=0, finite=True)
    """Exponent of the errors in prioritised drawing. 0 draws uniformly."""
    beta: ScheduleLike = option(factory=lambda: [[0, 0.4], [100_000, 1.0]], ge=0)
    """Exponent of the importance weights in the loss, which correct for prioritised drawing: a number, or a schedule
    over the steps in the buffer so far (offline: over gradient steps)."""
    her: bool = False
    """Whether transitions are also learned from with goals that were achieved (hindsight experience replay,
    Andrychowicz et al. 2017). The environment needs `compute_reward`, and observations with `achieved_goal` and
    `desired_goal`."""
    her_future_k: float = option(4.0, ge=0)
    """Number of transitions with an achieved goal for each one with its own goal."""
    her_strategy: Literal["future", "final", "episode"] = "future"
    """Step whose achieved goal is used: a later one of the episode ("future"), its last ("final") or any
    ("episode")."""
    ignore_obs_next: bool = False
    """Whether each observation is stored once: half the memory, and slightly slower drawing."""
    storage: Literal["memory", "memmap"] = "memory"
    """Storage of the buffer: "memory", or "memmap" for temporary files."""

    def __call__(self, **options: Unpack[ReplayOptions]) -> ConfigT:
        """Set options, and return the configuration."""
        return self.change(options)

    def sequences(self) -> tuple[int, int]:
        """Return the numbers of steps of a sequence and of its burn-in, for a network with memory."""
        length = 80 if self.sequence_length is None else self.sequence_length
        burn_in = length // 2 if self.burn_in is None else self.burn_in
        return length, burn_in

    def priorities(self) -> dict[str, Any] | None:
        """Return the options of the priorities, None if transitions are drawn uniformly."""
        return {"alpha": self.alpha, "beta": self.beta} if self.prioritized else None

    def validate(self) -> None:
        """Check all options. `ValueError` also for a burn-in that is longer than the sequence."""
        super().validate()
        length, burn_in = self.sequences()
        if burn_in > length:
            raise ValueError(f"replay.burn_in={burn_in} is not allowed; it may be up to sequence_length={length}")

    def check_buffer(
        self,
        buffer: ReplayBuffer | MultiAgentReplayBuffer | TensorReplay,
        *,
        can_sum_rewards: bool,
        is_stateful: bool = False,
    ) -> None:
        """Check that a replay buffer has the options of this section, and that its algorithm can learn from it.

        Trainers that are built from a configuration make their buffers from this section. A buffer that the user made
        may have other options, and the section would be ignored silently. Only options that the section sets to
        something other than their defaults are compared.

        Args:
            buffer: replay buffer of the trainer.
            can_sum_rewards: whether the algorithm can learn from n-step sums (`AlgorithmConfig.can_sum_rewards`).
            is_stateful: whether the network has a memory, and learns from sequences.

        Raises:
            ValueError: an option of the buffer differs, or its rows are sums that the algorithm cannot use.
        """
        if buffer.is_by_module:
            for part in buffer.buffers.values():
                # Whether a module has a memory differs, so sequences are not compared.
                self.check_buffer(part, can_sum_rewards=can_sum_rewards)
            return

        section_defaults = type(self)()
        buffer_options = buffer.section_options()
        if buffer_options["n_step"] > 1 and not can_sum_rewards:
            raise ValueError(
                f"the replay buffer sums n_step={buffer_options['n_step']} rewards, and the algorithm needs the reward "
                "of each step for itself; make the buffer with n_step=1"
            )
        # The capacity is not compared: whoever makes a buffer has just written its size.
        names = ["n_step", "prioritized", "her", "ignore_obs_next", "storage"]
        if self.prioritized:
            names += ["alpha", "beta"]
        if self.her:
            names += ["her_future_k", "her_strategy"]
        if is_stateful:
            names += ["sequence_length", "burn_in"]

        for name in names:
            default = getattr(section_defaults, name)
            wanted = getattr(self, name)
            buffer_value = buffer_options[name]
            if name == "beta":  # several forms of a schedule mean the same
                default = Schedule(default, "replay.beta").specification
                wanted = Schedule(wanted, "replay.beta").specification
            if wanted != default and buffer_value != wanted:
                raise ValueError(
                    f"the replay buffer has {name}={buffer_value!r}, the configuration replay({name}={wanted!r}), "
                    "which only a buffer made from it has. Leave the buffer out, make it with what replay asks for, or "
                    f"set replay({name}={buffer_value!r})"
                )
