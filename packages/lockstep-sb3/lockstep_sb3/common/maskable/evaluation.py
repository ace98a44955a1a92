"""`evaluate_policy` for models that take action masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep_sb3.common import evaluation
from lockstep_sb3.common.env_util import vector_of
from lockstep_sb3.common.maskable.utils import get_action_masks, is_masking_supported


class MaskedActor:
    """Model that acts with the present masks of a vector environment."""

    def __init__(self, model: Any, env: Any) -> None:
        self.model = model
        self.env = env

    def predict(self, observation: Any, **options: Any) -> tuple[Any, Any]:
        """Return `model.predict(...)` with the masks of the environments."""
        result: tuple[Any, Any] = self.model.predict(observation, action_masks=get_action_masks(self.env), **options)
        return result


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
    use_masking: bool = True,
) -> Any:
    """Return the result of `lockstep_sb3.common.evaluation.evaluate_policy` with the masks of the environments.

    `use_masking=False` allows every action. Raises `ValueError` if an environment has no method `action_masks`.
    """
    venv = vector_of(env)
    actor = model
    if use_masking:
        if not is_masking_supported(venv):
            raise ValueError(
                "evaluate_policy: the environment has no method action_masks(); wrap it in an ActionMasker, or give "
                "use_masking=False"
            )
        actor = MaskedActor(model, venv)
    return evaluation.evaluate_policy(
        actor,
        venv,
        n_eval_episodes,
        deterministic,
        render,
        callback,
        reward_threshold,
        return_episode_rewards,
        warn,
    )
