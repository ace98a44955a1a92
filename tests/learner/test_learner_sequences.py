"""Learning in sequences: what the learner makes of rollouts and batches for modules with memory."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_parts import ALL, MODULE, assert_same, differs, make_episode, own_copy, parameters, ppo_batch, rollout
from parts import fast_if

from lockstep import A2CConfig, APPOConfig, IMPALAConfig, PPOConfig, SampleBatch
from lockstep.data.trajectories import trajectories_from_episodes

ATTENTION = {"size": 4, "num_heads": 2, "memory": 8, "hidden_size": 4, "gate_bias": 0.0}
"""sees further back than the sequences reach"""


def recurrent_config(kind="lstm", config=None, env="CartPole-v1", max_seq_len=5, num_envs=3, **training):
    training = {"train_batch_size": 120, "gamma": 0.9, **training}
    memory = {"attention": ATTENTION} if kind == "attention" else {"recurrent": kind, "recurrent_size": 4}
    return (
        (config or PPOConfig())
        .environment(env)
        .env_runners(num_envs_per_env_runner=num_envs)
        .framework(dtype="float64")
        .rl_module(
            model_config={"hiddens": (4,), **memory, "max_seq_len": max_seq_len, "policy_gain": 1.0}
        )
        .training(**training)
    )  # fmt: skip


def stepwise(module, obs, state=None):
    """Outputs `[T, D]`, values `[T]` and the states before each row, one step after the other."""
    state = {k: v[None] for k, v in (module.get_initial_state() if state is None else state).items()}
    inputs, values, states = [], [], []
    with torch.no_grad():
        for row in torch.as_tensor(np.asarray(obs)).to(torch.float64):
            states.append({name: leaf[0] for name, leaf in state.items()})
            out = module.forward_train({"obs": row[None, None], "state_in": state})
            inputs.append(out["action_dist_inputs"][0, 0])
            values.append(out["vf_preds"][0, 0])
            state = out["state_out"]
    return torch.stack(inputs), torch.stack(values), states


KINDS = ("lstm", "gru", "attention")


def expected_rows(policy, store):
    """By (environment, step): value, log-probability and state before the row, step by step along each episode."""
    module, found = policy.module, {}
    for episode in store.episodes():
        start = episode.custom_data.get("state_in")
        start = None if start is None else {name: torch.as_tensor(leaf) for name, leaf in start["state"].items()}
        inputs, values, states = stepwise(module, episode.get_observations(), start)
        actions = torch.as_tensor(np.asarray(episode.get_actions()))
        logp = module.action_dist_cls.from_inputs(inputs[:-1]).log_prob(actions)
        found[episode.id_] = (episode, values, logp, states)
    return found


def gae_of(rewards, values, terminated, gamma, lambda_):
    """Written out for one episode; `values` has one more."""
    values = values.clone()
    values[-1] = 0.0 if terminated else values[-1]
    advantages, following = [], 0.0
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * values[t + 1] - values[t] + gamma * lambda_ * following
        advantages.append(following)
    return torch.stack(advantages[::-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collects", fast_if((2).__eq__, [1, 2]))
def test_columns_of_a_rollout_are_those_of_step_by_step_evaluation(kind, collects):
    config = recurrent_config(kind, gamma=0.9, lambda_=0.7, max_seq_len=6)
    policy, collector = rollout(config, 40, collects)
    learner, store = policy.learner_group.learner, collector.buffer
    episodes = expected_rows(policy, store)
    assert len(episodes) > 5
    if collects > 1:
        assert any(any(leaf.any() for leaf in states[0].values()) for _, _, _, states in episodes.values())
    batch = learner.prepare_batch(store.trajectories(), module_id=MODULE)
    lengths = batch["seq_lens"]
    assert int(lengths.max()) == 6
    assert int(batch["loss_mask"].sum()) == len(store) == 120
    pieces = [
        (episode, values, logp, states, start)
        for episode, values, logp, states in sorted(episodes.values(), key=lambda item: first_row(store, item[0]))
        for start in range(0, len(episode), 6)
    ]
    assert len(pieces) == len(lengths)
    for row, (episode, values, logp, states, start) in enumerate(pieces):
        stop = min(start + 6, len(episode))
        size = stop - start
        assert int(lengths[row]) == size
        for name, leaf in states[start].items():
            torch.testing.assert_close(batch["state_in"][name][row], leaf, rtol=0, atol=1e-6)
        torch.testing.assert_close(batch["action_logp"][row, :size], logp[start:stop], rtol=0, atol=1e-6)
        rewards = torch.as_tensor(np.asarray(episode.get_rewards()), dtype=torch.float64)
        advantages = gae_of(rewards, values, episode.is_terminated, 0.9, 0.7)
        torch.testing.assert_close(batch["advantages"][row, :size], advantages[start:stop], rtol=0, atol=1e-6)
        targets = advantages + values[:-1]
        torch.testing.assert_close(batch["value_targets"][row, :size], targets[start:stop], rtol=0, atol=1e-6)
        assert np.allclose(batch["obs"][row, :size], np.asarray(episode.get_observations())[start:stop])
        assert not batch["loss_mask"][row, size:].any()
        assert all(not batch[name][row, size:].any() for name in ("obs", "advantages", "actions", "action_logp"))


def first_row(store, episode):
    """Where an episode's view begins in its environment's column: (environment, step)."""
    obs = np.asarray(episode.get_observations())[0]
    t, b = np.argwhere((store.obs[: store.size] == obs).all(-1))[0]
    return int(b), int(t)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_reset_rows", fast_if(bool, [False, True]))
def test_log_probabilities_before_the_update_are_those_of_acting(kind, has_reset_rows):
    """Acting, with its own state in single steps, and the learner's evaluation see the same distribution."""
    native = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    policy, collector = rollout(recurrent_config(kind, env=native if has_reset_rows else "CartPole-v1"), collects=2)
    acted, original = [], policy.act_with_state

    def recording(obs, noise, state):
        given = {
            "obs": torch.from_numpy(obs.copy())[:, None],
            "state_in": {k: torch.tensor(v) for k, v in state.items()},
        }
        acted.append(policy.module.forward_exploration(given)["action_dist_inputs"][:, 0].detach())
        return original(obs, noise, state)

    policy.acting["default_policy"].act_with_state = recording
    store = collector.buffer
    store.clear()
    with policy.within_training_step():
        collector.collect(n_step=120)
    actions, valid = (torch.as_tensor(column[: store.size]) for column in (store.actions, store.valid))
    logp = policy.module.action_dist_cls.from_inputs(torch.stack(acted)).log_prob(actions)[valid]
    assert (len(logp) < valid.numel()) == has_reset_rows
    batch = policy.learner_group.learner.prepare_batch(store.trajectories(), module_id=MODULE)
    assert int(batch["loss_mask"].sum()) == len(store) == len(logp)
    recorded = batch["action_logp"][batch["loss_mask"]]
    torch.testing.assert_close(torch.sort(recorded).values, torch.sort(logp).values, rtol=0, atol=1e-6)
    inputs = policy.module.forward_train(batch)["action_dist_inputs"]  # of whole sequences, as the loss sees them
    first = policy.module.action_dist_cls.from_inputs(inputs).log_prob(batch["actions"])[batch["loss_mask"]]
    torch.testing.assert_close(first, recorded, rtol=0, atol=1e-12)  # the ratio is 1 before the first step
    results = policy.learner_group.learner.update_from_episodes(store.episodes())
    assert results[ALL]["num_env_steps_trained"] == results[MODULE]["num_module_steps_trained"] == len(store)


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig, IMPALAConfig, APPOConfig])
def test_own_episodes_give_the_same_sequences_as_the_rollout_store(config):
    policy, collector = rollout(recurrent_config(config=config()), 40, 2)
    views = list(collector.buffer.episodes())
    own = []
    for view in views:
        own.append(own_copy(view))
        own[-1].custom_data.update({"state_in": {**view.custom_data["state_in"], "t": 0}} if view.custom_data else {})
    learner = policy.learner_group.learner
    first = learner.prepare_batch(collector.buffer.trajectories(), module_id=MODULE)
    second = learner.prepare_batch(trajectories_from_episodes(own), module_id=MODULE)
    assert first.keys() == second.keys()
    for name in set(first) - {"state_in"}:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=1e-9, msg=name)
    for name, leaf in first["state_in"].items():
        torch.testing.assert_close(leaf, second["state_in"][name], rtol=0, atol=1e-9)


