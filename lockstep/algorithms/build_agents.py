"""From a configuration with several agents to its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.algorithms.build import Spaces, build_acting_parts, build_replay_buffer, find_spaces
from lockstep.algorithms.module_specs import module_specs, spaces_by_module
from lockstep.algorithms.multi_agent_policy import MultiAgentPolicy
from lockstep.envs.pettingzoo import PettingZooEnvs
from lockstep.replay import MultiAgentReplayBuffer
from lockstep.rollout import MultiAgentCollector
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig


def build_multi_agent_policy(
    config: AlgorithmConfig, env: Any = None, spaces: Spaces | None = None
) -> MultiAgentPolicy:
    """A policy of all modules over a group of learners."""
    own = spaces_by_module(config, module_specs(config), lambda: find_spaces(config, env, spaces))
    by_module = {mid: pair[0] for mid, pair in own.items()}, {mid: pair[1] for mid, pair in own.items()}
    group = config.build_learner_group(env, by_module)
    try:
        parts = None
        if not group.is_local:
            parts = {module_id: build_acting_parts(config, pair, module_id) for module_id, pair in own.items()}
        return MultiAgentPolicy(config, group, observation_space=by_module[0], action_space=by_module[1], parts=parts)
    except BaseException:
        group.shutdown()
        raise


def build_multi_agent_collector(
    config: AlgorithmConfig,
    policy: MultiAgentPolicy,
    name: str,
    num_envs: int,
    *,
    explore: bool,
    epsilon: float = 0.0,
) -> MultiAgentCollector:
    """A collector on environments and random streams (`name`) of its own; that of training with its replay buffer."""
    check_collecting(config)
    finished = not isinstance(config.environment.env, str) and not callable(config.environment.env)
    collector = MultiAgentCollector(
        policy,
        PettingZooEnvs(config.environment.env)
        if finished
        else PettingZooEnvs(config.environment.env, num_envs, config.environment.env_config),
        exploration_noise=explore,
        epsilon=epsilon,
        streams=RandomStreams(config.debugging.seed).child(name),
    )
    if config.is_off_policy and name == "train_collector":
        collector.buffer = build_replay_buffers(config, collector)
    return collector


def build_replay_buffers(config: AlgorithmConfig, collector: MultiAgentCollector) -> MultiAgentReplayBuffer:
    """An empty replay buffer for each module, with a sub-buffer for each of its agents in each environment."""
    seeds, own = (
        RandomStreams(config.debugging.seed).child("replay"),
        config.rl_module.algorithm_config_overrides_per_module,
    )
    return MultiAgentReplayBuffer(
        collector.agents_of_modules,
        collector.num_envs,
        lambda module_id, number: build_replay_buffer(
            config, number, seeds.seed(module_id), own.get(module_id, {}).get("gamma")
        ),
    )


def check_collecting(config: AlgorithmConfig) -> None:
    """Raises `ValueError` for what several agents cannot be trained with."""
    if config.is_offline:
        raise ValueError(
            f"{config.algorithm} learns from data that are there already, which no trainer does for several agents; "
            "use build_learner_group() and update_from_batch(MultiAgentBatch)"
        )
    if config.is_off_policy and config.replay.her:
        raise ValueError("replay.her=True is not allowed where a trainer trains several agents; leave it out")
    allowed: dict[str, tuple[Any, ...]] = {
        "env_runners.num_env_runners": (0,),
        "env_runners.vectorize_mode": ("auto", "sync"),
        "env_runners.batch_mode": ("truncate_episodes",),
        "environment.frame_stack": (1,),
        "multi_agent.count_steps_by": ("env_steps",),
    }
    for path, values in allowed.items():
        section, _, option = path.partition(".")
        given = getattr(config.sections[section], option)
        if given not in values:
            raise ValueError(
                f"{path}={given!r} is not allowed where a trainer trains several agents; choose "
                f"{' or '.join(map(repr, values))}"
            )
