"""Off-policy runs of tensor environments in CUDA graphs: the bits of single launches, of a seed and a resumed run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY, WITH_ATOMS, class_of, takes
from tensor_trees import FlipBits, PendulumWithMore
from trained_weights import difference, steps, weights

from lockstep import get_config
from lockstep.learner.minibatches import UpdateOptions
from lockstep.replay import TensorReplay
from lockstep.replay.priorities import TensorPriorities

pytestmark = pytest.mark.cuda

NAMES = [name for name in OFF_POLICY if class_of(name).learns_from_tensors]
N_STEP = {"td3": 3, "dqn": 3}
OPTIONS = {
    "td3": {"policy_delay": 2},
    "dqn": {"target_update_interval": 6},
    WITH_ATOMS: {"target_update_interval": 1, "tau": 0.05},
}


def config_of(name: str = "sac", device: str = "cuda", *, num_envs: int = 256, **framework: Any) -> Any:
    """An iteration: four vector steps, three gradient steps."""
    config = get_config(name).environment("tensor/Pendulum-v1" if takes(name, "box") else "tensor/CartPole-v1")
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=4)
    config.training(train_batch_size=512, lr=1e-3, **OPTIONS.get(name, {}), **ALGORITHM_CASES[name].on_device)
    config.replay(capacity=40 * num_envs, learning_starts=8 * num_envs, update_per_step=3 / (4 * num_envs))
    config.replay(n_step=N_STEP.get(name, 1))
    config.rl_module(model_config={"hiddens": (64, 64), "critic_hiddens": (64, 64)}).evaluation(evaluation_interval=0)
    config.reporting(total_steps=10**9, steps_per_epoch=4 * num_envs)
    return config.framework(device=device, **framework).debugging(seed=3)


def graphs(trainer: Any) -> list[bool]:
    return [each.is_graph for each in trainer.policy.learner_group.learner.device_update.graphs.values()]


def by_priority(config: Any) -> Any:
    """Beta rises while the steps are graphs."""
    return config.replay(prioritized=True, beta=[[0, 0.4], [56 * config.env_runners.num_envs_per_env_runner, 1.0]])


def priorities_are_equal(one: Any, other: Any) -> bool:
    mine, its = one.buffer.priorities, other.buffer.priorities
    pairs = [*zip(mine.tree.levels, its.tree.levels), (mine.largest, its.largest)]
    return all(torch.equal(*pair) for pair in pairs) and mine.beta.get_state() == its.beta.get_state()


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_draws_by_priority_what_single_launches_do(name, monkeypatch):
    """Bit for bit; each of the three steps of a graph on rows drawn when the errors of the one before are known."""
    graphed = steps(by_priority(config_of(name)).build_trainer(), 14)
    assert graphed.buffer.priorities.tree.values.device.type == "cuda"
    assert len(graphed.buffer.priorities.tree.values.unique()) > 500
    assert all(graphs(graphed))
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(by_priority(config_of(name)).build_trainer(), 14)
    assert not any(graphs(eager))
    assert difference(graphed, eager) == 0.0
    assert priorities_are_equal(graphed, eager)
    sampled = graphed.policy.learner_group.learner.device_update.sampled
    assert len(sampled["weights"]) == 3 * 512
    assert 0.0 < float(sampled["weights"].min()) < float(sampled["weights"].max()) <= 1.0


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_a_run_by_priority_is_resumed_bit_for_bit(name, tmp_path):
    one, other = (steps(by_priority(config_of(name)).build_trainer(), number) for number in (16, 9))
    other.save_to_path(tmp_path / "half")
    again = by_priority(config_of(name)).build_trainer()
    again.restore_from_path(tmp_path / "half")
    steps(again, 7)
    assert difference(one, again) == 0.0
    assert priorities_are_equal(one, again)


def test_priorities_on_the_device_are_those_of_the_cpu():
    """Through updates with rows named twice, of 100,000 rows in three levels."""
    rng, number = np.random.default_rng(0), 100_000
    sides = [TensorPriorities(number, torch.device(name)) for name in ("cpu", "cuda")]
    for _ in range(20):
        rows, errors = torch.from_numpy(rng.integers(0, number, 3000)), torch.from_numpy(rng.standard_cauchy(3000))
        uniforms = torch.from_numpy(rng.random(3000))
        drawn = []
        for priorities in sides:
            device = priorities.largest.device
            priorities.add(rows[:500].to(device))
            priorities.update(torch.cat([rows, rows[:1000]]).to(device), torch.cat([errors, errors[-1000:]]).to(device))
            drawn.append(priorities.tree.draw(uniforms.to(device)).cpu())
        assert torch.allclose(sides[0].tree.values, sides[1].tree.values.cpu(), rtol=1e-12, atol=0.0)
        assert (drawn[0] != drawn[1]).sum() <= 2  # where a mass lies between two rows, to the last digit


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_collects_and_learns_what_single_launches_do(name, monkeypatch):
    """Bit for bit, over iterations of which the last ones are graphs; the ring is written over once."""
    graphed = steps(config_of(name).build_trainer(), 14)
    assert isinstance(graphed.buffer, TensorReplay)
    assert graphed.buffer.columns["obs"].device.type == "cuda"
    assert all(graphs(graphed))
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(config_of(name).build_trainer(), 14)
    assert not any(graphs(eager))
    assert difference(graphed, eager) == 0.0
    one, other = (trainer.policy.learner_group.learner for trainer in (graphed, eager))
    assert one.lifetime == other.lifetime
    assert one.device_update.counts() == other.device_update.counts()
    for column, value in graphed.buffer.columns.items():
        assert torch.equal(value, eager.buffer.columns[column]), column


def normalised(config: Any) -> Any:
    bound = config.training.return_bound
    return config.environment(normalize_observations=True, normalize_rewards=bound is None)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_normalises_as_single_launches_do(name, monkeypatch):
    """Bit for bit: weights and statistics; the statistics are those of the rows in the buffer."""
    graphed = steps(normalised(config_of(name)).build_trainer(), 14)
    assert all(graphs(graphed))
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(normalised(config_of(name)).build_trainer(), 14)
    assert difference(graphed, eager) == 0.0
    states = [each.policy.learner_group.learner.connectors["default_policy"].get_state() for each in (graphed, eager)]
    np.testing.assert_equal(*states)
    moments = graphed.policy.connectors.obs.connectors[0].moments[0]
    assert moments.count == 14 * 4 * 256


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_a_normalised_run_is_resumed_bit_for_bit(name, tmp_path):
    one, other = (steps(normalised(config_of(name)).build_trainer(), number) for number in (16, 9))
    other.save_to_path(tmp_path / "half")
    again = normalised(config_of(name)).build_trainer()
    again.restore_from_path(tmp_path / "half")
    steps(again, 7)
    assert difference(one, again) == 0.0


def test_groups_in_a_graph_learn_what_they_learn_in_single_launches(monkeypatch):
    def trained() -> Any:
        config = config_of("sac").environment(PendulumWithMore(256, "cuda", seed=1))
        config.rl_module(observation_groups={"policy": ["direction"], "critic": ["speed", "direction"]})
        return steps(config.build_trainer(), 14)

    graphed = trained()
    assert all(graphs(graphed))
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    assert difference(graphed, trained()) == 0.0


GOALS = {"her_future_k": 3.0}, {"her_strategy": "episode", "n_step": 1}, {"prioritized": True}


def with_goals(replay: dict[str, Any], device: str = "cuda") -> Any:
    """An iteration whose samples have goals in hindsight."""
    config = config_of("dqn", device).environment(FlipBits(256, device, seed=1))
    return config.replay(her=True, **replay)


def check_goals(trainer: Any) -> None:
    """Check that ends of the last samples are those of their goals, and rewards if they are of one step."""
    sampled = trainer.policy.learner_group.learner.device_update.sampled
    reached = (sampled["new_obs"]["achieved_goal"] == sampled["new_obs"]["desired_goal"]).all(-1)
    assert 0 < int(reached.sum()) < len(reached)
    assert torch.equal(sampled["terminateds"].bool(), reached)
    if trainer.policy.config.replay.n_step == 1:
        assert torch.equal(sampled["rewards"], reached.float() - 1.0)


@pytest.mark.parametrize("replay", GOALS, ids=str)
def test_a_graph_relabels_goals_as_single_launches_do(replay, monkeypatch):
    """Bit for bit, in episodes that begin and end in the middle of a graph; the ring is written over once."""
    graphed = steps(with_goals(replay).build_trainer(), 14)
    assert graphed.buffer.columns["obs"]["desired_goal"].device.type == "cuda"
    assert all(graphs(graphed))
    check_goals(graphed)
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(with_goals(replay).build_trainer(), 14)
    assert not any(graphs(eager))
    assert difference(graphed, eager) == 0.0


@pytest.mark.parametrize("replay", GOALS, ids=str)
def test_a_run_with_goals_is_resumed_bit_for_bit(replay, tmp_path):
    one, other = (steps(with_goals(replay).build_trainer(), number) for number in (16, 9))
    other.save_to_path(tmp_path / "half")
    again = with_goals(replay).build_trainer()
    again.restore_from_path(tmp_path / "half")
    steps(again, 7)
    assert difference(one, again) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_bits_and_so_does_a_resumed_run(name, tmp_path):
    one, other = steps(config_of(name).build_trainer(), 16), steps(config_of(name).build_trainer(), 9)
    other.save_to_path(tmp_path / "half")
    again = config_of(name).build_trainer()
    again.restore_from_path(tmp_path / "half")
    steps(again, 7)
    assert difference(one, again) == 0.0
    assert any(graphs(one))


def test_a_restored_state_is_gone_on_from_in_a_graph(tmp_path):
    """A graph knows where the optimizer's memory lay."""
    trainer = steps(config_of().build_trainer(), 8)
    trainer.save_to_path(tmp_path / "half")
    steps(trainer, 4)
    after = {name: value.copy() for name, value in weights(trainer).items()}
    trainer.restore_from_path(tmp_path / "half")
    steps(trainer, 4)
    assert all(np.array_equal(after[name], value) for name, value in weights(trainer).items())


