"""One update call: the same numbers as a loop by hand, minibatches, schedules, hooks, results."""

import warnings

import numpy as np
import pytest
import torch
from learner_parts import (
    ALL,
    MODULE,
    ValueLearner,
    assert_same,
    differs,
    episodes,
    make_episode,
    parameters,
    ppo_batch,
    ppo_config,
    rollout,
    spec,
    train,
    value_batch,
    value_batches,
    value_learner,
)
from torch import nn

from lockstep import PPOConfig, SampleBatch
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner.config import TrainingSection
from lockstep.modules import MultiRLModule

# -- the loop by hand ---


def by_hand_networks(learner):
    """Two plain networks with the learner's weights."""
    policy = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    value = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    weights = learner.module[MODULE].state_dict()
    with torch.no_grad():
        for network, encoder, head in ((policy, "encoder", "policy_head"), (value, "value_encoder", "value_head")):
            for layer, name in ((network[0], f"{encoder}.mlp.0"), (network[2], head)):
                layer.weight.copy_(weights[f"{name}.weight"])
                layer.bias.copy_(weights[f"{name}.bias"])
    return policy, value


def test_no_timesteps_are_the_time_0():
    learner = ppo_config(lr=[[0, 0.5], [100, 0.0]]).build_learner()
    for timesteps, lr in (({"num_env_steps_sampled_lifetime": 50}, 0.25), (None, 0.5)):
        learner.before_gradient_based_update(timesteps=timesteps)
        learner.after_gradient_based_update(timesteps=timesteps)
        assert next(iter(learner.optimizers)).optimizer.param_groups[0]["lr"] == lr


def test_updates_on_flat_parameters_equal_a_loop_in_plain_torch():
    options = {"lr": 0.01, "grad_clip": 0.3, "adam_epsilon": 1e-5, "entropy_coeff": 0.02}
    learner = ppo_config(**options).build_learner()
    policy, value = by_hand_networks(learner)
    both = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(both, lr=0.01, eps=1e-5)
    clipped = 0
    for seed in range(5):
        batch = ppo_batch(rows=20, seed=seed)
        learner.update_from_batch(batch, num_epochs=2, minibatch_size=6)
        columns = {name: torch.as_tensor(column) for name, column in batch.items()}
        # 20 // 6 = 3 minibatches; the 2 rows left over come first in the second pass
        for rows in np.concatenate([np.arange(20), np.arange(20)])[:36].reshape(6, 6):
            part = {name: column[rows] for name, column in columns.items()}
            dist = torch.distributions.Categorical(logits=policy(part["obs"].double()))
            ratio = (dist.log_prob(part["actions"]) - part["action_logp"]).exp()
            advantages = part["advantages"]
            advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
            surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            error = (value(part["obs"].double()).squeeze(-1) - part["value_targets"]).square()
            loss = -surrogate.mean() + 0.5 * 0.5 * error.mean() - 0.02 * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            clipped += nn.utils.clip_grad_norm_(both, 0.3).item() > 0.3
            optimizer.step()
    assert clipped > 0
    expected = {
        name: tensor
        for network, encoder, head in ((policy, "encoder", "policy_head"), (value, "value_encoder", "value_head"))
        for layer, start in ((network[0], f"{encoder}.mlp.0"), (network[2], head))
        for name, tensor in ((f"{start}.weight", layer.weight), (f"{start}.bias", layer.bias))
    }
    for name, tensor in learner.module[MODULE].state_dict().items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=1e-10, msg=name)


# -- building ---


def test_build_is_idempotent():
    learner = value_learner()
    learner.update_from_batch(value_batch())
    module, optimizer, before = learner.module, learner.get_optimizer(MODULE), parameters(learner)
    assert learner.build() is learner
    assert learner.module is module
    assert learner.get_optimizer(MODULE) is optimizer
    assert_same(parameters(learner), before)


