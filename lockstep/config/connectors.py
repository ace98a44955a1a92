"""`ConnectorBuilder`: from the options of a configuration to the transforms around a network."""

from __future__ import annotations

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
from lockstep.data.actions import action_leaves
from lockstep.envs.config import EnvironmentSection
from lockstep.learner.config import TrainingSection
from lockstep.rollout.config import EnvRunnersSection


@dataclass
class ConnectorBuilder:
    """Builds what observations, actions, rewards and train columns go through, as the options say."""

    environment: EnvironmentSection[Any]
    env_runners: EnvRunnersSection[Any]
    training: TrainingSection[Any]
    _: KW_ONLY
    algorithm: str
    squashes_actions: bool
    """whether the network acts in [-1, 1]"""
    num_learners: int
    is_offline: bool
    """whether data are read that others have stored: nothing is recorded"""

    def build(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> tuple[ModuleConnectors, tuple[Any, Any]]:
        """Return the transforms, and the spaces that the network sees and acts in; raises as `build_connectors`."""
        recorded, pipeline = self._observations(observation_space, action_space)
        actions = self._actions(observation_space, action_space)
        learner = self._made("training.learner_connector", observation_space, action_space)
        for connector in learner:
            connector.check_plain("training.learner_connector")
        rewards = None
        if self.environment.normalize_rewards:
            rewards = NormalizeRewards(gamma=self.training.gamma, clip=self.environment.clip_rewards)
        connectors = ModuleConnectors(
            obs=pipeline, rewards=rewards, actions=actions, recorded=recorded, learner=tuple(learner)
        )
        return connectors, (pipeline.observation_space, action_space if actions is None else actions.module_space)

    def _observations(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> tuple[ObsPipeline, ObsPipeline]:
        """Return what is applied where data are collected, and what whenever they are read."""
        section, option = self.environment, "env_runners.env_to_module_connector"
        connectors = self._made(option, observation_space, action_space)
        if section.frame_stack > 1:
            connectors.append(FrameStack(section.frame_stack))
        if section.normalize_observations:
            connectors.append(NormalizeObs(clip=section.clip_observations))
        remembering = [type(connector).__name__ for connector in connectors if connector.has_memory]
        if remembering and self.is_offline:
            raise ValueError(
                f"{option}: {self.algorithm} learns from data that are there already, and {', '.join(remembering)} has "
                "a memory, which follows environments step by step; store its output in the data"
            )
        kept = [not self.is_offline and (each.has_memory or each.is_recorded) for each in connectors]
        number = len(kept) - kept[::-1].index(True) if any(kept) else 0
        for connector in connectors[:number]:
            if connector.has_statistics:
                raise ValueError(
                    f"{option}: {type(connector).__name__} has statistics and stands before "
                    f"{type(connectors[number - 1]).__name__}, whose output is stored, so it would be stored with the "
                    "statistics of then; put it behind that one"
                )
        for connector in connectors:
            if self.num_learners > 1 and not connector.joins_statistics:
                raise ValueError(
                    f"learners.num_learners={self.num_learners}: {type(connector).__name__} has statistics but no "
                    "update_joined(data, join), so each learner would have others; write it with RunningMoments, as "
                    "NormalizeObs does"
                )
        recorded = ObsPipeline(connectors[:number], observation_space)
        return recorded, ObsPipeline(connectors[number:], recorded.observation_space)

    def _actions(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> ActionPipeline | None:
        """Return what brings actions to the environment; None where nothing does."""
        section = self.environment
        connectors: list[Any] = self._made("env_runners.module_to_env_connector", observation_space, action_space)
        acted_in = ActionPipeline(connectors, action_space).module_space
        boxes = [leaf for leaf in action_leaves(action_space) if isinstance(leaf, spaces.Box)]
        if self.env_runners.add_default_connectors and boxes:
            has_boxes = any(isinstance(leaf, spaces.Box) for leaf in action_leaves(acted_in))
            if has_boxes and (section.rescale_actions or self.squashes_actions):
                if not all(box.is_bounded() for box in boxes):
                    raise ValueError(
                        f"{self.algorithm} cannot act in {action_space}: its actions are rescaled onto the bounds, "
                        "which must be finite; wrap the environment so that they are"
                    )
                connectors.append(RescaleActions(action_space))
            elif section.clip_actions:
                connectors.append(ClipActions(action_space))
        return ActionPipeline(connectors, action_space) if connectors else None

    def _made(
        self, option: str, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> list[Connector]:
        """Return the connectors that the function which an option names makes for these spaces; none without it."""
        section, _, name = option.partition(".")
        function = getattr(getattr(self, section), name)
        if function is None:
            return []
        made = function(observation_space, action_space)
        connectors = list(made) if isinstance(made, list | tuple) else [made]
        for connector in connectors:
            if not isinstance(connector, Connector | RescaleActions):
                raise TypeError(
                    f"{option} returned {connector!r}; f(observation_space, action_space) must return a "
                    "lockstep.connectors.Connector, or a list of them"
                )
        return connectors