def train_batch(learner, store):
    return learner.prepare_batch(store.trajectories(), module_id=MODULE)


def test_loss_of_ppo_on_sequences_is_the_one_written_out_row_by_row():
    policy, collector = rollout(recurrent_config(entropy_coeff=0.01, vf_loss_coeff=0.5))
    learner = policy.learner_group.learner
    batch = train_batch(learner, collector.buffer)
    with torch.no_grad():  # away from where it acted, so that the ratio is not 1
        for parameter in learner.module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    real = batch["loss_mask"]
    advantages = batch["advantages"][real]
    mean, std = advantages.mean(), advantages.std(correction=0)
    losses = []
    loss = learner.compute_losses(fwd_out=learner.forward_train({MODULE: batch}), batch={MODULE: batch})[
        MODULE
    ].detach()
    for row, length in enumerate(batch["seq_lens"].tolist()):
        state = {name: leaf[row] for name, leaf in batch["state_in"].items()}
        inputs, values, _ = stepwise(policy.module, batch["obs"][row, :length], state)
        for t in range(length):
            log_probs = torch.log_softmax(inputs[t], -1)
            ratio = torch.exp(log_probs[batch["actions"][row, t]] - batch["action_logp"][row, t])
            advantage = (batch["advantages"][row, t] - mean) / (std + 1e-8)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            error = 0.5 * (values[t] - batch["value_targets"][row, t]) ** 2
            losses.append(-surrogate + 0.5 * error - 0.01 * -(log_probs.exp() * log_probs).sum())
    assert float(loss) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-9)


