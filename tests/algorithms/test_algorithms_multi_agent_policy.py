"""`Policy` of several agents: acts for dicts, learns with all its modules, and goes into a checkpoint and back."""

import copy
import pickle

import numpy as np
import pytest
import torch
from agent_games import CountingGame, game_config, to_module

from lockstep import DQNConfig, MultiAgentCollector, Policy, load_policy, policy_within_training_step
from lockstep.data.rollout import EpisodeStore

OBSERVATIONS = {agent: np.array([3.0, 1 + i], np.float32) for i, agent in enumerate("abc")}


@pytest.fixture
def policy():
    return game_config().build_policy()


def store_of(policy, n_step=16):
    collector = MultiAgentCollector(policy, CountingGame, EpisodeStore(), num_envs=2)
    with policy_within_training_step(policy):
        collector.collect(n_step=n_step)
    return collector.buffer


def test_build_policy_of_several_agents_acts_with_the_module_of_each(policy):
    assert isinstance(policy, Policy)
    assert policy.is_multi_agent
    assert list(policy.acting) == ["first", "others"]
    actions = policy.compute_actions(OBSERVATIONS)
    assert set(actions) == set("abc")
    for agent, action in actions.items():
        own = policy.acting[to_module(agent, None)]
        assert action == own.compute_single_action(OBSERVATIONS[agent])
        assert type(action) is int
    assert policy.compute_actions({}) == {}


def test_exploration_has_other_random_numbers_for_each_module(policy):
    many = {f"{kind}{i}": OBSERVATIONS["a"] for kind in "ax" for i in range(50)}
    policy.policy_mapping_fn = lambda agent, episode: "first" if agent.startswith("a") else "others"
    policy.acting["others"].module.load_state_dict(policy.acting["first"].module.state_dict())
    assert len(set(policy.compute_actions(many).values())) == 1
    with policy_within_training_step(policy):
        drawn = policy.compute_actions(many)
        first, others = ([drawn[agent] for agent in many if agent.startswith(kind)] for kind in "ax")
        assert set(first) == set(others) == {0, 1}
        assert first != others
        assert len(set(policy.compute_actions(many, explore=False).values())) == 1
    assert not policy.is_exploring


@pytest.mark.parametrize("epsilon, actions", [(0.0, {0}), (1.0, {0, 1})])
def test_multi_agent_evaluation_takes_random_actions_by_its_own_epsilon(epsilon, actions):
    seen = set()

    class Watched(CountingGame):
        def step(self, actions):
            seen.update(int(action) for action in actions.values())
            return super().step(actions)

    config = game_config(Watched, DQNConfig, evaluation={"epsilon": epsilon})
    policy = config.build_policy()
    with torch.no_grad():
        for one in policy.acting.values():
            one.module.policy_head.weight.zero_()
            one.module.policy_head.bias.copy_(torch.tensor([1.0, 0.0]))
    config.build_test_collector(policy).collect(n_episode=8)
    assert seen == actions


def test_a_module_that_is_not_there_is_told(policy):
    policy.policy_mapping_fn = lambda agent, episode: "nobody"
    with pytest.raises(KeyError, match=r"agent 'a' is mapped to the module 'nobody'; there are \['first', 'others'\]"):
        policy.compute_actions(OBSERVATIONS)


def test_states_of_modules_with_memory_are_handed_back_by_agent():
    model = {"hiddens": (4,), "recurrent": "gru", "recurrent_size": 3}
    policy = game_config().rl_module(model_config=model).build_policy()
    actions, state = policy.compute_actions(OBSERVATIONS)
    assert set(actions) == set(state) == set("abc")
    _, further = policy.compute_actions(OBSERVATIONS, state)
    assert not np.array_equal(state["a"]["h"], further["a"]["h"])
    own, expected = policy.acting["first"], state["a"]
    np.testing.assert_allclose(own.compute_single_action(OBSERVATIONS["a"], expected)[1]["h"], further["a"]["h"])


def test_update_learns_with_all_modules_and_names_metrics_by_module(policy):
    store = store_of(policy)
    with pytest.raises(RuntimeError, match="policy_within_training_step"):
        policy.update(0, store)
    before = policy.learner_group.get_weights()
    with policy_within_training_step(policy):
        with pytest.raises(ValueError, match="sample_size=3"):
            policy.update(3, store)
        with pytest.raises(TypeError, match="learn from an EpisodeStore or a MultiAgentReplayBuffer, not from a list"):
            policy.update(0, [])
        stats = policy.update(0, store, 8, 2)
    after = policy.learner_group.get_weights()
    for module_id in ("first", "others"):
        assert any(not np.array_equal(before[module_id][name], leaf) for name, leaf in after[module_id].items())
        assert stats.metrics[f"{module_id}/policy_loss"].count == stats.gradient_steps > 0
    assert policy.last_results["__all_modules__"]["num_env_steps_trained"] == 2 * 16
    assert policy.weights_seq_no == 1


def test_metrics_of_a_module_bear_its_name_and_common_ones_none(policy):
    series = {("new", "policy_loss"): [1.0], ("others", "policy_loss"): [2.0], ("__all_modules__", "total_loss"): [3.0]}
    policy.learner_group.learner.last_series = series
    results = {"others": {"policy_loss": 2.0, "rows": 7}, "__all_modules__": {"num_minibatches": 1, "num_passes": 1}}
    stats = policy.training_stats(results, 0.0)
    means = {"new/policy_loss": 1.0, "others/policy_loss": 2.0, "total_loss": 3.0, "others/rows": 7.0}
    assert stats.get_loss_stats_dict() == means


def drawn(policy):
    with policy_within_training_step(policy):
        return [policy.compute_actions(OBSERVATIONS) for _ in range(20)]


def test_a_saved_multi_agent_policy_continues_its_random_numbers(policy, tmp_path):
    drawn(policy)
    path = policy.save_to_path(tmp_path / "saved")
    others = [Policy.from_checkpoint(path), load_policy(path), copy.deepcopy(policy), game_config().build_policy()]
    others[3].restore_from_path(path)
    further = game_config().debugging(seed=99).build_policy()
    further.set_state(policy.get_state())
    expected = drawn(policy)
    for other in [*others, further]:
        assert drawn(other) == expected
    with pytest.raises(TypeError, match="a Policy is not pickled"):
        pickle.dumps(policy)


def test_a_mapping_without_a_name_is_given_again_when_a_policy_is_loaded(tmp_path):
    config = game_config(multi_agent={"policy_mapping_fn": lambda agent, episode: to_module(agent, episode)})
    path = config.build_policy().save_to_path(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"policy_mapping_fn=None maps every agent to 'default_policy'"):
        Policy.from_checkpoint(path)
    again = Policy.from_checkpoint(path, policy_mapping_fn=to_module)
    assert set(again.compute_actions(OBSERVATIONS)) == set("abc")
