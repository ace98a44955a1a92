"""Rollouts and updates of tensor environments in CUDA graphs: numbers, bits of a seed, resume, learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from mirror_parts import swing
from tensor_trees import PendulumWithMore, TreeCartPole
from trained_weights import difference, steps, weights

from lockstep import PPOConfig
from lockstep.envs.tensor import TENSOR_ENVS, CartPole, make_tensor_env

pytestmark = pytest.mark.cuda


def config_of(device: str = "cuda", *, num_envs: int = 256, env_id: str = "tensor/CartPole-v1", **training: Any) -> Any:
    config = PPOConfig().environment(env_id)
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=16)
    config.training(train_batch_size=16 * num_envs, minibatch_size=4 * num_envs, num_epochs=2, lr=1e-3, **training)
    config.reporting(total_steps=10**7, steps_per_epoch=16 * num_envs).evaluation(evaluation_interval=0)
    return config.framework(device=device).debugging(seed=3)


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_environments_step_as_on_the_cpu(env_id):
    """With the same states, actions and random numbers, in float64."""
    here, there = (make_tensor_env(env_id, 64, device, torch.float64, seed=1) for device in ("cpu", "cuda"))
    generator = torch.Generator().manual_seed(0)
    there.set_state({**here.get_state(), "generator": there.generator.get_state()})
    low, high = here.draw_range
    for _ in range(300):
        if hasattr(here.single_action_space, "n"):
            actions = torch.randint(int(here.single_action_space.n), (64,), generator=generator)
        else:
            actions = torch.rand(64, *here.single_action_space.shape, generator=generator) * 4 - 2
        draws = torch.rand(64, here.num_draws, dtype=torch.float64, generator=generator) * (high - low) + low
        one, other = here.transition(actions, draws), there.transition(actions.cuda(), draws.cuda())
        for mine, its in zip((*one[:3], *one[3].values()), (*other[:3], *other[3].values())):
            assert torch.allclose(mine.double(), its.cpu().double(), rtol=0, atol=1e-6)


def test_a_graph_collects_and_learns_what_single_launches_do(monkeypatch):
    """Bit for bit, over six iterations of which four are graphs."""
    graphed = steps(config_of(target_kl=0.02, entropy_coeff=[[0, 0.02], [20_000, 0.0]]).build_trainer(), 6)
    assert graphed.policy.learner_group.learner.device_update._captured.is_graph
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(config_of(target_kl=0.02, entropy_coeff=[[0, 0.02], [20_000, 0.0]]).build_trainer(), 6)
    assert not eager.policy.learner_group.learner.device_update._captured.is_graph
    assert difference(graphed, eager) == 0.0


def test_a_graph_learns_from_a_tree_what_it_learns_from_one_tensor():
    """Bit for bit, over six iterations of which four are graphs."""
    trainers = []
    for env in (CartPole, TreeCartPole):
        config = config_of().environment(env(256, "cuda", seed=1))
        trainers.append(steps(config.build_trainer(), 6))
        assert trainers[-1].policy.learner_group.learner.device_update._captured.is_graph
    assert difference(*trainers) == 0.0


@pytest.mark.parametrize("normalize", [False, True])
def test_groups_in_a_graph_learn_what_they_learn_in_single_launches(normalize, monkeypatch):
    def trained() -> Any:
        config = config_of().environment(PendulumWithMore(256, "cuda", seed=1), normalize_observations=normalize)
        config.rl_module(observation_groups={"policy": ["direction"], "critic": ["speed", "direction"]})
        return steps(config.build_trainer(), 6)

    graphed = trained()
    assert graphed.policy.learner_group.learner.device_update._captured.is_graph
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    assert difference(graphed, trained()) == 0.0


def test_trees_are_normalised_in_a_graph_as_in_single_launches(monkeypatch):
    def trained() -> Any:
        config = config_of().environment(TreeCartPole(256, "cuda", seed=1), normalize_observations=True)
        return steps(config.build_trainer(), 6)

    graphed = trained()
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    assert difference(graphed, trained()) == 0.0


def test_rewards_are_normalised_in_a_graph_as_in_single_launches(monkeypatch, tmp_path):
    """Bit for bit, the running returns too; and so in a run that is resumed."""

    def config() -> Any:
        return config_of(env_id="tensor/Pendulum-v1").environment(normalize_observations=True, normalize_rewards=True)

    def state_of(trainer: Any) -> dict[str, Any]:
        return trainer.policy.learner_group.learner.connectors["default_policy"].get_state()["rewards"]

    graphed, half, resumed = (config().build_trainer() for _ in range(3))
    steps(graphed, 8)
    assert graphed.policy.learner_group.learner.device_update._captured.is_graph
    assert state_of(graphed)["moments"]["count"] == 8 * 16 * 256
    steps(half, 4).save_to_path(tmp_path / "half")
    resumed.restore_from_path(tmp_path / "half")
    steps(resumed, 4)
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(config().build_trainer(), 8)
    for other in (resumed, eager):
        assert difference(graphed, other) == 0.0
        assert state_of(graphed)["moments"] == state_of(other)["moments"]
        assert np.array_equal(state_of(graphed)["returns"], state_of(other)["returns"])


@pytest.mark.parametrize("network", [{}, {"symmetric": True}])
def test_mirror_images_in_a_graph_are_those_of_single_launches(monkeypatch, network):
    """Bit for bit, with normalised observations."""

    def config() -> Any:
        made = config_of(env_id="tensor/Pendulum-v1", symmetry=swing).rl_module(model_config=network)
        return made.environment(normalize_observations=True)

    graphed = steps(config().build_trainer(), 6)
    assert graphed.policy.learner_group.learner.device_update._captured.is_graph
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    assert difference(graphed, steps(config().build_trainer(), 6)) == 0.0


def test_a_schedule_reaches_the_graph():
    """A learning rate of 0 from the fifth iteration on leaves the weights as they are."""
    config = config_of().training(lr=[[0, 1e-3], [16_383, 1e-3], [16_384, 0.0], [10**8, 0.0]])
    trainer = steps(config.build_trainer(), 5)
    before = {name: value.copy() for name, value in weights(trainer).items()}
    steps(trainer, 2)
    assert all(np.array_equal(before[name], value) for name, value in weights(trainer).items())


def test_a_seed_gives_the_same_bits_and_so_does_a_resumed_run(tmp_path):
    one, other = steps(config_of().build_trainer(), 8), steps(config_of().build_trainer(), 4)
    other.save_to_path(tmp_path / "half")
    again = config_of().build_trainer()
    again.restore_from_path(tmp_path / "half")
    steps(again, 4)
    assert difference(one, again) == 0.0
    assert one.policy.learner_group.learner.device_update._captured.is_graph


def test_a_restored_state_is_gone_on_from_in_a_graph(tmp_path):
    """A graph knows where the optimizer's memory lay."""
    trainer = steps(config_of().build_trainer(), 4)
    trainer.save_to_path(tmp_path / "half")
    steps(trainer, 3)
    after = {name: value.copy() for name, value in weights(trainer).items()}
    trainer.restore_from_path(tmp_path / "half")
    steps(trainer, 3)
    assert all(np.array_equal(after[name], value) for name, value in weights(trainer).items())


