"""Dict and Tuple actions, nested, with a mask for each choice: learned, masked, in every back end and from files."""

from functools import partial

import numpy as np
import pytest
import torch
from algorithm_cases import NAMES, has_option, where
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from parts import fast_if

from lockstep import Collector, RolloutStore, SampleBatch, get_config, load_policy
from lockstep.connectors import PreviousActions
from lockstep.data import SingleAgentEpisode, write_minari
from lockstep.data.actions import ActionForm, action_leaves, flat_mask, from_space, random_actions, to_space
from lockstep.data.trees import leaves, map_tree, rows_of, trees_equal, zip_trees
from lockstep.envs import make_vector
from lockstep.envs.check import check_environment
from lockstep.envs.toys.probes import CompositeProbe
from lockstep.learner.inputs import check_actions
from lockstep.modules import ActionDist
from lockstep.trainer import restore_trainer

TAKING = where(lambda case: "Dict" in case.actions)
MINIBATCHES = {"lr": 1e-2, "train_batch_size": 128, "minibatch_size": 64}
TRAINING = {
    "ppo": {**MINIBATCHES, "lr": 2e-2, "num_epochs": 4},
    "a2c": {"lr": 5e-3, "train_batch_size": 40, "entropy_coeff": 0.0},
    "impala": {**MINIBATCHES, "num_epochs": 2, "entropy_coeff": 0.0},
    "appo": {**MINIBATCHES, "num_epochs": 4, "entropy_coeff": 0.0},
}
ACTIONS = CompositeProbe().action_space
BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = {
    "probe": ACTIONS,
    "tuple": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(4), BOX]),
    "nested": spaces.Dict(b=spaces.Tuple([BOX, spaces.Dict(x=spaces.MultiDiscrete([2, 3], start=[1, 0]))]), a=BOX),
    "choices": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(4)]),
    "boxes": spaces.Dict(a=BOX, b=spaces.Box(-2.0, 2.0, (2, 2), np.float32)),
}


def config_of(algorithm="ppo", flat=False, **sections):
    config = get_config(algorithm).environment(partial(CompositeProbe, flat)).training(gamma=0.5)
    config.rl_module(model_config={"hiddens": (16,)}).evaluation(evaluation_interval=0).debugging(seed=3)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config


def assert_best(policy, flat=False):
    """The most likely action is the best one at each observation."""
    env = CompositeProbe(flat)
    for (current,) in env.observations:
        env.current = current
        action, best = policy.compute_single_action(env._observe()), env.best_action([current])
        assert (action["arm"][0], *action["lights"]) == (best["arm"][0], *best["lights"])
        assert env._reward(action) >= 0.97


def recorded(number=200, flat=False):
    """Best actions, as the environment takes them."""
    env, rng = CompositeProbe(flat), np.random.default_rng(0)
    rows = []
    for env.current in rng.choice([-1.0, 1.0], number):
        rows.append((env._observe(), env.best_action([env.current])))
    obs, actions = ({"all": zip_trees(np.array, list(part), "rows")}["all"] for part in zip(*rows))
    ends = np.ones(number, bool)
    rewards = np.ones(number, np.float32)
    return SampleBatch(obs=obs, actions=actions, rewards=rewards, terminateds=ends, truncateds=~ends, new_obs=obs)


# -- learning ---


@pytest.mark.parametrize(
    ("algorithm", "flat"),
    [
        pytest.param("ppo", False, marks=pytest.mark.long),
        *(pytest.param(name, flat, marks=pytest.mark.learning) for name in TRAINING for flat in (True, False)),
    ],
)
def test_the_optimum_is_reached_with_masks_of_both_forms(algorithm, flat):
    config = config_of(algorithm, flat, training=TRAINING[algorithm], reporting={"total_steps": 8_000})
    trainer = config.build_trainer()
    trainer.run()
    assert_best(trainer.policy, flat)


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("number", fast_if(lambda number: number < 10_000, [2_500, 25_000]))
def test_none_of_100_000_actions_is_illegal(number, flat, random):
    """With the four cases that are long 100,000; the probe raises for an action that is illegal."""
    policy = config_of(flat=flat).build_policy()
    collector = Collector(policy, make_vector(partial(CompositeProbe, flat), num_envs=500), exploration_noise=True)
    assert collector.collect(number, random=random).n_collected_steps == number


