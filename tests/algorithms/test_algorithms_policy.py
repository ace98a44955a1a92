"""`Policy`: acting for every action space and with memory, learning only in a training step, checkpoints, copies, bad
input.
"""

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from agent_games import game_config
from algorithm_tools import BOX, FROM_FIVE, make_policy, transitions
from gymnasium import spaces
from space_envs import SpaceEnv
from torch import nn

from lockstep import (
    A2CConfig,
    Collector,
    DQNConfig,
    Policy,
    PPOConfig,
    RolloutStore,
    SACConfig,
    SampleBatch,
    load_policy,
    policy_within_training_step,
)
from lockstep.algorithms.ppo import PPOLearner, PPOTraining
from lockstep.connectors import ActionPipeline, ClipActions, ModuleConnectors
from lockstep.learner import LearnerGroup
from lockstep.modules import DefaultActorCriticModule, MultiRLModule, RLModule, RLModuleSpec, wrap_module
from lockstep.replay import ReplayBuffer
from lockstep.state.checkpoint import CheckpointError
from lockstep.tracking import torch_param_hash

OBS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
ACTIONS = [
    FROM_FIVE,
    spaces.MultiDiscrete([2, 3], start=[1, 4]),
    spaces.MultiBinary(4),
    spaces.Box(-0.5, 2.0, (2,), np.float32),
]
FAR = np.random.default_rng(0).normal(3.0, 5.0, (50, 3)).astype(np.float32)
BOUNDED = spaces.Box(-1.0, 1.0, (2,), np.float32)


def drawn(policy):
    """Actions that a policy takes while it explores."""
    with policy_within_training_step(policy):
        return policy.compute_actions(OBS)


# -- acting ---


@pytest.mark.parametrize("space", ACTIONS, ids=lambda space: type(space).__name__)
def test_compute_actions_gives_the_environments_own_actions_for_a_batch(space):
    policy = make_policy(space)
    explored, greedy = [drawn(policy), drawn(policy)], [policy.compute_actions(OBS) for _ in range(2)]
    for actions in (*explored, *greedy):
        assert (actions.shape, actions.dtype) == ((200, *space.shape), space.dtype)
        assert all(space.contains(action) for action in actions)
    assert (explored[0] != explored[1]).any()
    np.testing.assert_array_equal(*greedy)


@pytest.mark.parametrize("space", ACTIONS, ids=lambda space: type(space).__name__)
def test_compute_single_action_is_one_row_of_the_batch(space):
    policy = make_policy(space)
    action = policy.compute_single_action(OBS[3])
    assert space.contains(action)
    np.testing.assert_allclose(action, policy.compute_actions(OBS)[3], rtol=1e-6)
    assert isinstance(action, int) == isinstance(space, spaces.Discrete)


def test_exploration_happens_in_training_steps_only_and_can_be_off():
    policy, silent = make_policy(), make_policy(config=PPOConfig().env_runners(explore=False))
    greedy = policy.compute_actions(OBS)
    assert not policy.is_exploring
    with policy_within_training_step(policy), policy_within_training_step(silent):
        assert policy.is_exploring
        assert not silent.is_exploring
        np.testing.assert_array_equal(policy.compute_actions(OBS, explore=False), greedy)
        np.testing.assert_array_equal(silent.compute_actions(OBS), greedy)
        with policy_within_training_step(policy, enabled=False):
            assert not policy.is_exploring
        assert policy.is_exploring
    assert not policy.is_exploring


@pytest.mark.parametrize("config", [PPOConfig(), DQNConfig().training(epsilon=1.0)], ids=["ppo", "dqn"])
def test_an_explicit_explore_explores_outside_of_a_training_step_too(config):
    policy = make_policy(spaces.Discrete(3), config=config.env_runners(explore=False))
    greedy = policy.compute_actions(OBS)
    np.testing.assert_array_equal(policy.compute_actions(OBS, explore=False), greedy)
    assert (policy.compute_actions(OBS, explore=True) != greedy).any()
    one = np.repeat(OBS[:1], 100, axis=0)
    assert len({policy.compute_single_action(row, explore=True) for row in one}) > 1
    assert len({policy.compute_single_action(row) for row in one}) == 1


