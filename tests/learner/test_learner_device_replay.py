"""An update from a replay buffer of tensors computes what the update from a batch of the same rows computes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY, class_of, has_option, takes
from host_waits import NoWaits
from parts import fast_if, one_in
from stand_in_graph import use_stand_ins
from tensor_trees import FlipBits, TreeCartPole, TreePendulum

from lockstep import get_config
from lockstep.connectors import ClipRewards, ScaleRewards
from lockstep.data import SampleBatch
from lockstep.data.trees import leaves, map_tree
from lockstep.learner.minibatches import UpdateOptions
from lockstep.learner.targets import TargetNetwork
from lockstep.replay import Priorities, ReplayBuffer

B, SIZE, STEPS = 6, 16, 5
"""environments, rows of a gradient step, gradient steps of an update"""
ROWS = SIZE * STEPS


def config_of(name: str, env_id: Any = "tensor/Pendulum-v1", **training: Any) -> Any:
    env = env_id if isinstance(env_id, str) else env_id(B)
    config = get_config(name).environment(env).env_runners(num_envs_per_env_runner=B, rollout_fragment_length=10)
    training = {**ALGORITHM_CASES[name].on_device, **training}
    config.training(train_batch_size=SIZE, lr=1e-2, **training).replay(capacity=60 * B, learning_starts=10 * B)
    config.replay(prioritized=False, n_step=1)  # also for algorithms with other defaults
    config.rl_module(model_config={"hiddens": (16,), "critic_hiddens": (16,)})
    config.framework(dtype="float64").debugging(seed=3)
    return config.reporting(total_steps=10**6, steps_per_epoch=10 * B).evaluation(evaluation_interval=0)


OTHERS = [name for name in OFF_POLICY if name not in ("sac", "td3", "dqn") and class_of(name).learns_from_tensors]
CASES = {
    "sac": partial(config_of, "sac"),
    "sac, targets in every third step": partial(config_of, "sac", target_update_interval=3),
    "sac, choices": partial(config_of, "sac", "tensor/CartPole-v1"),
    "sac, a fixed temperature": partial(config_of, "sac", alpha=0.2),
    "sac, a tree": partial(config_of, "sac", TreePendulum),
    "sac, gsde": lambda: config_of("sac").env_runners(exploration="gsde"),
    "sac, connectors of train columns": partial(
        config_of, "sac", learner_connector=lambda *_: [ScaleRewards(0.1), ClipRewards(-0.5, -0.1)]
    ),
    "td3": partial(config_of, "td3", policy_delay=3),
    "td3, rewards of three steps": lambda: config_of("td3", policy_delay=3).replay(n_step=3),
    **{name: partial(config_of, name) for name in OTHERS if takes(name, "box")},
    **{
        name: partial(config_of, name, "tensor/CartPole-v1", target_update_interval=3)
        for name in ("dqn", *OTHERS)
        if not takes(name, "box")
    },
}


def normalised(name: str, env_id: Any = "tensor/Pendulum-v1", n_step: int = 1, **training: Any) -> Any:
    config = config_of(name, env_id, **training).replay(n_step=n_step)
    return config.environment(normalize_observations=True, normalize_rewards=not config.training.return_bound)


BOUNDED = [name for name in OTHERS if has_option(name, "bounded_rewards")]
NORMALISED = {
    "sac, a tree": partial(normalised, "sac", TreePendulum),
    "dqn, rewards of three steps": partial(normalised, "dqn", "tensor/CartPole-v1", 3),
    **{f"{name}, bounded rewards": partial(normalised, name, bounded_rewards=True) for name in BOUNDED},
    **{name: partial(normalised, name) for name in ("td3", *OTHERS) if takes(name, "box")},
    **{name: partial(normalised, name, "tensor/CartPole-v1") for name in OTHERS if not takes(name, "box")},
}
CASES["dqn, noisy weights"] = lambda: config_of("dqn", "tensor/CartPole-v1").env_runners(exploration="noisy")
CASES["dqn, stacks of frames"] = lambda: config_of("dqn", "tensor/CartPole-v1").environment(frame_stack=3)
BETA = [[0, 0.4], [60 * B, 1.0]]


def by_priority(name: str, env_id: Any = "tensor/Pendulum-v1", n_step: int = 1, **training: Any) -> Any:
    return config_of(name, env_id, **training).replay(prioritized=True, alpha=0.6, beta=BETA, n_step=n_step)


BY_PRIORITY = {
    "sac, by priority": partial(by_priority, "sac"),
    "sac, by priority, connectors of train columns": partial(
        by_priority, "sac", learner_connector=lambda *_: ScaleRewards(0.1)
    ),
    "td3, by priority": partial(by_priority, "td3", policy_delay=3),
    **{f"{name}, by priority": partial(by_priority, name) for name in OTHERS if takes(name, "box")},
    "dqn, by priority, a tree": partial(by_priority, "dqn", TreeCartPole, n_step=3),
    "dqn, by priority": partial(by_priority, "dqn", "tensor/CartPole-v1", n_step=3, target_update_interval=3),
    **{
        f"{name}, by priority": partial(
            by_priority, name, "tensor/CartPole-v1", n_step=3 if class_of(name).can_sum_rewards else 1
        )
        for name in OTHERS
        if not takes(name, "box")
    },
}
ALL_CASES = CASES | BY_PRIORITY | {f"{name}, normalised": config for name, config in NORMALISED.items()}
ALL_CASES["dqn, hindsight"] = lambda: config_of("dqn", FlipBits).replay(her=True)
ALL_CASES["dqn, hindsight, by priority"] = lambda: normalised("dqn", FlipBits, 3).replay(her=True, prioritized=True)
ALL_CASES["sac, normalised, by priority"] = lambda: normalised("sac").replay(prioritized=True)


def parts_of(config: Any) -> tuple[Any, Any]:
    """Return the policy and the collector after a few collects; episodes are short, so that some end by time."""
    policy = config.build_policy()
    collector = config.build_collector(policy)
    collector.tensors.max_episode_length = 12
    policy.within_training_step().__enter__()
    for random in (True, False, False):
        collector.collect(n_step=10 * B, random=random)
    return policy, collector


def collected(config: Any) -> tuple[Any, Any]:
    """Return the learner and the buffer of `parts_of`."""
    policy, collector = parts_of(config)
    return policy.learner_group.learner, collector.buffer


def with_noise_of_arrays(learner: Any) -> None:
    """Let the learner's updates on the device take the noise that an update of arrays takes."""

    def noise(module_id: str, number: int) -> dict[str, torch.Tensor]:
        widths = learner.noise_columns(module_id)
        if not widths:
            return {}
        rng = learner.streams.numpy(f"noise/{module_id}")
        drawn = torch.from_numpy(rng.standard_normal((number, sum(widths.values())), np.float32))
        return dict(zip(widths, learner.to_tensor(drawn).split(list(widths.values()), -1)))

    learner.device_update.noise = noise


