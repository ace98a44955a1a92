"""`LearnerBuilder`: builds a learner from its sections, modules and transforms. Also starts learners elsewhere."""

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
    """Builder of a learner in this process from the options."""

    training: TrainingSection[Any]
    rl_module: RLModuleSection[Any]
    multi_agent: MultiAgentSection[Any]
    learners: LearnersSection[Any]
    framework: FrameworkSection[Any]
    _: KW_ONLY
    learner_class: type[Learner]
    """Learner class of the algorithm, which `training.learner_class` may replace."""

    def build(
        self,
        connectors: Mapping[str, ModuleConnectors],
        modules: Mapping[str, RLModule],
        streams: RandomStreams,
        reducer: Reducer | None,
    ) -> Learner:
        """Build the learner of some modules.

        Args:
            connectors: Transforms around each network, by module id.
            modules: Networks by module id.
            streams: Random streams of the learner.
            reducer: Sums over the learners, if this is one of several that act as one.

        Raises:
            TypeError: The learner class is not a subclass of `Learner`.
            ValueError: There are options for a module that does not exist.
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

        # A `MultiRLModule` of the user's own is trained itself: its class may share parts between the modules.
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
    """Start `section.num_learners` learners in other processes, and return the backend that reaches them.

    Args:
        build: Function that builds a learner when it is called with `reducer=...` in its process.
        section: Options of the learners.
        address: Address of the Ray cluster. None starts one, or uses the one that the environment names.
        num_cpus: Number of processors of a new cluster. Defaults to those of the learners.
        options: Further options of `RayLearnerBackend`.

    Raises:
        ImportError: Ray is not installed.
    """
    # The imports are here because only several learners need Ray.
    try:
        from lockstep.cluster.processes import start_ray
        from lockstep.cluster.ray_learners import RayLearnerBackend

        start = partial(start_ray, address, num_cpus or section.num_learners * section.num_cpus_per_learner)
        return RayLearnerBackend(build, section, start_ray=start, **options)
    except ModuleNotFoundError as error:
        raise without_ray(error, f"learners.num_learners={section.num_learners}") from error


# A group that is read from a checkpoint starts its learners itself, but its folder is below `cluster`, whose function
# this is. So the function is put into the class from here.
LearnerGroup.start_learners = staticmethod(start_learners)


def without_ray(error: ModuleNotFoundError, option: str) -> ImportError:
    """Return the error to raise for an option that needs Ray. An `error` about another module than Ray is raised again.

    Args:
        error: The error of the import.
        option: The option with its value, for the message.
    """
    if error.name != "ray":
        raise error
    return ImportError(f"{option} needs Ray: {install_hint('ray')}, or set it to 0")