def test_weights_of_a_module_that_is_passed_in_are_kept():
    module = ppo_config().build_learner().module[MODULE]
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    learner = ppo_config().rl_module(rl_module_spec=module).build_learner()
    assert learner.module[MODULE] is module
    assert_same(dict(learner.module[MODULE].state_dict()), before)


def test_only_specs_and_modules_single_or_several_are_accepted():
    section, framework = TrainingSection(), value_learner(build=False).framework
    for given in (spec(), spec().build(seed=0)):
        learner = ValueLearner(config=section, module_spec=given, framework=framework).build()
        assert list(learner.module) == [MODULE]
    several = MultiRLModule({"a": spec().build(seed=1), "b": spec().build(seed=2)})
    learner = ValueLearner(config=section, module_spec=several).build()
    assert learner.module is several
    assert [entry.key for entry in learner.optimizers] == ["a.default_optimizer", "b.default_optimizer"]
    with pytest.raises(TypeError, match=r"a MultiRLModuleSpec or a built module, not Linear; wrap_module\(\)"):
        ValueLearner(config=section, module_spec=nn.Linear(3, 3), framework=framework).build()


@pytest.mark.parametrize(
    "value, dtype",
    [
        (1.5, torch.float32),
        ([1.0, 2.0], torch.float32),
        (np.zeros(2), torch.float32),
        (torch.zeros(2, dtype=torch.float64), torch.float32),
        (3, torch.int64),
        (np.zeros(2, np.int32), torch.int32),
        (True, torch.bool),
        (np.zeros(2, np.uint8), torch.uint8),
    ],
)
def test_a_tensor_variable_is_float32_for_floats_only(value, dtype):
    tensor = value_learner(build=False)._get_tensor_variable(value)
    assert (tensor.dtype, tensor.requires_grad) == (dtype, False)
    np.testing.assert_array_equal(np.asarray(tensor), np.asarray(value))


def test_a_tensor_variable_is_a_copy_and_a_parameter_if_trainable():
    learner, source = value_learner(build=False), torch.zeros(2)
    variable = learner._get_tensor_variable(source, dtype=torch.float64, trainable=True)
    assert isinstance(variable, nn.Parameter)
    assert (variable.dtype, variable.requires_grad) == (torch.float64, True)
    source.fill_(7.0)
    assert variable.tolist() == [0.0, 0.0]


def test_apply_calls_a_function_with_the_learner():
    learner = value_learner()
    assert learner.apply(lambda each, add: each.weights_seq_no + add, 5) == 5


def test_learner_can_continue_after_shutdown():
    learner, other = value_learner(), value_learner()
    learner.update_from_batch(value_batch())
    other.update_from_batch(value_batch())
    learner.shutdown()
    train((learner, other), value_batch(seed=1))
    assert_same(parameters(learner), parameters(other))


# -- minibatches ---


class RowLearner(ValueLearner):
    """Notes which rows each gradient step sees: their number is their first observation."""

    def build(self):
        self.seen = []
        return super().build()

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.seen.append((module_id, batch["obs"][:, 0].int().tolist()))
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def numbered(rows, start=0):
    obs = np.zeros((rows, 3), np.float32)
    obs[:, 0] = np.arange(start, start + rows)
    return SampleBatch(obs=obs, value_targets=np.zeros(rows, np.float32))


def rows_seen(rows, seed=0, **options):
    learner = value_learner(RowLearner, seed=seed)
    results = learner.update_from_batch(numbered(rows), **options)[ALL]
    seen = [rows for _, rows in learner.seen]
    assert results["num_minibatches"] == len(seen)
    return seen, results


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "rows, size, expected", [(12, 4, 3), (13, 4, 3), (15, 4, 3), (4, 4, 1), (3, 4, 1), (7, None, 1)]
)
def test_number_of_minibatches_is_rows_divided_by_size_and_at_least_one(rows, size, expected, shuffle):
    seen, results = rows_seen(rows, minibatch_size=size, num_epochs=2, shuffle_batch_per_epoch=shuffle)
    assert [len(part) for part in seen] == [min(size or rows, rows)] * (2 * expected)
    assert results["num_passes"] == 2


