"""`lockstep eval`: evaluate the best policy of a run on new episodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from lockstep.builder import AlgorithmConfig
from lockstep.cli.arguments import Count, OptionalPath
from lockstep.cli.running import policy_text
from lockstep.cli.terminal import return_text, say, say_facts, show_table, shown_path
from lockstep.options.checks import check_whole
from lockstep.policy import Policy
from lockstep.policy.files import find_policy
from lockstep.rollout import Collector, MultiAgentCollector
from lockstep.runs.run import load_policy
from lockstep.runs.video import FORMATS, record_video
from lockstep.state.markup import number_text
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer.evaluation import with_reward_metric

MAX_EVALUATION_ENVS = 8


@dataclass
class Eval:
    """Evaluate the best policy of a run on new episodes; with several agents, show the return of each."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of the run, or one of its checkpoints."""
    episodes: Count = 20
    """Number of episodes to play."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely ones."""
    seed: Count = 0
    """Seed of the episodes."""
    video: Annotated[OptionalPath, arg(help_behavior_hint="(default: no video)")] = None
    """Also write a video (.mp4 or .gif) of episodes played with the same seed."""
    video_episodes: Count = 1
    """Number of episodes in the video."""
    trust: bool = False
    """Accept all objects that the run's files name, which are executed. Your own runs do not need this."""

    def run(self) -> int:
        """Play episodes with the run's best policy and print their returns; return the exit code."""
        self._check()
        path = find_policy(self.folder)
        policy = load_policy(path, trust=self.trust)
        if self.video is not None and policy.is_multi_agent:
            raise ValueError(f"--video is for one agent, and {shown_path(path)} is of several; leave it out")

        policy.config.set_num_threads()
        stats = self._evaluation(policy)
        self._show_returns(policy, path, stats)
        if policy.is_multi_agent:
            _show_agents(stats)

        if self.video is not None:
            filmed = record_video(
                policy, self.video, num_episodes=self.video_episodes, explore=self.stochastic, seed=self.seed
            )
            returns = ", ".join(number_text(value) for value in filmed.returns)
            say(f"  video     {shown_path(self.video)} (return {returns})")
        return 0

    def _check(self) -> None:
        """Check the arguments before the policy is loaded, which takes seconds."""
        check_whole("--episodes", self.episodes, 1)
        check_whole("--video-episodes", self.video_episodes, 1)
        if self.video is not None and self.video.suffix.lower() not in FORMATS:
            raise ValueError(f"--video {self.video} must end in {' or '.join(FORMATS)}")
        if not self.folder.exists():
            raise ValueError(f"there is no {self.folder}; give a run's folder (runs/...) or one of its checkpoints")

    def _evaluation(self, policy: Policy) -> CollectStats:
        """Play the episodes and return their statistics; with several agents, their returns are the `reward_metric`."""
        config = policy.config
        num_envs = min(MAX_EVALUATION_ENVS, self.episodes)
        options: dict[str, Any] = {
            "exploration_noise": self.stochastic,
            "streams": RandomStreams(self.seed).child("eval"),
        }
        if policy.is_multi_agent:
            assert isinstance(config, AlgorithmConfig)  # a policy of several agents is built by no other configuration
            agent_envs = config.make_agent_envs(num_envs)
            with closing(agent_envs):
                stats = MultiAgentCollector(policy, agent_envs, **options).collect(n_episode=self.episodes)
            return with_reward_metric(config.multi_agent.reward_metric, stats)
        with config.make_envs(num_envs) as envs:
            return Collector(policy, envs, **options).collect(n_episode=self.episodes)

    def _show_returns(self, policy: Policy, path: Path, stats: CollectStats) -> None:
        returns = stats.returns_stat
        lens = stats.lens_stat
        if returns is None or lens is None:
            raise RuntimeError("no episode ended")
        action_kind = "drawn" if self.stochastic else "most likely"
        say_facts(
            {
                "policy": policy_text(policy, path),
                "episodes": f"{returns.count}, {action_kind} actions, seed {self.seed}",
                "return": f"{return_text(returns.mean, returns.std)}, median {number_text(returns.median)}, "
                f"{number_text(returns.min)} to {number_text(returns.max)}",
                "length": f"{return_text(lens.mean, lens.std)}",
            }
        )


def _show_agents(stats: CollectStats) -> None:
    """Print the returns of each agent and of each module."""
    rows = [_return_row(f"agent {agent}", returns) for agent, returns in stats.returns_by_agent().items()]
    for module_id, returns in stats.returns_by_module().items():
        rows.append(_return_row(f"module {module_id}", returns))
    say()
    show_table(("of", "return", "episodes of an agent"), rows)


def _return_row(name: str, returns: Sequence[float]) -> tuple[str, str, str]:
    return name, return_text(float(np.mean(returns)), float(np.std(returns))), str(len(returns))
