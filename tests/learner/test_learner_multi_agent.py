"""Several modules in one update: whose steps go where, what is counted, and that modules do not disturb each other."""

import numpy as np
import pytest
from learner_parts import ALL, BOX, THREE, assert_same, differs, make_episode, make_multi_agent_episode, parameters
from parts import one_in

from lockstep import A2CConfig, APPOConfig, IMPALAConfig, PPOConfig
from lockstep.connectors import ModuleConnectors, NormalizeObs, ObsPipeline
from lockstep.learner.config import FrameworkSection
from lockstep.modules import DefaultActorCriticModule, MultiRLModuleSpec, RecurrentActorCriticModule, RLModuleSpec
from lockstep.state.streams import RandomStreams

SEEDS = {"a": 1, "b": 2, "c": 3}


def learner_of(ids, config=PPOConfig, *, recurrent=(), connectors=None, module_configs=None, who=None, **training):
    """A learner of small modules whose weights depend on their ids only."""
    training = {"train_batch_size": 64, "gamma": 0.9, **training}
    section = config().training(**training).sections["training"]
    specs = {}
    for mid in ids:
        cls, memory = (RecurrentActorCriticModule, "gru") if mid in recurrent else (DefaultActorCriticModule, None)
        model = {"hiddens": (4,), "recurrent": memory, "recurrent_size": 3, "max_seq_len": 3}
        specs[mid] = RLModuleSpec(cls, BOX, THREE, model_config=model)
    return config.learner_class(
        config=section,
        module_spec=MultiRLModuleSpec(specs).build(seeds=SEEDS),
        framework=FrameworkSection(dtype="float64"),
        connectors=connectors,
        module_configs=module_configs,
        policies_to_train=who,
        streams=RandomStreams(0),
    ).build()


def both(seed=0, length=7, agents=("x", "y")):
    """An episode in which all agents act in every step; agent x is module a's, all others are module b's."""
    return make_multi_agent_episode(length, {agent: "a" if agent == "x" else "b" for agent in agents}, seed)


def of_module(learner, module_id):
    return {
        name.removeprefix(f"rl_modules.{module_id}."): value
        for name, value in parameters(learner).items()
        if name.startswith(f"rl_modules.{module_id}.")
    }


def pieces_of(episodes, agents):
    return [piece for episode in episodes for agent, piece in episode.agent_episodes.items() if agent in agents]


@pytest.mark.parametrize("minibatch_size", [None, 4])
@pytest.mark.parametrize("config", one_in(3, [PPOConfig, A2CConfig, IMPALAConfig, APPOConfig]))
@pytest.mark.parametrize("recurrent", [(), ("a", "b")], ids=["feed-forward", "with memory"])
def test_modules_updated_together_equal_modules_updated_alone(minibatch_size, config, recurrent):
    """Nothing is shared, so the parameters are the same; minibatches in order, so that both runs have the same rows."""
    episodes = [both(seed, length) for seed, length in enumerate((7, 3, 9, 5))]
    options = {"num_epochs": 3, "minibatch_size": minibatch_size}
    together = learner_of(["a", "b"], config, recurrent=recurrent)
    before = parameters(together)
    together.update_from_episodes(episodes, **options)
    for module_id, agents in (("a", "x"), ("b", "y")):
        alone = learner_of([module_id], config, recurrent=recurrent)
        assert_same({name: value for name, value in before.items() if f".{module_id}." in name}, parameters(alone))
        alone.update_from_episodes(pieces_of(episodes, agents), **options)
        assert_same(of_module(alone, module_id), of_module(together, module_id))
        assert [name for name in differs(before, parameters(together)) if f".{module_id}." in name]


def test_a_module_with_memory_and_one_without_learn_in_the_same_update():
    episodes = [both(seed) for seed in range(3)]
    together = learner_of(["a", "b"], recurrent=("b",))
    results = together.update_from_episodes(episodes, num_epochs=2, minibatch_size=4, shuffle_batch_per_epoch=True)
    assert results[ALL]["num_minibatches"] == 2 * (21 // 4)  # rows of a; b has nine sequences of three or one
    whole = learner_of(["a", "b"], recurrent=("b",))
    whole.update_from_episodes(episodes)
    for module_id, agents in (("a", "x"), ("b", "y")):
        alone = learner_of([module_id], recurrent=("b",))
        alone.update_from_episodes(pieces_of(episodes, agents))
        assert_same(of_module(alone, module_id), of_module(whole, module_id))


def test_environment_steps_count_once_and_module_steps_each():
    learner = learner_of(["a", "b"])
    results = learner.update_from_episodes([both(0, 7, agents=("x", "y", "z")), both(1, 5)], num_epochs=2)
    assert results[ALL]["num_env_steps_trained"] == 24
    assert results["a"]["num_module_steps_trained"] == 24
    assert results["b"]["num_module_steps_trained"] == 38
    assert results[ALL]["num_env_steps_trained_lifetime"] == 24


def test_each_module_is_prepared_with_its_own_options():
    gammas = {"a": 0.0, "b": 0.99}
    configs = {mid: PPOConfig().training(gamma=gamma, lr=1e-2).sections["training"] for mid, gamma in gammas.items()}
    learner = learner_of(["a", "b"], module_configs=configs)
    seen = {}
    original = learner.prepare_batch

    def recording(trajectories, *, module_id):
        seen[module_id] = original(trajectories, module_id=module_id)
        return seen[module_id]

    learner.prepare_batch = recording
    episode = both()
    results = learner.update_from_episodes([episode])
    rewards = np.asarray(episode.agent_episodes["x"].get_rewards())
    np.testing.assert_allclose(seen["a"]["value_targets"].numpy(), rewards, atol=1e-6)
    assert np.abs(seen["b"]["value_targets"].numpy() - episode.agent_episodes["y"].get_rewards()).max() > 0.1
    assert results["a"]["default_optimizer_learning_rate"] == 1e-2


def test_statistics_of_a_module_move_with_its_own_observations_only():
    connectors = {mid: ModuleConnectors(obs=ObsPipeline([NormalizeObs()], BOX)) for mid in "ab"}
    learner = learner_of(["a", "b"], connectors=connectors)
    episode = both()
    learner.update_from_episodes([episode])
    for module_id, agent in (("a", "x"), ("b", "y")):
        raw = np.asarray(episode.agent_episodes[agent].get_observations())[:-1]
        once = learner.connectors[module_id].obs(raw)
        np.testing.assert_allclose(once, (raw - raw.mean(0)) / raw.std(0), atol=1e-4)


def test_single_agent_episodes_go_to_the_module_they_name():
    learner = learner_of(["a", "b"])
    before = parameters(learner)
    results = learner.update_from_episodes([make_episode(4, module_id="b"), both(0, 3), make_episode(2, module_id="b")])
    assert results[ALL]["num_env_steps_trained"] == 9
    assert [results[mid]["num_module_steps_trained"] for mid in "ab"] == [3, 9]
    assert differs(before, parameters(learner))


def test_callers_multi_agent_episodes_are_not_changed():
    episode, again = both(), both()
    learner_of(["a", "b"]).update_from_episodes([episode], minibatch_size=2, shuffle_batch_per_epoch=True)
    for agent, piece in episode.agent_episodes.items():
        other = again.agent_episodes[agent]
        np.testing.assert_array_equal(piece.get_observations(), other.get_observations())
        np.testing.assert_array_equal(piece.get_actions(), other.get_actions())
        np.testing.assert_array_equal(piece.get_rewards(), other.get_rewards())
