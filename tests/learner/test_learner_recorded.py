"""What episodes recorded when acting is what the loss compares with; only what is missing is computed."""

import threading

import numpy as np
import pytest
import torch
from learner_parts import ALL, MODULE, assert_same, make_episode, parameters, told

from lockstep import APPOConfig, IMPALAConfig, PPOConfig, policy_within_training_step
from lockstep.data.trajectories import trajectories_from_episodes
from lockstep.learner.many.sharding import parts_of_episodes, shards_of


def config(cls=PPOConfig, **training):
    built = cls().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)}).framework(dtype="float64")
    return built.training(minibatch_size=None, **training)


def episode(steps=16, seed=0, **recorded):
    return make_episode(steps, "open", seed, size=4, actions=2, **recorded)


def columns(learner, *pieces):
    learner.rows_in_step = 1
    return learner.prepare_batch(trajectories_from_episodes(pieces), module_id=MODULE)


@pytest.mark.parametrize("cls", [PPOConfig, IMPALAConfig])
def test_loss_compares_with_the_recorded_action_logp(cls):
    recorded = np.linspace(-3.0, -0.1, 16)
    learner = config(cls).build_learner()
    found = columns(learner, episode(action_logp=recorded))["action_logp"]
    np.testing.assert_allclose(found.numpy(), recorded, rtol=1e-12)


def test_a_piece_without_records_is_computed_with_present_parameters():
    learner = config(vf_clip_param=0.5).build_learner()
    recorded = np.linspace(-3.0, -0.1, 16)
    present = columns(learner, episode(seed=1))
    for first, second in ((recorded, None), (None, recorded)):
        pieces = [
            episode(seed=1, **({} if values is None else {"action_logp": values, "vf_preds": 3.0 + values}))
            for values in (first, second)
        ]
        found = columns(learner, *pieces)
        at = slice(0, 16) if second is None else slice(16, 32)
        other = slice(16, 32) if second is None else slice(0, 16)
        for name, values in (("action_logp", recorded), ("vf_preds", 3.0 + recorded)):
            np.testing.assert_allclose(found[name][at].numpy(), values, rtol=1e-12)
            torch.testing.assert_close(found[name][other], present[name])


def test_recorded_distributions_give_log_probabilities_and_penalty():
    learner = config(kl_coeff=0.2).build_learner()
    inputs = np.random.default_rng(5).normal(size=(16, 2))
    piece = episode(action_dist_inputs=inputs)
    found = columns(learner, piece)
    np.testing.assert_allclose(found["action_dist_inputs"].numpy(), inputs)
    expected = torch.log_softmax(torch.as_tensor(inputs), -1)[torch.arange(16), torch.as_tensor(piece.get_actions())]
    torch.testing.assert_close(found["action_logp"], expected)


def test_recorded_values_clip_new_ones_and_advantages_use_new_critics():
    learner = config(vf_clip_param=0.1).build_learner()
    plain, recorded = columns(learner, episode()), columns(learner, episode(vf_preds=np.full(16, 50.0)))
    assert (recorded["vf_preds"] == 50.0).all()
    assert not torch.equal(plain["vf_preds"], recorded["vf_preds"])
    torch.testing.assert_close(plain["advantages"], recorded["advantages"])
    torch.testing.assert_close(plain["value_targets"], recorded["value_targets"])


def test_episodes_of_an_older_policy_report_kl_and_stop_at_target_kl():
    learner = config(lr=1e-9, target_kl=0.05, normalize_advantages=None).build_learner()
    present = columns(learner, episode())["action_logp"]
    results = learner.update_from_episodes([episode()], num_epochs=4)
    assert results[ALL]["num_passes"] == 4
    older = episode(action_logp=(present - np.log(2.0)).numpy())
    results = learner.update_from_episodes([older], num_epochs=4)
    assert results[ALL]["num_passes"] == 1
    assert results[MODULE]["mean_kl_loss"] == pytest.approx(2.0 - 1.0 - np.log(2.0), rel=1e-5)  # k3 at a ratio of 2


def test_episodes_of_an_older_policy_are_clipped():
    learner = config(entropy_coeff=0.0, vf_loss_coeff=0.0, normalize_advantages=None).build_learner()
    columns_of_it = columns(learner, episode())
    ratio = torch.where(columns_of_it["advantages"] > 0, 2.0, 0.5).log()  # every row lies beyond the clip
    older = episode(action_logp=(columns_of_it["action_logp"] - ratio).numpy())
    before = parameters(learner)
    learner.update_from_episodes([older])
    assert_same(before, parameters(learner))


