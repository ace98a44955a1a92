"""`AlgorithmConfig.multi_agent`: which modules there are, in which spaces, who learns, and what is refused."""

import json

import numpy as np
import pytest
from algorithm_tools import BOX, TWO, of_two_modules, to_a_or_b
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from lockstep import A2CConfig, APPOConfig, IMPALAConfig, PPOConfig
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.modules import (
    DefaultActorCriticModule,
    ModelConfig,
    RecurrentActorCriticModule,
    RLModuleSpec,
)

LARGE, MOVE = spaces.Box(-1.0, 1.0, (5,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_policies_are_modules_of_their_own():
    learner = of_two_modules().build_learner()
    assert list(learner.module) == ["a", "b"]
    assert learner.connectors["a"] is not learner.connectors["b"]
    first, second = (learner.module[mid].policy_head.weight.detach().numpy() for mid in "ab")
    assert not np.array_equal(first, second)
    again = of_two_modules().build_learner().module["a"].policy_head.weight.detach().numpy()
    np.testing.assert_array_equal(first, again)


def test_policies_may_bring_specs_and_spaces_of_their_own():
    policies = {
        "a": RLModuleSpec(observation_space=LARGE, action_space=MOVE, model_config=ModelConfig(hiddens=(7,))),
        "b": {"model_config": {"recurrent": "gru", "recurrent_size": 3}},
        "c": None,
    }
    learner = of_two_modules(policies=policies).build_learner()
    a, b, c = (learner.module[mid] for mid in "abc")
    assert (a.observation_space, a.action_space, a.model_config.hiddens) == (LARGE, MOVE, (7,))
    assert learner.connectors["a"].actions is not None
    assert isinstance(b, RecurrentActorCriticModule)
    assert (b.observation_space, b.action_space) == (BOX, TWO)
    assert type(c) is DefaultActorCriticModule
    assert c.model_config.hiddens == (4,)


def test_no_environment_is_needed_where_all_policies_bring_their_spaces():
    own = RLModuleSpec(observation_space=BOX, action_space=TWO)
    made = PPOConfig().multi_agent(policies={"a": own}, policy_mapping_fn=to_a_or_b)
    assert list(made.build_learner().module) == ["a"]


def test_spaces_may_be_given_by_module():
    made = of_two_modules().environment(observation_space={"a": BOX, "b": LARGE}, action_space={"a": TWO, "b": MOVE})
    learner = made.build_learner()
    assert [learner.module[mid].observation_space for mid in "ab"] == [BOX, LARGE]
    with pytest.raises(KeyError, match=r"no observation space for module 'c'; there are some for \['a', 'b'\]"):
        made.multi_agent(policies=["a", "c"]).build_learner()


class Game:
    """The part of a PettingZoo environment that says which agents there are."""

    possible_agents = ("x1", "x2", "y1")
    closed = 0

    def __init__(self, odd=False):
        self.odd = odd

    def observation_space(self, agent):
        return LARGE if agent == "y1" or (self.odd and agent == "x2") else BOX

    def action_space(self, agent):
        return MOVE if agent == "y1" else TWO

    def reset(self, seed=None, options=None):
        raise RuntimeError("nobody plays it")

    step = last = reset

    def close(self):
        Game.closed += 1


def test_pettingzoo_spaces_are_those_of_the_agents_of_each_module():
    made = PPOConfig().environment(Game).multi_agent(policies=["a", "b"], policy_mapping_fn=to_a_or_b)
    before = Game.closed
    learner = made.build_learner()
    assert Game.closed == before + 1
    assert [learner.module[mid].observation_space for mid in "ab"] == [BOX, LARGE]
    assert [learner.module[mid].action_space for mid in "ab"] == [TWO, MOVE]
    with pytest.raises(ValueError, match=r"agent 'x2' of module 'a' has the spaces .*map them to different modules"):
        made.environment(Game, env_config={"odd": True}).build_learner()


def wolves_and_sheep(names):
    """Return the class of a game of agents with these names, of which those with an "s" see and do other things."""
    return type("Herd", (Game,), {
        "possible_agents": names,
        "observation_space": lambda self, agent: LARGE if "s" in str(agent) else BOX,
        "action_space": lambda self, agent: MOVE if "s" in str(agent) else TWO,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("names", "policies"),
    [
        (("wolf_0", "wolf_1"), {"wolf_0": "default_policy", "wolf_1": "default_policy"}),
        (("wolf_0", "wolf_1", "sheep_0"), {"wolf_0": "wolf", "wolf_1": "wolf", "sheep_0": "sheep"}),
        (("wolf", "dog", "sheep"), {"wolf": "wolf", "dog": "wolf", "sheep": "sheep"}),  # nothing in common: the first
        (("p1", "ps2", "p3"), {"p1": "p", "ps2": "ps", "p3": "p"}),
        (("p1", "p_s", "p3"), {"p1": "p", "p_s": "p_s", "p3": "p"}),
        ((0, 1), {0: "default_policy", 1: "default_policy"}),
    ],
)
def test_agents_with_equal_spaces_share_a_policy_where_none_are_named(names, policies):
    config = PPOConfig().environment(wolves_and_sheep(names))
    made = config.with_agents()
    assert config.multi_agent.policies is None  # it stays as it is
    assert made.multi_agent.policies == list(dict.fromkeys(policies.values()))
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=made.multi_agent.policy_mapping_fn)
    assert {agent: episode.module_for(agent) for agent in names} == policies
    again = PPOConfig().update_from_dict(json.loads(json.dumps({"multi_agent": made.named_options()["multi_agent"]})))
    assert {agent: again.multi_agent.policy_mapping_fn(agent) for agent in names} == policies
    assert made.with_agents() is made
    assert list(config.build_policy().acting) == made.multi_agent.policies


def test_an_environment_of_one_agent_and_named_policies_stay_as_they_are():
    for config in (PPOConfig().environment("CartPole-v1"), PPOConfig().environment(CartPoleEnv), of_two_modules()):
        assert config.with_agents() is config


def test_a_mapping_dict_refuses_an_agent_that_it_does_not_name():
    made = PPOConfig().environment(Game).multi_agent(policies=["a", "b"], policy_mapping_fn={"x1": "a", "y1": "b"})
    with pytest.raises(KeyError, match=r"agent 'x2' has no policy: .*policy_mapping_fn names \['x1', 'y1'\]"):
        made.build_learner()
    made.multi_agent(policy_mapping_fn={"x1": "a", "x2": "c", "y1": "b"})
    with pytest.raises(ValueError, match=r"policy_mapping_fn={.*} names others than multi_agent.policies=\['a', 'b'\]"):
        made.build_learner()
    made.multi_agent(policy_mapping_fn={"x1": "a", "x2": "a", "y1": "b"}).freeze()
    assert made.copy().build_learner().module["b"].observation_space == LARGE


@pytest.mark.parametrize("algorithm", [PPOConfig, A2CConfig, IMPALAConfig, APPOConfig])
def test_configured_group_learns_from_multi_agent_episodes(algorithm):
    made = of_two_modules(algorithm, policies_to_train=["b"]).rl_module(
        algorithm_config_overrides_per_module={"b": {"lr": 0.5}}
    )
    group = made.build_learner_group()
    rng = np.random.default_rng(0)
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=made.policy_mapping_fn)
    agents = ("x1", "x2", "y1")
    episode.add_env_reset({agent: rng.normal(size=3).astype(np.float32) for agent in agents})
    for _ in range(5):
        episode.add_env_step(
            {agent: rng.normal(size=3).astype(np.float32) for agent in agents},
            {agent: int(rng.integers(2)) for agent in agents},
            dict.fromkeys(agents, 1.0),
        )
    before = group.get_weights()
    results = group.update_from_episodes([episode], return_state=True)
    assert results["__all_modules__"]["num_env_steps_trained"] == 5
    assert results["b"]["num_module_steps_trained"] == 5
    assert results["b"]["default_optimizer_learning_rate"] == 0.5
    after = group.get_weights()
    assert all(np.array_equal(before["a"][name], after["a"][name]) for name in before["a"])
    assert any(not np.array_equal(before["b"][name], after["b"][name]) for name in before["b"])


def test_one_spec_serves_all_policies_that_have_none():
    made = of_two_modules().rl_module(rl_module_spec=RLModuleSpec(model_config=ModelConfig(hiddens=(9,))))
    assert {module.model_config.hiddens for module in made.build_learner().module.values()} == {(9,)}


def test_a_config_with_policies_is_multi_agent_even_with_one_module():
    assert of_two_modules().is_multi_agent
    assert of_two_modules(policies=["default_policy"], policy_mapping_fn=None).is_multi_agent
    assert not PPOConfig().is_multi_agent


def test_multi_agent_options_travel_through_copies_and_json():
    policies = {"a": RLModuleSpec(observation_space=LARGE, model_config=ModelConfig(hiddens=(7,))), "b": None}
    made = of_two_modules(policies=policies, policies_to_train=["b"], count_steps_by="agent_steps")
    restored = PPOConfig().update_from_dict(json.loads(made.to_json()))
    assert restored == made == made.copy()
    assert restored.policy_mapping_fn is to_a_or_b
    assert restored.policies["a"].model_config.hiddens == (7,)
    assert of_two_modules(policies={"b", "a"}).policies == ["a", "b"]
