"""Mirror images: rows and their images, the symmetry loss, symmetric networks, and functions that are no mirror."""

import numpy as np
import pytest
import torch
from algorithm_cases import OFF_POLICY, class_of
from gymnasium import spaces
from mirror_parts import OneSided, differences_from_image, mirror, mirrored_numbers, one_sided, swing
from trained_weights import difference, steps

from lockstep import RLModuleSpec, SampleBatch, get_config, load_policy
from lockstep.algorithms.ppo import PPOLearner
from lockstep.connectors import ModuleConnectors, Symmetry
from lockstep.export import load_export
from lockstep.learner.images import IS_IMAGE, with_images
from lockstep.modules import DefaultActorCriticModule, RecurrentActorCriticModule

MODULE = "default_policy"
BOX = OneSided.observation_space
PLANE = OneSided.action_space
THREE = spaces.Discrete(3)
FAMILY = [name for name in OFF_POLICY if class_of(name).learner_class.learns_symmetry]
"""SAC and the algorithms that are made of it."""
LEARNING = {
    "ppo": {"train_batch_size": 512, "minibatch_size": 128, "num_epochs": 10, "lr": 3e-3},
    **{name: {"train_batch_size": 64, "lr": 3e-3, "gamma": 0.0} for name in FAMILY},
}
"""Options with which an algorithm learns `OneSided` in seconds."""
NETWORK = {"hiddens": (32, 32), "critic_hiddens": (32, 32)}
MIRRORED = {"symmetry": mirror}


def config_of(algorithm, network=(), spaces_of=(BOX, PLANE), dtype="float64", **training):
    """A small configuration for given spaces."""
    small = {"hiddens": (8,), "critic_hiddens": (8,)}
    return (
        get_config(algorithm)
        .environment(observation_space=spaces_of[0], action_space=spaces_of[1])
        .training(**training)
        .rl_module(model_config={**small, **dict(network)})
        .framework(dtype=dtype)
    )


def learned(algorithm, seed, network=(), **training):
    """A policy that has learned the side of `OneSided` that is seen, from normalised observations."""
    config = get_config(algorithm).environment(OneSided, normalize_observations=True).debugging(seed=seed)
    config.training(**LEARNING[algorithm], **training).rl_module(model_config={**NETWORK, **dict(network)})
    config.env_runners(num_envs_per_env_runner=8).reporting(total_steps=4096 if algorithm == "ppo" else 1600)
    if algorithm != "ppo":
        config.replay(learning_starts=100, update_per_step=0.5)
    trainer = config.build_trainer()
    trainer.run()
    return trainer.policy


def rows_for(algorithm, seed=0, number=16, actions=PLANE):
    """Rows that the loss of an algorithm reads, as a batch."""
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(number, 3)),
        "actions": rng.uniform(-0.9, 0.9, (number, 2)) if actions is PLANE else rng.integers(0, 3, number),
    }
    if algorithm == "ppo":
        for name in ("action_logp", "advantages", "value_targets"):
            columns[name] = rng.normal(size=number)
    else:
        columns |= {"rewards": rng.normal(size=number), "new_obs": rng.normal(size=(number, 3))}
        columns["terminateds"] = rng.random(number) < 0.3
    return SampleBatch(columns)


def images_of(batch):
    """The mirror images of rows, by the mirror of the tests."""
    images = {name: column.copy() for name, column in batch.items()}
    for name in ("obs", "new_obs"):
        if name in images:
            images[name] = mirrored_numbers(batch[name])
    actions = batch["actions"]
    images["actions"] = -actions[:, ::-1].copy() if actions.ndim == 2 else 2 - actions
    return SampleBatch(images)


def weights(learner):
    return {name: value.clone() for name, value in learner.module[MODULE].state_dict().items()}


# -- what is learned ---


@pytest.mark.long
@pytest.mark.parametrize("algorithm", LEARNING)
def test_augmentation_brings_a_policy_nearer_to_its_mirror_image(algorithm):
    seeds = range(3)
    without = [differences_from_image(learned(algorithm, seed)).mean() for seed in seeds]
    augmented = [differences_from_image(learned(algorithm, seed, **MIRRORED)).mean() for seed in seeds]
    assert np.mean(augmented) < 0.3 * np.mean(without), (augmented, without)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", LEARNING)
