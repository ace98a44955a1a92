"""An update from a tensor rollout computes what the update from the same rollout of arrays computes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_cases import ON_POLICY, class_of
from host_waits import HostWaitError, NoWaits
from parts import fast_if
from tensor_trees import TreeCartPole

from lockstep import A2CConfig, APPOConfig, IMPALAConfig, PPOConfig, PQNConfig
from lockstep.connectors import ClipRewards, Connector, FrameStack
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import map_tree, rows_of
from lockstep.envs.tensor import make_tensor_env
from lockstep.learner.minibatches import UpdateOptions

T, B = 16, 8


class HalfOfEach(Connector):
    """Changes each column that a connector may change, in torch."""

    on_device = True

    def __call__(self, data: Any) -> Any:
        halves = {name: 0.5 * data[name] for name in ("obs", "new_obs")}
        return {**data, **halves, "rewards": data["rewards"].clamp(-0.3, 0.3) - 0.1}


def config_of(
    make: Any = PPOConfig,
    env_id: Any = "tensor/CartPole-v1",
    *,
    normalize: bool = False,
    normalize_rewards: bool = False,
    frame_stack: int = 1,
    model: dict[str, Any] | None = None,
    **training: Any,
) -> Any:
    env = env_id if isinstance(env_id, str) else env_id(B)
    config = (
        make()
        .environment(env, normalize_observations=normalize, normalize_rewards=normalize_rewards, clip_rewards=2.0)
        .environment(frame_stack=frame_stack)
        .env_runners(num_envs_per_env_runner=B, rollout_fragment_length=T)
    )
    config.training(train_batch_size=T * B, lr=1e-2, **training).framework(dtype="float64").debugging(seed=3)
    return config.rl_module(model_config={"hiddens": (16,), **(model or {})})


def collected(config: Any, limit: int = 12) -> tuple[Any, Any]:
    """Return a policy and a collector with a rollout of episodes that end by time after `limit` steps at the latest.

    With a memory it is the second rollout, in which episodes are under way, so that they have a state.
    """
    policy = config.build_policy()
    collector = config.build_collector(policy)
    collector.tensors.max_episode_length = limit
    policy.within_training_step().__enter__()
    for _ in range(2 if policy.is_stateful else 1):
        collector.collect(n_step=T * B)
    return policy, collector


def as_arrays(rollout: Any) -> RolloutStore:
    """Return a store of arrays with the same rollout."""
    space, actions = rollout_spaces(rollout)
    store = RolloutStore(T, B, space, actions)
    for t in range(T):
        store.write_obs(t, arrays_of(rollout.obs, t))
        ended = rollout.cuts[t].numpy()
        terminated = rollout.terminateds[t].numpy()
        store.write_step(t, rollout.actions[t].numpy(), rollout.rewards[t].numpy(), terminated, ended & ~terminated)
        rows = np.flatnonzero(ended)
        if len(rows):
            store.final_index.append(t * B + rows)
            store.final_obs.append(rows_of(arrays_of(rollout.next_obs, t), rows))
    store.end(T, arrays_of(rollout.next_obs, -1))
    if rollout.state_in:
        store.starts.append(rollout.starts.numpy())
        store.state_in = {}
        for name, leaf in rollout.state_in.items():
            is_reset = rollout.starts[0].view(B, *[1] * (leaf.dim() - 1))
            store.state_in[name] = torch.where(is_reset, 0.0, leaf).numpy()
    return store


def arrays_of(obs: Any, t: int) -> Any:
    """Return the observations of step `t` as arrays."""
    return map_tree(lambda leaf: leaf[t].numpy(), obs)


def rollout_spaces(rollout: Any) -> tuple[Any, Any]:
    if isinstance(rollout.obs, dict):
        return TreeCartPole.single_observation_space, TreeCartPole.single_action_space
    env = make_tensor_env("tensor/CartPole-v1" if rollout.actions.dim() == 2 else "tensor/Pendulum-v1", 1)
    space = env.single_observation_space
    if rollout.obs.dim() == 4:  # stacks [T, B, frames, ...]
        space = FrameStack(rollout.obs.shape[2]).output_space(space)
    return space, env.single_action_space


def permutations(learner: Any) -> Any:
    """Return the numbers that an update of arrays permutes its rows with, as `permutation` is asked for them.

    Sequences are numbered environment by environment there, and on a device part by part.
    """
    rng = learner.streams.numpy("minibatches")

    def permutation(num_rows: int) -> torch.Tensor:
        rows = torch.from_numpy(rng.permutation(num_rows))
        if not learner.module["default_policy"].is_stateful():
            return rows
        num_parts = num_rows // B
        return rows % num_parts * B + rows // num_parts

    return permutation


LSTM = {"recurrent": "lstm", "recurrent_size": 8, "orthogonal_init": False}
GRU = LSTM | {"recurrent": "gru"}
CASES = {
    "ppo, whole batches": partial(config_of, minibatch_size=None, num_epochs=3),
    "ppo, minibatches": partial(config_of, minibatch_size=32, num_epochs=3),
    "ppo, a box": partial(config_of, env_id="tensor/Pendulum-v1", minibatch_size=32, num_epochs=2),
    "ppo, clipped values and a batch normalised": partial(
        config_of, minibatch_size=32, num_epochs=2, vf_clip_param=0.2, normalize_advantages="batch"
    ),
    "ppo, a penalty": partial(config_of, minibatch_size=32, num_epochs=2, kl_coeff=0.5),
    "ppo, rows in order": partial(config_of, minibatch_size=48, num_epochs=3, shuffle_batch_per_epoch=False),
    "ppo, stopped": partial(config_of, minibatch_size=32, num_epochs=6, target_kl=0.002),
    "ppo, observations normalised": partial(config_of, minibatch_size=32, num_epochs=2, normalize=True),
    "ppo, rewards normalised": partial(config_of, minibatch_size=32, num_epochs=2, normalize_rewards=True),
    "ppo, a box, rewards normalised": partial(
        config_of, env_id="tensor/Pendulum-v1", minibatch_size=32, num_epochs=2, normalize=True, normalize_rewards=True
    ),
    "ppo, a tree": partial(config_of, env_id=TreeCartPole, minibatch_size=32, num_epochs=2, normalize=True),
    "ppo, own connectors, rewards normalised": partial(
        config_of,
        minibatch_size=32,
        num_epochs=2,
        normalize=True,
        normalize_rewards=True,
        learner_connector=lambda *_: [HalfOfEach(), ClipRewards(0.0, 0.15)],
    ),
    "ppo, lstm": partial(config_of, minibatch_size=None, num_epochs=3, model=LSTM, vf_clip_param=0.2, normalize=True),
    "ppo, lstm, minibatches, rewards normalised": partial(
        config_of,
        env_id="tensor/Pendulum-v1",
        minibatch_size=5,
        num_epochs=3,
        model=LSTM | {"max_seq_len": 8},
        normalize_rewards=True,
    ),
    "ppo, gru of the critic, a tree": partial(
        config_of, env_id=TreeCartPole, minibatch_size=None, num_epochs=2, model=GRU | {"memory_in": "critic"}
    ),
    "ppo, two layers of the policy": partial(
        config_of, minibatch_size=None, num_epochs=2, model=LSTM | {"memory_in": "policy", "recurrent_layers": 2}
    ),
    "ppo, a shared gru below the layers": partial(
        config_of,
        minibatch_size=None,
        num_epochs=2,
        model=GRU | {"memory_in": "shared", "memory_below_hiddens": True},
        kl_coeff=0.5,
    ),
    "ppo, attention": partial(
        config_of, minibatch_size=None, num_epochs=2, model={"attention": {"memory": 5, "size": 8, "num_heads": 2}}
    ),
    "ppo, stacks of frames": partial(config_of, minibatch_size=32, num_epochs=2, normalize=True, frame_stack=3),
    "a2c": partial(config_of, A2CConfig),
    "a2c, gru": partial(config_of, A2CConfig, model=GRU),
    "a2c, rewards normalised": partial(config_of, A2CConfig, normalize_rewards=True),
    "pqn": partial(config_of, PQNConfig, minibatch_size=32, epsilon=1.0),
    "pqn, rewards normalised": partial(
        config_of, PQNConfig, minibatch_size=None, epsilon=1.0, normalize=True, normalize_rewards=True
    ),
    "impala": partial(config_of, IMPALAConfig, minibatch_size=32, num_epochs=2, lambda_=0.9),
    "impala, a box, not corrected, rewards normalised": partial(
        config_of, IMPALAConfig, env_id="tensor/Pendulum-v1", vtrace=False, normalize_rewards=True
    ),
    "impala, lstm": partial(config_of, IMPALAConfig, num_epochs=2, model=LSTM, lambda_=0.9),
    "appo, gru": partial(
        config_of, APPOConfig, num_epochs=2, use_kl_loss=True, target_network_update_freq=1, tau=0.5, model=GRU
    ),
    "appo": partial(config_of, APPOConfig, minibatch_size=32, num_epochs=2, vtrace_clip_pg_rho_threshold=None),
    "appo, a penalty": partial(
        config_of, APPOConfig, minibatch_size=32, num_epochs=2, use_kl_loss=True, target_network_update_freq=1, tau=0.5
    ),
}
FAST_CASES = {
    *list(CASES)[::3],
    "ppo, a tree",
    "ppo, stacks of frames",
    "ppo, lstm",
    "ppo, lstm, minibatches, rewards normalised",
}
LIMITS = {"ppo, lstm, minibatches, rewards normalised": 8}
"""Largest lengths of episodes other than 12: there each episode is one sequence of the device as well."""
FAST_CASES = {*list(CASES)[::3], *LIMITS, "ppo, a tree", "ppo, stacks of frames", "ppo, lstm"}
EACH_CASE = pytest.mark.parametrize("case", fast_if(FAST_CASES.__contains__, CASES))


def test_every_algorithm_that_learns_from_tensor_rollouts_is_compared():
    """`test_learner_device_replay.py` draws those that learn from a `TensorReplay` from the table of cases."""
    on_device = {name for name in ON_POLICY if class_of(name).learns_from_tensors}
    assert {case.partition(",")[0] for case in CASES} == on_device


@EACH_CASE
def test_tensors_are_learned_from_as_arrays_are(case):
    """In float64, after two updates; after one where passes are stopped, since on the device the others draw rows."""
    policies = [collected(CASES[case](), LIMITS.get(case, 12)) for _ in range(2)]
    learners = [policy.learner_group.learner for policy, _ in policies]
    learners[1].device_update.permutation = permutations(learners[1])
    training = policies[0][0].config.training
    options = {
        "num_epochs": training.num_epochs,
        "minibatch_size": training.minibatch_size,
        "shuffle_batch_per_epoch": training.shuffle_batch_per_epoch,
    }
    rollout = policies[1][1].buffer
    if policies[0][0].is_stateful:
        assert any(leaf.any() for leaf in rollout.state_in.values())
    assert rollout.terminateds.any() or "a box" in case or case in LIMITS
    assert (rollout.cuts & ~rollout.terminateds).any()
    for _ in range(1 if case == "ppo, stopped" else 2):
        of_arrays = learners[0].update_from_episodes(as_arrays(rollout).episodes(), **options)
        of_tensors = learners[1].update_from_episodes(rollout, **options)
        for (name, one), other in zip(learners[0].module.named_parameters(), learners[1].module.parameters()):
            assert (one - other).abs().max() <= 1e-12, name
        one, other = of_arrays["default_policy"], of_tensors["default_policy"]
        assert one.keys() == other.keys()
        for metric in one:
            assert one[metric] == pytest.approx(other[metric], abs=1e-9), metric
        for count in ("num_minibatches", "num_passes", "num_env_steps_trained", "num_rows_left_out"):
            assert of_arrays["__all_modules__"][count] == of_tensors["__all_modules__"][count], count
        for one, other in zip(*(learner.connectors["default_policy"].obs.connectors for learner in learners)):
            for mine, its in zip(one.moments, other.moments):
                assert mine.count == its.count == T * B * of_arrays["default_policy"]["weights_seq_no"]
                assert np.allclose(mine.mean, its.mean, rtol=0, atol=1e-12)
                assert np.allclose(mine.var, its.var, rtol=0, atol=1e-12)
        states = [learner.connectors["default_policy"].get_state()["rewards"] for learner in learners]
        assert (states[0] is not None) == ("rewards" in case)
        for name in ("count", "mean", "squares") if states[0] else ():
            assert states[1]["moments"][name] == pytest.approx(states[0]["moments"][name], rel=1e-12, abs=0), name
        if states[0]:
            np.testing.assert_allclose(states[1]["returns"], states[0]["returns"], rtol=1e-12)
    if case == "ppo, stopped":
        assert of_tensors["__all_modules__"]["num_passes"] < 6


@EACH_CASE
def test_an_iteration_waits_for_no_value(case):
    """Neither the rollout nor the update, which a CUDA graph holds; elsewhere than on the CPU optimizers step so."""
    policy, collector = collected(CASES[case](), LIMITS.get(case, 12))
    learner, training = policy.learner_group.learner, policy.config.training
    options = UpdateOptions({}, training.num_epochs, training.minibatch_size, shuffle_batch_per_epoch=True)
    for entry in learner.optimizers:
        entry.on_host = False
        entry.adam_state()
    size = training.minibatch_size or learner.device_update.num_rows("default_policy", collector.buffer)
    compute = partial(learner.device_update._passes, "default_policy", collector.buffer, size, options)
    compute()  # what is copied to the device once
    with NoWaits():
        collector.stepper.captured(collector.explores).function()
        compute()
        with pytest.raises(HostWaitError):
            float(collector.buffer.rewards[0, 0])


def test_a_refused_rollout_leaves_no_trace_in_reward_statistics():
    """Though the update from it had begun when the host saw them."""
    policy, collector = collected(CASES["ppo, rewards normalised"]())
    learner, rollout = policy.learner_group.learner, collector.buffer
    rewards, options = learner.connectors["default_policy"].rewards, UpdateOptions({})
    learner.device_update.run(rollout, options)
    before, good = rewards.get_state(), rollout.rewards.clone()
    rollout.rewards.fill_(float("nan"))
    learner.device_update.launch(rollout, options)
    assert rewards.get_state()["moments"] == before["moments"]
    rollout.rewards.copy_(good)
    learner.device_update.launch(rollout, options)
    learner.device_update.run(rollout, options)
    assert rewards.moments.count == 2 * T * B
    assert 0.0 < rewards.moments.var < 100.0
    assert np.isfinite(rewards.get_state()["returns"]).all()