def test_training_step_ends_with_its_block_even_after_an_error():
    policy = make_policy()
    with pytest.raises(ZeroDivisionError), policy_within_training_step(policy):
        1 / 0
    assert not policy.is_exploring


def test_same_seed_draws_the_same_actions():
    first, same, other = (drawn(make_policy(seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (2,), np.float32)])
def test_returned_actions_are_not_overwritten_by_the_next_call(space):
    policy = make_policy(space, clip_actions=False)
    first = policy.compute_actions(OBS)
    kept = first.copy()
    assert (policy.compute_actions(-OBS) != kept).any()
    np.testing.assert_array_equal(first, kept)


def test_lists_and_tensors_are_observations_too():
    policy = make_policy()
    expected = policy.compute_actions(OBS)
    np.testing.assert_array_equal(policy.compute_actions(OBS.tolist()), expected)
    np.testing.assert_array_equal(policy.compute_actions(torch.from_numpy(OBS)), expected)


# -- bad input ---


NESTED = spaces.Dict(a=BOX, b=spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (2,), np.uint8)]))
PAIR = (np.zeros(2, np.int64), np.zeros((2, 2), np.uint8))
WITHOUT_INFO = "give the observation alone, without the info that env.reset() returns"
WRONG_OBS = [
    (BOX, np.zeros((2, 4)), "obs has the shape (2, 4), expected [B, 3]"),
    (BOX, np.zeros(3), "expected [B, 3] (compute_actions takes B observations, compute_single_action one"),
    (BOX, [[0.0]], "obs has the shape (1, 1), expected [B, 3]"),
    (BOX, (np.zeros(3, np.float32), {}), WITHOUT_INFO),
    (NESTED, {"a": OBS[:2]}, "obs has the keys ['a'], expected a Dict of ['a', 'b']"),
    (NESTED, {"a": OBS[:2], "b": PAIR, "c": 0}, "obs has the keys ['a', 'b', 'c'], expected a Dict"),
    (NESTED, OBS, "obs has the type ndarray, expected a Dict of ['a', 'b']"),
    (NESTED, ({"a": OBS[:2], "b": PAIR}, {}), "obs has the type tuple, expected a Dict"),
    (NESTED, ({"a": OBS[:2], "b": PAIR}, {}), WITHOUT_INFO),
    (NESTED, {"a": OBS[:2, :2], "b": PAIR}, "obs['a'] has the shape (2, 2), expected [B, 3]"),
    (NESTED, {"a": OBS[:2], "b": PAIR[:1]}, "obs['b'] has the keys [0], expected a Tuple of [0, 1]"),
    (NESTED, {"a": OBS[:2], "b": (PAIR[0], PAIR[1] + 0.5)}, "obs['b'][1][0, 0] is 0.5 (dtype float64)"),
    (NESTED, {"a": OBS[:2], "b": (np.array([0, 2]), PAIR[1])}, "obs['b'][0][1] is 2, outside of Discrete(2)"),
    (NESTED, {"a": OBS[:2].astype(str), "b": PAIR}, "obs['a'] has the dtype <U"),
    (NESTED, {"a": OBS[:3], "b": PAIR}, "different numbers of rows: {\"obs['a']\": 3, \"obs['b'][0]\": 2"),
]


@pytest.mark.parametrize("space, obs, words", WRONG_OBS)
def test_observations_that_do_not_fit_are_refused_with_what_is_expected(space, obs, words):
    policy = make_policy(observation_space=space)
    with pytest.raises(ValueError) as refused:
        policy.compute_actions(obs)
    assert words in str(refused.value)
    assert len(policy.compute_actions(OBS[:2] if space is BOX else {"a": OBS[:2], "b": PAIR})) == 2


def test_no_action_is_chosen_for_nan():
    policy, broken = make_policy(), OBS[:4].copy()
    broken[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"obs\[2, 1\] is NaN"):
        policy.compute_actions(broken)
    with pytest.raises(ValueError, match=r"obs\[1\] is NaN"):
        policy.compute_single_action(broken[2])
    nested = make_policy(observation_space=NESTED)
    with pytest.raises(ValueError, match=r"obs\['a'\]\[2, 1\] is NaN"):
        nested.compute_actions({"a": broken, "b": (np.zeros(4, int), np.zeros((4, 2), np.uint8))})