def test_a_symmetric_network_acts_in_mirror_image_to_1e_5_in_exports_too(algorithm, tmp_path):
    policy = learned(algorithm, 0, {"symmetric": True}, **MIRRORED)
    assert differences_from_image(policy).max() <= 1e-5
    for file_format in ("onnx", "torch"):
        policy.export(tmp_path / file_format, format=file_format)
        exported = load_export(tmp_path / file_format)
        assert differences_from_image(exported).max() <= 1e-5
        obs = one_sided(np.random.default_rng(1), 50)
        np.testing.assert_allclose(exported.compute_actions(obs), policy.compute_actions(obs), atol=1e-5)


def test_the_symmetry_loss_makes_a_policy_its_own_mirror_image():
    distances = {}
    for coeff in (0.0, 10.0):
        options = {"symmetry_augmentation": False, "symmetry_loss_coeff": coeff, "lr": 0.01}
        learner = config_of("ppo", **MIRRORED, **options).build_learner()
        with torch.no_grad():
            learner.module[MODULE].policy_head.weight.fill_(0.5)
        for update in range(60):
            results = learner.update_from_batch(rows_for("ppo", update))
        distances[coeff] = results[MODULE]["symmetry_loss"]
    assert distances[10.0] < 0.05 * distances[0.0]


# -- rows and their images ---


@pytest.mark.parametrize("actions", [PLANE, THREE])
def test_a_loss_with_images_is_the_loss_of_a_batch_with_them(actions):
    batch = rows_for("ppo", actions=actions)
    both = SampleBatch.concat_samples([batch, images_of(batch)])
    mirrored = config_of("ppo", spaces_of=(BOX, actions), **MIRRORED).build_learner()
    plain = config_of("ppo", spaces_of=(BOX, actions)).framework(fused_losses=False).build_learner()
    for learner, rows in ((mirrored, batch), (plain, both)):
        learner.update_from_batch(rows, num_epochs=3)
    expected = weights(plain)
    for name, value in weights(mirrored).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12, msg=name)


def test_the_divergence_is_measured_on_rows_that_were_collected():
    batch = rows_for("ppo")
    mirrored = config_of("ppo", **MIRRORED, lr=0.0).build_learner()
    plain = config_of("ppo", lr=0.0).build_learner()
    results = [learner.update_from_batch(batch)[MODULE] for learner in (mirrored, plain)]
    for name in ("mean_kl_loss", "clip_fraction"):
        assert results[0][name] == pytest.approx(results[1][name], abs=1e-9), name
    assert results[0]["policy_loss"] != pytest.approx(results[1]["policy_loss"], abs=1e-6)


@pytest.mark.parametrize("algorithm", FAMILY)
def test_images_draw_their_own_actions_and_rows_have_one_error(algorithm):
    learner = config_of(algorithm, **MIRRORED).build_learner()
    seen = []
    original = learner.compute_losses
    learner.compute_losses = lambda **parts: seen.append(parts["batch"][MODULE]) or original(**parts)
    learner.update_from_batch(rows_for(algorithm))
    rows = seen[0]
    assert rows["obs"].shape == (32, 3)
    np.testing.assert_array_equal(rows["new_obs"][16:], mirrored_numbers(rows["new_obs"][:16].numpy()))
    torch.testing.assert_close(rows["rewards"][:16], rows["rewards"][16:])
    assert rows[IS_IMAGE].sum() == 16
    assert not torch.equal(rows["action_noise"][:16], rows["action_noise"][16:])
    assert learner.row_errors[MODULE].shape == (16,)


