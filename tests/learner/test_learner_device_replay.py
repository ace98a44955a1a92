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
from tensor_trees import TreeCartPole, TreePendulum

from lockstep import get_config
from lockstep.connectors import ClipRewards, ScaleRewards
from lockstep.data import SampleBatch
from lockstep.data.trees import leaves, map_tree
from lockstep.learner.minibatches import UpdateOptions
from lockstep.learner.targets import TargetNetwork
from lockstep.replay import Priorities

B, SIZE, STEPS = 6, 16, 5
"""environments, rows of a gradient step, gradient steps of an update"""
ROWS = SIZE * STEPS


def config_of(name: str, env_id: Any = "tensor/Pendulum-v1", **training: Any) -> Any:
    env = env_id if isinstance(env_id, str) else env_id(B)
    config = get_config(name).environment(env).env_runners(num_envs_per_env_runner=B, rollout_fragment_length=10)
    training = {**ALGORITHM_CASES[name].on_device, **training}
    config.training(train_batch_size=SIZE, lr=1e-2, **training).replay(capacity=60 * B, learning_starts=10 * B)
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
CASES["dqn, noisy weights"] = lambda: config_of("dqn", "tensor/CartPole-v1").env_runners(exploration="noisy")
BETA = [[0, 0.4], [60 * B, 1.0]]


def by_priority(name: str, env_id: Any = "tensor/Pendulum-v1", n_step: int = 1, **training: Any) -> Any:
    return config_of(name, env_id, **training).replay(prioritized=True, beta=BETA, n_step=n_step)


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
ALL_CASES = CASES | BY_PRIORITY


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
    (plain, replay), (graphed, other_replay) = (collected(ALL_CASES[case]()) for _ in range(2))
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


@pytest.mark.parametrize("case", one_in(3, ALL_CASES))
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
