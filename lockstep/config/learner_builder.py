"""`LearnerBuilder`: a learner from its sections, modules and transforms; and the learners in other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from lockstep.connectors import ModuleConnectors
from lockstep.learner.config import FrameworkSection, LearnersSection, MultiAgentSection, TrainingSection
from lockstep.learner.group import LearnerBackend, LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.learner.many.reduction import Reducer
from lockstep.modules import MultiRLModule, RLModule
from lockstep.modules.config import RLModuleSection
from lockstep.options.checks import install_hint
from lockstep.options.schedules import value_at_step
from lockstep.state.streams import RandomStreams


@dataclass
class LearnerBuilder:
    """Builds a learner in this process, as the options say."""

    training: TrainingSection[Any]
    rl_module: RLModuleSection[Any]
    multi_agent: MultiAgentSection[Any]
    learners: LearnersSection[Any]
    framework: FrameworkSection[Any]
    _: KW_ONLY
    learner_class: type[Learner]
    """The algorithm's class of learner, which `training.learner_class` may replace."""

    def build(
        self,
        connectors: Mapping[str, ModuleConnectors],
        modules: Mapping[str, RLModule],
        streams: RandomStreams,
        reducer: Reducer | None,
    ) -> Learner:
        """Build the learner of these modules. With a `reducer` it is one of several that act as one.

        Raises:
            TypeError: a learner class that is not one.
            ValueError: options for a module that does not exist.
        """
        overrides = self.rl_module.algorithm_config_overrides_per_module
        unknown = sorted(set(overrides) - set(modules))
        if unknown:
            raise ValueError(
                f"algorithm_config_overrides_per_module names {unknown}; the modules are {sorted(modules)}"
            )
        learner_class = self.training.learner_class or self.learner_class
        if not issubclass(learner_class, Learner):
            raise TypeError(f"training.learner_class={learner_class.__name__} must be a subclass of Learner")

        # A `MultiRLModule` of the user's own is trained itself, with what its class adds to the modules.
        spec = self.rl_module.rl_module_spec
        is_multi_module = self.rl_module.specs_by_id() is not None and spec.is_built
        multi_module = spec if is_multi_module else MultiRLModule(dict(modules))
        learner = learner_class(
            config=self.training,
            module_spec=multi_module,
            framework=self.framework,
            connectors=connectors,
            module_configs={mid: self.training.overridden(changed) for mid, changed in overrides.items()},
            policies_to_train=value_at_step(0, self.multi_agent.policies_to_train),
            streams=streams,
            reducer=reducer,
            never_skip_update=self.learners.never_skip_update,
        )
        learner.build()
        return learner


def start_learners(
    build: Any,
    section: LearnersSection,
    *,
    address: str | None = None,
    num_cpus: float = 0.0,
    **options: Any,
) -> LearnerBackend:
    """Start `section.num_learners` learners `build(reducer=...)` in other processes, with options of
    `RayLearnerBackend`. `ImportError` without ray."""
    try:
        from lockstep.cluster.processes import start_ray
        from lockstep.cluster.ray_learners import RayLearnerBackend

        start = partial(start_ray, address, num_cpus or section.num_learners * section.num_cpus_per_learner)
        return RayLearnerBackend(build, section, start_ray=start, **options)
    except ModuleNotFoundError as error:
        raise without_ray(error, f"learners.num_learners={section.num_learners}") from error


LearnerGroup.start_learners = staticmethod(start_learners)


def without_ray(error: ModuleNotFoundError, option: str) -> ImportError:
    """Return the error to raise where `option` needs Ray; an `error` about another module is raised as it is."""
    if error.name != "ray":
        raise error
    return ImportError(f"{option} needs Ray: {install_hint('ray')}, or set it to 0")
