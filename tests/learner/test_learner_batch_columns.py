"""What stands in a batch beside the numbers of a loss: text, objects, reversed views, rows that are masked out."""

import numpy as np
import pytest
import torch
from learner_parts import MODULE, value_batch, value_learner

from lockstep import (
    A2CConfig,
    APPOConfig,
    BCConfig,
    DQNConfig,
    IMPALAConfig,
    MARWILConfig,
    PPOConfig,
    SACConfig,
    SampleBatch,
    TD3Config,
)
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.sample_batch import MultiAgentBatch


def episode(steps=12, seed=0, **more):
    rng = np.random.default_rng(seed)
    return SingleAgentEpisode(
        observations=rng.normal(size=(steps + 1, 4)).astype(np.float32),
        actions=rng.integers(2, size=steps),
        rewards=rng.normal(size=steps).astype(np.float32),
        extra_model_outputs={"note": np.array(["left"] * steps), "seen": np.array([None] * steps, object)},
        terminated=True,
        **more,
    )


def weights(learner, module_id=MODULE):
    return torch.cat([p.detach().reshape(-1) for p in learner.module[module_id].parameters()])


@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize("config", [BCConfig, DQNConfig])
def test_batch_of_an_episode_is_learned_from_and_its_texts_are_passed_over(config, of_torch):
    batch = episode().get_sample_batch()
    assert batch["eps_id"].dtype.kind == "U"
    plain = SampleBatch({k: batch[k] for k in ("obs", "actions", "rewards", "new_obs", "terminateds")})
    learners = [config().environment("CartPole-v1").build_learner() for _ in range(2)]
    for learner, given in zip(learners, (batch.to_torch() if of_torch else batch, plain)):
        learner.update_from_batch(given)
    assert torch.equal(*map(weights, learners))


def test_batch_of_an_episode_goes_through_the_group_and_the_policy_too():
    config = BCConfig().environment("CartPole-v1")
    batch = episode().get_sample_batch()
    with config.build_learner_group() as group:
        assert group.update_from_batch(batch)[MODULE]["num_module_steps_trained"] == 12
        group.update_from_batch(batch, async_update=True)
        assert group.drain()[0][MODULE]["num_module_steps_trained"] == 12
    policy = config.build_policy()
    assert policy.learn_on_batch(batch)[MODULE]["num_module_steps_trained"] == 12


def test_batches_of_several_agents_episodes_are_learned_from():
    learner = value_learner(modules=("a", "b"))
    parts = {mid: value_batch(6) for mid in ("a", "b")}
    for mid, part in parts.items():
        part["agent_id"] = np.array([f"agent {mid}"] * 6)
        part["module_id"] = np.array([mid] * 6)
    results = learner.update_from_batch(MultiAgentBatch(parts, 6))
    assert results["a"]["num_module_steps_trained"] == results["b"]["num_module_steps_trained"] == 6


def test_reversed_views_are_taken_as_they_come():
    batch = value_batch(10)
    learners = [value_learner() for _ in range(2)]
    for learner, given in zip(learners, (batch[::-1], SampleBatch({k: v[::-1].copy() for k, v in batch.items()}))):
        learner.update_from_batch(given, minibatch_size=4)
    assert torch.equal(*map(weights, learners))


CONTINUOUS = (SACConfig, TD3Config)
LOSSES = (PPOConfig, A2CConfig, APPOConfig, IMPALAConfig, BCConfig, MARWILConfig, DQNConfig, *CONTINUOUS)


def masked_batch(env, rows=16, *, bad):
    """Rows of which every third is masked out, and `bad` or else sound."""
    rng = np.random.default_rng(0)
    size, continuous = (4, False) if env == "CartPole-v1" else (3, True)
    batch = SampleBatch(
        obs=rng.normal(size=(rows, size)).astype(np.float32),
        new_obs=rng.normal(size=(rows, size)).astype(np.float32),
        actions=rng.uniform(-1, 1, (rows, 1)).astype(np.float32) if continuous else rng.integers(2, size=rows),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminateds=np.arange(rows) % 5 == 0,
        action_logp=np.full(rows, -0.7, np.float32),
        advantages=rng.normal(size=rows).astype(np.float32),
        value_targets=rng.normal(size=rows).astype(np.float32),
        loss_mask=np.arange(rows) % 3 != 1,
    )
    out = ~batch["loss_mask"]
    for name, column in batch.items():
        if bad and column.dtype.kind == "f":
            column[out] = np.nan
        elif bad and name == "actions":
            column[out] = 7
    return batch


@pytest.mark.parametrize("config", LOSSES, ids=lambda config: config.algorithm)
def test_a_masked_out_row_contributes_nothing_whatever_stands_in_it(config):
    env = "Pendulum-v1" if config in CONTINUOUS else "CartPole-v1"
    learners = [config().environment(env).debugging(seed=1).build_learner() for _ in range(2)]
    for learner, bad in zip(learners, (False, True)):
        before = weights(learner)
        for _ in range(2):
            results = learner.update_from_batch(masked_batch(env, bad=bad))
        assert results["__all_modules__"]["num_bad_gradients"] == 0
        assert not torch.equal(before, weights(learner))
    torch.testing.assert_close(*map(weights, learners), rtol=1e-5, atol=1e-6)


def test_a_batch_of_masked_rows_alone_changes_nothing():
    learner = value_learner()
    before = weights(learner)
    batch = value_batch(4)
    batch["obs"][:] = np.nan
    batch["loss_mask"] = np.zeros(4, bool)
    learner.update_from_batch(batch)
    assert torch.equal(before, weights(learner))


def test_masked_rows_within_sequences_contribute_nothing_whatever_stands_in_them():
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"recurrent": "lstm"})
    learners = [config.copy().build_learner() for _ in range(2)]
    for learner, bad in zip(learners, (False, True)):
        batch = masked_batch("CartPole-v1", bad=bad)
        if not bad:  # what a network remembers of a row that is not finite is that of zeros
            batch["obs"][~batch["loss_mask"]] = 0.0
        batch["seq_lens"] = np.array([8, 8], np.int32)
        assert learner.update_from_batch(batch)["__all_modules__"]["num_bad_gradients"] == 0
    torch.testing.assert_close(*map(weights, learners), rtol=1e-5, atol=1e-6)