def test_environment_with_other_spaces_is_refused_with_both():
    policy = make_policy(spaces.Discrete(3))
    for env, kind, spaces_named in (
        (SpaceEnv(BOX, spaces.Discrete(4)), "action", ("Discrete(3)", "Discrete(4)")),
        (SpaceEnv(spaces.MultiBinary(2), spaces.Discrete(3)), "observation", (str(BOX), "MultiBinary(2)")),
    ):
        with pytest.raises(ValueError, match=f"the policy's {kind} space is") as refused:
            PPOConfig().environment(env).build_collector(policy)
        assert all(name in str(refused.value) for name in spaces_named)


# -- learning ---


def rollout(policy, num_steps=16):
    """Two real environments' steps in a store."""
    config = policy.config.copy().environment(lambda: SpaceEnv(BOX, policy.action_space))
    collector = config.env_runners(num_envs_per_env_runner=2).build_collector(policy)
    collector.buffer = RolloutStore(num_steps // 2, 2, BOX, policy.action_space)
    with policy_within_training_step(policy):
        collector.collect(n_step=num_steps)
    collector.close()
    return collector.buffer


def test_update_outside_of_a_training_step_raises_runtime_error():
    policy = make_policy()
    store = rollout(policy)
    with pytest.raises(RuntimeError, match=r"outside of a training step; use .with policy_within_training_step"):
        policy.update(0, store, 4, 1)
    assert policy.weights_seq_no == 0


def test_update_in_a_training_step_learns_and_reports():
    policy = make_policy()
    store = rollout(policy)
    with policy_within_training_step(policy):
        with pytest.raises(ValueError, match=r"sample_size=8.*whole rollout; give 0"):
            policy.update(8, store)
        stats = policy.update(0, store, 4, 3)
    assert policy.weights_seq_no == 1
    assert policy.last_results["__all_modules__"]["num_minibatches"] == 12
    assert stats.gradient_steps == 12
    assert stats.metrics["policy_loss"].mean == pytest.approx(policy.last_results["default_policy"]["policy_loss"])
    with policy_within_training_step(policy):
        policy.update(0, store)
    assert policy.last_results["__all_modules__"]["num_minibatches"] == policy.config.num_epochs


def test_what_was_learned_is_acted_on_at_once():
    policy = make_policy(config=PPOConfig().training(lr=0.5))
    store = rollout(policy)
    before = policy.compute_actions(OBS)
    with policy_within_training_step(policy):
        policy.update(0, store, None, 5)
    assert (policy.compute_actions(OBS) != before).any()
    with torch.no_grad():
        inputs = policy.module.forward_inference({"obs": torch.from_numpy(OBS)})["action_dist_inputs"]
    np.testing.assert_array_equal(policy.compute_actions(OBS), inputs.argmax(1).numpy() + 5)


def test_learn_on_batch_is_one_pass_over_prepared_columns():
    policy = make_policy(config=A2CConfig())
    batch = policy.learner_group.learner.prepare_batch(rollout(policy).trajectories(), module_id="default_policy")
    results = policy.learn_on_batch(SampleBatch(batch))
    assert results["__all_modules__"]["num_minibatches"] == 1
    assert policy.weights_seq_no == 1


# -- checkpoints ---


def trained(seed=0, config=None):
    policy = make_policy(config=(config or PPOConfig()).training(lr=0.05), seed=seed, normalize_observations=True)
    store = rollout(policy)
    with policy_within_training_step(policy):
        policy.update(0, store, 4, 2)
    return policy


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig])
def test_saved_policy_is_restored_and_goes_on_drawing_where_it_was(config, tmp_path):
    policy, other, third = (trained(seed, config()) for seed in range(3))
    path = policy.save_to_path(tmp_path / "policy")
    other.restore_from_path(path)
    third.set_state(policy.get_state())
    loaded = [other, third, Policy.from_checkpoint(path), load_policy(path)]
    assert not np.allclose(policy.connectors.obs(OBS), OBS)
    expected = drawn(policy)
    for each in loaded:
        assert each.config.algorithm == policy.config.algorithm
        np.testing.assert_array_equal(each.connectors.obs(OBS), policy.connectors.obs(OBS))
        np.testing.assert_array_equal(each.compute_actions(OBS), policy.compute_actions(OBS))
        np.testing.assert_array_equal(drawn(each), expected)