def update(learner: Any, replay: Any, number: int = STEPS) -> Any:
    return learner.device_update.run_steps(replay, number, SIZE, UpdateOptions({}))


@pytest.mark.parametrize("case", fast_if({*list(CASES)[::2], "sac, a tree"}.__contains__, CASES))
def test_a_tensor_replay_is_learned_from_as_a_batch_is(case):
    """In float64, after three updates, whose delays and intervals go on from one to the next."""
    (of_arrays, _), (of_tensors, replay) = (collected(CASES[case]()) for _ in range(2))
    assert replay.columns["terminateds"].any() or "CartPole" not in str(CASES[case])
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, len(replay), ROWS))
    with_noise_of_arrays(of_tensors)
    of_tensors.device_update.sample = lambda replay, number: replay.rows(rows[:number])
    batch = SampleBatch(map_tree(torch.Tensor.numpy, replay.rows(rows)))
    for _ in range(3):
        one = of_arrays.update_from_batch(batch, minibatch_size=SIZE)
        other = update(of_tensors, replay, STEPS)
        for (name, mine), its in zip(of_arrays.module.named_parameters(), of_tensors.module.parameters()):
            assert (mine - its).abs().max() <= 1e-12, name
        assert one["default_policy"].keys() == other["default_policy"].keys()
        for metric, number in one["default_policy"].items():
            assert other["default_policy"][metric] == pytest.approx(number, abs=1e-9), metric
        for count in ("num_minibatches", "num_env_steps_trained", "num_gradient_steps_lifetime", "num_rows_left_out"):
            assert one["__all_modules__"][count] == other["__all_modules__"][count], count
    for name, value in of_arrays.registered.items():
        if isinstance(value, TargetNetwork):
            assert (value.flat - of_tensors.registered[name].flat).abs().max() <= 1e-12
            assert value.num_steps == of_tensors.registered[name].num_steps == 3 * STEPS
    assert of_arrays.lifetime == of_tensors.lifetime


