"""Rules between options: a configuration for each row of the table, which that row is the first to refuse."""

from __future__ import annotations

from typing import Any

import pytest
from algorithm_cases import OFF_POLICY, class_of, has_option
from mirror_parts import mirror

from lockstep import AlgorithmConfig, DQNConfig, Learner, MultiRLModuleSpec, RLModuleSpec, get_config
from lockstep.config.rules import OF_SEVERAL_AGENTS, RULES, Rule, refuse
from lockstep.trainer import Callback

Settings = dict[str, Any]
TWO = {"multi_agent.policies": ["a", "b"]}
MAPPING = {"multi_agent.policy_mapping_fn": {"x": "a", "y": "b"}}
CRITIC = {"multi_agent.policies": ["default_policy"], "multi_agent.centralized_critic": "state"}
MEMORY = {"rl_module.model_config": {"recurrent": "lstm"}}
MIRROR = {"training.symmetry": mirror}
GROUPS = "rl_module.observation_groups"
SYMMETRIC = {"rl_module.model_config": {"symmetric": True}}
OVERRIDES = "rl_module.algorithm_config_overrides_per_module"
BARE = {"env_runners.add_default_connectors": False}
WITHOUT_HOOK = "a learner without after_gradient_step"
ELSEWHERE = {"env_runners.num_env_runners": 1}
WITH_REPEATED_NOISE = next(name for name in OFF_POLICY if has_option(name, "noise_repeat"))
OF_ONE_STEP = next(name for name in OFF_POLICY if not class_of(name).can_sum_rewards)


class Misspelt(Callback):
    """A callback whose method is no event."""

    def on_epoch_ends(self) -> None: ...


class WithoutHook(DQNConfig):
    """A configuration whose learner leaves its target network to the user."""

    learner_class = Learner


class OfEnvironments(Callback):
    """A callback that handles an event of environments."""

    def on_episode_end(self, *arguments: object) -> None: ...


