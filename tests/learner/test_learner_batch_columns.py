"""What stands in a batch beside the numbers of a loss: text, objects, reversed views, rows that are masked out."""

import numpy as np
import pytest
from algorithm_cases import class_of, where
from gymnasium import spaces
from learner_parts import (
    ALL,
    MODULE,
    assert_near,
    assert_same,
    differs,
    make_episode,
    parameters,
    transitions,
    value_batch,
    value_batches,
    value_learner,
)

from lockstep import (
    BCConfig,
    DQNConfig,
    PPOConfig,
    SACConfig,
    SampleBatch,
    TD3Config,
)

SIX, TWO, BOX = spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32)


def config_of(kind, actions=TWO, **model):
    config = kind().environment(observation_space=SIX, action_space=actions).debugging(seed=1)
    return config.rl_module(model_config={"hiddens": (8,), **model})


@pytest.fixture
def batch():
    """A whole episode's, with columns of text and of objects."""
    notes = {"note": np.array(["left"] * 12), "seen": np.array([None] * 12, object)}
    made = make_episode(12, "terminated", size=6, actions=2, **notes).get_sample_batch()
    assert made["eps_id"].dtype.kind == "U"
    return made


@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize("kind", [BCConfig, DQNConfig])
def test_batch_of_an_episode_trains_and_its_texts_are_ignored(kind, of_torch, batch):
    plain = SampleBatch({k: batch[k] for k in ("obs", "actions", "rewards", "new_obs", "terminateds")})
    learners = [config_of(kind).build_learner() for _ in range(2)]
    for learner, given in zip(learners, (batch.to_torch() if of_torch else batch, plain)):
        learner.update_from_batch(given)
    assert_same(*map(parameters, learners))


def test_batch_of_an_episode_goes_through_the_group_and_the_policy_too(batch):
    config = config_of(BCConfig)
    with config.build_learner_group() as group:
        found = [group.update_from_batch(batch)]
        group.update_from_batch(batch, async_update=True)
        found += group.drain()
    found.append(config.build_policy().learn_on_batch(batch))
    assert [results[MODULE]["num_module_steps_trained"] for results in found] == [12] * 3


def test_batches_of_several_agents_episodes_are_learned_from():
    batch = value_batches("a", "b", rows=6)
    for mid, part in batch.policy_batches.items():
        part["agent_id"], part["module_id"] = np.array([f"agent {mid}"] * 6), np.array([mid] * 6)
    results = value_learner(modules=("a", "b")).update_from_batch(batch)
    assert results["a"]["num_module_steps_trained"] == results["b"]["num_module_steps_trained"] == 6


def test_reversed_views_are_accepted():
    batch, learners = value_batch(10), [value_learner() for _ in range(2)]
    for learner, given in zip(learners, (batch[::-1], SampleBatch({k: v[::-1].copy() for k, v in batch.items()}))):
        learner.update_from_batch(given, minibatch_size=4)
    assert_same(*map(parameters, learners))


def masked_batch(actions, *, bad):
    """16 rows of which every third is masked out, and `bad` or else sound."""
    rng = np.random.default_rng(0)
    batch = transitions(16, size=6, actions=actions)
    batch["action_logp"] = np.full(16, -0.7, np.float32)
    batch["advantages"], batch["value_targets"] = rng.normal(size=(2, 16)).astype(np.float32)
    batch["loss_mask"] = np.arange(16) % 3 != 1
    for name, column in batch.items():
        if bad and column.dtype.kind == "f":
            column[~batch["loss_mask"]] = np.nan
        elif bad and name == "actions":
            column[~batch["loss_mask"]] = 7
    return batch


CONTINUOUS = (SACConfig, TD3Config)
OF_STATES = [class_of(name) for name in where(lambda case: case.has_state_values or case.imitates)]
LOSSES = (*OF_STATES, DQNConfig, *CONTINUOUS)


@pytest.mark.parametrize(
    "kind, memory",
    [*((kind, None) for kind in LOSSES), (PPOConfig, "lstm")],
    ids=lambda each: getattr(each, "algorithm", each),
)
def test_a_masked_out_row_contributes_nothing_whatever_stands_in_it(kind, memory):
    actions = BOX if kind in CONTINUOUS else TWO
    hows = ["sound", "bad"] if memory or kind in CONTINUOUS else ["sound", "bad", "left out"]  # noise goes by rows
    learners = [config_of(kind, actions, recurrent=memory).build_learner() for _ in hows]
    for learner, how in zip(learners, hows):
        before, batch = parameters(learner), masked_batch(actions, bad=how == "bad")
        mask = batch["loss_mask"]
        if how == "left out":
            batch = SampleBatch({name: column[mask] for name, column in batch.items()})
        if memory:
            batch["seq_lens"] = np.array([8, 8], np.int32)
            if how == "sound":  # what a network remembers of a row that is not finite is that of zeros
                batch["obs"][~mask] = 0.0
        for _ in range(2):
            assert learner.update_from_batch(batch)[ALL]["num_bad_gradients"] == 0
        assert differs(before, parameters(learner))
        assert_near(learners[0], learner)


def test_a_batch_of_masked_rows_alone_changes_nothing():
    learner, batch = value_learner(), value_batch(4)
    before = parameters(learner)
    batch["obs"][:] = np.nan
    batch["loss_mask"] = np.zeros(4, bool)
    learner.update_from_batch(batch)
    assert_same(before, parameters(learner))