@pytest.mark.parametrize("name", ["sac", "td3", "dqn"])
def test_an_update_on_the_device_is_that_of_the_cpu(name):
    """In float64, from the same rows and noise."""
    trainers = [steps(config_of(name, device, dtype="float64").build_trainer(), 2) for device in ("cpu", "cuda")]
    here, there = (trainer.policy.learner_group.learner for trainer in trainers)
    there.set_state(here.get_state(not_components=["random", "metrics"]))
    trainers[1].buffer.set_state(trainers[0].buffer.get_state())
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, len(trainers[0].buffer), 3 * 512))
    drawn = here.device_update.noise("default_policy", 3 * 512)
    for learner in (here, there):
        device = learner.device
        learner.device_update.sample = lambda replay, number, device=device: replay.rows(rows.to(device))
        learner.device_update.noise = lambda *_, device=device: {k: v.to(device) for k, v in drawn.items()}
    for _ in range(2):  # single launches: what the two lambdas give comes from the host
        for learner, trainer in zip((here, there), trainers):
            learner.device_update.run_steps(trainer.buffer, 3, 512, UpdateOptions({}))
    assert difference(*trainers) < 1e-7


@pytest.mark.filterwarnings("error:compile=True")
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_compiled_update_in_a_graph_is_the_eager_one(name):
    eager = steps(config_of(name, dtype="float64").build_trainer(), 12)
    compiled = steps(config_of(name, dtype="float64", compile=True).build_trainer(), 12)
    assert all(graphs(compiled))
    assert difference(eager, compiled) < 1e-7


def test_memory_beyond_that_of_the_device_is_refused_with_what_would_fit(monkeypatch):
    config = config_of().replay(capacity=10**10)
    monkeypatch.setattr(type(config), "_check_replay_memory", lambda *_: None)  # that of the host
    with pytest.raises(ValueError, match=r"transitions would fit.*lower replay.capacity"):
        config.build_trainer()


def test_pendulum_is_learned():
    """By SAC, from -1,200 to above -300 in 8,000 gradient steps at most."""
    config = config_of(num_envs=64).replay(capacity=10**6, update_per_step=8 / (4 * 64), learning_starts=64 * 20)
    trainer = config.reporting(total_steps=10**9, steps_per_epoch=64 * 200).build_trainer()
    means = []
    for _ in range(20):
        found = next(trainer).train_collect_stat.returns_stat
        means.append(-1e9 if found is None else found.mean)
        if means[-1] > -300:
            break
    assert means[-1] > -300, means