def test_loading_and_using_a_policy_changes_nothing_for_the_process(tmp_path):
    path = trained().save_to_path(tmp_path / "policy")
    before = torch.get_num_threads()

    def process():
        numpys = np.random.get_state()[1].tolist()  # noqa: NPY002
        return torch.get_num_threads(), torch.get_rng_state().tolist(), numpys, random.getstate(), warnings.filters[:]

    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = process()
            for load in (load_policy, Policy.from_checkpoint):
                policy = load(path)
                policy.compute_actions(OBS, explore=True)
                Collector(policy, SpaceEnv(BOX, ACTIONS[0])).collect(n_episode=2)
                assert process() == found
    finally:
        torch.set_num_threads(before)


def test_a_module_restored_alone_says_which_connectors_it_leaves_out(tmp_path):
    policy = make_policy(ACTIONS[3], normalize_observations=True, rescale_actions=True)
    path = f"{policy.save_to_path(tmp_path / 'policy')}/learner/rl_module"
    one = policy.module.save_to_path(tmp_path / "one")
    for folder in (f"{path}/default_policy", one, tmp_path / "two"):
        with pytest.warns(UserWarning, match=r"connectors NormalizeObs, RescaleActions.*lockstep\.load_policy"):
            other = RLModule.from_checkpoint(folder)
        other.save_to_path(tmp_path / "two")  # knows it too
        other.acting_connectors = ()
        with pytest.warns(UserWarning, match="connectors NormalizeObs, RescaleActions"):
            other.restore_from_path(folder)
    with pytest.warns(UserWarning, match="connectors NormalizeObs, RescaleActions"):
        MultiRLModule.from_checkpoint(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.module.restore_from_path(one)
        Policy.from_checkpoint(tmp_path / "policy")
        RLModule.from_checkpoint(make_policy().module.save_to_path(tmp_path / "plain"))


def test_the_policy_of_a_missing_environment_can_be_loaded(tmp_path):
    policy = PPOConfig().environment(lambda: SpaceEnv(BOX)).rl_module(model_config={"hiddens": (4,)}).build_policy()
    loaded = load_policy(policy.save_to_path(tmp_path / "policy"))
    np.testing.assert_array_equal(loaded.compute_actions(OBS), policy.compute_actions(OBS))


def test_checkpoints_of_another_kind_or_shape_are_refused_unchanged(tmp_path):
    policy = trained()
    before = policy.compute_actions(OBS)
    group = make_policy(seed=3).learner_group.save_to_path(tmp_path / "group")
    for read in (policy.restore_from_path, load_policy, Policy.from_checkpoint):
        with pytest.raises(ValueError, match="no policy"):
            read(group)
        with pytest.raises(CheckpointError, match="no checkpoint at"):
            read(tmp_path / "nothing")
    wider = make_policy(spaces.Discrete(4)).save_to_path(tmp_path / "wider")
    with pytest.raises(ValueError, match=r"policy_head.weight has shape \(4, 8\), expected \(3, 8\)"):
        policy.restore_from_path(wider)
    np.testing.assert_array_equal(policy.compute_actions(OBS), before)


@pytest.mark.parametrize("space", [ACTIONS[0], ACTIONS[3]], ids=lambda space: type(space).__name__)
def test_a_policy_acts_and_learns_with_a_learner_made_by_hand(space, tmp_path):
    spec = RLModuleSpec(DefaultActorCriticModule, BOX, space, model_config={"hiddens": (8,)})
    actions = ActionPipeline([ClipActions(space)], space) if isinstance(space, spaces.Box) else None
    connectors = {"default_policy": ModuleConnectors(actions=actions)}
    learner = PPOLearner(config=PPOTraining(lr=0.5, gamma=0.5), module_spec=spec, connectors=connectors).build()
    policy = Policy(make_policy(space).config, LearnerGroup(learner))
    assert policy.module is learner.module["default_policy"]
    before = policy.compute_actions(OBS)
    store = rollout(policy)
    with policy_within_training_step(policy):
        assert policy.update(0, store, 4, 2).gradient_steps == 8
    after = policy.compute_actions(OBS)
    assert (after != before).any()
    loaded = load_policy(policy.save_to_path(tmp_path / "policy"))
    np.testing.assert_array_equal(loaded.compute_actions(OBS), after)


def test_a_policy_is_made_of_a_configuration_and_its_learner_group():
    config = make_policy().config
    policy = Policy(config, config.build_learner_group())
    assert (policy.observation_space, policy.action_space) == (BOX, ACTIONS[0])
    np.testing.assert_array_equal(policy.compute_actions(OBS), config.build_policy().compute_actions(OBS))
    for other in (torch.nn.Linear(2, 2), policy.module):
        with pytest.raises(
            TypeError, match=f"made of a configuration.*not of a {type(other).__name__}.*rl_module_spec"
        ):
            Policy(other, policy.learner_group)


# -- torch's habits: `state_dict`, `train`, `eval`, `to`, and deep copies ---


def normalised(seed):
    policy = make_policy(BOUNDED, seed=seed, normalize_observations=True, normalize_rewards=True)
    policy.connectors.update(FAR * seed, None)
    return policy


@pytest.mark.parametrize(
    "make",
    [
        normalised,
        lambda seed: make_policy(BOUNDED, config=SACConfig(), seed=seed),
        lambda seed: make_policy(config=DQNConfig(), seed=seed),
    ],
    ids=["ppo", "sac", "dqn"],
)
def test_a_policy_acts_the_same_after_torch_has_saved_and_loaded_it(make, tmp_path):
    policy, other = make(1), make(2)
    before = policy.compute_actions(FAR)
    torch.save(policy.state_dict(), tmp_path / "policy.pt")
    assert (other.compute_actions(FAR) != before).any()
    keys = other.load_state_dict(torch.load(tmp_path / "policy.pt"))  # weights only, torch's default
    assert keys == ([], [])
    np.testing.assert_array_equal(other.compute_actions(FAR), before)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in policy.state_dict().items())


