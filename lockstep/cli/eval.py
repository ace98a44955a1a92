"""`lockstep eval`: new episodes with the best policy of a run."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from lockstep.builder import AlgorithmConfig
from lockstep.cli.arguments import Count, MaybePath
from lockstep.cli.running import policy_text
from lockstep.cli.terminal import return_text, say, say_facts, show_table, shown_path
from lockstep.options.checks import check_whole
from lockstep.policy import Policy
from lockstep.rollout import Collector, MultiAgentCollector
from lockstep.runs.run import find_policy, load_policy
from lockstep.runs.video import FORMATS, record_video
from lockstep.state.markup import number_text
from lockstep.state.streams import RandomStreams
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer.evaluation import with_reward_metric

MAX_EVALUATION_ENVS = 8


@dataclass
class Eval:
    """Evaluate the best policy of a run on new episodes, with the return of each agent where there are several."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """A run's folder, or one of its checkpoints."""
    episodes: Count = 20
    """Episodes to play."""
    stochastic: bool = False
    """Draw actions instead of taking the most likely ones."""
    seed: Count = 0
    """Seed of these episodes."""
    video: MaybePath = None
    """Also write a video (.mp4 or .gif) of the first episodes."""
    video_episodes: Count = 1
    """Episodes in the video."""
    trust: bool = False
    """Take all objects that the run's files name, such as functions, which are run. Your own runs need no word."""

    def run(self) -> int:
        """Play episodes with the run's best policy and print their returns; return the exit code."""
        check_whole("--episodes", self.episodes, 1)
        check_whole("--video-episodes", self.video_episodes, 1)
        if self.video is not None and self.video.suffix.lower() not in FORMATS:
            raise ValueError(f"--video {self.video} must end in {' or '.join(FORMATS)}")
        if not self.folder.exists():
            raise ValueError(f"there is no {self.folder}; give a run's folder (runs/...) or one of its checkpoints")
        path = find_policy(self.folder)
        policy = load_policy(path, trust=self.trust)
        if self.video is not None and policy.is_multi_agent:
            raise ValueError(f"--video is for one agent, and {shown_path(path)} is of several; leave it out")
        policy.config.set_num_threads()
        stats = self._played(policy)
        returns, lens = stats.returns_stat, stats.lens_stat
        if returns is None or lens is None:
            raise RuntimeError("no episode ended")
        how = "drawn" if self.stochastic else "most likely"
        say_facts(
            {
                "policy": policy_text(policy, path),
                "episodes": f"{returns.count}, {how} actions, seed {self.seed}",
                "return": f"{return_text(returns.mean, returns.std)}, median {number_text(returns.median)}, "
                f"{number_text(returns.min)} to {number_text(returns.max)}",
                "length": f"{return_text(lens.mean, lens.std)}",
            }
        )
        if policy.is_multi_agent:
            found = {f"agent {agent}": values for agent, values in stats.returns_by_agent().items()}
            found |= {f"module {module_id}": values for module_id, values in stats.returns_by_module().items()}
            rows = [
                (name, return_text(float(np.mean(values)), float(np.std(values))), str(len(values)))
                for name, values in found.items()
            ]
            show_table(("of", "return", "episodes of an agent"), rows)
        if self.video is not None:
            filmed = record_video(
                policy, self.video, num_episodes=self.video_episodes, explore=self.stochastic, seed=self.seed
            )
            shown = ", ".join(number_text(value) for value in filmed.returns)
            say(f"  video     {shown_path(self.video)} (return {shown})")
        return 0

    def _played(self, policy: Policy) -> CollectStats:
        """Return the statistics of the episodes, of several agents with the returns that `reward_metric` makes."""
        config, num_envs = policy.config, min(MAX_EVALUATION_ENVS, self.episodes)
        options: dict[str, Any] = {
            "exploration_noise": self.stochastic,
            "streams": RandomStreams(self.seed).child("eval"),
        }
        if policy.is_multi_agent:
            assert isinstance(config, AlgorithmConfig)  # others build no policies
            agent_envs = config.make_agent_envs(num_envs)
            with closing(agent_envs):
                stats = MultiAgentCollector(policy, agent_envs, **options).collect(n_episode=self.episodes)
            return with_reward_metric(config.multi_agent.reward_metric, stats)
        with config.make_envs(num_envs) as envs:
            return Collector(policy, envs, **options).collect(n_episode=self.episodes)
