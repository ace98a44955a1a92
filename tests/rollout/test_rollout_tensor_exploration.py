"""Exploration on the device of tensor environments: the numbers of the host, restarts with episodes, exact resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from host_waits import NoWaits
from parts import fast_if
from trained_weights import difference, steps

from lockstep import get_config
from lockstep.data.row_share import ALL_ROWS
from lockstep.modules import GaussianNoise, OrnsteinUhlenbeckNoise, StateDependentHead, StateDependentNoise
from lockstep.rollout import TensorCollector
from lockstep.rollout.tensor_exploration import TensorExplorationState, TensorPolicy

B, T = 6, 8
OU = {"sigma": 0.4, "theta": 0.3, "dt": 0.5, "mean": [0.2], "weights": [0.5]}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "td3, ou": ("td3", "ou", OU),
    "td3, normal": ("td3", "normal", {"scale": 0.3, "mean": [0.1], "weights": [0.5]}),
    "sac, ou": ("sac", "ou", OU),
    "sac, normal": ("sac", "normal", {"scale": 0.3}),
    "sac, gsde": ("sac", "gsde", {"sample_freq": 3}),
    "ppo, gsde": ("ppo", "gsde", {"sample_freq": None}),
    "dqn, noisy": ("dqn", "noisy", {}),
}
"""Algorithm, exploration and its options by the name of a case."""


def config_of(case: str) -> Any:
    name, kind, options = KINDS[case]
    env = "tensor/CartPole-v1" if kind == "noisy" else "tensor/Pendulum-v1"
    config = get_config(name).environment(env).rl_module(model_config={"hiddens": (8,)})
    config.env_runners(
        num_envs_per_env_runner=B, rollout_fragment_length=T, exploration=kind, exploration_config=options
    )
    config.reporting(total_steps=10**6, steps_per_epoch=T * B).evaluation(evaluation_interval=0).debugging(seed=3)
    if config.is_off_policy:
        config.training(train_batch_size=16)
        config.replay(capacity=30 * T * B, learning_starts=2 * T * B, update_per_step=2 / (T * B))
    else:
        config.training(train_batch_size=T * B, minibatch_size=T * B // 2, num_epochs=2)
    return config


def collector_of(case: str, limit: int = 5) -> Any:
    """Return a collector that explores, of short episodes."""
    config = config_of(case)
    collector = config.build_collector(config.build_policy())
    assert isinstance(collector, TensorCollector)
    collector.tensors.max_episode_length = limit
    collector.exploration_noise = True
    return collector


def column_of(collector: Any, name: str) -> torch.Tensor:
    """Return the rows `[T, B, ...]` of the first collect."""
    buffer = collector.buffer
    column: torch.Tensor = buffer.columns[name] if hasattr(buffer, "columns") and buffer.is_sampled else None
    return getattr(buffer, name) if column is None else column[:T]


# -- the numbers of the host ---


class Prepared:
    """Generators whose matrices are those of a tensor `[B, F, A]`."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    def __call__(self, row: int) -> Any:
        self.row = row
        return self

    def standard_normal(self, shape: Any, dtype: Any) -> np.ndarray:
        return self.numbers[self.row].numpy().astype(dtype)


@pytest.mark.parametrize("sample_freq", [None, 2])
@pytest.mark.parametrize("kind", ["ou", "gsde"])
def test_noise_with_a_memory_is_the_hosts_for_the_same_numbers(kind, sample_freq):
    """With episodes that begin at random, bit for bit."""
    exploration: Any = OrnsteinUhlenbeckNoise(1, **OU)
    if kind == "gsde":
        exploration = StateDependentNoise(StateDependentHead(4, 1, 0.0), sample_freq)
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    host_state = exploration.initial_state(B)
    on_device = TensorExplorationState(exploration.initial_state(B), B, torch.device("cpu"))
    begins = np.ones(B, bool)
    for _ in range(20):
        numbers = exploration.draw_on_device(B, torch.tensor(0.4), generator)
        expected = exploration.advance(numbers.numpy(), host_state, begins, Prepared(numbers))
        found = on_device.advance(exploration, numbers)
        np.testing.assert_array_equal(found.numpy(), expected)
        begins = rng.random(B) < 0.2
        on_device.after_step(torch.from_numpy(begins))


def test_random_numbers_of_the_process_have_its_deviation_and_mean():
    process = OrnsteinUhlenbeckNoise(2, sigma=0.4, theta=0.5, dt=0.25, mean=[8.0, 0.0], weights=[1.0, 0.1])
    drawn = process.draw_on_device(4000, torch.tensor(process.level(0)), torch.Generator().manual_seed(0))
    np.testing.assert_allclose(drawn.std(0), [0.2, 0.02], rtol=0.05)
    np.testing.assert_allclose(drawn.mean(0), [8.0 * 0.125, 0.0], atol=0.02)
    assert process.level(0) == 0.4


