"""The section of a configuration about what is remembered, and how often it is learned from."""

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
    """transitions that are remembered, over all environments"""
    learning_starts: int = option(1_000, ge=0)
    """environment steps with random actions before the first gradient step"""
    update_per_step: float = option(0.25, gt=0, finite=True)
    """gradient steps for each collected step after that; fractions are carried over"""
    n_step: int = option(1, ge=1)
    """rewards of so many steps are summed up before a target bootstraps"""
    sequence_length: int | None = option(None, ge=1)
    """of a network with memory: steps of an episode that are learned from together; a batch counts such sequences.
    `None`: 80"""
    burn_in: int | None = option(None, ge=0)
    """of a network with memory: steps before these, which it only remembers; up to `sequence_length`. `None`: half of
    it"""
    prioritized: bool = False
    """draw transitions in proportion to their errors (Schaul et al. 2016)"""
    alpha: float = option(0.6, ge=0, finite=True)
    """how much errors matter when drawing; 0: not at all"""
    beta: ScheduleLike = option(factory=lambda: [[0, 0.4], [100_000, 1.0]], ge=0)
    """how much of that the weights in the loss make up for: a number, or a schedule over steps remembered
    (offline: over gradient steps)"""
    her: bool = False
    """hindsight: learn from goals that were reached, too (Andrychowicz et al. 2017); the environment has
    `compute_reward` and observations with `achieved_goal` and `desired_goal`"""
    her_future_k: float = option(4.0, ge=0)
    """goals that were reached for each one that was wanted"""
    her_strategy: Literal["future", "final"] = "future"
    """which goals: reached later in the episode, or at its end"""
    ignore_obs_next: bool = False
    """store each observation once (half the memory; drawing takes a little longer)"""
    storage: Literal["memory", "memmap"] = "memory"
    """where: "memmap" in temporary files"""

    def __call__(self, **options: Unpack[ReplayOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def sequences(self) -> tuple[int, int]:
        """Return the steps of a sequence, and those of its burn-in, for a network with memory."""
        length = 80 if self.sequence_length is None else self.sequence_length
        return length, length // 2 if self.burn_in is None else self.burn_in

    def priorities(self) -> dict[str, Any] | None:
        """Return the options of the priorities; None where all transitions have equal chances."""
        return {"alpha": self.alpha, "beta": self.beta} if self.prioritized else None

    def validate(self) -> None:
        """Refuse a burn-in that is longer than what is learned from."""
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
        """Check that a replay buffer does what this section asks for, and that its algorithm can learn from it.

        Trainers that are built from a configuration make their buffers from this section. A buffer of the user's own
        has options of its own: where they are others, the section would be passed over. Compared is what the section
        changes.

        Args:
            buffer: the replay buffer.
            can_sum_rewards: whether the algorithm learns from sums of several rewards
                (`AlgorithmConfig.can_sum_rewards`).
            is_stateful: whether the network has a memory, and learns from sequences.

        Raises:
            ValueError: an option of the buffer is another one, or its rows are sums that the algorithm cannot use.
        """
        if isinstance(buffer, MultiAgentReplayBuffer):
            for part in buffer.buffers.values():
                # Whether a module has a memory differs, so sequences are not compared.
                self.check_buffer(part, can_sum_rewards=can_sum_rewards)
            return

        plain = type(self)()
        found = buffer.section_options()
        if found["n_step"] > 1 and not can_sum_rewards:
            raise ValueError(
                f"the replay buffer sums n_step={found['n_step']} rewards, and the algorithm needs the reward of each "
                "step for itself; make the buffer with n_step=1"
            )
        # The capacity is left to the buffer: whoever makes one of their own has just written its size.
        names = ["n_step", "prioritized", "her", "ignore_obs_next", "storage"]
        if self.prioritized:
            names += ["alpha", "beta"]
        if self.her:
            names += ["her_future_k", "her_strategy"]
        if is_stateful:
            names += ["sequence_length", "burn_in"]

        for name in names:
            default, wanted = getattr(plain, name), getattr(self, name)
            if name == "beta":
                default, wanted = (Schedule(value, "replay.beta").specification for value in (default, wanted))
            if wanted != default and found[name] != wanted:
                raise ValueError(
                    f"the replay buffer has {name}={found[name]!r}, the configuration replay({name}={wanted!r}), which "
                    f"only a buffer made from it has. Leave the buffer out, make it with what replay asks for, or set "
                    f"replay({name}={found[name]!r})"
                )
