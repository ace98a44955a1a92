"""Distillation: a student imitates a teacher in the states that it meets (Ross et al. 2011, "A reduction of imitation
learning and structured prediction to no-regret online learning", https://arxiv.org/abs/1011.0686).

    a* = the teacher's most likely action in s                         s: states that the student visits (DAgger)
    minimise  E[|mode of pi(. | s) - a*|^2],  E[-log pi(a* | s)],  or  E[KL(pi_teacher(. | s) || pi(. | s))]

Rusu et al. 2016 (https://arxiv.org/abs/1511.06295) distil policies with the KL divergence. The teacher may see entries
of the observation that the student does not see (`observation_groups`, part "teacher").

With `teacher_share` (their beta_i) the teacher takes some of the actions, drawn for each step.

Difference from algorithm 3.1 of Ross et al.: the student learns from its latest rollout only, not from the union of all
rollouts, as in rsl_rl.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from torch import Tensor

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.config.base import Spaces
from lockstep.config.rules import Rule
from lockstep.data.columns import Columns
from lockstep.data.groups import POLICY, TEACHER
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import TrainingSection
from lockstep.learner.inputs import recorded_columns
from lockstep.learner.learner import Learner, Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultPolicyModule
from lockstep.ops.losses import imitation_loss
from lockstep.options.checks import is_number
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.policy import Policy
from lockstep.policy.teacher import Teacher, TeacherShare, sole_part

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import DistillationOptions
    from lockstep.rollout import CollectorLike, EnvRunner

TEACHER_ACTIONS = "teacher_actions"
"""Column of the teacher's most likely actions, in the form that the student learns from."""
TEACHER_DIST_INPUTS = "teacher_dist_inputs"
"""Column of the inputs of the teacher's action distributions."""


@dataclass
class DistillationTraining(TrainingSection[ConfigT]):
    """Options of `DistillationConfig.training(...)`."""

    lr: ScheduleLike = 1e-3
    minibatch_size: int | Literal["auto"] | None = option("auto", ge=1)
    num_epochs: int = option(4, ge=1)
    grad_clip: float | None = 1.0
    teacher: Any = None
    """Policy to learn from: a `Policy`, or the path of a run (its best policy), of a checkpoint or of an export."""
    loss: Literal["mse", "kl", "nll"] = "nll"
    """Loss: the negative log-probability of the teacher's most likely actions ("nll"), for a Box their squared distance
    from the student's most likely actions ("mse"), or the divergence KL(teacher || student) of both distributions
    ("kl")."""
    teacher_share: ScheduleLike = option(0.0, ge=0, le=1)
    """Probability that the teacher takes an action in the place of the student while collecting: a number, or a
    schedule over sampled steps (beta of DAgger)."""

    def __call__(self, **options: Unpack[DistillationOptions]) -> ConfigT:
        return self.change(options)

    def validate(self) -> None:
        """Check the kind of the teacher; `TypeError` if it is neither a policy nor a path."""
        super().validate()
        is_path = self.teacher is None or isinstance(self.teacher, str | Path)
        if not is_path and not hasattr(self.teacher, "acting"):
            raise TypeError(
                f"training.teacher={self.teacher!r} must be a Policy, or the path of a run, a checkpoint or an export"
            )