@pytest.mark.parametrize(
    "case", fast_if({*list(BY_PRIORITY)[::3], "dqn, by priority, a tree"}.__contains__, BY_PRIORITY)
)
def test_rows_drawn_by_priority_are_learned_from_as_the_host_does(case):
    """In float64: each step on rows drawn when the errors of the one before it are known, with their weights."""
    (of_arrays, _), (of_tensors, replay) = (collected(ALL_CASES[case]()) for _ in range(2))
    with_noise_of_arrays(of_tensors)
    number, generator = len(replay), of_arrays.device_update.stream("replay")
    priorities = Priorities(replay.maxsize, 0.6, BETA)
    priorities.add(np.arange(number))
    for _ in range(3):
        update(of_tensors, replay, STEPS)
        steps_weights = []
        for _ in range(STEPS):
            rows = priorities.tree.draw(torch.rand(SIZE, dtype=torch.float64, generator=generator).numpy())
            columns = map_tree(torch.Tensor.numpy, replay.rows(torch.from_numpy(rows)))
            steps_weights.append(priorities.weights(rows, number))
            of_arrays.update_from_batch(SampleBatch({**columns, "weights": steps_weights[-1]}))
            priorities.update(rows, of_arrays.row_errors["default_policy"].numpy())
        found = of_tensors.device_update.sampled["weights"].numpy()
        np.testing.assert_allclose(found, np.concatenate(steps_weights), rtol=1e-6)
        assert np.ptp(found[SIZE:]) > 0.01
        for (name, mine), its in zip(of_arrays.module.named_parameters(), of_tensors.module.parameters()):
            assert (mine - its).abs().max() <= 1e-9, name  # weights are float32
    found = replay.priorities.tree.values.numpy()
    np.testing.assert_allclose(found, priorities.tree.values, rtol=1e-7)
    assert len(np.unique(found[:number])) > number / 4


def rows_of_host(config: Any) -> ReplayBuffer:
    """Return an empty buffer on the host for the rows of a `TensorReplay`."""
    section = config.replay
    return ReplayBuffer(section.capacity, buffer_num=B, n_step=section.n_step, gamma=config.training.gamma)


def copied(replay: Any, dones: torch.Tensor, num_steps: int) -> dict[str, Any]:
    """Return the newest rows `[T, B, ...]` of a `TensorReplay`, with the flags that it stores for sums only."""
    columns = map_tree(lambda leaf: leaf[replay.size - num_steps : replay.size].numpy(), replay.columns)
    columns["truncateds"] = dones.numpy() & ~columns["terminateds"]
    return columns