@pytest.mark.filterwarnings("error:compile=True")
def test_a_compiled_update_in_a_graph_is_the_eager_one():
    eager = steps(config_of().framework(device="cuda", dtype="float64").build_trainer(), 5)
    compiled = steps(config_of().framework(device="cuda", dtype="float64", compile=True).build_trainer(), 5)
    assert difference(eager, compiled) < 1e-9


def test_cart_pole_is_learned():
    config = config_of(num_envs=1024).reporting(total_steps=10**7, steps_per_epoch=16 * 1024)
    trainer = config.build_trainer()
    means = []
    for _, stats, _ in trainer:
        found = stats.train_collect_stat.returns_stat
        means.append(0.0 if found is None else found.mean)
        if means[-1] > 450:
            break
    assert means[-1] > 450, means[::20]


def test_pendulum_trains_on_a_box_of_actions():
    trainer = steps(config_of(env_id="tensor/Pendulum-v1").build_trainer(), 6)
    assert all(np.isfinite(value).all() for value in weights(trainer).values())


def test_minatar_trains_on_images():
    trainer = steps(config_of(env_id="tensor/MinAtar-Breakout-v1").build_trainer(), 6)
    assert all(np.isfinite(value).all() for value in weights(trainer).values())


def test_too_many_environments_are_refused_with_what_would_fit():
    """What the environments themselves hold is there already: a few bytes each."""
    config = config_of(num_envs=2**20).env_runners(rollout_fragment_length=2**14)
    with pytest.raises(ValueError, match=r"1,048,576 environments need .* GiB .* environments would fit"):
        config.build_collector()


def test_observations_are_normalised_on_the_device_as_on_the_cpu():
    """The statistics after one rollout whose actions do not depend on the device's random numbers."""
    moments = []
    for device in ("cpu", "cuda"):
        config = config_of(device, num_envs=64).environment(normalize_observations=True)
        config.env_runners(explore=False).training(num_epochs=1, minibatch_size=None)
        trainer = config.build_trainer()
        env = trainer.train_collector.tensors
        trainer.train_collector.reset()
        start = np.random.default_rng(0).uniform(-0.05, 0.05, (64, 4)).astype(np.float32)
        env._state["physics"].copy_(torch.from_numpy(start))
        trainer.train_collector._obs.copy_(env.get_observations())
        env.max_episode_length = 5
        with trainer.policy.within_training_step():
            trainer.train_collector.exploration_noise = False
            trainer.policy.config.env_runners(explore=False)
            trainer.train_collector.collect(n_step=16 * 64)
            first = trainer.buffer.obs[:5].cpu().numpy().copy()
            trainer.policy.update(0, trainer.buffer, None, 1)
        found = trainer.policy.acting["default_policy"].connectors.obs.connectors[0].moments[0]
        rows = trainer.buffer.obs.flatten(0, 1).cpu().numpy()
        assert np.allclose(found.mean, rows.mean(0), rtol=0, atol=1e-6)
        assert np.allclose(found.var, rows.astype(np.float64).var(0), rtol=0, atol=1e-6)
        moments.append(first)
    assert np.allclose(*moments, rtol=0, atol=1e-4)
