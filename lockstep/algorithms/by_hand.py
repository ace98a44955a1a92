"""The configuration of a policy whose learner was made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.connectors import ClipActions, RescaleActions
from lockstep.learner.group import LearnerGroup
from lockstep.modules import DEFAULT_MODULE_ID, RLModule, RLModuleSpec

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig


def configuration_of(config_or_module: Any, group: LearnerGroup) -> AlgorithmConfig:
    """A configuration as it is; of a module, the algorithm of the group's learner with its options and the module's
    spaces.

    Raises `TypeError` for anything else, `ValueError` for a module that the group's learner does not train, and for a
    learner of no algorithm here.
    """
    from lockstep.algorithms.config import AlgorithmConfig

    if isinstance(config_or_module, AlgorithmConfig):
        return config_or_module
    if not isinstance(config_or_module, RLModule):
        raise TypeError(
            f"a Policy is made of a configuration or of an RLModule, not of a {type(config_or_module).__name__}; "
            "wrap_module() takes a plain nn.Module"
        )
    return _configuration_of_learner(config_or_module, group)


def _configuration_of_learner(module: RLModule, group: LearnerGroup) -> AlgorithmConfig:
    from lockstep.algorithms import ALGORITHMS

    trained = None if group.is_remote else dict(group.learner.module.items()).get(DEFAULT_MODULE_ID)
    if trained is not module:
        raise ValueError(
            f"the group's learner does not train this {type(module).__name__} as {DEFAULT_MODULE_ID!r}; give "
            f"learner_group.learner.module[{DEFAULT_MODULE_ID!r}] of a group in this process, or a configuration"
        )
    learner = group.learner
    fitting = [known for known in ALGORITHMS if isinstance(learner, known.learner_class)]
    if not fitting:
        raise ValueError(f"{type(learner).__name__} is of no algorithm here; give a configuration instead of a module")
    config = fitting[0]()  # no algorithm's learner is another's: none imports another
    spaces: dict[str, Any] = {"observation_space": module.observation_space, "action_space": module.action_space}
    spec = RLModuleSpec(module_class=type(module), model_config=module.model_config, **spaces)
    actions, sections = learner.connectors[DEFAULT_MODULE_ID].actions, config.sections
    given = {"clip_actions": isinstance(actions, ClipActions), "rescale_actions": isinstance(actions, RescaleActions)}
    return config.with_sections(
        environment=replace(sections["environment"], **spaces, **given),
        rl_module=replace(sections["rl_module"], rl_module_spec=spec),
        training=learner.config,
        framework=learner.framework,
    )
