"""`MultiAgentCollector`: lets the modules of a policy act for several agents in PettingZoo environments."""

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
    """Steps environments of several agents side by side, and asks each module once for all of its agents in all.

    `env`: a function that makes an environment (a PettingZoo `ParallelEnv` or `AECEnv`, or one in the form of RLlib's
    `MultiAgentEnv`; `num_envs` are made), one such environment, or `AgentEnvs`. With a `buffer` the (pieces of)
    episodes are kept, or their transitions; without one (evaluation) only returns and lengths are. It explores within
    a training step, and everywhere where `exploration_noise` is set, or `epsilon` (see `Collector`).

    A step is one of the environment, however many agents act in it; in a turn-based environment one agent does. The
    steps that an agent has not closed when a collect ends (it waits for its next observation) come with the next piece
    of its episode. Returns are those of each agent; an episode's is their sum (a trainer's `reward_metric` may say
    otherwise). In a collect by episodes only environments whose episode counts are stepped. With `whole_episodes` a
    collect by steps has whole episodes only: each environment plays until it has its share of the steps. Each episode
    is seeded from the collector's own streams, and these from `seed`; without one every collector plays other
    episodes. `place`: `(first, number of all)` where several collectors have a part of the environments each; the
    random numbers of an environment depend on its number among all only. `with_logp`: episodes say how likely each
    action was when it was taken, and the version of the weights (not for a policy with memory). A collect that fails
    leaves nothing behind; the next one begins new episodes.
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
        envs = env if isinstance(env, AgentEnvs) else AgentEnvs(env, num_envs)
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
        """Give each module that learns a replay buffer for these agents. None: for the agents with its spaces."""
        self.stepper.fit_replay(agents)

    def leave_episodes_of(self, module_id: str) -> None:
        """Abandon the running episodes in which this module acts. New ones begin there with the next steps."""
        self.stepper.leave_episodes_of(module_id)
