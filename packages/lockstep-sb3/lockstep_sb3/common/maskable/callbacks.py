"""`MaskableEvalCallback`, which evaluates with action masks."""

from __future__ import annotations

from typing import Any

from lockstep_sb3.common.callbacks import EvalCallback
from lockstep_sb3.common.maskable.evaluation import evaluate_policy


class MaskableEvalCallback(EvalCallback):
    """Callback that evaluates the model every `eval_freq` steps with the masks of the environments.

    `use_masking=False` allows every action.
    """

    def __init__(self, *args: Any, use_masking: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_masking = use_masking

    def evaluate(self, **options: Any) -> Any:
        return evaluate_policy(self.model, self.eval_env, use_masking=self.use_masking, **options)