def test_both_images_of_a_row_are_in_one_minibatch():
    learner = config_of("ppo", **MIRRORED).build_learner()
    seen = []
    original = learner.compute_losses
    learner.compute_losses = lambda **parts: seen.append(parts["batch"][MODULE]) or original(**parts)
    learner.update_from_batch(rows_for("ppo"), minibatch_size=4, num_epochs=2, shuffle_batch_per_epoch=True)
    assert len(seen) == 8
    for rows in seen:
        np.testing.assert_array_equal(rows["obs"][4:], mirrored_numbers(rows["obs"][:4].numpy()))


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_images_pass_the_connectors_that_observations_pass(algorithm):
    policy = config_of(algorithm, dtype="float32", **MIRRORED).environment(normalize_observations=True).build_policy()
    raw = one_sided(np.random.default_rng(0), 100)
    pipeline = policy.connectors.obs
    pipeline.update(raw)
    columns = {**rows_for(algorithm, number=100), "obs": raw, "new_obs": raw}
    learned_from = policy.learning_columns(SampleBatch(columns))
    np.testing.assert_array_equal(learned_from["obs"], pipeline(raw))
    np.testing.assert_array_equal(learned_from["mirrored_obs"], pipeline(mirrored_numbers(raw)))
    np.testing.assert_array_equal(learned_from["mirrored_new_obs"], pipeline(mirrored_numbers(raw)))
    # The mirror image of a normalised observation would be another one: the statistics are not in mirror image.
    assert np.abs(learned_from["mirrored_obs"] - mirrored_numbers(learned_from["obs"])).max() > 1.0
    np.testing.assert_allclose(learned_from["mirrored_actions"], -columns["actions"][:, ::-1], atol=1e-7)


def test_a_batch_after_connectors_needs_its_images():
    policy = config_of("ppo", **MIRRORED).environment(normalize_observations=True).build_policy()
    with pytest.raises(ValueError, match=r"no mirror images.*learning_columns"):
        policy.learner_group.learner.update_from_batch(rows_for("ppo"))


def turned(observation_space, action_space):
    """Connectors of train columns that turn observations, as data augmentation of one's own would."""
    from lockstep.connectors import Connector

    class Turned(Connector):
        def __call__(self, data):
            return {**data, "obs": data["obs"].roll(1, -1)}

    return Turned()


def test_images_pass_connectors_of_train_columns_as_rows_of_their_own():
    learner = config_of("sac", **MIRRORED, learner_connector=turned).build_learner()
    seen = []
    original = learner.compute_losses
    learner.compute_losses = lambda **parts: seen.append(parts["batch"][MODULE]) or original(**parts)
    batch = rows_for("sac")
    learner.update_from_batch(batch)
    expected = np.roll(mirrored_numbers(batch["obs"]), 1, -1)
    np.testing.assert_allclose(seen[0]["obs"][16:], expected)


# -- actions in all forms, and entries of observations ---


def flipped(obs, actions):
    """The mirror of actions in bounds that are not symmetric, with masks and entries in a Dict."""
    mirrored = {**obs, "position": 3.0 - obs["position"]}
    if "action_mask" in obs:
        mirrored["action_mask"] = obs["action_mask"].flip(-1)
        return mirrored, 8 - actions
    return mirrored, 6.0 - actions


def test_actions_have_the_bounds_and_the_first_number_of_the_environment():
    position = {"position": spaces.Box(0.0, 3.0, (1,))}
    box = Symmetry(flipped, spaces.Dict(position), spaces.Box(2.0, 4.0, (2, 1)))
    obs = {"position": np.zeros((3, 1), np.float32)}
    np.testing.assert_allclose(box.actions(np.array([[2.0, 3.5]] * 3), obs), [[4.0, 2.5]] * 3)
    masked = spaces.Dict(**position, action_mask=spaces.MultiBinary(3))
    choices = Symmetry(flipped, masked, spaces.Discrete(3, start=3))
    np.testing.assert_array_equal(
        choices.actions(np.array([0, 1, 2]), {**obs, "action_mask": np.ones((3, 3), np.int8)}), [2, 1, 0]
    )
    np.testing.assert_allclose(choices.observations(obs)["position"], 3.0)


def test_squashed_actions_are_mirrored_between_the_bounds():
    space = spaces.Dict(position=spaces.Box(0.0, 3.0, (1,)))
    config = config_of("sac", spaces_of=(space, spaces.Box(2.0, 4.0, (2,))), symmetry=flipped)
    symmetry = config.build_policy().connectors.symmetry
    np.testing.assert_array_equal(symmetry.numbers.sign, [-1.0, -1.0])
    np.testing.assert_array_equal(symmetry.numbers.offset, [0.0, 0.0])


