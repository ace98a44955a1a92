"""`ConnectorBuilder`: builds the transforms around a network from the options of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from gymnasium import spaces

from lockstep.connectors import (
    ActionPipeline,
    ClipActions,
    Connector,
    FrameStack,
    ModuleConnectors,
    NormalizeObs,
    NormalizeRewards,
    ObsPipeline,
    RescaleActions,
)
from lockstep.connectors.module_connectors import is_connector
from lockstep.connectors.own import OfOwnObservation
from lockstep.connectors.symmetry import PairPipeline, Symmetry, SymmetryFunction
from lockstep.data.actions import action_leaves
from lockstep.data.columns import Columns
from lockstep.data.groups import split_state
from lockstep.envs.config import EnvironmentSection
from lockstep.learner.config import TrainingSection
from lockstep.rollout.config import EnvRunnersSection


@dataclass
class ConnectorBuilder:
    """Builder of the transforms of observations, actions, rewards and train columns from the options."""

    environment: EnvironmentSection[Any]
    env_runners: EnvRunnersSection[Any]
    training: TrainingSection[Any]
    _: KW_ONLY
    algorithm: str
    """Name of the algorithm, for messages."""
    squashes_actions: bool
    """Whether the network acts in [-1, 1]."""
    num_learners: int
    """Number of learners in other processes."""
    is_offline: bool
    """Whether the algorithm learns from recorded data, so that no connector is applied before recording."""
    has_central_state: bool
    """Whether observations of several agents have a central state. The user's connectors of observations and actions
    are for agents' own observations then."""
    symmetry: SymmetryFunction | None = None
    """Function that mirrors observations and actions, or None."""
    acts_symmetrically: bool = False
    """Whether the network acts by the mean of both images of an observation."""
    compares_images: bool = False
    """Whether the loss compares the network's actions for both images of an observation."""
    augments: bool = True
    """Whether the loss has a row for each image."""

    def build(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> tuple[ModuleConnectors, tuple[Any, Any]]:
        """Return the transforms, and the observation and action space of the network.

        Args:
            observation_space: Observation space of the environment.
            action_space: Action space of the environment.

        Raises:
            TypeError: An option that should give connectors gives something else.
            ValueError: Connectors do not fit together, or cannot take the spaces.
        """
        own_space = split_state(observation_space)[0] if self.has_central_state else observation_space
        own_connectors = self._configured("env_runners.env_to_module_connector", own_space, action_space)
        if self.has_central_state:
            own_connectors = [OfOwnObservation(connector) for connector in own_connectors]
        recorded, pipeline = self._observations(own_connectors, observation_space)
        actions = self._actions(own_space, action_space)
        learner = self._configured("training.learner_connector", observation_space, action_space)
        for connector in learner:
            connector.check_plain("training.learner_connector")
        rewards = None
        bound = self.training.return_bound
        if bound is not None:
            rewards = NormalizeRewards(gamma=self.training.gamma, clip=None, bound=bound)
        elif self.environment.normalize_rewards:
            rewards = NormalizeRewards(gamma=self.training.gamma, clip=self.environment.clip_rewards)
        connectors = ModuleConnectors(
            obs=pipeline, rewards=rewards, actions=actions, recorded=recorded, learner=tuple(learner)
        )
        if self.symmetry is not None:
            stored_space = recorded.observation_space or observation_space
            connectors.symmetry = self._symmetry(self.symmetry, stored_space, action_space, actions)
            if not self.augments:
                # A symmetric network is not compared with its mirror image.
                connectors.mirrored_columns = () if self.acts_symmetrically else (Columns.OBS,)
            if self.acts_symmetrically:
                # Learning and acting need both images of each observation.
                connectors.obs = PairPipeline(pipeline.connectors, stored_space, connectors.symmetry.observations)
        module_action_space = action_space if actions is None else actions.module_space
        return connectors, (pipeline.observation_space, module_action_space)

    def _symmetry(
        self,
        function: SymmetryFunction,
        stored_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        actions: ActionPipeline | None,
    ) -> Symmetry:
        """Return the symmetry of stored observations and the network's actions.

        Raises `ValueError` if an option needs actions that only change places and signs, and they do not.
        """
        symmetry = Symmetry(function, stored_space, action_space, actions)
        if symmetry.numbers is None:
            option = ""
            if self.acts_symmetrically:
                option = "rl_module.model_config.symmetric=True"
            elif self.compares_images:
                option = f"training.symmetry_loss_coeff={self.training.symmetry_loss_coeff}"
            if option:
                raise ValueError(
                    f"{option} needs a Discrete space, or a Box of actions whose entries only change places and signs "
                    f"in the mirror image ({action_space}); {symmetry.name} alone learns from mirrored rows of all "
                    "actions"
                )
        return symmetry

    def _observations(
        self, connectors: Sequence[Connector], observation_space: spaces.Space[Any]
    ) -> tuple[ObsPipeline, ObsPipeline]:
        """Return two pipelines: one applied once before data are recorded, and one whenever they are read.

        Both begin with the user's `connectors`, which the default ones follow.

        The first pipeline ends with the last connector that must run when data are collected. Such a connector has a
        memory, which follows the environments step by step, or declares `is_recorded`.
        """
        section = self.environment
        option = "env_runners.env_to_module_connector"
        connectors = list(connectors)
        # The default connectors come last. Stacks are recorded, so statistics must stand behind them (see below).
        if section.frame_stack > 1:
            connectors.append(FrameStack(section.frame_stack))
        if section.normalize_observations:
            connectors.append(NormalizeObs(clip=section.clip_observations))

        with_memory = [connector.class_name for connector in connectors if connector.has_memory]
        if with_memory and self.is_offline:
            raise ValueError(
                f"{option}: {self.algorithm} learns from data that are there already, and {', '.join(with_memory)} has "
                "a memory, which follows environments step by step; store its output in the data"
            )

        num_recorded = 0
        if not self.is_offline:
            for position, connector in enumerate(connectors, start=1):
                if connector.has_memory or connector.is_recorded:
                    num_recorded = position

        # Statistics change while rows wait in a buffer, so a row must be normalised when it is read, not when it is
        # stored.
        for connector in connectors[:num_recorded]:
            if connector.has_statistics:
                raise ValueError(
                    f"{option}: {connector.class_name} has statistics and stands before "
                    f"{connectors[num_recorded - 1].class_name}, whose output is stored, so it would be stored "
                    "with the statistics of that time; put it behind that one"
                )
        for connector in connectors:
            if self.num_learners > 1 and not connector.joins_statistics:
                raise ValueError(
                    f"learners.num_learners={self.num_learners}: {connector.class_name} has statistics but no "
                    "update_joined(data, join), so each learner would have different ones; write it with "
                    "RunningMoments, as NormalizeObs does"
                )

        recorded = ObsPipeline(connectors[:num_recorded], observation_space)
        return recorded, ObsPipeline(connectors[num_recorded:], recorded.observation_space)

    def _actions(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> ActionPipeline | None:
        """Return the pipeline from the network's actions to the environment's, or None if both are the same."""
        section = self.environment
        option = "env_runners.module_to_env_connector"
        connectors: list[Any] = self._configured(option, observation_space, action_space)
        module_space = ActionPipeline(connectors, action_space).module_space
        boxes = [leaf for leaf in action_leaves(action_space) if isinstance(leaf, spaces.Box)]
        # The default connectors come last, next to the environment, whose bounds they respect.
        if self.env_runners.add_default_connectors and boxes:
            # The user's connectors may turn choices of the network into a Box. Then there is nothing to rescale.
            module_has_boxes = any(isinstance(leaf, spaces.Box) for leaf in action_leaves(module_space))
            if module_has_boxes and (section.rescale_actions or self.squashes_actions):
                if not all(box.is_bounded() for box in boxes):
                    raise ValueError(
                        f"{self.algorithm} cannot act in {action_space}: its actions are rescaled onto the bounds, "
                        "which must be finite; wrap the environment so that they are"
                    )
                connectors.append(RescaleActions(action_space))
            elif section.clip_actions:
                connectors.append(ClipActions(action_space))
        return ActionPipeline(connectors, action_space) if connectors else None

    def _configured(
        self, option: str, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> list[Connector]:
        """Return the connectors that an option's function makes for these spaces, or none if the option is not set."""
        section, _, name = option.partition(".")
        function = getattr(getattr(self, section), name)
        if function is None:
            return []
        returned = function(observation_space, action_space)
        connectors = list(returned) if isinstance(returned, list | tuple) else [returned]
        for connector in connectors:
            if not is_connector(connector):
                raise TypeError(
                    f"{option} returned {connector!r}; f(observation_space, action_space) must return a "
                    "lockstep.connectors.Connector, or a list of them"
                )
        return connectors
