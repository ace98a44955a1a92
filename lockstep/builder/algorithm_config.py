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
    """A typed configuration with one section for each concern, from which all parts of a run are built.

    `config.training.lr` reads an option, `config.training(lr=1e-3)` sets some and returns the configuration, so calls
    chain: `PPOConfig().environment("CartPole-v1").training(lr=1e-3).build_trainer().run()`. An unknown name raises with
    "did you mean".

    What builds is a `Builder` (`lockstep/builder/builder.py`). It asks this configuration by its public methods, so
    that one of your own which overrides `make_envs` or `build_env_runner` is asked too.
    """

    trainer_factory: ClassVar[Callable[..., TrainerLike] | None] = None
    """set by the trainer's floor, which stands above this one"""

    def build_policy(self, env: Any = None, spaces: Spaces | None = None, reducer: Reducer | None = None) -> Policy:
        """Build a policy that acts and learns, over its group of learners; of several agents see `with_agents`.

        `reducer`: joins its learner with those of other ranks.
        """
        return Builder(self).build_policy(env, spaces, reducer)

    def build_offline_data(self) -> Any:
        """Open the data that `offline_data(input_=...)` names, see `open_data`. `ValueError` where it names none."""
        return open_data(self.offline_data)

    def build_trainer(self, **options: Any) -> TrainerLike:
        """Build the trainer with its policy, collectors, evaluation and (with `folder=`) the run's files."""
        if type(self).trainer_factory is None:
            load_library()  # and with it the trainer's floor
        factory = type(self).trainer_factory
        assert factory is not None
        return factory(self, **options)

    # -- collectors ---

    def build_collector(self, policy: Policy | None = None) -> CollectorLike:
        """Build the collector of training data, on environments of its own: here, or in env runners' processes."""
        return Builder(self).build_collector(policy or self.build_policy())

    def build_test_collector(self, policy: Policy) -> CollectorLike:
        """Build the evaluation collector, with environments and random streams of its own: here, or in env runners'
        processes."""
        return Builder(self).build_test_collector(policy)

    def collects_tensors(self, policy: Policy) -> bool:
        """Return whether steps of tensor environments are collected and learned from on their device.

        Else they are environments as all others, whose steps are copied to the host.
        """
        return TensorCollectorBuilder(self, policy).fits

    # -- env runners ---

    def build_env_runner_group(self, spaces: Spaces | None = None, *, with_logp: bool = False) -> EnvRunnerGroup:
        """Build env runners that sample together, in other processes or, for `num_env_runners=0`, one in this process.

        `with_logp`: fragments say how likely each action was when it was taken.

        Raises:
            ImportError: without ray.
            ValueError: a finished environment, of which no others can be made.
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
        """Build the runner number `index` of `num_runners`, with environments of its own; see `EnvRunner`.

        `evaluates`: with the random streams of evaluation, and its epsilon.
        """
        return RunnerBuilder(self).build_runner(
            spaces,
            with_logp,
            evaluates,
            index=index,
            num_runners=num_runners,
            generation=generation,
        )
