"""`AlgorithmConfig`: the configuration of a run, which builds its policy, its collectors and its trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from lockstep.builder.builder import Builder
from lockstep.builder.run_config import RunConfig
from lockstep.builder.runners import RunnerBuilder
from lockstep.builder.tensor_collectors import TensorCollectorBuilder
from lockstep.builder.trainer_protocol import TrainerLike
from lockstep.config.base import Spaces
from lockstep.learner.many.reduction import Reducer
from lockstep.policy.offline_data import open_data
from lockstep.policy.policy import Policy
from lockstep.rollout import CollectorLike, EnvRunner, EnvRunnerGroup
from lockstep.state.names import load_library


class AlgorithmConfig(RunConfig):
    """Typed configuration of a run, with one section for each concern. It builds all parts of the run.

    `config.training.lr` reads an option. `config.training(lr=1e-3)` sets options and returns the configuration, so that
    calls can be chained: `PPOConfig().environment("CartPole-v1").training(lr=1e-3).build_trainer().run()`. The error
    for an unknown name suggests the closest one.

    The methods here delegate to a `Builder` (`lockstep/builder/builder.py`). It calls public methods of the
    configuration, so that a subclass may override single steps, such as `make_envs` or `build_env_runner`.
    """

    trainer_factory: ClassVar[Callable[..., TrainerLike] | None] = None
    """Function that builds a trainer. `lockstep.trainer` sets it, because this folder must not import trainers."""

    def build_policy(self, env: Any = None, spaces: Spaces | None = None, reducer: Reducer | None = None) -> Policy:
        """Build a policy and its group of learners.

        Args:
            env: Environment that the spaces are read from. Defaults to the configuration's.
            spaces: Observation space and action space, instead of those of the environment. For several agents these
                are dicts by module id; see `with_agents`.
            reducer: Connection between this learner and the learners of other ranks.
        """
        return Builder(self).build_policy(env, spaces, reducer)

    def build_offline_data(self) -> Any:
        """Open the data of the option `offline_data.input_`; see `open_data`. Raises `ValueError` if it is not set."""
        return open_data(self.offline_data)

    def build_trainer(self, **options: Any) -> TrainerLike:
        """Build the trainer with its policy, collectors, evaluation and, with `folder=`, the files of the run."""
        if type(self).trainer_factory is None:
            load_library()  # it imports `lockstep.trainer`
        factory = type(self).trainer_factory
        assert factory is not None
        return factory(self, **options)

    # -- collectors ---

    def build_collector(self, policy: Policy | None = None) -> CollectorLike:
        """Build the collector of training data and its environments, in this process or in those of env runners."""
        return Builder(self).build_collector(policy or self.build_policy())

    def build_test_collector(self, policy: Policy) -> CollectorLike:
        """Build the collector of evaluation and its environments, in this process or in those of env runners."""
        return Builder(self).build_test_collector(policy)

    def collects_tensors(self, policy: Policy) -> bool:
        """Return whether steps of tensor environments are collected and learned from on their device.

        Otherwise their steps are copied to the host, as those of other environments.
        """
        return TensorCollectorBuilder(self, policy).can_stay_on_device

    # -- env runners ---

    def build_env_runner_group(self, spaces: Spaces | None = None, *, with_logp: bool = False) -> EnvRunnerGroup:
        """Build the group of env runners: in other processes, or one in this process with `num_env_runners=0`.

        Args:
            spaces: Observation space and action space of the policy. Defaults to those of the environment.
            with_logp: Whether fragments contain the log-probability of each action under the weights that acted.

        Raises:
            ImportError: Ray is needed and not installed.
            ValueError: `environment.env` is a finished environment, which runners cannot construct again.
        """
        return RunnerBuilder(self).build_group(spaces, with_logp=with_logp)

    def build_env_runner(
        self,
        spaces: Spaces,
        with_logp: bool = False,
        evaluates: bool = False,
        *,
        index: int = 0,
        num_runners: int = 1,
        generation: int = 0,
    ) -> EnvRunner:
        """Build one env runner and its environments.

        Args:
            spaces: Observation space and action space of the policy.
            with_logp: Whether fragments contain the log-probability of each action.
            evaluates: Whether the runner has the random streams and the epsilon of evaluation.
            index: Index of the runner.
            num_runners: Number of runners.
            generation: See `EnvRunner`.
        """
        return RunnerBuilder(self).build_runner(
            spaces,
            with_logp,
            evaluates,
            index=index,
            num_runners=num_runners,
            generation=generation,
        )