class DistillationLearner(Learner[DistillationTraining]):
    """The update of distillation: the teacher labels a rollout once, then the student learns in minibatches."""

    observed_by = (POLICY, TEACHER)

    def setup_module(self, module_id: str) -> None:
        """Raise `ValueError` for `loss="mse"` with actions that have no distance."""
        super().setup_module(module_id)
        space = self.module[module_id].action_space
        if self.config_of(module_id).loss == "mse" and self.module[module_id].action_dist_cls.num_choices:
            raise ValueError(f"training.loss='mse' needs a Box of actions, not {space}; set it to 'nll' or 'kl'")

    def teacher_of(self, module_id: str) -> Teacher:
        """Return the teacher of a module.

        It is loaded when it is first asked for, so that a student acts without the files of its teacher.

        Raises:
            ValueError: There is no teacher, or the teacher does not fit the student.
        """
        teachers: dict[str, Teacher] = self.__dict__.setdefault("_teachers", {})
        if module_id not in teachers:
            config = self.config_of(module_id)
            teachers[module_id] = Teacher(
                config.teacher,
                self.module[module_id],
                self.connectors[module_id],
                needs_same_distribution=config.loss == "kl",
            )
        return teachers[module_id]

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        label = TEACHER_DIST_INPUTS if self.config_of(module_id).loss == "kl" else TEACHER_ACTIONS
        return (Columns.OBS, label)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the observations of a rollout with the teacher's labels."""
        teacher = self.teacher_of(module_id)
        columns = recorded_columns(self.to_tensor, self.connectors[module_id], trajectories)
        train_columns = {Columns.OBS: columns[Columns.OBS]}
        seen = teacher.view(trajectories.flat_obs())
        if self.config_of(module_id).loss == "kl":
            train_columns[TEACHER_DIST_INPUTS] = self.to_tensor(teacher.dist_inputs(seen))
        else:
            train_columns[TEACHER_ACTIONS] = self.to_tensor(teacher.actions(seen))
        return self.train_columns(module_id, train_columns, trajectories)

    def compute_loss_for_module(
        self, *, module_id: str, config: DistillationTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the mean distance of the student from the teacher."""
        action_dist = self.module[module_id].action_dist_cls
        student = action_dist.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        if config.loss == "kl":
            losses = action_dist.from_inputs(batch[TEACHER_DIST_INPUTS]).kl(student)
        else:
            kind: Literal["log_prob", "mse"] = "mse" if config.loss == "mse" else "log_prob"
            losses = imitation_loss(student, batch[TEACHER_ACTIONS], kind=kind)
        loss = self.masked_mean(losses, batch)
        self.log(module_id, policy_loss=loss, entropy=self.masked_mean(student.entropy(), batch))
        return loss


class DistillationConfig(AlgorithmConfig):
    """`DistillationConfig().environment("CartPole-v1").training(teacher="runs/teacher").build_trainer().run()`."""

    algorithm = "distillation"
    needs_teacher = True
    learner_class = DistillationLearner
    training_class = DistillationTraining
    module_class = DefaultPolicyModule
    training: DistillationTraining[Self]
    rules = (
        Rule(
            "environment.frame_stack",
            lambda config: config.environment.frame_stack > 1,
            "is not allowed for distillation: the teacher labels single observations. Give the student a memory, "
            "rl_module(model_config={'recurrent': 'lstm'}), or stack frames in the environment",
        ),
    )

    def build_collector(self, policy: Policy | None = None) -> CollectorLike:
        """Build the collector of training data. Before that the teacher is loaded and compared with the student.

        Raises:
            ValueError: There is no teacher, or the teacher does not fit student and environment.
        """
        policy = policy or self.build_policy()
        teacher = self._teacher_of(sole_part("the student", policy))
        collector: Any = super().build_collector(policy)
        if self._teacher_acts and not collector.in_runners:
            collector.set_guide(TeacherShare(teacher, self.training.teacher_share, policy))
        built: CollectorLike = collector
        return built

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
        """Build one env runner; in training the teacher takes its share of the runner's actions."""
        runner = super().build_env_runner(
            spaces, with_logp, evaluates, index=index, num_runners=num_runners, generation=generation
        )
        if self._teacher_acts and not evaluates:
            student: Any = runner.policy
            runner.collector.set_guide(TeacherShare(self._teacher_of(student), self.training.teacher_share, student))
        return runner

    @property
    def _teacher_acts(self) -> bool:
        """Whether the teacher takes some of the actions. A schedule may have other values than 0 later."""
        return not is_number(self.training.teacher_share) or self.training.teacher_share > 0

    def _teacher_of(self, student: ActingPolicy) -> Teacher:
        """Return the teacher; `ValueError` if there is none, or if it does not fit the student."""
        return Teacher(
            self.training.teacher,
            student.module,
            student.connectors,
            needs_same_distribution=self.training.loss == "kl",
        )