@pytest.mark.parametrize("source", fast_if(("batch", "npz").__contains__, ["batch", "minari", "parquet", "npz"]))
def test_imitation_learns_from_recorded_trees(source, tmp_path, monkeypatch):
    data, env = recorded(), CompositeProbe()
    if source == "parquet":
        data = SampleBatch.from_parquet(data.to_parquet(tmp_path / "rows.parquet"))
    elif source == "npz":
        data = SampleBatch.from_npz(data.to_npz(tmp_path / "rows.npz"))
    elif source == "minari":
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        write_minari("composite-v0", data, observation_space=env.observation_space, action_space=env.action_space)
        data = "composite-v0"
    config = config_of("bc", training={"lr": 2e-2, "train_batch_size": 64}, reporting={"total_steps": 150})
    trainer = config.offline_data(input_=data).build_trainer()
    trainer.run()
    assert_best(trainer.policy)


@pytest.mark.parametrize("algorithm", [name for name in TAKING if has_option(name, "bc_logstd_coeff")])
def test_weighed_imitation_learns_from_recorded_trees(algorithm):
    options = {"lr": 2e-2, "train_batch_size": 64, "bc_logstd_coeff": 0.01}
    config = config_of(algorithm, training=options, reporting={"total_steps": 150})
    trainer = config.offline_data(input_=recorded()).build_trainer()
    trainer.run()
    assert_best(trainer.policy)


# -- forms ---


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_flat_actions_are_those_of_the_environment_and_back(space):
    actions = random_actions(space, np.random.default_rng(0), 7)
    assert all(space.contains(rows_of(actions, row)) for row in range(7))
    flat = from_space(space, actions)
    assert (flat.dtype, flat.ndim) == (np.float32, 2)
    assert trees_equal(to_space(space, flat), actions)
    steps = flat.reshape(7, 1, -1)  # [T, B, A]
    assert trees_equal(to_space(space, steps), map_tree(lambda leaf: leaf[:, None], actions))
    assert ActionForm.of(space) == ActionForm.from_state(ActionForm.of(space).get_state())
    check_actions(torch.from_numpy(flat), space, "it")
    shuffled = dict(reversed(actions.items())) if isinstance(actions, dict) else actions
    np.testing.assert_array_equal(from_space(space, shuffled), flat)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_the_distribution_is_that_of_independent_parts(space):
    dist, rng = ActionDist(space), np.random.default_rng(1)
    inputs = torch.from_numpy(rng.normal(size=(5, dist.input_size)))
    other = torch.from_numpy(rng.normal(size=(5, dist.input_size)))
    noise = torch.from_numpy(dist.draw_noise(rng, (5,)))
    whole, whole_of_other = dist.from_inputs(inputs), dist.from_inputs(other)
    drawn = whole.sample_with_noise(noise)
    of_env = to_space(space, drawn.numpy())
    parts = [ActionDist(leaf) for leaf in action_leaves(space)]
    first, last, seen = 0, dist.input_size - dist.num_log_stds, 0
    logp, entropy, kl = (torch.zeros(5, dtype=torch.float64) for _ in range(3))
    for part, actions in zip(parts, leaves(of_env)):
        size, rest = part.noise_size, part.num_log_stds
        own, own_of_other = (
            part.from_inputs(torch.cat([x[:, first : first + size], x[:, last + seen : last + seen + rest]], -1))
            for x in (inputs, other)
        )
        learned = torch.as_tensor(from_space(part.action_space, actions))
        expected = own.sample_with_noise(noise[:, first : first + size])
        torch.testing.assert_close(learned.double(), expected.double(), rtol=1e-6, atol=1e-6)
        logp, entropy, kl = logp + own.log_prob(expected), entropy + own.entropy(), kl + own.kl(own_of_other)
        first, seen = first + size, seen + rest
    assert (first, seen) == (last, dist.num_log_stds)
    torch.testing.assert_close(whole.log_prob(drawn), logp)
    torch.testing.assert_close(whole.entropy(), entropy)
    torch.testing.assert_close(whole.kl(whole_of_other), kl)
    assert whole.mode().shape == drawn.shape == whole.sample(torch.Generator().manual_seed(0)).shape


