"""Options and spaces that an ejected file supports, and the constant of the file for each option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.envs.make import known_id
from lockstep.modules.encoders import is_image
from lockstep.modules.model_config import ModelConfig
from lockstep.rollout.stepper import CHUNK
from lockstep.trainer.build import RunLength


class EjectError(ValueError):
    """Error for a run that an ejected file cannot express. The message names the option, and what is supported."""


OptionConstant = tuple[str, str]
"""Path of an option, and the name of its constant in the file; "" if other constants express the option."""
COMMON: tuple[OptionConstant, ...] = (
    ("environment.env", "ENV"),
    ("environment.env_config", "ENV_CONFIG"),
    ("debugging.seed", "SEED"),
    ("reporting.total_steps", "TOTAL_STEPS"),
    ("env_runners.num_envs_per_env_runner", "NUM_ENVS"),
    ("env_runners.rollout_fragment_length", "NUM_STEPS"),
    ("training.adam_epsilon", "ADAM_EPSILON"),
    ("training.grad_clip", "GRAD_CLIP"),
    ("training.gamma", "GAMMA"),
    ("rl_module.model_config.hiddens", "HIDDENS"),
    ("rl_module.model_config.activation", "ACTIVATION"),
    ("rl_module.model_config.orthogonal_init", "ORTHOGONAL_INIT"),
    ("rl_module.model_config.hidden_gain", "HIDDEN_GAIN"),
    ("rl_module.model_config.policy_gain", "POLICY_GAIN"),
    ("rl_module.model_config.value_gain", "VALUE_GAIN"),
    ("evaluation.evaluation_duration", "EVALUATION_EPISODES"),
    ("framework.dtype", "DTYPE"),
    ("framework.num_threads", "NUM_THREADS"),
)
REPLAY: tuple[OptionConstant, ...] = (
    ("training.train_batch_size", "BATCH_SIZE"),
    ("training.target_update_interval", "TARGET_UPDATE_INTERVAL"),
    ("training.tau", "TAU"),
    ("replay.capacity", "CAPACITY"),
    ("replay.learning_starts", "LEARNING_STARTS"),
    ("replay.update_per_step", "UPDATES_PER_STEP"),
    ("replay.n_step", "N_STEP"),
)
SUPPORTED: dict[str, tuple[OptionConstant, ...]] = {
    "ppo": (
        ("environment.normalize_observations", "NORMALIZE_OBSERVATIONS"),
        ("environment.clip_observations", "CLIP_OBSERVATIONS"),
        ("environment.normalize_rewards", "NORMALIZE_REWARDS"),
        ("environment.clip_rewards", "CLIP_REWARDS"),
        ("training.lr", "LEARNING_RATE"),
        ("training.train_batch_size", ""),
        ("training.num_epochs", "NUM_EPOCHS"),
        ("training.minibatch_size", "MINIBATCH_SIZE"),
        ("training.lambda_", "LAMBDA"),
        ("training.clip_param", "CLIP_PARAM"),
        ("training.vf_clip_param", "VF_CLIP_PARAM"),
        ("training.vf_loss_coeff", "VF_LOSS_COEFF"),
        ("training.entropy_coeff", "ENTROPY_COEFF"),
        ("training.normalize_advantages", "NORMALIZE_ADVANTAGES"),
        ("training.target_kl", "TARGET_KL"),
        ("rl_module.model_config.log_std_init", "LOG_STD_INIT"),
    ),
    "dqn": (
        *REPLAY,
        ("training.lr", "LEARNING_RATE"),
        ("training.epsilon", "EPSILON"),
        ("training.double_q", "DOUBLE_Q"),
        ("training.huber_delta", "HUBER_DELTA"),
        ("rl_module.model_config.dueling", "DUELING"),
    ),
    "sac": (
        *REPLAY,
        ("training.lr", ""),
        ("training.actor_lr", "ACTOR_LR"),
        ("training.critic_lr", "CRITIC_LR"),
        ("training.alpha_lr", "ALPHA_LR"),
        ("training.alpha", "ALPHA"),
        ("training.initial_alpha", "INITIAL_ALPHA"),
        ("training.target_entropy", "TARGET_ENTROPY"),
        ("rl_module.model_config.num_critics", "NUM_CRITICS"),
        ("rl_module.model_config.critic_hiddens", "CRITIC_HIDDENS"),
        ("rl_module.model_config.log_std_init", "LOG_STD_INIT"),
        ("rl_module.model_config.log_std_bounds", "LOG_STD_BOUNDS"),
        ("env_runners.exploration", "EXPLORATION"),
        ("env_runners.exploration_config", ""),
        ("exploration_config.sigma", "OU_SIGMA"),
        ("exploration_config.theta", "OU_THETA"),
        ("exploration_config.dt", "OU_DT"),
    ),
}
"""Options that the file of an algorithm can express, in addition to the common ones."""
ACTIVATIONS = ("tanh", "relu", "gelu", "silu", "elu")
"""Activations that the files know."""
IRRELEVANT = (
    "reporting.",
    "checkpointing.",
    "resources.",
    "fault_tolerance.",
    "learners.never",
    "learners.learner_timeout",
    "evaluation.evaluation_interval",
    "evaluation.evaluation_num_envs",
    "evaluation.evaluation_parallel",
    "framework.fused_losses",
    "training.nan_policy",
    "env_runners.sample_timeout_s",
    "env_runners.vectorize_mode",
)
"""Beginnings of the paths of options that do not change what is learned."""


def supported_options(algorithm: str) -> tuple[OptionConstant, ...]:
    """Return the options that the file of an algorithm can express.

    Raises:
        EjectError: there is no file for the algorithm.
    """
    if algorithm not in SUPPORTED:
        raise EjectError(f"{algorithm} cannot be ejected; {', '.join(SUPPORTED)} can")
    return COMMON + SUPPORTED[algorithm]


def options_of(config: AlgorithmConfig) -> Iterator[tuple[str, Any]]:
    """Iterate over path and value of all options. The options of the default networks are separate entries."""
    for name, section in config.sections.items():
        for option, value in section.options().items():
            path = f"{name}.{option}"
            if path != "rl_module.model_config":
                yield path, value
            elif isinstance(value, ModelConfig | dict):
                for field, field_value in vars(ModelConfig.of(value)).items():
                    yield f"{path}.{field}", field_value
            else:
                yield f"{path}.", value


def check_options(config: AlgorithmConfig) -> None:
    """Raise `EjectError` for the first option that is set and that the file cannot express."""
    supported = [path for path, _ in supported_options(config.algorithm)]
    defaults = dict(options_of(type(config)()))
    for path, value in options_of(config):
        if _has_callable(value):
            raise EjectError(f"{path}={value!r} cannot be ejected: it is a function or class; use plain values")
        if value != defaults.get(path) and path not in supported and not path.startswith(IRRELEVANT):
            section = path[: path.rindex(".") + 1]
            names = [name.removeprefix(section) for name in supported if name.startswith(section)]
            raise EjectError(
                f"{path}={value!r} cannot be ejected; leave it at {defaults.get(path)!r}. Of {section[:-1]} a file of "
                f"{config.algorithm} can express {', '.join(names) or 'nothing'}"
            )

    # Supported options of which the files express some values only.
    activation = ModelConfig.of(config.rl_module.model_config).activation
    if activation not in ACTIVATIONS:
        raise EjectError(
            f"rl_module.model_config.activation={activation!r} cannot be ejected; {', '.join(ACTIVATIONS)} can"
        )
    if config.env_runners.vectorize_mode not in ("auto", "sync"):
        mode = config.env_runners.vectorize_mode
        raise EjectError(f"env_runners.vectorize_mode={mode!r} cannot be ejected; use 'auto' or 'sync'")
    if config.env_runners.exploration not in (None, "ou"):
        raise EjectError(
            f"env_runners.exploration={config.env_runners.exploration!r} cannot be ejected; 'ou' can, of sac"
        )
    # The library draws random numbers for at most `CHUNK` steps at once, the files for all steps up to the update.
    num_steps = RunLength.of(config).per_update // config.env_runners.num_envs
    if config.is_off_policy and num_steps > CHUNK:
        length = config.env_runners.rollout_fragment_length
        raise EjectError(
            f"env_runners.rollout_fragment_length={length} cannot be ejected; of {config.algorithm} {CHUNK} can"
        )
    if config.algorithm == "sac":
        _check_sac(config.training, config.env_runners.exploration_config)


def _has_callable(value: object) -> bool:
    if isinstance(value, dict):
        return callable(value) or any(map(callable, value.values()))
    return callable(value)


def _check_sac(training: Any, exploration: dict[str, Any]) -> None:
    """Raise `EjectError` for options of SAC that the file cannot express."""
    if training.alpha == 0:
        raise EjectError("training.alpha=0 cannot be ejected; a positive number or 'auto' can")
    if isinstance(exploration.get("sigma"), list | tuple):
        raise EjectError(f"env_runners.exploration_config={exploration} cannot be ejected; give a number for sigma")
    if "mean" in exploration or "weights" in exploration:
        raise EjectError(f"env_runners.exploration_config={exploration} cannot be ejected; leave out mean and weights")


def checked_spaces(config: AlgorithmConfig) -> tuple[str, spaces.Box, spaces.Box | spaces.Discrete]:
    """Return the id of the environment, its observation space and its action space.

    Raises:
        EjectError: the file does not support the environment or a space.
    """
    env = config.environment.env
    if not isinstance(env, str) or ":" in env:
        raise EjectError(f"environment.env={env!r} cannot be ejected; it must be an id that gymnasium has by itself")
    env_id = known_id(env)
    if not str(gym.spec(env_id).entry_point).startswith("gymnasium."):
        raise EjectError(
            f"environment.env={env!r} cannot be ejected: another package registers it, and the file imports torch, "
            "numpy and gymnasium alone"
        )
    observations, actions = config.find_spaces()
    if not isinstance(observations, spaces.Box) or len(observations.shape) != 1 or is_image(observations):
        raise EjectError(f"observations of {observations} cannot be ejected; a Box of one dimension can")

    is_discrete = isinstance(actions, spaces.Discrete) and actions.start == 0
    is_box = isinstance(actions, spaces.Box) and len(actions.shape) == 1 and actions.dtype.kind == "f"
    is_supported = (is_discrete and config.algorithm != "sac") or (is_box and config.algorithm != "dqn")
    if not is_supported:
        kinds = {"dqn": "Discrete from 0", "sac": "a Box of one dimension"}
        allowed = kinds.get(config.algorithm, " and ".join(kinds.values()))
        raise EjectError(f"actions of {actions} cannot be ejected; of {config.algorithm} {allowed} can")
    if config.squashes_actions and not actions.is_bounded():
        raise EjectError(f"actions of {actions} cannot be ejected; of {config.algorithm} their bounds must be finite")
    return env_id, observations, actions
