"""`AlgorithmConfig`: names, sections, copies, JSON, several modules, checks across sections, schedules."""

import json

import numpy as np
import pytest
import torch
from algorithm_tools import BOX, TWO, small_config, two_specs
from gymnasium import spaces

from lockstep import A2CConfig, DQNConfig, ModelConfig, PPOConfig, SACConfig, SampleBatch, get_config
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data import write_rows
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.modules import DefaultActorCriticModule, MultiRLModuleSpec, RLModuleSpec
from lockstep.options.restarts import RestartLimits

SPEC = RLModuleSpec(DefaultActorCriticModule, BOX, TWO, model_config=ModelConfig(hiddens=(4,)))


def batch_of_two(rows=16):
    rng = np.random.default_rng(0)

    def batch():
        return SampleBatch(
            obs=rng.normal(size=(rows, 3)).astype(np.float32),
            actions=rng.integers(2, size=rows),
            **{name: rng.normal(size=rows).astype(np.float32) for name in ("advantages", "value_targets")},
            action_logp=np.log(rng.uniform(0.3, 0.7, size=rows)).astype(np.float32),
        )

    return MultiAgentBatch({"a": batch(), "b": batch()}, rows)


def again(config):
    """The configuration after it went through JSON."""
    return PPOConfig().update_from_dict(json.loads(config.to_json()))


def halving(step: int) -> float:
    """A schedule that JSON can name."""
    return 0.5 ** (step / 100)


def mapped(agent_id, episode):
    """A mapping that JSON can name."""
    return "a"


# -- names ---


@pytest.mark.parametrize("options", [{"gama": 0.9}, {"lambda_": 2.0}])
def test_a_refused_call_changes_none_of_its_other_options(options):
    config = PPOConfig()
    with pytest.raises(ValueError, match=next(iter(options))):
        config.training(gamma=0.5, **options)
    assert config == PPOConfig()


@pytest.mark.parametrize(
    "wrong, right", [("trainign", "training"), ("build_lerner", "build_learner"), ("gama", "gamma")]
)
def test_an_unknown_attribute_suggests_options_sections_and_methods(wrong, right):
    message = f"PPOConfig has no option '{wrong}'; did you mean .*'{right}'"
    with pytest.raises(AttributeError, match=message):
        getattr(PPOConfig(), wrong)
    with pytest.raises(AttributeError, match=f"PPOConfig has no option '{wrong}'"):
        setattr(PPOConfig(), wrong, 0.9)


def test_options_are_set_by_assignment_by_path_and_by_fields_of_the_model():
    config = PPOConfig()
    config.lr = 0.2
    assert config.sections["training"].lr == 0.2
    config.set_path("training.lr", 0.25).set_path("rl_module.model_config.hiddens", [8, 4])
    config.rl_module(model_config={"activation": "relu"})
    assert config.lr == 0.25
    assert config.model_config == ModelConfig(activation="relu", hiddens=(8, 4))
    config.model_config = {"hiddens": (3,)}
    config.environment(observation_space=BOX, action_space=TWO).freeze().validate()
    assert config.model_config.hiddens == (3,)
    assert get_config("a2c") == A2CConfig()


# -- copies, prints, files ---


@pytest.mark.parametrize("name, algorithm", [("PPO", "ppo"), ("QR-DQN", "qrdqn"), ("TD3-BC", "td3_bc")])
def test_names_of_algorithms_take_capitals_and_hyphens(name, algorithm):
    assert get_config(name).algorithm == algorithm


def test_copy_is_independent_and_equal():
    config = small_config().environment(env_config={"size": [1, 2]})
    other = config.copy()
    assert other == config
    other.env_config["size"].append(3)
    other.training(lr=0.5)
    assert config.env_config == {"size": [1, 2]}
    assert config.lr == PPOConfig().lr
    assert other != config
    assert PPOConfig() == PPOConfig() != A2CConfig()