def test_a_mask_forbids_choices_only_and_has_two_forms():
    env = CompositeProbe()
    env.current, dist = 1.0, ActionDist(ACTIONS)
    tree = env._observe()["action_mask"]
    np.testing.assert_array_equal(flat_mask(ACTIONS, tree), env._allowed())
    full = dist.full_mask(map_tree(lambda leaf: torch.as_tensor(leaf)[None], tree))
    # three gears, the mean of the steering, two and three lights, its deviation
    assert full.tolist() == [[True, False, True, True, False, True, True, True, True, True]]
    assert torch.equal(full, dist.full_mask(torch.as_tensor(env._allowed())[None]))


def test_a_policy_gives_the_environments_structure_back():
    policy = config_of().build_policy()
    env = CompositeProbe()
    obs, _ = env.reset(seed=0)
    for explore in (False, True):
        assert ACTIONS.contains(policy.compute_single_action(obs, explore=explore))
        rows = policy.compute_actions(map_tree(lambda leaf: np.stack([leaf] * 3), obs), explore=explore)
        assert [leaf.shape for leaf in leaves(rows)] == [(3,), (3, 1), (3, 2)]
        assert trees_equal(policy.to_env(policy.from_env(rows)), rows)


def test_every_back_end_gets_the_tree():
    policy, found = config_of().build_policy(), []
    for make in (make_vector, partial(make_vector, mode="async"), gym_vector):
        store = RolloutStore(8, 3, policy.observation_space, policy.action_space)
        collector = Collector(policy, make(CompositeProbe, num_envs=3), store, exploration_noise=True, seed=3)
        collector.collect(24)
        found.append(store.trajectories())
        collector.close()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].actions, other.actions)
        np.testing.assert_array_equal(found[0].rewards, other.rewards)


def gym_vector(make, num_envs):
    return SyncVectorEnv([make] * num_envs)


def previous_actions(observation_space, action_space):
    return PreviousActions(action_space)


def test_connectors_see_the_action_before_in_one_vector():
    config = config_of(env_runners={"env_to_module_connector": previous_actions, "num_envs_per_env_runner": 3})
    policy = config.build_policy()
    store = RolloutStore(4, 3, policy.stored_observation_space, policy.action_space)
    Collector(policy, config.make_envs(3), store, exploration_noise=True, seed=3).collect(12)
    seen = store.trajectories().obs["previous_actions"]
    assert seen.shape == (4, 3, 3 + 1 + 2 + 3)
    assert not seen.any()  # episodes of the probe are one step long
    policy.compute_actions(rows_of(CompositeProbe().observation_space.sample(), None))
    one_hot = policy.compute_actions(rows_of(CompositeProbe().observation_space.sample(), None))
    assert [leaf.shape for leaf in leaves(one_hot)] == [(1,), (1, 1), (1, 2)]


