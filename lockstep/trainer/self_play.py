"""`SelfPlay`: a policy that learns against earlier versions of itself."""

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
Drop = Literal["oldest", "weakest"]


@dataclass(frozen=True)
class Opponents:
    """Maps the agents of an episode to modules: the learner on one seat, one opponent of the pool on all others.

    Seats are taken in turn. Both depend on the seed and the episode's id alone, so that every process says the same,
    and so does a run that goes on.
    """

    learner: str
    agents: tuple[Any, ...]
    pool: tuple[str, ...]
    shares: tuple[float, ...]
    """how often each of the pool is drawn; together 1"""
    seed: int

    def __call__(self, agent: AgentID, episode: MultiAgentEpisode) -> str:
        """Return the module of an agent."""
        begin, number = re.fullmatch(r"(.*?)(\d*)", episode.id_, re.DOTALL).groups()  # type: ignore[union-attr]
        seat = (crc32(begin.encode()) + int(number or 0)) % len(self.agents)
        if agent == self.agents[seat]:
            return self.learner
        drawn = np.random.default_rng([self.seed, crc32(episode.id_.encode())]).random()
        chosen = int(np.searchsorted(np.cumsum(self.shares), drawn, side="right"))
        return self.pool[min(chosen, len(self.pool) - 1)]