def test_frozen_config_refuses_every_way_of_setting_and_its_copy_is_free():
    config = small_config().environment(env_config={"sizes": [1, 2]}).freeze()
    before = config.copy()
    for change in (
        lambda: config.training(lr=1.0),
        lambda: setattr(config, "lr", 1.0),
        lambda: config.set_path("training.lr", 1.0),
        lambda: config.update_from_dict({"training": {"lr": 1.0}}),
        lambda: setattr(config.sections["training"], "lr", 1.0),
        lambda: config.learner_config_dict.update(a=1),
        lambda: config.env_config["sizes"].append(3),
        lambda: config.sections["environment"].env_config.__setitem__("a", 1),
    ):
        with pytest.raises(ValueError, match="frozen; change a copy"):
            change()
    with pytest.raises(TypeError):
        config.sections["training"] = None
    assert config == before
    free = config.copy().training(lr=1.0)
    free.env_config["sizes"].append(3)
    assert (free.lr, free.env_config) == (1.0, {"sizes": [1, 2, 3]})


def test_frozen_config_validates_builds_and_is_written_like_any_other():
    config = small_config().multi_agent(policies=["default_policy"]).freeze()
    config.validate()
    assert set(config.build_learner().module) == {"default_policy"}
    assert again(config) == config


def test_prints_show_only_what_differs_from_the_defaults_or_all():
    assert repr(PPOConfig()) == "PPOConfig()"
    config = PPOConfig().training(gamma=0.9).learners(num_cpus_per_learner=2)
    assert repr(config) == "PPOConfig(learners.num_cpus_per_learner=2, training.gamma=0.9)"
    assert config.describe() == "PPOConfig\nlearners.num_cpus_per_learner = 2\ntraining.gamma = 0.9"
    everything = config.describe(all_options=True).splitlines()
    assert len(everything) == 1 + len(config._all_options())
    assert "training.lr = 0.0003" in everything


def test_json_round_trip_gives_back_an_equal_config(tmp_path):
    nested = spaces.Dict(
        image=spaces.Box(0, 255, (4, 4), np.uint8), rest=spaces.Tuple([spaces.MultiDiscrete([2, 3]), BOX])
    )
    config = (
        small_config()
        .environment("CartPole-v1", observation_space=nested, normalize_observations=True, env_config={"a": [1, None]})
        .training(lr=[[0, 1e-3], [1000, 0.0]], entropy_coeff=halving, vf_clip_param=0.5, target_kl=0.02)
        .rl_module(model_config={"conv_filters": ((8, 4, 2),), "squash_actions": False})
        .rl_module(algorithm_config_overrides_per_module={"default_policy": {"lr": [[0, 0.1], [9, 0.0]]}})
        .multi_agent(policies_to_train=["default_policy"])
        .learners(num_cpus_per_learner=2, custom_resources_per_learner={"fast_disk": 0.5})
        .resources(num_cpus_for_main_process=3, placement_strategy="SPREAD")
    )
    text = config.to_json(tmp_path / "config.json")
    assert (tmp_path / "config.json").read_text() == text + "\n"
    restored = again(config)
    assert restored == config == config.copy()
    assert restored.entropy_coeff is halving
    assert (restored.custom_resources_per_learner, restored.placement_strategy) == ({"fast_disk": 0.5}, "SPREAD")


@pytest.mark.parametrize(
    "section, options",
    [
        ("rl_module", {"rl_module_spec": SPEC}),
        ("rl_module", {"rl_module_spec": RLModuleSpec(model_config={"hiddens": [8]})}),
        ("rl_module", {"rl_module_spec": MultiRLModuleSpec({"a": SPEC, "b": RLModuleSpec()})}),
        ("multi_agent", {"policies": {"a": SPEC, "b": None}, "policy_mapping_fn": mapped}),
        ("multi_agent", {"policies_to_train": {"default_policy"}}),
        ("training", {"learner_class": PPOLearner, "learner_config_dict": {"limit": [1, 2.5, None]}}),
    ],
    ids=["spec", "spec-without-spaces", "two-specs", "policies", "set", "class"],
)
def test_json_round_trip_keeps_specs_sets_and_classes(section, options):
    given = getattr(small_config(), section)(**options)
    restored = again(given)
    assert restored == given
    assert type(restored.model_config) is ModelConfig
    for option, value in options.items():
        assert type(getattr(restored, option)) is type(value)


def test_numbers_of_numpy_are_written_as_those_of_python():
    given = small_config().debugging(seed=np.int64(3)).training(lr=np.float32(0.5), train_batch_size=np.int64(16))
    given.rl_module(model_config={"hiddens": (np.int64(8),), "max_seq_len": np.int32(5)})
    plain = small_config().debugging(seed=3).training(lr=0.5, train_batch_size=16)
    plain.rl_module(model_config={"hiddens": (8,), "max_seq_len": 5})
    assert given.to_json() == plain.to_json()
    given.build_learner()