CASES: list[tuple[str, str, Settings, str]] = [
    ("ppo", "environment.frame_stack", BARE | {"environment.frame_stack": 2}, "=2 asks for a default connector"),
    ("ppo", "environment.normalize_observations", BARE | {"environment.normalize_observations": True}, "default"),
    ("ppo", "environment.rescale_actions", BARE | {"environment.rescale_actions": True}, "default connector"),
    ("ppo", "evaluation.epsilon", {"evaluation.epsilon": 0.5}, "=0.5 is not allowed for ppo"),
    ("ppo", "callbacks.callbacks_class", {"callbacks.callbacks_class": Misspelt}, "on_epoch_end"),
    ("ppo", "env_runners.exploration", {"env_runners.exploration": "ou"}, "'ou' is not allowed for ppo"),
    ("sac", "env_runners.exploration", TWO | MAPPING | {"env_runners.exploration": "ou"}, "for several agents"),
    (WITH_REPEATED_NOISE, "training.noise_repeat", TWO | MAPPING, "set noise_repeat=1"),
    (
        "ppo",
        "evaluation.evaluation_num_env_runners",
        {"evaluation.evaluation_num_env_runners": 2, "callbacks.callbacks_class": OfEnvironments},
        "OfEnvironments",
    ),
    (
        "ppo",
        "evaluation.evaluation_num_env_runners",
        {"evaluation.evaluation_num_env_runners": 2, "environment.env": 3},
        "an id, a class or a function",
    ),
    ("ppo", "framework.device", {"framework.device": "warp_drive"}, "torch sees no such device"),
    ("ppo", "learners.num_gpus_per_learner", {"learners.num_gpus_per_learner": 1}, "framework.device='cpu'"),
    ("ppo", "training.optimizer", {"training.optimizer": "sgd", "framework.compile": True}, "framework.compile=True"),
    (
        "impala",
        "env_runners.batch_mode",
        ELSEWHERE | {"env_runners.batch_mode": "complete_episodes"},
        "impala collects",
    ),
    ("impala", "training.max_lag", ELSEWHERE | MEMORY | {"training.max_lag": 1}, "set max_lag=0"),
    ("ppo", "multi_agent.reward_metric", {"multi_agent.reward_metric": max}, "needs several agents"),
    ("ppo", "multi_agent.centralized_critic", {"multi_agent.centralized_critic": True}, "needs several agents"),
    ("ppo", "multi_agent.agent_id_in_obs", {"multi_agent.agent_id_in_obs": True}, "needs several agents"),
    ("dqn", "multi_agent.centralized_critic", TWO | MAPPING | {"multi_agent.centralized_critic": True}, "for dqn"),
    (
        "ppo",
        "multi_agent.centralized_critic",
        CRITIC | {"rl_module.model_config": {"vf_share_layers": True}},
        "a network of its own",
    ),
    ("dqn", GROUPS, {GROUPS: {"critic": ["a"]}}, "has a group for"),
    ("ppo", "multi_agent.policies_to_train", {"multi_agent.policies_to_train": ["z"]}, "names ['z']; the modules are"),
    ("ppo", OVERRIDES, {OVERRIDES: {"z": {"lr": 0.1}}}, "names ['z']; the modules are ['default_policy']"),
    ("ppo", "multi_agent.policies", {"multi_agent.policies": []}, "is empty"),
    (
        "ppo",
        "multi_agent.policies",
        TWO | {"rl_module.rl_module_spec": MultiRLModuleSpec(rl_module_specs={"c": RLModuleSpec()})},
        "are others than the modules ['c']",
    ),
    ("ppo", "multi_agent.policy_mapping_fn", TWO, "maps every agent to 'default_policy'"),
    ("ppo", "multi_agent.policy_mapping_fn", TWO | {"multi_agent.policy_mapping_fn": {"x": "z"}}, "['a', 'b']"),
    ("ppo", "multi_agent.policies_to_train", TWO | MAPPING | {"multi_agent.policies_to_train": ["z"]}, "['a', 'b']"),
    ("ppo", OVERRIDES, TWO | MAPPING | {OVERRIDES: {"z": {"lr": 0.1}}}, "names others than multi_agent.policies"),
    ("ppo", "training.symmetry", SYMMETRIC, "symmetric=True, which needs the mirror image"),
    ("dqn", "training.symmetry", MIRROR, "is not allowed for dqn"),
    ("ppo", "training.symmetry", MIRROR | MEMORY, "does not go with rl_module.model_config.recurrent"),
    (
        "ppo",
        "training.symmetry_loss_coeff",
        MIRROR | SYMMETRIC | {"training.symmetry_loss_coeff": 0.5},
        "is in mirror image already",
    ),
    (
        "ppo",
        "training.intrinsic_reward",
        MIRROR | SYMMETRIC | {"training.intrinsic_reward": "rnd"},
        "is not allowed with rl_module.model_config.symmetric=True",
    ),
    ("ppo", "env_runners.exploration", MIRROR | SYMMETRIC | {"env_runners.exploration": "gsde"}, "of one image only"),
    ("ppo", GROUPS, MIRROR | SYMMETRIC | {GROUPS: {"policy": ["a"]}}, "entries that the policy does not see"),
    ("bc", "environment.normalize_rewards", {"environment.normalize_rewards": True}, "for bc: scale those of the"),
    ("bc", "environment.frame_stack", {"environment.frame_stack": 2}, "for bc: store stacked observations"),
    ("bc", "framework.compile", {"framework.compile": True}, "for bc: its update is not compiled"),
    ("ppo", "training.train_batch_size", {"training.train_batch_size": 4}, "8 environments of all env runners"),
    (WITHOUT_HOOK, "framework.compile", {"framework.compile": True}, "for dqn: its target network is not compiled"),
    ("dqn", "replay.her", MEMORY | {"replay.her": True}, "does not go with rl_module.model_config.recurrent"),
    (OF_ONE_STEP, "replay.n_step", {"replay.n_step": 3}, "needs the reward of each step for itself"),
    ("dqn", "replay.sequence_length", {"replay.sequence_length": 90}, "is for a network with memory"),
    ("dqn", "replay.burn_in", {"replay.burn_in": 3}, "is for a network with memory"),
    ("dqn", "replay.capacity", {"replay.capacity": 7}, "env_runners.num_envs_per_env_runner=8"),
    ("bc", "training.intrinsic_reward", {"training.intrinsic_reward": "rnd"}, "from rewards step by step"),
]
"""Algorithm, option that is refused, settings and words of the message: one for each row of `RULES`, in order."""
OF_AGENTS: list[tuple[str, Settings]] = [
    ("replay.her", {"replay.her": True}),
    ("env_runners.vectorize_mode", {"env_runners.vectorize_mode": "async"}),
    ("multi_agent.count_steps_by", {"multi_agent.count_steps_by": "agent_steps"}),
]