@pytest.mark.parametrize("case", KINDS)
def test_a_policy_acts_with_noise_as_on_the_host(case):
    collector = collector_of(case)
    part = collector.policy.acting["default_policy"]
    exploration = part.exploration
    obs = collector.tensors.get_observations()
    generator = torch.Generator().manual_seed(1)
    numbers = exploration.draw_on_device(B, torch.tensor(0.3), generator)
    state = {name: torch.from_numpy(leaf) for name, leaf in exploration.initial_state(B).items()}
    with torch.no_grad():
        noise = exploration.advance_on_device(numbers, state, torch.ones(B, dtype=torch.bool))
        before = generator.get_state()
        found = exploration.act_on_device(TensorPolicy(part, obs, generator, ALL_ROWS), noise)
        if case.startswith("sac") and "gsde" not in case:
            # The policy's own numbers come first on the host; on the device the distribution draws them itself.
            generator.set_state(before)
            noise = torch.cat([torch.empty(B, 1).normal_(generator=generator), noise], dim=-1)
    np.testing.assert_allclose(found, part.act(obs.numpy(), noise.numpy()), rtol=1e-5, atol=1e-6)


# -- in a collector ---


def test_ou_noise_of_a_collect_follows_the_process_and_restarts_with_episodes():
    """From the actions that were stored: the noise is their distance from the deterministic policy."""
    collector = collector_of("td3, ou", limit=3)
    noise = []
    for _ in range(40):
        collector.collect(n_step=T * B)
    columns = {name: column[: 30 * T] for name, column in collector.buffer.columns.items()}
    with torch.no_grad():
        actions = collector.policy.module.compute_actions({"obs": columns["obs"].flatten(0, 1)})
    noise = columns["actions"] - actions.view(columns["actions"].shape)
    inside = (columns["actions"].abs() < 1.0).all(-1)
    inside = inside[1:] & inside[:-1]
    begins = (torch.arange(1, 30 * T) % 3 == 0)[:, None].expand_as(inside)
    kept = 1.0 - OU["theta"] * OU["dt"]
    shift = OU["mean"][0] * OU["theta"] * OU["dt"]
    deviation = OU["sigma"] * OU["weights"][0] * OU["dt"] ** 0.5
    for rows, before in ((inside & ~begins, kept), (inside & begins, 0.0)):
        drawn = (noise[1:] - before * noise[:-1])[rows]
        assert float(drawn.mean()) == pytest.approx(shift, abs=0.02)
        assert float(drawn.std()) == pytest.approx(deviation, rel=0.1)


def test_matrices_stay_for_an_episode_or_for_some_steps():
    for case, new_steps in (("ppo, gsde", {0, 5}), ("sac, gsde", {0, 3, 5})):
        collector = collector_of(case, limit=5)
        exploring = collector.stepper._exploring
        seen: list[torch.Tensor] = []
        advance = exploring.advance

        def watch(*arguments: Any, advance: Any = advance, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            noise: torch.Tensor = advance(*arguments)
            seen.append(noise.clone())
            return noise

        exploring.advance = watch
        collector.collect(n_step=T * B)
        changed = {t for t in range(T) if t == 0 or not torch.equal(seen[t], seen[t - 1])}
        assert changed == new_steps, case
        if case == "ppo, gsde":
            assert column_of(collector, "cuts")[4].all()


def test_random_actions_leave_the_noise_and_episodes_begin_anew():
    collector = collector_of("td3, ou", limit=T)
    exploring = collector.stepper._exploring
    collector.collect(n_step=T * B, random=True)
    assert not exploring.state["noise"].any()
    assert exploring._begins.all()
    collector.collect(n_step=T * B)
    assert exploring.state["noise"].abs().min() > 0
    collector.reset()
    assert exploring._begins.all()


@pytest.mark.parametrize("case", KINDS)
def test_exploring_waits_for_no_value(case):
    collector = collector_of(case)
    collector.collect(n_step=T * B)
    with NoWaits():
        collector.stepper.captured(True).function()


@pytest.mark.parametrize("case", fast_if(lambda case: case in ("td3, ou", "ppo, gsde", "dqn, noisy"), KINDS))
def test_a_resumed_run_explores_as_one_that_never_stopped(case, tmp_path):
    """Bit for bit: in the middle of episodes, whose noise continues."""
    whole, half, again = (config_of(case).build_trainer() for _ in range(3))
    steps(whole, 8)
    steps(half, 5).save_to_path(tmp_path / "half")
    again.restore_from_path(tmp_path / "half")
    steps(again, 3)
    assert isinstance(again.train_collector, TensorCollector)
    assert difference(whole, again) == 0.0
    assert difference(whole, half) > 0.0
    states = [trainer.train_collector.get_state().get("exploring") for trainer in (whole, again)]
    assert (states[0] is not None) == ("ou" in case or "gsde" in case)
    for name in states[0]["state"] if states[0] else ():
        np.testing.assert_array_equal(*(state["state"][name] for state in states))


def test_an_exploration_of_the_users_own_needs_the_host():
    class Own(GaussianNoise):
        draws_on_device = False

    config = config_of("td3, normal")
    policy = config.build_policy()
    policy.acting["default_policy"].exploration = Own(0.1, 1)
    with pytest.raises(ValueError, match=r"td3 copies the steps .*env_runners\(exploration=...\): this exploration"):
        config.build_collector(policy)


def test_the_action_space_of_the_cases_has_one_dimension():
    """The options of the cases have one number for each dimension."""
    assert collector_of("td3, ou").env.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
