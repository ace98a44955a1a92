"""Options: each that cannot be is refused by name with what is allowed, and names of other libraries lead to ours."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from lockstep import AlgorithmConfig, PPOConfig, get_config
from lockstep.algorithms import ALGORITHMS

NAN, INF = math.nan, math.inf
Row = tuple[str, Any, str]
"""an option, a value that it cannot have, words that the message has"""

OF_EVERY_ALGORITHM: list[Row] = [
    ("training.lr", -1e-3, "a finite number, at least 0"),
    ("training.lr", NAN, "finite"),
    ("training.lr", INF, "finite"),
    ("training.lr", [[0, 1e-3], [10, -1e-3]], "at least 0"),
    ("training.gamma", 1.5, "between 0 and 1"),
    ("training.gamma", NAN, "between 0 and 1"),
    ("training.train_batch_size", 0, "at least 1"),
    ("training.minibatch_size", 0, "None"),
    ("training.num_epochs", 0, "1"),
    ("training.grad_clip", 0.0, "above 0, or None"),
    ("training.grad_clip_by", "size", "'value', 'norm', 'global_norm'"),
    ("training.adam_epsilon", 0.0, "above 0"),
    ("training.nan_policy", "hope", "'skip', 'stop', 'zero'"),
    ("training.gama", 0.9, "did you mean 'gamma'"),
    ("training.learning_rate", 0.9, "did you mean 'lr'?"),
    ("framework.dtype", "float16", "'float32', 'float64'"),
    ("framework.num_threads", 0, "at least 1, or None"),
    ("framework.device", "gpu", "did you mean 'cuda'?"),
    ("framework.device", "GPU:1", "did you mean 'cuda:1'?"),
    ("learners.num_learners", -1, "at least 0"),
    ("learners.num_cpus_per_learner", -1, "at least 0"),
    ("learners.num_gpus_per_learner", -1, "at least 0"),
    ("learners.custom_resources_per_learner", {"x": -1}, "at least 0"),
    ("learners.max_requests_in_flight_per_learner", 0, "at least 1"),
    ("learners.learner_timeout_s", 0.0, "above 0"),
    ("learners.num_learner", 1, "did you mean 'num_learners'"),
    ("resources.num_cpus_for_main_process", -1, "at least 0"),
    ("resources.placement_strategy", "pack", "'PACK', 'SPREAD'"),
    ("fault_tolerance.max_learner_restarts", -1, "at least 0"),
    ("fault_tolerance.max_env_restarts", -1, "at least 0"),
    ("fault_tolerance.max_env_runner_restarts", -2, "at least 0"),
    ("fault_tolerance.max_restarts_in_window", -1, "at least 0"),
    ("fault_tolerance.restart_window_s", 0.0, "above 0"),
    ("env_runners.num_env_runners", -1, "at least 0"),
    ("env_runners.num_envs_per_env_runner", 0, "at least 1"),
    ("env_runners.rollout_fragment_length", 0, "at least 1, or None"),
    ("env_runners.sample_timeout_s", 0, "above 0"),
    ("env_runners.step_timeout", 0, "above 0, or None"),
    ("env_runners.max_requests_in_flight_per_env_runner", 0, "at least 1"),
    ("env_runners.vectorize_mode", "fast", "'auto', 'sync'"),
    ("env_runners.batch_mode", "whole", "'truncate_episodes', 'complete_episodes'"),
    ("evaluation.epsilon", 1.5, "between 0 and 1"),
    ("evaluation.evaluation_interval", -1, "at least 0"),
    ("evaluation.evaluation_episodes", 0, "at least 1"),
    ("environment.frame_stack", 0, "at least 1"),
    ("environment.clip_observations", 0, "above 0"),
    ("offline_data.input_", [], "names no file"),
    ("offline_data.max_memory_bytes", -1, "at least 0"),
    ("reporting.total_steps", 0, "at least 1"),
    ("reporting.loggers", ["csv"], "'jsonl', 'tensorboard'"),
    ("reporting.loggers", "jsonl", "a list"),
    ("checkpointing.num_to_keep", 0, "at least 1"),
    ("debugging.seed", -1, "at least 0"),
    ("multi_agent.count_steps_by", "steps", "'env_steps', 'agent_steps'"),
]
OF_ACTION_VALUES: list[Row] = [
    ("training.epsilon", 1.5, "between 0 and 1"),
    ("training.epsilon", -0.1, "between 0 and 1"),
    ("training.tau", 0.0, "above 0 and at most 1"),
    ("training.tau", 1.5, "above 0 and at most 1"),
    ("training.target_update_interval", 0, "at least 1"),
    ("training.alpha", 1.0, "no option 'alpha'"),
    ("environment.normalize_observations", True, "is not allowed for"),
    ("environment.normalize_rewards", True, "is not allowed for"),
    ("replay.capacity", 3, "less than one transition for each"),
    ("replay.capacit", 3, "did you mean 'capacity'"),
    ("replay.learning_starts", -1, "at least 0"),
    ("replay.update_per_step", 0, "above 0"),
    ("replay.n_step", 0, "at least 1"),
    ("replay.alpha", -1.0, "at least 0"),
    ("replay.beta", [[0, 0.4], [10, -1]], "at least 0"),
    ("replay.her_future_k", -1.0, "at least 0"),
    ("replay.her_strategy", "past", "'future', 'final'"),
    ("replay.storage", "tape", "'memory', 'memmap'"),
]
OF_SAMPLES: list[Row] = [("training.minibatch_size", 8, "it must be None"), ("training.num_epochs", 2, "it must be 1")]
OF_VTRACE: list[Row] = [
    ("training.vtrace_clip_rho_threshold", 0.0, "above 0, or None"),
    ("training.vtrace_clip_pg_rho_threshold", -1.0, "above 0, or None"),
    ("training.lambda_", 1.5, "between 0 and 1"),
    ("training.vf_loss_coeff", -0.1, "at least 0"),
    ("training.max_lag", -1, "at least 0"),
]
OF_SOFT_CRITICS: list[Row] = [
    ("training.tau", 0.0, "above 0 and at most 1"),
    ("training.target_update_interval", 0, "at least 1"),
    ("training.alpha", -0.1, "'auto'"),
    ("training.alpha", "automatic", "'auto'"),
    ("training.initial_alpha", 0.0, "above 0"),
    ("training.target_entropy", "high", "'auto'"),
    ("training.target_entropy", INF, "finite"),
    ("training.critic_lr", -1.0, "at least 0"),
]
OF_DELAYED_POLICIES: list[Row] = [
    ("training.policy_delay", 0, "at least 1"),
    ("training.target_noise", -0.1, "at least 0"),
    ("training.noise_clip", -0.1, "at least 0"),
    ("training.tau", 1.5, "above 0 and at most 1"),
    ("training.polyak", 1.5, "did you mean 'tau'?"),
    ("training.policy_freq", 2, "did you mean 'policy_delay'?"),
    ("training.target_policy_noise", 2, "did you mean 'target_noise'?"),
]
ROWS: dict[str, list[Row]] = {
    "ppo": [
        ("training.lambda_", -0.1, "between 0 and 1"),
        ("training.clip_param", 0.0, "above 0"),
        ("training.clip_param", [[0, 0.2], [10, 0]], "above 0"),
        ("training.vf_clip_param", 0.0, "above 0, or None"),
        ("training.dual_clip", 1.0, "above 1, or None"),
        ("training.target_kl", 0.0, "above 0, or None"),
        ("training.kl_target", 0.0, "above 0"),
        ("training.kl_coeff", -1.0, "at least 0"),
        ("training.normalize_advantages", "all", "'minibatch', 'batch', or None"),
        ("training.minibatch_size", 16, "larger than training.train_batch_size=8"),
        ("training.train_batch_size", 1, "smaller than"),
        ("framework.device", "warp_drive", "is not there"),
        ("learners.num_gpus_per_learner", 1, "framework.device='cpu'"),
        ("reporting.logger_config", {"jsonl": {"interval": 1}}, "JsonlLogger has no argument 'interval'"),
    ],
    "impala": OF_VTRACE,
    "appo": [
        *OF_VTRACE,
        ("training.clip_param", 0.0, "above 0"),
        ("training.target_worker_clipping", 0.5, "at least 1"),
        ("training.kl_coeff", -1.0, "at least 0"),
        ("training.kl_target", 0.0, "above 0"),
        ("training.target_network_update_freq", 0, "at least 1"),
        ("training.tau", 0.0, "above 0 and at most 1"),
    ],
    "dqn": [*OF_ACTION_VALUES, *OF_SAMPLES, ("training.huber_delta", 0.0, "above 0, or None")],
    "c51": [
        *OF_ACTION_VALUES,
        *OF_SAMPLES,
        ("training.num_atoms", 1, "at least 2"),
        ("training.v_min", -INF, "a finite number"),
        ("training.v_max", INF, "a finite number"),
        ("training.v_max", -100.0, "above v_min=-100.0"),
        ("training.num_quantiles", 8, "no option 'num_quantiles'"),
        ("training.huber_delta", 1.0, "no option 'huber_delta'"),
    ],
    "qrdqn": [
        *OF_ACTION_VALUES,
        *OF_SAMPLES,
        ("training.num_quantiles", 1, "at least 2"),
        ("training.kappa", -1.0, "at least 0"),
        ("training.kappa", NAN, "at least 0"),
        ("training.num_atoms", 51, "no option 'num_atoms'"),
    ],
    "sac": [
        *OF_SOFT_CRITICS,
        *OF_SAMPLES,
        ("training.policy_lr", 2, "did you mean 'actor_lr'?"),
        ("training.ent_coef", 2, "did you mean 'alpha'?"),
    ],
    "td3": [
        *OF_DELAYED_POLICIES,
        ("training.exploration_noise", -0.1, "at least 0"),
        ("training.q_lr", 2, "did you mean 'critic_lr'?"),
    ],
    "bc": [
        *OF_SAMPLES,
        ("training.loss", "l1", "'log_prob', 'mse'"),
        ("environment.normalize_rewards", True, "is not allowed for bc"),
        ("environment.frame_stack", 2, "is not allowed for bc"),
        ("framework.compile", True, "is not allowed for bc"),
    ],
    "marwil": [
        *OF_SAMPLES,
        ("training.beta", -1.0, "at least 0"),
        ("training.vf_coeff", -1.0, "at least 0"),
        ("training.bc_logstd_coeff", -1.0, "at least 0"),
        ("training.max_weight", 0.0, "above 0, or None"),
        ("training.moving_average_sqd_adv_norm_start", 0.0, "above 0"),
        ("training.moving_average_sqd_adv_norm_update_rate", 2.0, "between 0 and 1"),
    ],
    "cql": [
        *OF_SOFT_CRITICS,
        *OF_SAMPLES,
        ("training.min_q_weight", -1.0, "at least 0"),
        ("training.num_actions", 0, "at least 1"),
        ("training.temperature", 0.0, "above 0"),
        ("training.bc_iters", -1, "at least 0"),
    ],
    "iql": [
        *OF_SAMPLES,
        ("training.expectile", 1.0, "above 0 and below 1"),
        ("training.beta", -1.0, "at least 0"),
        ("training.exp_adv_max", 0.0, "above 0"),
        ("training.tau", 2.0, "above 0 and at most 1"),
    ],
    "td3_bc": [*OF_DELAYED_POLICIES, *OF_SAMPLES, ("training.alpha", -1.0, "at least 0")],
}
WRONG_TYPES: list[tuple[str, str, Any, str]] = [
    ("ppo", "training.lr", "abc", "a function of the step"),
    ("ppo", "training.lr", True, "a finite number"),
    ("ppo", "training.gamma", "0.9", "a number"),
    ("ppo", "training.num_epochs", 2.5, "a whole number"),
    ("ppo", "training.num_epochs", None, "a whole number"),
    ("ppo", "training.minibatch_size", "64", "a whole number, at least 1, or None"),
    ("ppo", "training.shuffle_batch_per_epoch", "yes", "True or False"),
    ("ppo", "training.grad_clip", [0.5], "a number, above 0, or None"),
    ("ppo", "training.learner_class", "x", "a class, or None"),
    ("ppo", "training.learner_config_dict", 3, "a dict"),
    ("ppo", "env_runners.num_envs_per_env_runner", None, "a whole number"),
    ("ppo", "reporting.total_steps", "100", "a whole number"),
    ("ppo", "debugging.seed", "a", "a whole number"),
    ("ppo", "framework.compile", 1, "True or False"),
    ("ppo", "fault_tolerance.restart_failed_envs", 1, "True or False"),
    ("ppo", "fault_tolerance.max_learner_restarts", 1.5, "a whole number"),
    ("ppo", "learners.custom_resources_per_learner", ["a"], "a dict"),
    ("ppo", "learners.custom_resources_per_learner", {"a": "b"}, "a number"),
    ("ppo", "multi_agent.policies_to_train", 3, "a list"),
    ("ppo", "multi_agent.policies_to_train", "a", "a list"),
    ("ppo", "multi_agent.policy_mapping_fn", "a", "a function"),
    ("ppo", "rl_module.algorithm_config_overrides_per_module", [("a", {})], "a dict"),
    ("ppo", "rl_module.rl_module_spec", np.zeros(2), "wrap_module() takes a plain nn.Module"),
    ("ppo", "offline_data.input_", 3, "the path of a file"),
    ("ppo", "offline_data.columns", "obs", "a list"),
    ("ppo", "offline_data.columns", {"obs": 3}, "a dict"),
    ("ppo", "callbacks.callbacks_class", 3, "a subclass of lockstep.trainer.Callback"),
    ("impala", "training.vtrace", "no", "True or False"),
    ("c51", "training.num_atoms", 5.5, "a whole number"),
    ("c51", "training.v_min", None, "a finite number"),
    ("qrdqn", "training.kappa", "one", "a number"),
    ("qrdqn", "training.double_q", "maybe", "True or False"),
]


@pytest.mark.parametrize("kind", [AlgorithmConfig, *ALGORITHMS], ids=lambda kind: kind.algorithm)
def test_each_section_names_its_options_and_their_types_to_type_checkers(kind: type[AlgorithmConfig]) -> None:
    for section in kind().sections.values():
        named: dict[str, Any] = {}
        for parameter in inspect.signature(type(section).__call__, eval_str=True).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                (options,) = get_args(parameter.annotation)
                named |= get_type_hints(options)
            elif parameter.name != "self":
                named[parameter.name] = parameter.annotation
        assert named == {name: hint for name, (hint, _) in section.declared().items()}


def test_a_section_is_read_by_its_path_and_its_call_returns_the_configuration() -> None:
    config = PPOConfig()
    assert config.training(lr=0.1).debugging(seed=4).environment("CartPole-v1") is config
    assert (config.training.lr, config.debugging.seed, config.environment.env) == (0.1, 4, "CartPole-v1")
    assert config.training == PPOConfig().training(lr=0.1).training
    for other in (config.copy(), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert other.training(lr=0.2) is other
        assert (other.training.lr, config.training.lr) == (0.2, 0.1)
    alone = pickle.loads(pickle.dumps(config.training))
    assert alone == config.training


def check_refused(algorithm: str, option: str, value: Any, words: str, error: type[Exception] = ValueError) -> None:
    """The option is refused in the call or by `validate`, by its name and with the words."""
    section, _, name = option.partition(".")
    config = get_config(algorithm).environment("CartPole-v1").env_runners(num_envs_per_env_runner=4)
    if algorithm == "ppo":
        config.training(train_batch_size=8, minibatch_size=1)
    with pytest.raises(error) as refused:
        getattr(config, section)(**{name: value}).validate()
    assert name in str(refused.value)
    assert words in str(refused.value), option


@pytest.mark.parametrize("algorithm", [kind.algorithm for kind in ALGORITHMS])
def test_every_algorithm_refuses_wrong_values_of_the_options_that_all_have(algorithm: str) -> None:
    for option, value, words in OF_EVERY_ALGORITHM:
        check_refused(algorithm, option, value, words)


@pytest.mark.parametrize(
    "algorithm, option, value, words", [(name, *row) for name, rows in ROWS.items() for row in rows], ids=str
)
def test_a_value_that_cannot_be_is_refused_by_name(algorithm: str, option: str, value: Any, words: str) -> None:
    check_refused(algorithm, option, value, words)


@pytest.mark.parametrize("algorithm, option, value, words", WRONG_TYPES)
def test_a_value_of_the_wrong_type_is_refused_by_name(algorithm: str, option: str, value: Any, words: str) -> None:
    check_refused(algorithm, option, value, words, TypeError)


def test_what_means_the_same_number_is_taken() -> None:
    training: dict[str, Any] = {
        "lr": [[0, 1e-3], [100, 0]],
        "gamma": 1,
        "num_epochs": np.int64(3),
        "grad_clip": np.float32(0.5),
        "clip_param": lambda step: 0.2,
    }
    config = PPOConfig().environment("CartPole-v1").training(**training)
    config.validate()
    assert config.build_learner().config.num_epochs == 3


@pytest.mark.parametrize(
    "algorithm, section, theirs, ours",
    [
        ("ppo", "training", "clip_range", "'clip_param'"),
        ("ppo", "training", "gae_lambda", "'lambda_'"),
        ("ppo", "training", "n_epochs", "'num_epochs'"),
        ("ppo", "training", "n_steps", "'train_batch_size'"),
        ("ppo", "env_runners", "n_steps", "'rollout_fragment_length'"),
        ("dqn", "training", "batch_size", "'minibatch_size' or 'train_batch_size'"),
        ("dqn", "training", "exploration_fraction", "'epsilon'"),
        ("dqn", "training", "learning_starts", "'replay.learning_starts'"),
        ("dqn", "training", "buffer_size", "'replay.capacity'"),
        ("ppo", "training", "policy_kwargs", "'rl_module.model_config'"),
        ("ppo", "training", "total_timesteps", "'reporting.total_steps'"),
        ("ppo", "evaluation", "evaluation_duration", "'evaluation_episodes'"),
    ],
)
def test_a_name_leads_to_the_option_of_its_own_section_or_of_another(
    algorithm: str, section: str, theirs: str, ours: str
) -> None:
    with pytest.raises(ValueError) as error:
        getattr(get_config(algorithm), section)(**{theirs: 1})
    assert str(error.value) == f"{section} has no option {theirs!r}; did you mean {ours}?"


def test_a_number_for_the_hidden_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="hiddens must be a list of positive whole numbers, got 64"):
        PPOConfig().rl_module(model_config={"hiddens": 64})