@pytest.mark.parametrize("case", fast_if({*list(NORMALISED)[:3]}.__contains__, NORMALISED))
def test_normalised_rows_are_learned_from_as_the_host_does(case):
    """In float64: statistics, rows and parameters after each of four updates, with one or more collects before each."""
    config, other_config = (NORMALISED[case]() for _ in range(2))
    host = config.build_policy()
    policy = other_config.build_policy()
    collector = other_config.build_collector(policy)
    collector.tensors.max_episode_length = 7
    policy.within_training_step().__enter__()
    replay, buffer = collector.buffer, rows_of_host(config)
    of_arrays, of_tensors = (each.learner_group.learner for each in (host, policy))
    with_noise_of_arrays(of_tensors)
    dones: list[torch.Tensor] = []
    end_step = replay.end_step

    def noting_ends(t: int, actions: Any, rewards: Any, ends: torch.Tensor, extras: Any) -> None:
        dones.append(ends)
        end_step(t, actions, rewards, ends, extras)

    replay.end_step = noting_ends
    counted, rng = None, np.random.default_rng(0)
    for number_of_collects in (2, 1, 0, 1):
        for _ in range(number_of_collects):
            collector.collect(n_step=10 * B, random=counted is None)
            buffer.add_steps(copied(replay, torch.stack(dones[-10:]), 10))
            if len(buffer) == 30 * B:
                collector.reset(reset_buffer=False)
                buffer.cut()
        part = host.acting["default_policy"]
        new, counted = buffer.rows_since(counted)
        if any(map(len, new)):
            part.update_statistics(buffer, new)

        rows = torch.from_numpy(rng.integers(0, len(replay), ROWS))
        of_tensors.device_update.sample = lambda replay, number, rows=rows: replay.rows(rows[:number])
        update(of_tensors, replay)
        columns = part.learning_columns(SampleBatch(map_tree(torch.Tensor.numpy, replay.rows(rows))))
        of_arrays.update_from_batch(columns, minibatch_size=SIZE)

        mine, its = (learner.connectors["default_policy"] for learner in (of_arrays, of_tensors))
        for one, other in zip(mine.obs.connectors[0].moments, its.obs.connectors[0].moments):
            assert one.count == other.count == len(buffer)
            np.testing.assert_allclose(other.mean, one.mean, atol=1e-12)
            np.testing.assert_allclose(other.squares, one.squares, rtol=1e-11)
        assert its.rewards.moments.count == len(buffer)
        np.testing.assert_allclose(its.rewards.moments.squares, mine.rewards.moments.squares, rtol=1e-11)
        assert its.rewards.largest == pytest.approx(mine.rewards.largest, rel=1e-12)
        assert (its.rewards.largest > 0) == (its.rewards.bound is not None)
        found = of_tensors.device_update.sampled
        for name in ("obs", "new_obs"):
            for one, other in zip(leaves(columns[name]), leaves(found[name])):
                np.testing.assert_allclose(other.numpy(), one, atol=1e-6)
        np.testing.assert_allclose(found["rewards"].numpy(), columns["rewards"], rtol=1e-6)
        for (name, one), other in zip(of_arrays.module.named_parameters(), of_tensors.module.parameters()):
            assert (one - other).abs().max() <= 1e-5, name
    assert len(buffer) == len(replay) == 40 * B


def test_a_loss_that_leaves_no_errors_is_refused_by_name():
    learner, replay = collected(BY_PRIORITY["dqn, by priority"]())
    step = learner.device_update.step

    def without_errors(*columns: Any) -> None:
        step(*columns)
        learner.row_errors.clear()

    learner.device_update.step = without_errors
    with pytest.raises(ValueError, match=r"DQNLearner leaves no errors .*set self.row_errors"):
        update(learner, replay)