def configured(algorithm: str, settings: Settings) -> AlgorithmConfig:
    config = WithoutHook() if algorithm == WITHOUT_HOOK else get_config(algorithm)
    config.environment("CartPole-v1")
    for path, value in settings.items():
        config.set_path(path, value)
    return config


def test_each_row_of_the_table_has_a_case() -> None:
    assert [option for _, option, _, _ in CASES] == [rule.option for rule in RULES]
    assert [option for option, _ in OF_AGENTS] == [rule.option for rule in OF_SEVERAL_AGENTS]


@pytest.mark.parametrize("row", range(len(RULES)), ids=lambda row: f"{row}-{RULES[row].option}")
def test_a_row_is_the_first_to_refuse_its_configuration(row: int) -> None:
    algorithm, option, settings, words = CASES[row]
    config = configured(algorithm, settings)
    assert next(number for number, rule in enumerate(RULES) if rule.when(config)) == row
    with pytest.raises(ValueError) as refused:
        config.validate()
    assert str(refused.value).startswith(f"{option}=")
    assert words in str(refused.value)


@pytest.mark.parametrize("row", range(len(OF_AGENTS)))
def test_a_trainer_of_several_agents_refuses_what_is_for_one(row: int) -> None:
    option, settings = OF_AGENTS[row]
    config = configured("dqn", TWO | MAPPING | settings)
    config.validate()
    with pytest.raises(ValueError, match=f"{option}=.* where a trainer trains several agents"):
        refuse(config, OF_SEVERAL_AGENTS)


def test_a_later_row_is_not_computed_where_an_earlier_one_is_broken() -> None:
    def relies_on_the_first(config: AlgorithmConfig) -> bool:
        return 1 / config.training.intrinsic_coeff > 2

    rules = [
        Rule[AlgorithmConfig]("training.intrinsic_coeff", lambda config: not config.training.intrinsic_coeff, "is 0"),
        Rule[AlgorithmConfig]("training.intrinsic_coeff", relies_on_the_first, "is small"),
    ]
    with pytest.raises(ValueError, match=r"training.intrinsic_coeff=0.0 is 0"):
        refuse(get_config("ppo").training(intrinsic_coeff=0.0), rules)
    with pytest.raises(ValueError, match=r"training.intrinsic_coeff=0.25 is small"):
        refuse(get_config("ppo").training(intrinsic_coeff=0.25), rules)
    refuse(get_config("ppo"), rules)


def test_an_algorithm_adds_rules_of_its_own() -> None:
    class OneEpoch(type(get_config("ppo"))):
        rules = (Rule("training.num_epochs", lambda config: config.training.num_epochs > 1, "is more than one"),)

    with pytest.raises(ValueError, match=r"training.num_epochs=10 is more than one"):
        OneEpoch().environment("CartPole-v1").validate()
    OneEpoch().environment("CartPole-v1").training(num_epochs=1).validate()