def test_masks_of_a_symmetric_network_are_mirrored_with_the_choices():
    space = spaces.Dict(position=spaces.Box(0.0, 3.0, (1,)), action_mask=spaces.MultiBinary(3))
    config = config_of("ppo", {"symmetric": True}, (space, spaces.Discrete(3, start=3)), symmetry=flipped)
    policy = config.build_policy()
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 2, (200, 3)).astype(np.int8)
    mask[mask.sum(1) == 0] = 1
    obs = {"position": rng.uniform(0, 3, (200, 1)).astype(np.float32), "action_mask": mask}
    image = {"position": 3 - obs["position"], "action_mask": mask[:, ::-1].copy()}
    actions = policy.compute_actions(obs)
    np.testing.assert_array_equal(8 - actions, policy.compute_actions(image))
    assert mask[np.arange(200), actions - 3].all()


def test_entries_that_acting_lacks_are_zeros_for_the_function():
    space = spaces.Dict(seen=BOX, hidden=BOX)

    def each(obs, actions):
        return {name: mirror(part, actions)[0] for name, part in obs.items()}, actions

    obs = {"seen": one_sided(np.random.default_rng(0), 4)}
    found = Symmetry(each, space, THREE).observations(obs)
    assert list(found) == ["seen"]
    np.testing.assert_array_equal(found["seen"], mirrored_numbers(obs["seen"]))

    def swapped(obs, actions):
        return {"seen": obs["hidden"], "hidden": obs["seen"]}, actions

    with pytest.raises(ValueError, match="entries that the policy sees by entries that it does not see"):
        Symmetry(swapped, space, THREE).observations(obs)


def test_each_of_several_modules_may_have_its_own_symmetry():
    config = get_config("ppo").multi_agent(policies=["left", "right"], policy_mapping_fn=lambda agent, episode: agent)
    config.environment(observation_space=BOX, action_space=THREE)
    config.rl_module(
        model_config={"hiddens": (4,)}, algorithm_config_overrides_per_module={"left": {"symmetry": mirror}}
    )
    learner = config.build_learner()
    assert learner.augments("left")
    assert not learner.augments("right")
    assert learner.connectors["right"].symmetry is None


# -- checkpoints and devices ---


def test_the_function_is_found_by_its_name_in_files_that_are_trusted(tmp_path):
    policy = config_of("ppo", {"symmetric": True}, dtype="float32", **MIRRORED).build_policy()
    policy.save_to_path(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy", trust=True)
    obs = one_sided(np.random.default_rng(0), 20)
    np.testing.assert_array_equal(loaded.compute_actions(obs), policy.compute_actions(obs))
    assert loaded.config.training.symmetry is mirror
    with pytest.raises(ValueError, match="lambda has no name"):
        config_of("ppo", symmetry=lambda obs, actions: mirror(obs, actions)).to_dict()


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_resumed_run_continues_with_equal_bits(algorithm, tmp_path):
    def trainer():
        config = get_config(algorithm).environment("Pendulum-v1", normalize_observations=True).training(symmetry=swing)
        network = {"symmetric": True} if algorithm == "ppo" else {}
        config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,), **network}).debugging(seed=2)
        config.training(train_batch_size=32).evaluation(evaluation_interval=0).reporting(total_steps=10_000)
        if algorithm == "sac":
            config.replay(learning_starts=32, update_per_step=0.25).training(symmetry_loss_coeff=0.5)
        return config.build_trainer()

    whole = steps(trainer(), 8)
    steps(trainer(), 4).save_to_path(tmp_path / "half")
    resumed = trainer()
    resumed.restore_from_path(tmp_path / "half")
    assert difference(whole, steps(resumed, 4)) == 0.0


def pole(obs, actions):
    """The mirror of CartPole."""
    return -obs, 1 - actions


