"""`SelfPlay`: trains a policy against earlier versions of itself."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np

from lockstep.data.agent_steps import AgentID
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.options.checks import check_choice, check_flags, check_number, check_whole, check_wholes
from lockstep.policy.policy import Policy
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer.callbacks import Callback, CollectEnd, RunStart

Draw = Literal["uniform", "prioritized"]
"""How opponents are drawn from the pool."""
Drop = Literal["oldest", "weakest"]
"""Which copy leaves a full pool."""


@dataclass(frozen=True)
class Opponents:
    """Policy mapping function: the learner acts for one agent of an episode, one opponent of the pool for all others.

    From one episode to the next the learner takes the seat of the next agent. Seat and opponent depend on the seed and
    the id of the episode only, so they are the same in every process and in a run that is resumed.
    """

    learner: str
    """Id of the module that learns."""
    agents: tuple[Any, ...]
    """Ids of all agents."""
    pool: tuple[str, ...]
    """Ids of the modules to play against."""
    shares: tuple[float, ...]
    """Probability of each module of the pool. They sum to 1."""
    seed: int
    """Seed of the draws."""

    def __call__(self, agent: AgentID, episode: MultiAgentEpisode) -> str:
        """Return the id of the module that acts for an agent."""
        # Ids of episodes end in a running number, which makes the learner take the seats in turn.
        prefix, number = re.fullmatch(r"(.*?)(\d*)", episode.id_, re.DOTALL).groups()  # type: ignore[union-attr]
        seat = (crc32(prefix.encode()) + int(number or 0)) % len(self.agents)
        if agent == self.agents[seat]:
            return self.learner

        # `hash` differs between processes, crc32 does not.
        uniform = np.random.default_rng([self.seed, crc32(episode.id_.encode())]).random()
        index = int(np.searchsorted(np.cumsum(self.shares), uniform, side="right"))
        return self.pool[min(index, len(self.pool) - 1)]  # rounding may leave the sum of the shares below 1


class SelfPlay(Callback):
    """Callback that trains one module against a pool of its own earlier versions.

    In each episode the learner has one of the seats, in turn, and an opponent from the pool has the others. When the
    learner wins more than `win_rate_threshold` of the last `window` episodes, a frozen copy of it joins the pool, and
    the count of episodes starts again. A win is a return above that of every opponent; a draw counts as one half.

    Evaluation also plays against the pool. With `compute_score_fn=self_play.score` its score is the share of wins. The
    metrics `win_rate/<opponent>` are the estimated shares of wins. Checkpoints contain the pool and the results.

    Args:
        learner: id of the module that learns.
        win_rate_threshold: share of wins above which a copy joins the pool, at least 0 and below 1.
        window: number of episodes over which wins are counted. A checkpoint contains their results.
        max_pool_size: maximum number of copies in the pool. If one more joins, the copy that `drop` selects leaves, and
            running episodes against it are restarted.
        draw: "uniform", or "prioritized": in proportion to the squared share of games that the learner does not win
            (f_hard of Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement
            learning"). The share is estimated from the last `window` games against the opponent plus one win and one
            loss.
        drop: "oldest", or "weakest": the copy that the learner beats most often.
        opponents: ids of modules that are in the pool from the beginning and never leave. The learner's own id is
            allowed: in such games it learns from every seat, and they do not count as results.
        begin_with_copy: add a copy of the initial learner to the pool.
        seed: seed of the draws. Defaults to the seed of the policy's configuration.

    Raises:
        ValueError: the pool would be empty. When the run begins: a module does not exist, there are fewer than two
            agents, or an agent's spaces do not fit the learner.
    """

    def __init__(
        self,
        learner: str = DEFAULT_MODULE_ID,
        *,
        win_rate_threshold: float = 0.6,
        window: int = 100,
        max_pool_size: int = 10,
        draw: Draw = "uniform",
        drop: Drop = "oldest",
        opponents: Sequence[str] = (),
        begin_with_copy: bool = True,
        seed: int | None = None,
    ) -> None:
        check_number("win_rate_threshold", win_rate_threshold, ge=0, lt=1)
        self.window, self.max_pool_size = check_wholes(window=window, max_pool_size=max_pool_size)
        check_choice("draw", draw, ("uniform", "prioritized"))
        check_choice("drop", drop, ("oldest", "weakest"))
        check_flags(begin_with_copy=begin_with_copy)
        if isinstance(opponents, str) or not (opponents or begin_with_copy):
            raise ValueError(
                f"opponents={opponents!r} with begin_with_copy={begin_with_copy} leaves the pool empty; name modules "
                "in a list, or begin with a copy"
            )
        self.learner = learner
        self.win_rate_threshold = win_rate_threshold
        self.draw = draw
        self.drop = drop
        self.opponents = tuple(opponents)
        self.begin_with_copy = begin_with_copy
        self.seed: int | None = check_whole("seed", seed, 0, optional=True)
        self.copies: list[str] = []
        """Ids of the copies in the pool, the oldest first."""
        self.num_copies = 0
        """Number of copies that were ever made."""
        self._recent: deque[float] = deque(maxlen=window)
        """Results of the last episodes against any opponent, since the last copy."""
        self._results: dict[str, deque[float]] = {}
        """Results of the last episodes against each opponent."""
        self._trainer: Any = None

    @property
    def pool(self) -> tuple[str, ...]:
        """Ids of the modules that the learner plays against."""
        return (*self.opponents, *self.copies)

    @property
    def win_rate(self) -> float | None:
        """Share of wins in the last `window` episodes since the last copy, or None before the first episode."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def win_rates(self) -> dict[str, float]:
        """Return the estimated share of wins against each opponent in the pool."""
        rates = {}
        for module_id in self.pool:
            results = self._results.get(module_id, ())
            # One win and one loss are added, so that an opponent without games has the rate 1/2.
            rates[module_id] = (1 + sum(results)) / (2 + len(results))
        return rates

    def shares(self) -> dict[str, float]:
        """Return the probability with which each opponent in the pool is drawn."""
        rates = self.win_rates()
        if self.draw == "uniform":
            weights = dict.fromkeys(rates, 1.0)
        else:
            weights = {module_id: (1 - rate) ** 2 for module_id, rate in rates.items()}
        total = sum(weights.values())
        return {module_id: weight / total for module_id, weight in weights.items()}

    def results(self, stats: CollectStats) -> list[tuple[str, float]]:
        """Return opponent and result of each episode in a collect: 1 for a win, 0.5 for a draw, 0 for a loss."""
        results = []
        for modules, returns in zip(stats.agent_modules, stats.agent_returns):
            # An agent that took no part in the episode has the module id "".
            opponents = {module_id for module_id in modules if module_id not in (self.learner, "")}
            # Games of the learner against itself, or against a mixture of opponents, show nothing about one opponent.
            if self.learner not in modules or len(opponents) != 1:
                continue
            opponent = opponents.pop()
            learner_return = max(value for module_id, value in zip(modules, returns) if module_id == self.learner)
            opponent_return = max(value for module_id, value in zip(modules, returns) if module_id == opponent)
            is_draw = learner_return == opponent_return
            results.append((opponent, 0.5 if is_draw else float(learner_return > opponent_return)))
        return results

    def score(self, stats: CollectStats) -> float:
        """Return the share of wins in a collect, for `compute_score_fn` of a trainer. NaN if no episode ended."""
        results = [result for _, result in self.results(stats)]
        return sum(results) / len(results) if results else float("nan")

    def on_run_start(self, event: RunStart) -> None:
        """Make the pool, or continue with the restored one."""
        self._trainer = event.trainer
        policy = event.trainer.policy
        self._check(policy)
        if self.seed is None:
            self.seed = policy.config.debugging.seed
        if self.begin_with_copy and not self.num_copies:
            self._add_copy()
        self._update_mapping()

    def _check(self, policy: Policy) -> None:
        """Raise `ValueError` if the modules do not exist, or cannot act for every agent."""
        if not policy.is_multi_agent:
            raise ValueError("SelfPlay needs several agents; name who learns with multi_agent(policies=...)")
        missing = [mid for mid in (self.learner, *self.pool) if mid not in policy.acting]
        if missing:
            raise ValueError(f"SelfPlay names the modules {missing}; there are {sorted(policy.acting)}")
        env = self._trainer.train_collector.env
        learner = policy.acting[self.learner]
        if len(env.observation_space) < 2:
            raise ValueError(f"SelfPlay needs at least two agents; the environment has {list(env.observation_space)}")
        for agent, space in env.observation_space.items():
            learner.check_spaces(space, env.action_space[agent])

    def on_collect_end(self, event: CollectEnd) -> None:
        """Record the results, and add a copy of the learner to the pool if it wins often enough."""
        pool = self.pool
        for opponent, result in self.results(event.stats):
            if opponent in pool:  # an episode may have begun before its opponent left the pool
                self._recent.append(result)
                self._results.setdefault(opponent, deque(maxlen=self.window)).append(result)
        for opponent, rate in self.win_rates().items():
            self.metrics.log_value(("win_rate", opponent), rate, reduce="item")  # "item" reports the last value

        is_full = len(self._recent) == self.window
        wins_often = is_full and sum(self._recent) > self.win_rate_threshold * self.window
        if wins_often:
            self._recent.clear()
            self._add_copy()
        if wins_often or self.draw == "prioritized":  # "prioritized" depends on every result
            self._update_mapping()

    def _add_copy(self) -> None:
        """Add a frozen copy of the learner to the pool, and remove another copy if the pool is full."""
        self.num_copies += 1
        module_id = f"{self.learner}_{self.num_copies}"
        self._trainer.add_module(module_id, init_from=self.learner, frozen=True)
        if len(self.copies) != self.max_pool_size:
            self.copies.append(module_id)
            return

        if self.drop == "oldest":
            dropped = self.copies[0]
        else:
            rates = self.win_rates()
            dropped = max(self.copies, key=rates.__getitem__)
        self.copies.remove(dropped)
        self._results.pop(dropped, None)
        self.copies.append(module_id)
        # A module that new episodes could still be mapped to must not be removed.
        self._update_mapping()
        self._trainer.remove_module(dropped)

    def _update_mapping(self) -> None:
        """Map the agents of all new episodes to the learner and the present pool."""
        agents = self._trainer.train_collector.env.observation_space
        shares = self.shares()
        mapping = Opponents(self.learner, tuple(agents), tuple(shares), tuple(shares.values()), self.seed or 0)
        self._trainer.set_policy_mapping_fn(mapping)

    def get_state(self) -> Mapping[str, Any]:
        return {
            "copies": list(self.copies),
            "num_copies": self.num_copies,
            "recent": list(self._recent),
            "results": {module_id: list(results) for module_id, results in self._results.items()},
            "seed": self.seed,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.copies = list(state["copies"])
        self.num_copies = int(state["num_copies"])
        self._recent = deque(state["recent"], maxlen=self.window)
        self._results = {}
        for module_id, results in state["results"].items():
            self._results[module_id] = deque(results, maxlen=self.window)
        self.seed = state["seed"]