def test_unshuffled_rows_left_over_in_one_pass_come_first_in_the_next():
    seen, _ = rows_seen(5, minibatch_size=2, num_epochs=3)
    assert seen == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4], [0, 1]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_left_out_are_counted_and_warn_once(shuffle):
    learner = value_learner()
    options = {"minibatch_size": 4, "num_epochs": 3, "shuffle_batch_per_epoch": shuffle}
    with pytest.warns(UserWarning, match=r"2 of 10 rows are left out of each pass, .* no minibatch of 4 .* Set minib"):
        results = learner.update_from_batch(numbered(10), **options)
    assert results[ALL]["num_rows_left_out"] == 6
    assert results[MODULE]["num_module_steps_trained"] + 6 == 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learner.update_from_batch(numbered(10), **options)[ALL]["num_rows_left_out"] == 6
        assert learner.update_from_batch(numbered(12), **options)[ALL]["num_rows_left_out"] == 0


@pytest.mark.parametrize("wanted, advised", [(12, False), (10, True)])
def test_a_multiple_is_advised_only_where_train_batch_size_is_none(wanted, advised):
    learner = value_learner()
    learner.config.train_batch_size = wanted
    with pytest.warns(UserWarning, match="2 of 10 rows are left out") as told:
        learner.update_from_batch(numbered(10), minibatch_size=4)
    text = str(told[0].message)
    assert ("train_batch_size to a multiple" in text) == advised
    assert ("10 rows came to this update" in text) != advised


def test_rows_left_out_of_several_modules_are_counted_together():
    learner = value_learner(modules=("a", "b"))
    with pytest.warns(UserWarning, match=r"3 of 18 rows"):
        results = learner.update_from_batch(
            MultiAgentBatch({"a": numbered(12), "b": numbered(6)}, 12), minibatch_size=5
        )
    trained = sum(results[mid]["num_module_steps_trained"] for mid in ("a", "b"))
    assert results[ALL]["num_rows_left_out"] == 18 - trained


def test_shuffled_passes_have_their_own_permutation_from_the_first_on():
    seen, _ = rows_seen(8, minibatch_size=4, num_epochs=2, shuffle_batch_per_epoch=True)
    first, second = seen[0] + seen[1], seen[2] + seen[3]
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != list(range(8))
    assert first != second


def test_shuffling_depends_on_the_seed_only():
    options = {"minibatch_size": 4, "num_epochs": 2, "shuffle_batch_per_epoch": True}
    assert rows_seen(16, seed=1, **options)[0] == rows_seen(16, seed=1, **options)[0]
    assert rows_seen(16, seed=1, **options)[0] != rows_seen(16, seed=2, **options)[0]


def test_shuffling_is_ignored_without_a_minibatch_size():
    seen, _ = rows_seen(6, minibatch_size=None, num_epochs=2, shuffle_batch_per_epoch=True)
    assert seen == [list(range(6))] * 2


def test_minibatches_of_two_modules_hold_their_proportion_of_rows():
    learner = value_learner(RowLearner, modules=("big", "small"))
    batch = MultiAgentBatch({"big": numbered(8), "small": numbered(4, start=100)}, 8)
    results = learner.update_from_batch(batch, minibatch_size=4)
    assert learner.seen == [
        ("big", [0, 1, 2, 3]), ("small", [100, 101]), ("big", [4, 5, 6, 7]), ("small", [102, 103]),
    ]  # fmt: skip
    assert results["big"]["num_module_steps_trained"] == 8
    assert results["small"]["num_module_steps_trained"] == 4
    assert results["small"]["module_train_batch_size_mean"] == 2
    assert results[ALL]["num_env_steps_trained"] == 8


# -- batches ---