class Pair:
    """Two agents, each with a probe of its own."""

    possible_agents = ("a", "b")

    def __init__(self):
        self.probes = {agent: CompositeProbe(flat_mask=agent == "b") for agent in self.possible_agents}
        self.observation_spaces = {agent: probe.observation_space for agent, probe in self.probes.items()}
        self.action_spaces = {agent: probe.action_space for agent, probe in self.probes.items()}

    def reset(self, *, seed=None, options=None):
        return {agent: probe.reset(seed=seed)[0] for agent, probe in self.probes.items()}, {}

    def step(self, actions):
        steps = {agent: self.probes[agent].step(action) for agent, action in actions.items()}
        obs, rewards, terminateds, truncateds, infos = (
            {agent: step[i] for agent, step in steps.items()} for i in range(5)
        )
        return obs, rewards, {**terminateds, "__all__": True}, {**truncateds, "__all__": False}, infos


def test_several_agents_act_in_trees():
    config = config_of(training={"train_batch_size": 64}, reporting={"total_steps": 128})
    config.environment(Pair).multi_agent(policies=["a", "b"], policy_mapping_fn=lambda agent, episode: agent)
    trainer = config.build_trainer()
    trainer.run()
    observations, _ = Pair().reset(seed=0)
    actions = trainer.policy.compute_actions(observations)
    assert all(ACTIONS.contains(action) for action in actions.values())
    trainer.collector.reset_buffer()
    assert trainer.collector.collect(n_step=64, random=True).n_collected_steps == 64


def test_boxes_among_the_parts_are_clipped_or_rescaled():
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(0.0, 4.0, (2,), np.float32))
    for option, expected in (({}, [0.0, 3.0]), ({"rescale_actions": True}, [1.0, 4.0])):
        config = get_config("ppo").environment(observation_space=BOX, action_space=space, **option)
        policy = config.rl_module(model_config={"hiddens": (4,)}).build_policy()
        taken = policy.to_env(np.array([[2.0, -0.5, 3.0]], np.float32))
        np.testing.assert_array_equal(taken["b"], [expected])
        assert taken["a"].tolist() == [2]
        assert policy.action_form.rescaled is bool(option)
    np.testing.assert_allclose(policy.from_env(taken), [[2.0, -0.5, 1.0]])


# -- the same numbers from everywhere ---


def parameters_after(config, episodes):
    learner = config.framework(dtype="float64").build_learner()
    learner.update_from_episodes(episodes)
    return torch.cat([p.detach().reshape(-1) for p in learner.module["default_policy"].parameters()])


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_episodes_of_a_user_are_learned_from_as_those_of_a_rollout(algorithm):
    config = config_of(algorithm, env_runners={"num_envs_per_env_runner": 2})
    policy = config.build_policy()
    collector = config.build_collector(policy)
    collector.buffer = RolloutStore(16, 2, policy.observation_space, policy.action_space)
    collector.exploration_noise = True
    collector.collect(32)
    flat, trees = (
        [
            SingleAgentEpisode(
                observations=episode.get_observations(),
                actions=form(episode.get_actions()),
                rewards=episode.get_rewards(),
                terminated=episode.is_terminated,
                truncated=episode.is_truncated,
            )
            for episode in collector.buffer.episodes()
        ]
        for form in (np.array, partial(to_space, ACTIONS))
    )
    assert isinstance(trees[0].get_actions(), dict)
    assert torch.equal(parameters_after(config, flat), parameters_after(config, trees))
    with pytest.raises(ValueError, match=r"action has keys \['arm'\]"):
        broken = SingleAgentEpisode(
            observations=trees[0].get_observations(),
            actions={"arm": trees[0].get_actions()["arm"]},
            rewards=trees[0].get_rewards(),
        )
        parameters_after(config, [broken])