@pytest.mark.parametrize(
    "case",
    one_in(
        5,
        [
            "td3",
            *(name for name in OTHERS if has_option(name, "policy_delay")),
            "dqn",
            "sac, targets in every third step",
            "td3, by priority",
            "dqn, by priority",
        ],
    ),
)
def test_counters_of_the_host_advance_when_graphs_are_launched(case, monkeypatch):
    """Each pattern of a delay has a graph of its own; parameters and counters are those without graphs, bit for bit."""
    configs = [ALL_CASES[case]() for _ in range(2)]
    for config in configs:
        if has_option(config.algorithm, "policy_delay"):
            config.training(policy_delay=3)
    (plain, replay), (graphed, other_replay) = map(collected, configs)
    for _ in range(14):
        update(plain, replay, STEPS)
    use_stand_ins(monkeypatch, graphed)
    for _ in range(14):
        update(graphed, other_replay, STEPS)
    graphs = graphed.device_update.graphs
    assert len(graphs) == 3  # of 5 steps, the second and the fifth, the first and the fourth, or the third
    assert all(graph.is_graph for graph in graphs.values())
    for one, other in zip(plain.module.parameters(), graphed.module.parameters()):
        assert torch.equal(one, other)
    assert plain.lifetime == graphed.lifetime
    assert plain.device_update.counts() == graphed.device_update.counts()
    if replay.priorities is not None:
        assert torch.equal(replay.priorities.tree.values, other_replay.priorities.tree.values)


MUST_NOT_WAIT = ("dqn, hindsight, by priority", *(f"{name}, bounded rewards, normalised" for name in BOUNDED))


@pytest.mark.parametrize("case", fast_if(lambda case: case in [*MUST_NOT_WAIT, *list(ALL_CASES)[::3]], ALL_CASES))
def test_an_iteration_waits_for_no_value(case):
    """Neither the collect nor the update, which a CUDA graph holds; elsewhere than on the CPU optimizers step so."""
    policy, collector = parts_of(ALL_CASES[case]())
    learner = policy.learner_group.learner
    for entry in learner.optimizers:
        entry.on_host = False
        entry.adam_state()
    compute = partial(learner.device_update._steps, "default_policy", collector.buffer, STEPS, SIZE)
    compute()  # what is copied to the device once
    with NoWaits():
        collector.stepper.captured(collector.explores, random=True).function()
        collector.stepper.captured(collector.explores).function()
        drawn = compute()[2]
    assert len(drawn) == (1 if collector.buffer.priorities is None else STEPS)
    assert {len(leaf) for columns in drawn for leaf in leaves(columns)} == {ROWS // len(drawn)}


def test_long_intervals_have_few_patterns():
    """Steps between two updates of a target network are alike."""
    learner, replay = collected(config_of("dqn", "tensor/CartPole-v1", target_update_interval=50))
    for _ in range(40):
        update(learner, replay, 3)
    assert len(learner.device_update.graphs) == 3  # none follows, 50 the second step of an update, or 100 the first


def test_each_update_draws_columns_from_streams_of_the_learner():
    learner, replay = collected(CASES["sac"]())
    seen = []
    for _ in range(2):
        update(learner, replay, STEPS)
        seen.append({name: column.clone() for name, column in learner.device_update.sampled.items()})
    assert {len(column) for column in seen[0].values()} == {ROWS}
    for name in ("obs", "action_noise", "next_action_noise"):
        assert not torch.equal(seen[0][name], seen[1][name])
    assert not torch.equal(seen[0]["action_noise"], seen[0]["next_action_noise"])
    again, other = collected(CASES["sac"]())
    update(again, other, STEPS)
    assert all(torch.equal(column, again.device_update.sampled[name]) for name, column in seen[0].items())


def test_rows_with_a_bad_reward_can_be_looked_at():
    trainer = config_of("sac").training(nan_policy="stop").build_trainer()
    next(trainer), next(trainer)
    trainer.buffer.columns["rewards"].fill_(math.nan)
    with pytest.raises(FloatingPointError):
        next(trainer)
    assert trainer.bad_batch["rewards"].isnan().any()