def test_numpy_and_torch_batches_give_the_same_parameters():
    learners = [value_learner() for _ in range(2)]
    learners[0].update_from_batch(value_batch(), minibatch_size=4, num_epochs=3)
    learners[1].update_from_batch(value_batch().to_torch(), minibatch_size=4, num_epochs=3)
    assert_same(*(parameters(learner) for learner in learners))


def test_batch_is_not_changed_by_an_update():
    batch = value_batch()
    before = batch.copy()
    value_learner().update_from_batch(batch, minibatch_size=4, shuffle_batch_per_epoch=True)
    for name, column in before.items():
        np.testing.assert_array_equal(batch[name], column)


def test_module_without_rows_contributes_nothing():
    learner = value_learner(modules=("a", "b"))
    before = parameters(learner)
    results = learner.update_from_batch(MultiAgentBatch({"a": value_batch(), "b": value_batch(0)}, 10))
    changed = differs(before, parameters(learner))
    assert changed
    assert all(".a." in name for name in changed)
    assert "num_module_steps_trained" not in results.get("b", {})


# -- who learns, and when ---


@pytest.mark.parametrize("allowed", [["b"], {"b"}, lambda module_id, batch: module_id == "b"])
def test_policies_to_train_leaves_other_modules_untouched(allowed):
    learner = value_learner(modules=("a", "b"), policies_to_train=allowed)
    before = parameters(learner)
    learner.update_from_batch(value_batches("a", "b"))
    changed = differs(before, parameters(learner))
    assert changed
    assert all(".b." in name for name in changed)
    assert (learner.should_module_be_updated("a"), learner.should_module_be_updated("b")) == (False, True)


class HookLearner(ValueLearner):
    """Notes the calls of the two hooks."""

    def build(self):
        self.calls = []
        return super().build()

    def before_gradient_based_update(self, *, timesteps):
        super().before_gradient_based_update(timesteps=timesteps)
        self.calls.append(("before", dict(timesteps)))

    def compute_losses(self, *, fwd_out, batch):
        self.calls.append("loss")
        return super().compute_losses(fwd_out=fwd_out, batch=batch)

    def after_gradient_based_update(self, *, timesteps):
        super().after_gradient_based_update(timesteps=timesteps)
        self.calls.append(("after", dict(timesteps)))


def test_hooks_are_called_once_around_the_gradient_steps_of_an_update():
    learner, now = value_learner(HookLearner), {"num_env_steps_sampled_lifetime": 7}
    learner.update_from_batch(value_batch(8), minibatch_size=4, num_epochs=2, timesteps=now)
    assert learner.calls == [("before", now), "loss", "loss", "loss", "loss", ("after", now)]


def test_skipped_update_is_counted_and_calls_no_hook():
    learner = value_learner(HookLearner, policies_to_train=[])
    before = parameters(learner)
    for number in (1, 2):
        results = learner.update_from_batch(value_batch())
        assert results[ALL]["num_updates_skipped"] == 1
        assert results[ALL]["num_minibatches"] == 0
        assert learner.lifetime["num_updates_skipped"] == number
    assert learner.calls == []
    assert learner.weights_seq_no == 0
    assert_same(parameters(learner), before)


def test_schedule_value_at_t_is_used_for_the_update_at_t():
    scheduled = value_learner(lr=[[0, 0.125], [128, 0.0]])
    constant = value_learner(lr=0.0625)
    scheduled.update_from_batch(value_batch(), timesteps={"num_env_steps_sampled_lifetime": 64})
    constant.update_from_batch(value_batch())
    assert_same(parameters(scheduled), parameters(constant))


# -- results ---


