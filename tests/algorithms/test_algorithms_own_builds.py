"""A configuration of the user's own: builders ask the methods that it overrides."""

import pytest
from agent_games import CountingGame, to_module

from lockstep import DQNConfig, PPOConfig

SMALL = {"rl_module.model_config": {"hiddens": (4,)}, "env_runners.num_envs_per_env_runner": 2}


def recording(base, *names):
    """Return a configuration that overrides these methods of `base`, and the list of their calls."""
    calls = []

    def overriding(name):
        def method(self, *args, **options):
            calls.append(name)
            return getattr(super(Own, self), name)(*args, **options)

        return method

    class Own(base):
        pass

    for name in names:
        setattr(Own, name, overriding(name))
    config = Own().environment("CartPole-v1")
    for path, value in SMALL.items():
        config.set_path(path, value)
    return config, calls


@pytest.mark.parametrize(
    ("base", "names"),
    [
        (PPOConfig, ["with_agents", "policy_spaces", "build_learner_group", "build_learner", "agents_with_id"]),
        (PPOConfig, ["find_spaces", "spaces_by_module", "build_connectors", "build_module", "module_specs"]),
        (PPOConfig, ["complete_model_config", "check_actions", "exploration", "set_num_threads", "validate"]),
    ],
)
def test_a_policy_is_built_with_the_methods_of_an_own_configuration(base, names):
    config, calls = recording(base, *names)
    config.build_policy()
    assert set(calls) == set(names)


@pytest.mark.parametrize(
    ("base", "names"),
    [
        (PPOConfig, ["make_envs"]),
        (DQNConfig, ["make_envs", "build_replay_buffer"]),
    ],
)
def test_a_collector_is_built_with_the_methods_of_an_own_configuration(base, names):
    config, calls = recording(base, *names)
    policy = config.build_policy()
    calls.clear()
    config.build_collector(policy).close()
    assert calls == names


def test_a_collector_without_a_policy_gets_one_of_an_own_configuration():
    config, calls = recording(PPOConfig, "build_policy")
    config.build_collector().close()
    assert calls == ["build_policy"]


def test_tensor_environments_are_collected_where_an_own_configuration_says():
    config, calls = recording(PPOConfig, "collects_tensors")
    config.environment("tensor/CartPole-v1")
    config.build_collector().close()
    assert calls == ["collects_tensors"]


def test_an_own_configuration_makes_the_environments_of_evaluation():
    config, calls = recording(PPOConfig, "make_envs", "evaluation_settings", "time_limited_env")
    config.evaluation(max_episode_steps=5)
    policy = config.build_policy()
    calls.clear()
    config.build_test_collector(policy).close()
    assert set(calls) == {"make_envs", "evaluation_settings", "time_limited_env"}


def test_env_runners_are_built_by_an_own_configuration():
    config, calls = recording(PPOConfig, "build_env_runner", "build_acting_parts", "make_envs")
    spaces = config.policy_spaces()
    calls.clear()
    config.build_env_runner_group(spaces).shutdown()
    assert calls == ["build_env_runner", "build_acting_parts", "make_envs"]


@pytest.mark.parametrize(
    ("base", "names"),
    [
        (PPOConfig, ["make_agent_envs"]),
        (DQNConfig, ["make_agent_envs", "build_replay_buffers", "build_replay_buffer", "build_replay_buffer"]),
    ],
)
def test_a_multi_agent_collector_uses_the_methods_of_a_custom_config(base, names):
    config, calls = recording(base, *names)
    config.environment(CountingGame).multi_agent(policies=["first", "others"], policy_mapping_fn=to_module)
    config.build_collector().close()
    assert calls == names