@pytest.mark.parametrize("network", [{}, {"symmetric": True}])
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_rows_that_stay_on_a_device_have_images_too(algorithm, network):
    config = get_config(algorithm).environment("tensor/Pendulum-v1").training(symmetry=swing)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,), **network})
    config.env_runners(num_envs_per_env_runner=4).reporting(total_steps=128).debugging(seed=1)
    if algorithm == "ppo":
        config.training(train_batch_size=64, minibatch_size=32).environment(normalize_observations=True)
    else:
        config.training(train_batch_size=16).replay(learning_starts=16, update_per_step=0.5)
    trainer = config.build_trainer()
    assert config.collects_tensors(trainer.policy)
    trainer.run()
    assert np.isfinite(trainer.policy.last_results[MODULE]["symmetry_loss"])
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    if network:
        image = obs * np.array([1, -1, -1], np.float32)
        np.testing.assert_allclose(policy_actions(trainer, image), -policy_actions(trainer, obs), atol=1e-5)


def policy_actions(trainer, obs):
    return trainer.policy.compute_actions(obs)


@pytest.mark.parametrize(
    "replay", [{"prioritized": True}, {"n_step": 3}, {"prioritized": True, "n_step": 2}], ids=lambda replay: str(replay)
)
def test_replay_with_priorities_and_n_steps_has_images(replay):
    config = get_config("sac").environment(OneSided, normalize_observations=True).training(train_batch_size=16)
    config.training(**MIRRORED).rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    config.replay(learning_starts=20, update_per_step=0.5, **replay).reporting(total_steps=60)
    trainer = config.build_trainer()
    trainer.run()
    assert trainer.policy.last_results[MODULE]["symmetry_loss"] > 0


def backwards(obs, actions):
    """The mirror of BitFlipping: the bits in the opposite order, which flips the bit at the other end."""
    return {name: bits.flip(-1) for name, bits in obs.items()}, obs["observation"].shape[-1] - 1 - actions


def test_goals_in_hindsight_are_mirrored_with_their_rows():
    config = get_config("sac").environment("lockstep/BitFlipping-v0").training(train_batch_size=16, symmetry=backwards)
    config.replay(her=True, learning_starts=32, update_per_step=0.25).reporting(total_steps=100)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    trainer = config.build_trainer()
    learner = trainer.policy.learner_group.learner
    seen = []
    original = learner.compute_losses
    learner.compute_losses = lambda **parts: seen.append(parts["batch"][MODULE]) or original(**parts)
    trainer.run()
    for goals in (seen[-1]["obs"]["desired_goal"], seen[-1]["new_obs"]["achieved_goal"]):
        assert torch.equal(goals[16:], goals[:16].flip(-1))


def test_stacked_frames_are_mirrored_as_they_are_stored():
    config = get_config("ppo").environment("CartPole-v1", frame_stack=3).training(train_batch_size=64, symmetry=pole)
    config.rl_module(model_config={"symmetric": True, "hiddens": (8,)}).reporting(total_steps=64)
    trainer = config.build_trainer()
    trainer.run()
    assert trainer.policy.connectors.symmetry.observation_space.shape == (3, 4)


# -- compiled steps ---


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("algorithm", "network"),
    # Symmetric networks of the algorithms that are made of SAC have its policy, so one of them is enough.
    [(name, {}) for name in LEARNING] + [(name, {"symmetric": True}) for name in ("ppo", "sac", FAMILY[-1])],
)
def test_compiled_steps_with_images_equal_eager_ones(algorithm, network):
    options = {**MIRRORED, "lr": 1e-3}
    if not network:
        options["symmetry_loss_coeff"] = 0.5
    learners = []
    for compile_it in (False, True):
        config = config_of(algorithm, network, dtype="float32", **options)
        policy = config.framework(compile=compile_it, compile_after=0).build_policy()
        learners.append(policy.learner_group.learner)
    for update in range(4):
        batch = policy.learning_columns(rows_for(algorithm, update))
        results = [learner.update_from_batch(batch) for learner in learners]
    assert all(learners[1].compiled._steps.values())
    assert results[0][MODULE].keys() == results[1][MODULE].keys()
    expected = weights(learners[0])
    for name, value in weights(learners[1]).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    for name, value in results[0][MODULE].items():
        assert results[1][MODULE][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


# -- refusals ---


def not_twice(obs, actions):
    return obs * 2.0, actions


def narrower(obs, actions):
    return obs[:, :2], actions


def other_rows(obs, actions):
    return obs.flip(0), actions


def by_actions(obs, actions):
    return obs * (1 - 2 * (actions == 1)).unsqueeze(-1), actions


def in_place(obs, actions):
    return obs.mul_(-1.0), actions


def alone(obs, actions):
    return obs


def beyond(obs, actions):
    return obs, 4 - actions


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (not_twice, "not_twice is not an involution.*largest difference is .*observations"),
        (narrower, r"narrower returned observations of the shapes .*\(32, 2\).*\(32, 3\)"),
        (other_rows, "mirrors a row differently if there are other rows"),
        (by_actions, "must mirror observations and actions independently"),
        (in_place, "changes its arguments in place"),
        (alone, "returned a Tensor"),
        (beyond, "to one outside of it"),
    ],
)
def test_a_function_that_is_no_mirror_is_refused_when_the_learner_is_built(function, words):
    with pytest.raises((TypeError, ValueError), match=words):
        config_of("ppo", spaces_of=(BOX, THREE), symmetry=function).build_learner()