def test_counts_add_up_over_updates_and_passes():
    learner = ppo_config().build_learner()
    for number in (1, 2, 3):
        results = learner.update_from_batch(ppo_batch(20), minibatch_size=8, num_epochs=2)
        assert results[MODULE]["num_module_steps_trained"] == 32  # 2 passes of 2 minibatches of 8
        assert results[MODULE]["num_module_steps_trained_lifetime"] == 32 * number
        assert results[ALL]["num_env_steps_trained"] == 40
        assert results[ALL]["num_env_steps_trained_lifetime"] == 40 * number
        assert results[ALL]["num_minibatches"] == 4
        assert results[MODULE]["weights_seq_no"] == number
    assert results[MODULE]["module_train_batch_size_mean"] == 8
    sizes = [param.numel() for param in learner.module.parameters()]
    assert results[MODULE]["num_trainable_parameters"] == sum(sizes) == 2 * (3 * 4 + 4) + (4 * 3 + 3) + (4 + 1)


def test_losses_are_means_over_minibatches_and_series_have_each_value():
    learner = value_learner(lr=1e-9)
    batch = value_batch(9)
    results = learner.update_from_batch(batch, minibatch_size=4)
    with torch.no_grad():
        values = learner.module[MODULE].compute_values({"obs": torch.from_numpy(batch["obs"]).double()})
    errors = (values - torch.from_numpy(batch["value_targets"])).square()
    expected = [float(errors[:4].mean()), float(errors[4:8].mean())]
    assert learner.last_series[MODULE, "total_loss"] == pytest.approx(expected, abs=1e-6)
    assert results[MODULE]["total_loss"] == pytest.approx(sum(expected) / 2, abs=1e-6)


