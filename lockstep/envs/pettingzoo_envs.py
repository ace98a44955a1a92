"""`PettingZooEnvs`: several PettingZoo environments of one kind, to be stepped side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.envs.pettingzoo_play import AgentID, play_of
from lockstep.state.checks import check_whole


class PettingZooEnvs:
    """`num_envs` environments with the same agents, a `ParallelEnv` or an `AECEnv` each.

    `env`: a function that makes one (called with `env_config`), or a finished one, which is the only one then. `agents`
    are its `possible_agents`; the spaces are dicts by agent.

    Raises `ValueError` for something else, for environments that do not say which agents there may be or that differ,
    and for a function that gives the same one twice.
    """

    backend = "pettingzoo"
    autoreset_mode = "SAME_STEP"

    def __init__(self, env: Any, num_envs: int = 1, env_config: Mapping[str, Any] | None = None) -> None:
        if isinstance(env, str) or env is None:
            raise ValueError(
                f"env={env!r}: several agents need a PettingZoo environment; give a function that makes one"
            )
        num_envs = check_whole("num_envs", num_envs, 1)
        made = callable(env)
        if not made and (num_envs != 1 or env_config):
            raise ValueError(
                f"{env!r} is a finished environment, one: num_envs={num_envs} and env_config={env_config!r} apply to a "
                "function that makes them. Leave them out, or give such a function"
            )
        self.envs: list[Any] = [env(**(env_config or {})) for _ in range(num_envs)] if made else [env]
        self.num_envs = num_envs
        if len(set(map(id, self.envs))) < num_envs:
            raise ValueError(f"{env!r} gave the same environment twice; it must make a new one each time")
        self._closed = False
        self.agents, self.observation_space, self.action_space = _agents_and_spaces(self.envs[0])
        for b, one in enumerate(self.envs):
            if _agents_and_spaces(one) != (self.agents, self.observation_space, self.action_space):
                raise ValueError(f"environment {b} has other agents or spaces than the first one; make them alike")

    def close(self) -> None:
        """Closes all of them; a second call does nothing."""
        if not self._closed:
            self._closed = True
            for env in self.envs:
                env.close()

    def check_open(self) -> None:
        """Raises `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; make a new one, and a new collector with it")


def _agents_and_spaces(env: Any) -> tuple[tuple[AgentID, ...], dict[AgentID, Any], dict[AgentID, Any]]:
    play_of(env)  # refuses what is no such environment
    agents = tuple(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ValueError(f"{env!r} does not say which possible_agents there may be; name all of them")
    return agents, {a: env.observation_space(a) for a in agents}, {a: env.action_space(a) for a in agents}