def test_shards_of_several_learners_keep_recorded_columns():
    pieces = [episode(steps, steps, action_logp=np.arange(steps) * 1.0, vf_preds=np.ones(steps)) for steps in (7, 12)]
    whole = parts_of_episodes(pieces, [MODULE]).trajectories[MODULE]
    for shard in shards_of(pieces, 2, {MODULE: False}):
        own = shard.trajectories[MODULE]
        steps = slice(own.place[0], own.place[0] + len(own.rewards))
        np.testing.assert_array_equal(own.action_logp, whole.action_logp[steps])
        np.testing.assert_array_equal(own.recorded["vf_preds"], whole.recorded["vf_preds"][steps])


def rollout(cls=PPOConfig, **training):
    trainer = config(cls, **training).env_runners(num_envs_per_env_runner=2).build_trainer()
    trainer.train_collector.collect(n_step=32)
    return trainer.policy.learner_group, trainer.train_collector.store


@pytest.mark.parametrize("cls", [PPOConfig, APPOConfig])
def test_a_rollout_of_older_weights_without_logp_warns_once(cls):
    group, store = rollout(cls)
    first, second, third = (told(lambda: group.update_from_episodes(store.episodes())) for _ in range(3))
    assert (first, third) == ([], [])
    assert "32 of 32 steps were taken with weights that are up to 1 updates older" in second[0]


def test_recorded_action_logp_is_compared_for_whole_and_partial_rollouts():
    group, store = rollout()
    learner = group.learner
    acted = learner.evaluate(MODULE, store.trajectories()).action_logp.clone()
    store.action_logp = acted.numpy().reshape(store.size, store.num_envs)
    for _ in range(3):
        group.update_from_episodes(store.episodes())
    moved = learner.evaluate(MODULE, store.trajectories())
    torch.testing.assert_close(moved.old_logp, acted)
    assert not torch.allclose(moved.action_logp, acted)
    part = list(store.episodes())[:1]
    again = learner.evaluate(MODULE, trajectories_from_episodes(part))
    torch.testing.assert_close(again.old_logp, acted.reshape(store.size, -1)[: len(part[0]), 0])


class GatedLearner(PPOConfig.learner_class):
    """Waits, before its gradient steps, until it is let through."""

    def setup_module(self, module_id):
        super().setup_module(module_id)
        self.gate = threading.Event()

    def before_gradient_based_update(self, *, timesteps):
        assert self.gate.wait(20)
        super().before_gradient_based_update(timesteps=timesteps)


def test_action_logp_is_recorded_while_an_asynchronous_update_runs():
    trainer = config(learner_class=GatedLearner).env_runners(num_envs_per_env_runner=2).build_trainer()
    policy, collector = trainer.policy, trainer.train_collector
    group, store = policy.learner_group, collector.store
    with group, policy_within_training_step(policy):
        collector.collect(n_step=32)
        assert store.action_logp is None  # nobody learns meanwhile: it is computed at once, before the update
        group.update_from_episodes(store.episodes(), async_update=True)
        store.clear()
        collector.collect(n_step=32)
        trajectories = store.trajectories()
        expected = policy.action_logp(trajectories.flat_obs(), trajectories.flat_actions())
        assert 0 < len(set(trajectories.actions.reshape(-1).tolist())) <= 2
        assert not told(lambda: group.update_from_episodes(store.episodes(), async_update=True))
        group.learner.gate.set()
        assert len(group.drain()) == 2
        after = group.learner.evaluate(MODULE, trajectories)
        np.testing.assert_allclose(after.old_logp.numpy(), expected, rtol=1e-5, atol=1e-6)
        assert not np.allclose(after.action_logp.numpy(), expected, rtol=1e-5, atol=1e-6)
        store.clear()
        collector.collect(n_step=32)
        assert store.action_logp is None


def test_actions_and_their_log_probabilities_are_those_of_acting():
    policy = config().build_policy()
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(64, 4)).astype(np.float32)
    for noise in (None, policy.draw_noise(rng, (64,))):
        actions, logp = policy.act_with_logp(obs, noise)
        np.testing.assert_array_equal(actions, policy.act(obs, noise))
        np.testing.assert_allclose(logp, policy.action_logp(obs, actions), rtol=1e-6)
