"""`MaskableEvalCallback`, which evaluates with action masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep_sb3.common.callbacks import EvalCallback
from lockstep_sb3.common.maskable.evaluation import evaluate_policy


@dataclass(eq=False)
class MaskableEvalCallback(EvalCallback):
    """Callback that evaluates the model every `eval_freq` steps with the masks of the environments.

    `use_masking=False` allows every action.
    """

    use_masking: bool = True

    def evaluate(self, **options: Any) -> Any:
        return evaluate_policy(self.model, self.eval_env, use_masking=self.use_masking, **options)