def test_a_state_dict_that_does_not_fit_is_refused_with_all_names():
    policy = make_policy(BOUNDED)
    before, state = policy.compute_actions(FAR), make_policy(BOUNDED, seed=1).state_dict()
    bad = {**state, "extra": torch.zeros(1), "module.log_std": torch.zeros(3)}
    del bad["module.policy_head.bias"]
    with pytest.raises(
        RuntimeError, match=r"missing \['module.policy_head.bias'\].*unexpected \['extra'\].*log_std has"
    ):
        policy.load_state_dict(bad)
    np.testing.assert_array_equal(policy.compute_actions(FAR), before)
    del bad["module.log_std"]
    keys = policy.load_state_dict(bad, strict=False)
    assert keys.missing_keys == ["module.log_std", "module.policy_head.bias"]
    assert keys.unexpected_keys == ["extra"]
    assert torch.equal(policy.state_dict()["module.policy_head.weight"], state["module.policy_head.weight"])


def test_a_multi_agent_policy_acts_equally_after_torch_save_and_load(tmp_path):
    policy, other = (game_config(debugging={"seed": seed}).build_policy() for seed in (1, 2))
    assert {name.split(".module.")[0] for name in policy.state_dict()} == {"first", "others"}
    torch.save(policy.state_dict(), tmp_path / "policy.pt")
    other.load_state_dict(torch.load(tmp_path / "policy.pt"))
    for mine, theirs in zip(policy.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert other.eval() is other
    assert not any(one.module.training for one in other.acting.values())
    with pytest.raises(RuntimeError, match="missing"):
        other.load_state_dict({})


def test_train_and_eval_switch_dropout_as_in_torch():
    network = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    module = wrap_module(network, BOX, spaces.Discrete(2))
    config = PPOConfig().environment(observation_space=BOX, action_space=spaces.Discrete(2))
    policy = config.rl_module(rl_module_spec=module).build_policy()
    assert policy.train() is policy
    assert len({policy.compute_actions(FAR).tobytes() for _ in range(20)}) > 1
    assert policy.eval() is policy
    assert len({policy.compute_actions(FAR).tobytes() for _ in range(20)}) == 1


def test_to_a_device_keeps_what_it_learned():
    policy = normalised(1)
    assert policy.to("cpu") is policy
    group, config, before = policy.learner_group, policy.config, policy.compute_actions(FAR)
    assert policy.to(torch.device("cpu")).learner_group is group
    rng = policy.get_state()["rng"]
    device = "cuda" if torch.cuda.is_available() else "cpu:0"  # another name: it moves, if not far
    policy.to(device)
    assert policy.learner_group is not group
    assert (policy.config.device, config.device) == (device, "cpu")
    np.testing.assert_allclose(policy.compute_actions(FAR), before, atol=1e-5)
    assert policy.get_state()["rng"] == rng
    assert {parameter.device.type for parameter in policy.parameters()} == {torch.device(device).type}


@pytest.mark.parametrize("config, action_space", [(DQNConfig, spaces.Discrete(3)), (SACConfig, BOUNDED)])
def test_a_deep_copied_policy_acts_and_learns_apart_from_the_original(config, action_space):
    policy = make_policy(action_space, config=config())
    buffer = ReplayBuffer.from_batch(transitions(action_space, rows=50))

    def learn(learner, memory):
        with policy_within_training_step(learner):
            learner.update(8, memory, repeat=3)
        return torch_param_hash(learner.module), learner.learner_group.learner.get_state()

    learn(policy, buffer)
    drawn(policy)
    before, twin = torch_param_hash(policy.module), copy.deepcopy(policy)
    assert torch_param_hash(twin.module) == before
    later = learn(twin, copy.deepcopy(buffer))[0]
    moved = drawn(twin)
    assert later != before == torch_param_hash(policy.module)
    assert learn(policy, buffer)[0] == later  # optimizers and target networks were copied too
    np.testing.assert_array_equal(drawn(policy), moved)


# -- memory: the state goes in and out by hand, and is part of a checkpoint ---


def with_memory(kind="lstm"):
    return make_policy(config=PPOConfig().rl_module(model_config={"recurrent": kind, "recurrent_size": 4}))


def steps_of(rows=2):
    return np.random.default_rng(0).normal(size=(5, rows, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_actions_and_state_go_from_step_to_step_also_from_a_checkpoint(kind, tmp_path):
    policy, x = with_memory(kind), steps_of()
    again = Policy.from_checkpoint(policy.save_to_path(tmp_path / "policy"))
    inputs = policy.module.forward_train({"obs": torch.from_numpy(x).transpose(0, 1)})["action_dist_inputs"]
    expected = policy.module.action_dist_cls.from_inputs(inputs).mode().numpy() + 5
    assert len(np.unique(expected)) > 1
    state = other = None
    for t in range(5):
        actions, state = policy.compute_actions(x[t], state, explore=False)
        same, other = again.compute_actions(x[t], other, explore=False)
        assert np.array_equal(actions, expected[:, t])
        assert np.array_equal(same, expected[:, t])
    names = ("h", "c", "vf_h", "vf_c") if kind == "lstm" else ("h", "vf_h")
    assert {name: leaf.shape for name, leaf in state.items()} == dict.fromkeys(names, (2, 4))
    assert all(np.array_equal(state[name], other[name]) for name in names)


def test_single_actions_take_and_give_a_state_without_rows():
    policy, x = with_memory(), steps_of(rows=1)
    state, many = None, None
    for t in range(5):
        action, state = policy.compute_single_action(x[t, 0], state)
        actions, many = policy.compute_actions(x[t], many, explore=False)
        assert isinstance(action, int)
        assert action == actions[0]
        assert all(np.array_equal(state[name], many[name][0]) for name in state)
    assert state["h"].shape == (4,)


def test_a_state_that_does_not_fit_is_refused_with_both_shapes():
    policy = with_memory("gru")
    with pytest.raises(ValueError, match=r"'h': \(3, 4\).* expected \{'h': \(2, 4\), .*None begins episodes"):
        policy.compute_actions(steps_of()[0], policy.get_initial_state(3))
    with pytest.raises(ValueError, match="expected"):
        policy.compute_actions(steps_of()[0], np.zeros((2, 4)))


def test_a_policy_without_memory_has_no_state():
    policy = make_policy()
    assert not policy.is_stateful
    assert policy.get_initial_state(3) == {}
    assert isinstance(policy.compute_actions(steps_of()[0]), np.ndarray)
    with pytest.raises(TypeError, match="DefaultActorCriticModule has no memory; use act"):
        policy.act_with_state(steps_of()[0], None, {})
