"""`RunnerBuilder`: builds env runners and groups of them, in this process or in others."""

from __future__ import annotations

from functools import partial
from typing import Any

from lockstep.builder.agent_parts import AgentParts
from lockstep.builder.run_config import RunConfig
from lockstep.config.base import Spaces
from lockstep.config.learner_builder import without_ray
from lockstep.rollout import EnvRunner, EnvRunnerGroup
from lockstep.rollout.runner_group import BuildRunner, LocalRunner
from lockstep.state.streams import RandomStreams


class RunnerBuilder:
    """Builder of env runners and their groups from a configuration."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def build_runner(
        self,
        spaces: Spaces,
        with_logp: bool = False,
        evaluates: bool = False,
        *,
        index: int = 0,
        num_runners: int = 1,
        generation: int = 0,
    ) -> EnvRunner:
        """Build one env runner; see `AlgorithmConfig.build_env_runner`."""
        config = self.config
        config.set_num_threads()
        streams = RandomStreams(config.debugging.seed)
        if evaluates:
            stream = "test_collector"
            epsilon = config.evaluation.epsilon
        else:
            stream = "train_collector"
            epsilon = 0.0

        options: dict[str, Any] = {
            "index": index,
            "num_runners": num_runners,
            "generation": generation,
            "streams": streams.child(stream),
            "explore": config.env_runners.explore,
            "epsilon": epsilon,
            "stores": not evaluates,
            "with_logp": with_logp,
            "whole_episodes": config.env_runners.collects_whole_episodes,
            "callbacks": [make() for make in config.callbacks.classes],
        }
        return AgentParts.of(config, config.is_multi_agent).build_runner(spaces, options)

    def build_group(self, spaces: Spaces | None = None, *, with_logp: bool = False) -> EnvRunnerGroup:
        """Build the runners of training; see `AlgorithmConfig.build_env_runner_group`."""
        config = self.config
        config.validate()
        env = config.environment.env
        if not isinstance(env, str) and not callable(env):
            raise ValueError(
                f"env runners make their own environments, env={env!r} is one already; give an id or a function"
            )
        build = partial(config.copy().build_env_runner, spaces or config.policy_spaces(), with_logp)
        return self._start(build)

    def build_evaluation_group(self, spaces: Spaces) -> EnvRunnerGroup:
        """Build the runners of evaluation. The configuration must be that of `RunConfig.evaluation_settings`."""
        return self._start(partial(self.config.build_env_runner, spaces, evaluates=True))

    def _start(self, build: BuildRunner) -> EnvRunnerGroup:
        """Start `env_runners.num_env_runners` runners. Raises `ImportError` if Ray is needed and not installed."""
        config = self.config
        section = config.env_runners
        limits = config.fault_tolerance.env_runner_limits
        if section.num_env_runners == 0:
            return EnvRunnerGroup(LocalRunner(build), section, limits)
        # Imported here: `import lockstep` must not load Ray.
        try:
            from lockstep.cluster.processes import start_ray
            from lockstep.cluster.ray_runners import RayRunnerBackend

            start = partial(start_ray, config.resources.ray_address, config.cpus_of_run)
            num_standby = config.fault_tolerance.num_standby_processes
            backend = RayRunnerBackend(build, section, num_standby=num_standby, start_ray=start)
            return EnvRunnerGroup(backend, section, limits)
        except ModuleNotFoundError as error:
            raise without_ray(error, f"env_runners.num_env_runners={section.num_env_runners}") from error