# -- several modules ---


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig])
def test_spec_of_several_modules_is_filled_built_and_trained(config):
    learner = small_config(config).rl_module(rl_module_spec=two_specs()).build_learner()
    assert list(learner.module) == ["a", "b"]
    assert learner.module["a"].model_config.hiddens == (4,)  # the section's
    assert learner.module["b"].model_config.hiddens == (6,)  # its own
    assert learner.connectors["a"] is not learner.connectors["b"]
    assert {"a", "b"} <= learner.update_from_batch(batch_of_two()).keys()


def test_a_group_is_built_from_an_environment_from_spaces_or_from_a_spec():
    config = PPOConfig().rl_module(model_config={"hiddens": (4,)})
    assert list(config.build_learner("CartPole-v1").module) == ["default_policy"]
    assert config.build_learner(spaces=(BOX, TWO)).module["default_policy"].action_space == TWO
    group = config.build_learner_group(spaces=(BOX, TWO), rl_module_spec=two_specs())
    assert list(group.learner.module) == ["a", "b"]
    assert config.rl_module_spec is None  # the configuration is as it was
    assert list(config.build_learner_group("CartPole-v1").learner.module) == ["default_policy"]


def test_group_is_built_from_a_spec_with_its_spaces_alone_also_after_json():
    given = PPOConfig().rl_module(rl_module_spec=SPEC)
    first, second = (each.build_learner_group() for each in (given, again(given)))
    assert first.learner.module["default_policy"].action_space == TWO
    for mine, theirs in zip(first.learner.module.parameters(), second.learner.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for config, spec in ((PPOConfig(), RLModuleSpec()), (PPOConfig().environment(frame_stack=2), SPEC)):
        with pytest.raises(ValueError, match=r"environment\.env is not set"):
            config.build_learner_group(rl_module_spec=spec)


def test_overrides_hold_for_their_module_only_and_schedules_too():
    overrides = {"b": {"lr": [[0, 0.5], [100, 0.0]], "entropy_coeff": 0.25, "grad_clip": None}}
    config = small_config().training(lr=0.01, grad_clip=0.5)
    learner = config.rl_module(
        rl_module_spec=two_specs(), algorithm_config_overrides_per_module=overrides
    ).build_learner()
    assert (learner.config_of("a").lr, learner.config_of("a").grad_clip) == (0.01, 0.5)
    assert learner.config_of("b").grad_clip is None
    assert [float(learner.coefficient(name, "entropy_coeff")) for name in "ab"] == [0.0, 0.25]
    results = learner.update_from_batch(batch_of_two(), timesteps={"num_env_steps_sampled_lifetime": 50})
    assert [results[name]["default_optimizer_learning_rate"] for name in "ab"] == [0.01, 0.25]


def test_overrides_can_be_made_by_the_algorithms_config_or_be_one():
    assert PPOConfig.overrides(lr=0.5, clip_param=0.1) == {"lr": 0.5, "clip_param": 0.1}
    whole = PPOConfig().training(lr=0.5)
    config = small_config().rl_module(rl_module_spec=two_specs(), algorithm_config_overrides_per_module={"a": whole})
    assert config.algorithm_config_overrides_per_module == {"a": {"lr": 0.5}}
    learner = config.build_learner()
    assert (learner.config_of("a").lr, learner.config_of("a").train_batch_size) == (0.5, 16)


# -- faults, offline data, whole episodes ---


@pytest.fixture
def rows(tmp_path):
    batch = SampleBatch({"observation": np.arange(12.0).reshape(6, 2), "rewards": np.arange(6.0)})
    return write_rows(tmp_path / "data.rows", batch)


def test_fault_tolerance_limits_restarts_of_every_kind_of_process():
    section = PPOConfig().sections["fault_tolerance"]
    assert section.learner_limits == section.env_runner_limits == section.env_limits == RestartLimits(10, 1, 60.0)
    limits = {"max_learner_restarts": 5, "max_env_restarts": 6, "max_restarts_in_window": 4, "restart_window_s": 2.0}
    section = PPOConfig().fault_tolerance(**limits, restart_failed_env_runners=False).sections["fault_tolerance"]
    assert section.learner_limits == RestartLimits(5, 4, 2.0)
    assert section.env_limits == RestartLimits(6, 4, 2.0)
    assert section.env_runner_limits.in_run == 0


def test_offline_data_names_the_rows_that_build_offline_data_opens(rows):
    config = PPOConfig().offline_data(input_=rows)
    dataset = config.build_offline_data()
    assert (dataset.columns, len(dataset)) == (("observation", "rewards"), 6)
    assert again(config) == config
    config = PPOConfig().offline_data(input_=[str(rows)] * 2, columns={"obs": "observation"}, max_memory_bytes=0)
    dataset = config.build_offline_data()
    assert dataset.columns == ("obs",)
    np.testing.assert_array_equal(dataset[[0, 11]]["obs"], [[0.0, 1.0], [10.0, 11.0]])
    assert again(config) == config
    with pytest.raises(KeyError, match="has no column 'obs'; columns are"):
        config.offline_data(columns={"x": "obs"}).build_offline_data()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        PPOConfig().offline_data(input_="nowhere.rows").build_offline_data()


def test_batch_mode_complete_episodes_trains_on_whole_episodes_only():
    config = (
        small_config()
        .environment("CartPole-v1", observation_space=None, action_space=None)
        .env_runners(num_envs_per_env_runner=3, batch_mode="complete_episodes")
        .training(train_batch_size=60, minibatch_size=20)
        .reporting(total_steps=120, steps_per_epoch=60)
        .evaluation(evaluation_interval=0)
    )
    trainer = config.build_trainer()
    collects, collect = [], trainer.collector.collect

    def watched(**amount):
        collects.append(collect(**amount))
        return collects[-1]

    trainer.collector.collect = watched
    info = trainer.run()
    assert len(collects) >= 1
    for stats in collects:
        assert stats.n_collected_steps == sum(stats.lens) >= 60
        assert stats.n_collected_episodes % 3 == 0
    assert info.train_step == sum(stats.n_collected_steps for stats in collects)


@pytest.mark.parametrize("kind", [SACConfig, PPOConfig, DQNConfig])
def test_a_fresh_configuration_has_a_number_of_steps_in_a_batch(kind):
    """Without env runners this process collects a fragment of the whole batch."""
    config = kind()
    num_envs = config.env_runners.num_envs_per_env_runner
    assert config.steps_per_batch == -(-config.training.train_batch_size // num_envs) * num_envs


def test_a_framework_may_be_named_where_it_is_torch():
    config = PPOConfig().framework("torch", compile=True)
    assert config == PPOConfig().framework(framework="torch", compile=True) == PPOConfig().framework(compile=True)


# -- checks when it is built ---


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_validate_refuses_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match=r"framework\.device='cuda' is not there"):
        small_config().framework(device="cuda").validate()


# -- schedules ---


def learning_rate_at(learner, step):
    learner.before_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": step})
    return learner.get_optimizer("default_policy").param_groups[0]["lr"]


@pytest.mark.parametrize(
    "schedule, at_0, at_50, at_1000",
    [
        (0.3, 0.3, 0.3, 0.3),
        ([[0, 1.0], [100, 0.0]], 1.0, 0.5, 0.0),
        ([[0, 1.0], [25, 3.0], [75, 1.0]], 1.0, 2.0, 1.0),
        (lambda step: 1.0 / (1 + step), 1.0, 1 / 51, 1 / 1001),
    ],
)
def test_learning_rate_takes_a_number_points_or_a_callable(schedule, at_0, at_50, at_1000):
    learner = small_config().training(lr=schedule).build_learner()
    assert learner.get_optimizer("default_policy").param_groups[0]["lr"] == at_0
    assert learning_rate_at(learner, 50) == pytest.approx(at_50)
    assert learning_rate_at(learner, 1000) == pytest.approx(at_1000)


def test_position_of_schedules_is_part_of_the_state():
    config = small_config().training(lr=[[0, 1.0], [100, 0.0]], entropy_coeff=[[0, 0.4], [100, 0.0]])
    learner, other = config.build_learner(), config.build_learner()
    learning_rate_at(learner, 75)
    other.set_state(learner.get_state())
    assert other.get_optimizer("default_policy").param_groups[0]["lr"] == pytest.approx(0.25)
    assert float(other.coefficient("default_policy", "entropy_coeff")) == pytest.approx(0.1)
    assert other.get_state(["coefficients"]) == learner.get_state(["coefficients"])
    assert other.get_state("optimizer")["optimizer"]["default_policy.default_optimizer"]["schedule"]["timestep"] == 75