class SelfPlay(Callback):
    """Lets one module learn against a pool of its own earlier versions.

    In each episode the learner has one of the seats, in turn, and an opponent from the pool has the others. When the
    learner wins more than `win_rate_threshold` of the last `window` episodes, a frozen copy of it joins the pool, and
    counting begins anew. A win is a return above that of every opponent, a draw counts one half. Evaluation plays
    against the pool, too: `compute_score_fn=self_play.score` makes the share of wins its score. The metrics
    `win_rate/<opponent>` say how often the learner wins.

    Pool and results are part of checkpoints.

    Args:
        learner: id of the module that learns.
        win_rate_threshold: share of wins, at least 0 and below 1.
        window: episodes; a checkpoint holds their results.
        max_pool_size: most copies in the pool; the one that `drop` names leaves then, and episodes under way against it
            are begun anew.
        draw: "uniform", or "prioritized": in proportion to the squared share of games that the learner does not win
            (f_hard of Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement
            learning"), estimated from the last `window` games against each, and a win and a loss.
        drop: "oldest", or "weakest": whom the learner beats most often.
        opponents: ids of modules that are in the pool from the beginning, and stay. The learner's own is allowed: in
            such games it learns from every seat, and they are no results.
        begin_with_copy: whether a copy of the learner as it is at first is in the pool.
        seed: of the draws; None: that of the policy's configuration.

    Raises `ValueError` for a pool that would be empty, and when the run begins for modules that are not there, fewer
    than two agents and agents whose spaces are not the learner's.
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
        self.learner, self.win_rate_threshold, self.draw, self.drop = learner, win_rate_threshold, draw, drop
        self.opponents, self.begin_with_copy = tuple(opponents), begin_with_copy
        self.seed: int | None = check_whole("seed", seed, 0, optional=True)
        self.copies: list[str] = []
        """the copies in the pool, the oldest first"""
        self.num_copies = 0
        """copies that were made in all"""
        self._recent: deque[float] = deque(maxlen=window)
        self._results: dict[str, deque[float]] = {}
        self._trainer: Any = None

    @property
    def pool(self) -> tuple[str, ...]:
        """The modules that the learner plays against."""
        return (*self.opponents, *self.copies)

    @property
    def win_rate(self) -> float | None:
        """Share of wins in the last `window` episodes since the last copy; None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def win_rates(self) -> dict[str, float]:
        """Return for each of the pool how often the learner wins against it, as it is estimated."""
        results = {module_id: self._results.get(module_id, ()) for module_id in self.pool}
        return {module_id: (1 + sum(games)) / (2 + len(games)) for module_id, games in results.items()}

    def shares(self) -> dict[str, float]:
        """Return for each of the pool how often it is drawn."""
        weights = {mid: 1.0 if self.draw == "uniform" else (1 - rate) ** 2 for mid, rate in self.win_rates().items()}
        total = sum(weights.values())
        return {module_id: weight / total for module_id, weight in weights.items()}

    def results(self, stats: CollectStats) -> list[tuple[str, float]]:
        """Return opponent and result of each episode of a collect: 1 for a win, 0.5 for a draw, 0 for a loss."""
        found = []
        for modules, returns in zip(stats.agent_modules, stats.agent_returns):
            others = {module_id for module_id in modules if module_id not in (self.learner, "")}
            if self.learner not in modules or len(others) != 1:
                continue
            own = max(value for module_id, value in zip(modules, returns) if module_id == self.learner)
            best = max(value for module_id, value in zip(modules, returns) if module_id in others)
            found.append((others.pop(), 0.5 if own == best else float(own > best)))
        return found

    def score(self, stats: CollectStats) -> float:
        """Return the share of wins in a collect, for `compute_score_fn` of a trainer; NaN without an episode."""
        results = [result for _, result in self.results(stats)]
        return sum(results) / len(results) if results else float("nan")

    def on_run_start(self, event: RunStart) -> None:
        """Begin with the pool, or go on with the one that was restored."""
        self._trainer, policy = event.trainer, event.trainer.policy
        self._check(policy)
        if self.seed is None:
            self.seed = policy.config.debugging.seed
        if self.begin_with_copy and not self.num_copies:
            self._add_copy()
        self._map()

    def _check(self, policy: Policy) -> None:
        if not policy.is_multi_agent:
            raise ValueError("SelfPlay needs several agents; name who learns with multi_agent(policies=...)")
        missing = [mid for mid in (self.learner, *self.pool) if mid not in policy.acting]
        if missing:
            raise ValueError(f"SelfPlay names the modules {missing}; there are {sorted(policy.acting)}")
        env, part = self._trainer.train_collector.env, policy.acting[self.learner]
        if len(env.observation_space) < 2:
            raise ValueError(f"SelfPlay needs at least two agents; the environment has {list(env.observation_space)}")
        for agent, space in env.observation_space.items():
            part.check_spaces(space, env.action_space[agent])

    def on_collect_end(self, event: CollectEnd) -> None:
        """Count results; let a copy join where the learner wins often enough."""
        pool = self.pool
        for opponent, result in self.results(event.stats):
            if opponent in pool:
                self._recent.append(result)
                self._results.setdefault(opponent, deque(maxlen=self.window)).append(result)
        for opponent, rate in self.win_rates().items():
            self.metrics.log_value(("win_rate", opponent), rate, reduce="item")
        wins_often = len(self._recent) == self.window and sum(self._recent) > self.win_rate_threshold * self.window
        if wins_often:
            self._recent.clear()
            self._add_copy()
        if wins_often or self.draw == "prioritized":
            self._map()

    def _add_copy(self) -> None:
        """Let a copy of the learner join; another one leaves where there are too many."""
        self.num_copies += 1
        module_id = f"{self.learner}_{self.num_copies}"
        self._trainer.add_module(module_id, init_from=self.learner, frozen=True)
        if len(self.copies) == self.max_pool_size:
            rates = self.win_rates()
            leaves = self.copies[0] if self.drop == "oldest" else max(self.copies, key=rates.__getitem__)
            self.copies.remove(leaves)
            self._results.pop(leaves, None)
            self.copies.append(module_id)
            self._map()
            self._trainer.remove_module(leaves)
        else:
            self.copies.append(module_id)

    def _map(self) -> None:
        agents, shares = self._trainer.train_collector.env.observation_space, self.shares()
        mapping = Opponents(self.learner, tuple(agents), tuple(shares), tuple(shares.values()), self.seed or 0)
        self._trainer.set_policy_mapping_fn(mapping)

    def get_state(self) -> Mapping[str, Any]:
        return {
            "copies": list(self.copies),
            "num_copies": self.num_copies,
            "recent": list(self._recent),
            "results": {module_id: list(games) for module_id, games in self._results.items()},
            "seed": self.seed,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.copies, self.num_copies = list(state["copies"]), int(state["num_copies"])
        self._recent = deque(state["recent"], maxlen=self.window)
        self._results = {mid: deque(games, maxlen=self.window) for mid, games in state["results"].items()}
        self.seed = state["seed"]