class LoggingLearner(ValueLearner):
    """Logs its minibatch's first observation."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.log(module_id, first=batch["obs"][0, 0])
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def test_own_metrics_appear_in_the_results():
    learner = value_learner(LoggingLearner)
    results = learner.update_from_batch(numbered(12), minibatch_size=4)
    assert results[MODULE]["first"] == pytest.approx((0 + 4 + 8) / 3)
    assert learner.last_series[MODULE, "first"] == [0, 4, 8]


def test_reported_gradient_norm_is_that_before_clipping():
    free, clipped = value_learner(), value_learner(grad_clip=1e-3)
    results = [learner.update_from_batch(value_batch())[MODULE] for learner in (free, clipped)]
    norms = [result["gradients_default_optimizer_global_norm"] for result in results]
    assert norms[0] == norms[1] > 1e-3


def test_means_of_a_module_are_weighted_by_its_own_rows():
    learner = value_learner(LoggingLearner, modules=("big", "small"))
    batch = MultiAgentBatch({"big": numbered(8), "small": numbered(3)}, 8)
    results = learner.update_from_batch(batch, minibatch_size=4)  # rows of the small module: 0, then 1 and 2
    assert results["small"]["module_train_batch_size_mean"] == 1.5
    assert results["small"]["first"] == pytest.approx((1 * 0 + 2 * 1) / 3)


def test_explained_variance_is_reported_for_batches_and_episodes():
    learner = ppo_config(minibatch_size=None).build_learner()
    batch = ppo_batch(12)
    batch["loss_mask"] = np.arange(12) % 3 != 1
    with torch.no_grad():
        values = learner.module[MODULE].compute_values({"obs": torch.as_tensor(batch["obs"]).double()}).numpy()
    real = batch["loss_mask"]
    expected = 1.0 - np.var((batch["value_targets"] - values)[real]) / np.var(batch["value_targets"][real])
    results = learner.update_from_batch(batch, num_epochs=2)
    assert results[MODULE]["vf_explained_var"] == pytest.approx(expected, rel=1e-6)
    results = learner.update_from_batch(ppo_batch(12), minibatch_size=4, num_epochs=2)
    assert np.isfinite(results[MODULE]["vf_explained_var"])


def test_results_have_every_name_of_the_contract():
    learner = ppo_config().build_learner()
    results = learner.update_from_episodes(episodes((9, 7, 8)), minibatch_size=8, num_epochs=2)
    assert {
        "total_loss", "policy_loss", "vf_loss", "vf_explained_var", "entropy", "mean_kl_loss", "clip_fraction",
        "gradients_default_optimizer_global_norm", "default_optimizer_learning_rate", "num_module_steps_trained",
        "num_module_steps_trained_lifetime", "module_train_batch_size_mean", "weights_seq_no",
        "diff_num_grad_updates_vs_sampler_policy", "num_trainable_parameters",
    } <= results[MODULE].keys()  # fmt: skip
    assert {
        "num_env_steps_trained", "num_env_steps_trained_lifetime", "num_minibatches", "num_updates_skipped",
        "seconds_pipeline", "seconds_forward_backward", "seconds_reduction", "seconds_step",
    } <= results[ALL].keys()  # fmt: skip
    assert {type(value) for part in results.values() for value in part.values()} <= {int, float}


def test_seconds_of_the_stages_add_up_to_those_of_the_gradient_steps():
    learner = ppo_config().build_learner()
    results = learner.update_from_batch(ppo_batch(200), minibatch_size=8, num_epochs=2)[ALL]
    stages = [results[f"seconds_{name}"] for name in ("forward_backward", "reduction", "step")]
    assert min(stages) > 0
    assert 0.5 * results["seconds_gradient_steps"] < sum(stages) < results["seconds_gradient_steps"]
    again = learner.update_from_batch(ppo_batch(8))[ALL]
    assert again["seconds_step"] < results["seconds_step"]  # each update's own, not the sum


def test_results_say_how_old_the_weights_were_that_acted():
    learner = value_learner()
    for lag in (0, 1, 2):
        batch = value_batch()
        batch["weights_seq_no"] = np.zeros(len(batch), np.int64)
        assert learner.update_from_batch(batch)[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == lag
    batch["weights_seq_no"] = np.array([3, 2] * 5)
    assert learner.update_from_batch(batch)[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == 0.5
    assert learner.update_from_batch(value_batch())[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == 0


def test_lag_is_read_from_a_rollout_store_and_from_episodes():
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (4,)})
    policy, collector = rollout(config.env_runners(num_envs_per_env_runner=2), 8)
    collector.close()
    learner = policy.learner_group.learner
    for lag in (0, 1):
        results = learner.update_from_episodes(collector.buffer.episodes())
        assert results[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == lag
    results = learner.update_from_episodes([make_episode(3, size=4, actions=2, weights_seq_no=np.array([1, 1, 1]))])
    assert results[MODULE]["diff_num_grad_updates_vs_sampler_policy"] == 1


class CountingLearner(ValueLearner):
    """Logs one value in each way, from the loss and around the update."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        rows = batch["obs"][:, 0]
        self.metrics.log_value((module_id, "rows"), float(len(rows)), reduce="lifetime_sum")
        self.metrics.log_value((module_id, "first"), rows, reduce="percentiles")
        self.metrics.log_value((module_id, "largest"), rows.max(), reduce="max")
        self.metrics.log_value((module_id, "mean", "row"), rows.mean())
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    def after_gradient_based_update(self, *, timesteps):
        super().after_gradient_based_update(timesteps=timesteps)
        self.metrics.log_value(("updates", "made"), 1, reduce="lifetime_sum")


def test_metrics_of_every_reduction_are_in_the_results_and_in_the_state():
    learner = value_learner(CountingLearner)
    for number in (1, 2):
        results = learner.update_from_batch(numbered(12), minibatch_size=4)
        found = results[MODULE]
        assert (found["rows"], found["largest"], found["mean/row"]) == (12 * number, 11, 5.5)
        assert (found["first/p0"], found["first/p50"], found["first/p100"]) == (0, 5.5, 11)
        assert results[ALL]["updates/made"] == number
        assert learner.last_series[MODULE, "largest"] == [11]
        assert learner.last_series[MODULE, "mean/row"] == [1.5, 5.5, 9.5]
    again = value_learner(CountingLearner)
    again.set_state(learner.get_state())
    assert again.update_from_batch(numbered(12), minibatch_size=4)[MODULE]["rows"] == 36