def test_a_mask_that_is_not_mirrored_is_refused():
    def forgetful(obs, actions):
        return {**obs, "position": -obs["position"]}, 2 - actions

    space = spaces.Dict(position=spaces.Box(-1.0, 1.0, (1,)), action_mask=spaces.MultiBinary(3))
    with pytest.raises(ValueError, match=r"does not mirror observations\['action_mask'\]"):
        Symmetry(forgetful, space, THREE)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"symmetry_loss_coeff": 0.1}, "symmetry_loss_coeff=0.1 needs the mirror image"),
        ({"symmetry": "mirror"}, "must be a function"),
        ({**MIRRORED, "symmetry_loss_coeff": -1.0}, "at least 0"),
    ],
)
def test_bad_values_of_the_options_are_refused(training, words):
    with pytest.raises((TypeError, ValueError), match=words):
        config_of("ppo", **training).validate()


def test_a_learner_without_a_configuration_checks_its_network_and_its_function():
    section = get_config("ppo").training(**MIRRORED).training
    spec = RLModuleSpec(RecurrentActorCriticModule, BOX, THREE, model_config={"recurrent": "gru"})
    with pytest.raises(ValueError, match="has a memory"):
        PPOLearner(config=section, module_spec=spec).build()
    learner = PPOLearner(config=section, module_spec=RLModuleSpec(DefaultActorCriticModule, BOX, THREE)).build()
    assert learner.update_from_batch(rows_for("ppo", actions=THREE))[MODULE]["symmetry_loss"] > 0


def test_actions_with_several_parts_are_mirrored_but_not_compared():
    parts = spaces.MultiDiscrete([3, 3])
    learner = config_of("ppo", spaces_of=(BOX, parts), **MIRRORED).build_learner()
    batch = rows_for("ppo", actions=THREE)
    batch["actions"] = np.stack([batch["actions"]] * 2, -1)
    assert "symmetry_loss" not in learner.update_from_batch(batch)[MODULE]
    for training, network in (({"symmetry_loss_coeff": 0.1}, {}), ({}, {"symmetric": True})):
        with pytest.raises(ValueError, match="needs a Discrete space, or a Box"):
            config_of("ppo", network, (BOX, parts), **MIRRORED, **training).build_learner()


def test_a_symmetric_network_names_the_way_to_act_with_it():
    module = RLModuleSpec(DefaultActorCriticModule, BOX, THREE, model_config={"symmetric": True}).build()
    with pytest.raises(ValueError, match=r"pairs of observations.*policy\.compute_actions"):
        module.forward_inference({"obs": torch.zeros(2, 3)})


def test_rows_without_a_symmetry_are_left_as_they_are():
    assert ModuleConnectors().images({"obs": np.zeros((2, 3))}) == {}
    columns = {"obs": torch.zeros(2, 3), "mirrored_obs": torch.ones(2, 3), "actions": torch.arange(2)}
    rows = with_images(columns)
    assert rows["obs"].sum(1).tolist() == [0.0, 0.0, 3.0, 3.0]
    assert rows["actions"].tolist() == [0, 1, 0, 1]