@pytest.mark.parametrize("memory", [None, pytest.param("lstm", marks=pytest.mark.long)])
def test_a_run_goes_on_bit_for_bit_and_its_policy_is_loaded(tmp_path, memory):
    def trainer(total):
        model = {"hiddens": (8,), "recurrent": memory, "recurrent_size": 4}
        config = config_of(rl_module={"model_config": model}, training={"train_batch_size": 64, "minibatch_size": 32})
        config.environment(env="lockstep/CompositeProbe-v0").env_runners(num_envs_per_env_runner=4)
        return config.reporting(total_steps=total, steps_per_epoch=64).build_trainer()

    half, rest, whole = trainer(128), trainer(256), trainer(256)
    half.run()
    restore_trainer(rest, half.save_to_path(tmp_path / "half"))
    rest.run()
    whole.run()
    policies = [whole.policy, rest.policy, load_policy(whole.policy.save_to_path(tmp_path / "policy"))]
    weights = [policy.acting_weights().flat for policy in policies]
    obs, _ = CompositeProbe().reset(seed=1)
    actions = [policy.compute_single_action(obs) for policy in policies]
    for flat, action in zip(weights[1:], actions[1:]):
        np.testing.assert_array_equal(flat, weights[0])
        assert trees_equal(action, actions[0])


def test_the_environment_check_knows_composite_actions():
    for flat in (False, True):
        report = check_environment(partial(CompositeProbe, flat), num_steps=200)
        assert not [finding for finding in report if finding.level == "error"], report


# -- refusals ---


@pytest.mark.parametrize("algorithm", [name for name in NAMES if name not in TAKING])
def test_other_algorithms_refuse_them_by_name(algorithm):
    with pytest.raises(ValueError, match=rf"(?i){algorithm}.*Dict\("):
        config_of(algorithm).build_policy()


class WrongMask(CompositeProbe):
    def __init__(self, mask, actions=ACTIONS):
        super().__init__()
        self.action_space = actions
        self.observation_space = spaces.Dict(observations=BOX, action_mask=mask)


ARM = spaces.Tuple([spaces.MultiBinary(3)])


@pytest.mark.parametrize(
    ("mask", "actions", "words"),
    [
        (spaces.MultiBinary(7), ACTIONS, r"\(8,\)"),
        (spaces.Dict(arm=ARM), ACTIONS, r"has \['arm'\].*vector of 8 entries.*\['arm', 'lights'\]"),
        (spaces.Dict(arm=ARM, lights=spaces.MultiBinary(4)), ACTIONS, r"\['lights'\].*\(5,\)"),
        (spaces.Dict(arm=spaces.MultiBinary(3), lights=spaces.MultiBinary(5)), ACTIONS, None),
        (spaces.Tuple([ARM, spaces.MultiBinary(5)]), ACTIONS, "has 2 parts"),
        (spaces.Dict(arm=spaces.Tuple([ARM[0], BOX]), lights=spaces.MultiBinary(5)), ACTIONS, r"\['arm'\] has 2 parts"),
        (spaces.MultiBinary(3), spaces.Dict(a=BOX), "cannot be masked"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_by_the_policy_and_the_check(mask, actions, words):
    make = partial(WrongMask, mask, actions)
    config = get_config("ppo").environment(make)
    codes = [finding.code for finding in check_environment(make, num_steps=1)]
    assert any(code.startswith("action_mask") for code in codes) is (words is not None)
    if words is None:  # a part may be one vector too
        config.build_learner()
        return
    with pytest.raises(ValueError, match=words):
        config.build_policy()


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        ("bc", {"training": {"loss": "mse"}}, "mse.*Dict"),
        ("ppo", {"rl_module": {"model_config": {"squash_actions": True}}}, "squashed.*Dict"),
        ("ppo", {"environment": {"action_space": spaces.Dict(a=spaces.Text(3)), "observation_space": BOX}}, "Text"),
    ],
)
def test_options_that_need_one_box_are_refused(algorithm, options, words):
    with pytest.raises(ValueError, match=words):
        config_of(algorithm, **options).build_learner()


def test_a_recorded_action_that_is_no_choice_is_refused():
    data = recorded(8)
    data["actions"]["lights"][3] = [0, 3]
    with pytest.raises(ValueError, match=r"row 3.*below"):
        learner = config_of("bc").build_learner()
        learner.update_from_batch(data)