def as_flat(batch):
    """A prepared batch as somebody would hand it in: flat rows with `seq_lens`."""
    real = batch["loss_mask"]
    columns = {n: v[real].numpy() for n, v in batch.items() if n not in ("state_in", "seq_lens", "loss_mask")}
    columns["state_in"] = {name: leaf.numpy() for name, leaf in batch["state_in"].items()}
    return SampleBatch(columns, seq_lens=batch["seq_lens"].numpy())


def with_garbage(batch, value):
    """Every padded row of the padded layout overwritten."""
    lengths, length = batch["seq_lens"], batch.max_seq_len
    padding = (np.arange(length) >= lengths[:, None]).reshape(-1)
    for name, column in batch.items():
        if name not in ("seq_lens", "state_in"):
            column[padding] = value if column.dtype.kind == "f" else 1
    return batch


def time_major(batch):
    lengths, length = batch["seq_lens"], batch.max_seq_len
    columns = {
        name: value.reshape(len(lengths), length, *value.shape[1:]).swapaxes(0, 1)
        for name, value in batch.items()
        if name not in ("seq_lens", "state_in")
    }
    return SampleBatch(columns, state_in=batch["state_in"], seq_lens=lengths, _time_major=True)


OPTIONS = {"num_epochs": 2, "minibatch_size": 5, "shuffle_batch_per_epoch": True}
LAYOUTS = {
    "flat": lambda batch: batch,
    "zero padded": lambda batch: batch.right_zero_pad(7),
    "padded with NaN": lambda batch: with_garbage(batch.right_zero_pad(7), np.nan),
    "padded with garbage": lambda batch: with_garbage(batch.right_zero_pad(9), 1e30),
    "time-major": lambda batch: time_major(with_garbage(batch.right_zero_pad(6), np.nan)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_sequences_and_episodes_update_equally_in_every_layout(layout):
    config = recurrent_config()
    policy, collector = rollout(config)
    learner, other = policy.learner_group.learner, config.build_learner()
    assert_same(parameters(learner), parameters(other))
    batch = LAYOUTS[layout](as_flat(train_batch(learner, collector.buffer)))
    before = batch.copy()
    results = other.update_from_batch(batch, **OPTIONS)
    for name in set(batch) - {"state_in"}:
        np.testing.assert_equal(batch[name], before[name])  # the caller's batch stays as it is
    learner.update_from_episodes(collector.buffer.episodes(), **OPTIONS)
    assert_same(parameters(learner), parameters(other))
    assert results[ALL]["num_bad_gradients"] == 0


def test_minibatches_hold_whole_sequences_in_order_of_time():
    policy, collector = rollout(recurrent_config())
    learner = policy.learner_group.learner
    whole = train_batch(learner, collector.buffer)
    known = {tuple(row.reshape(-1).tolist()) for row in whole["obs"]}
    seen = []
    original = learner.compute_losses

    def recording(*, fwd_out, batch):
        seen.append(batch[MODULE])
        return original(fwd_out=fwd_out, batch=batch)

    learner.compute_losses = recording
    results = learner.update_from_episodes(
        collector.buffer.episodes(), num_epochs=2, minibatch_size=4, shuffle_batch_per_epoch=True
    )
    num_sequences = len(whole["seq_lens"])
    assert len(seen) == results[ALL]["num_minibatches"] == 2 * (num_sequences // 4)
    for batch in seen:
        assert batch["obs"].shape[0] == batch["state_in"]["h"].shape[0] == 4
        assert all(tuple(row.reshape(-1).tolist()) in known for row in batch["obs"])
    order = torch.cat([batch["seq_lens"] for batch in seen])
    assert not torch.equal(order[: num_sequences // 4 * 4], whole["seq_lens"][: num_sequences // 4 * 4])


def test_episodes_are_split_at_below_and_above_the_sequence_length():
    """Pieces of 1 to 11 rows with sequences of 5: bootstrap rows behind a full sequence too."""
    learner = recurrent_config(gamma=0.9, lambda_=0.5).build_learner()
    rng = np.random.default_rng(0)
    for length in (1, 4, 5, 6, 10, 11):
        for end in ("terminated", "truncated", "open"):
            piece = make_episode(length, end, rng, size=4, actions=2)
            batch = learner.prepare_batch(trajectories_from_episodes([piece]), module_id=MODULE)
            _, values, _ = stepwise(learner.module[MODULE], piece.get_observations())
            rewards = torch.as_tensor(np.asarray(piece.get_rewards()), dtype=torch.float64)
            expected = gae_of(rewards, values, end == "terminated", 0.9, 0.5)
            got = batch["advantages"][batch["loss_mask"]]
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6, msg=f"{length} {end}")
            assert batch["seq_lens"].tolist() == [5] * (length // 5) + ([length % 5] if length % 5 else [])


def test_without_notes_of_acting_sequences_begin_where_episodes_do():
    """Trajectories of somebody else's store: after each end, and after rows that are no transitions."""
    policy, collector = rollout(recurrent_config())
    learner, told = policy.learner_group.learner, collector.buffer.trajectories()
    assert int(told.starts[1:].sum()) > 3
    with_notes = learner.prepare_batch(told, module_id=MODULE)
    without = replace(told, starts=None, state_index=None, states=None)  # the first rollout begins with empty memories
    for name, value in learner.prepare_batch(without, module_id=MODULE).items():
        if name != "state_in":
            torch.testing.assert_close(value, with_notes[name], rtol=0, atol=0)


def test_batches_without_the_columns_that_memory_needs_are_refused():
    learner = recurrent_config().build_learner()
    columns = ppo_batch(4, obs=np.zeros((4, 4), np.float32), actions=np.zeros(4, np.int64))
    with pytest.raises(ValueError, match=r"'default_policy' remembers .* has no 'seq_lens'"):
        learner.update_from_batch(SampleBatch(columns))
    with pytest.raises(ValueError, match=r"state_in of module .* of \['c', 'h', 'vf_c', 'vf_h'\], not \['h'\]"):
        learner.update_from_batch(SampleBatch(columns, seq_lens=[2, 2], state_in={"h": np.zeros((2, 4))}))
    before = parameters(learner)
    learner.update_from_batch(SampleBatch(columns, seq_lens=[3, 1]))  # without state_in: beginnings of episodes
    assert differs(before, parameters(learner))


def test_a_module_without_memory_takes_a_batch_with_sequences_row_by_row():
    config = recurrent_config().rl_module(model_config={"recurrent": None})
    rng = np.random.default_rng(0)
    columns = ppo_batch(6, obs=rng.normal(size=(6, 4)).astype(np.float32), actions=rng.integers(2, size=6))
    first, second, third = (config.build_learner() for _ in range(3))
    first.update_from_batch(SampleBatch(columns))
    second.update_from_batch(SampleBatch(columns, seq_lens=[4, 2], state_in=np.zeros((2, 3))))
    third.update_from_batch(SampleBatch(columns, seq_lens=[4, 2]).right_zero_pad(5))
    assert_same(parameters(first), parameters(second))
    assert_same(parameters(first), parameters(third))


def test_compile_says_that_recurrent_layers_run_eagerly():
    policy, collector = rollout(recurrent_config().framework(compile=True))
    eager = recurrent_config().build_learner()
    episodes, learner = collector.buffer.episodes(), policy.learner_group.learner
    with pytest.warns(UserWarning, match=r"runs eagerly, because the modules \['default_policy'\] have memory"):
        learner.update_from_episodes(episodes, minibatch_size=8)
    eager.update_from_episodes(episodes, minibatch_size=8)
    assert_same(parameters(learner), parameters(eager))
