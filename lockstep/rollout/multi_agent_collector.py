"""`MultiAgentCollector`: collects the steps of several agents, for which the modules of a policy act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.envs.multi_agent import AgentEnvs
from lockstep.rollout.agent_stepper import AgentStepper
from lockstep.rollout.base_collector import BaseCollector, close_env_on_error, resolve_streams
from lockstep.rollout.protocols import LearningPolicy
from lockstep.rollout.replay_writer import AgentBuffer
from lockstep.state.streams import RandomStreams


class MultiAgentCollector(BaseCollector):
    """Collector of environments with several agents.

    In each vector step a module acts once, in one batch, for all of its agents in all environments.

    A step is a step of the environment, however many agents act in it; in a turn-based environment one agent acts. An
    agent's action is stored together with the agent's next observation. If that has not come when a collect ends, the
    next collect stores both. Each agent has a return; the return of an episode is their sum, unless a trainer's
    `reward_metric` defines another.

    In a collect of whole episodes only the environments whose episode counts are stepped. A collect that fails leaves
    nothing behind, and the next one begins new episodes.

    Args:
        policy: The policy, with a module for each agent.
        env: Function that constructs an environment (a PettingZoo `ParallelEnv` or `AECEnv`, or one with the interface
            of RLlib's `MultiAgentEnv`), one such environment, or `AgentEnvs`.
        buffer: Buffer for the episodes or their transitions. Without one, as in evaluation, only returns and lengths
            are kept.
        exploration_noise: Whether actions are sampled outside a training step too.
        raise_on_nan_in_buffer: Whether values that are not finite raise `MalformedBufferError`.
        num_envs: Number of environments that are constructed with the function `env`.
        epsilon: Probability of a random action; see `Collector`.
        seed: Seed of the collector's random streams. Without one each collector has other episodes.
        streams: Random streams, instead of `seed`.
        place: `(first, total)` if several collectors share `total` environments. The random numbers of an environment
            depend only on its index among all of them.
        whole_episodes: Whether `collect(n_step=...)` collects whole episodes. Each environment begins new ones until
            it has taken `n_step / num_envs` steps, and ends its last one.
        with_logp: Whether episodes contain the log-probability of each action under the weights that acted, and the
            version of these weights. Not for policies with recurrent layers.
    """

    stepper: AgentStepper

    def __init__(
        self,
        policy: LearningPolicy,
        env: Any,
        buffer: AgentBuffer | None = None,
        exploration_noise: bool = False,
        raise_on_nan_in_buffer: bool = True,
        *,
        num_envs: int = 1,
        epsilon: float = 0.0,
        seed: int | None = None,
        streams: RandomStreams | None = None,
        place: tuple[int, int] | None = None,
        whole_episodes: bool = False,
        with_logp: bool = False,
    ) -> None:
        if not getattr(policy, "is_multi_agent", False):
            raise ValueError(
                f"policy={policy!r} is not allowed; it must be the policy of a configuration with "
                "multi_agent(policies=...), made by its build_policy()"
            )
        envs = env
        if not isinstance(env, AgentEnvs):
            section = policy.config.multi_agent
            additions: Any = {"agent_ids": section.agent_id_in_obs, "critic": section.centralized_critic}
            envs = AgentEnvs(env, num_envs, **additions)
        with close_env_on_error(env, envs):
            if num_envs not in (1, envs.num_envs):
                raise ValueError(f"num_envs={num_envs}, but env has {envs.num_envs} environments; leave num_envs out")
            super().__init__(
                AgentStepper(policy, envs, resolve_streams(seed, streams), place, with_logp=with_logp),
                buffer,
                exploration_noise=exploration_noise,
                epsilon=epsilon,
                raise_on_nan_in_buffer=raise_on_nan_in_buffer,
                on_step_hook=None,
                on_episode_done_hook=None,
                is_seeded=seed is not None or streams is not None,
                whole_episodes=whole_episodes,
            )

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Give each learning module a replay buffer for its agents; see `CollectorLike.fit_replay`."""
        self.stepper.fit_replay(agents)

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts. New ones begin in their environments."""
        self.stepper.leave_episodes_of(module_id)
