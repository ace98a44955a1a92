"""Stacks of frames on the device of tensor environments: the host's stacks, episodes' ends, replay, resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from host_waits import NoWaits
from tensor_trees import TreeCartPole
from trained_weights import difference, steps

from lockstep import get_config
from lockstep.connectors import PreviousActions
from lockstep.data.trees import leaves, map_tree, named_leaves, rows_of
from lockstep.envs.boundary import StepResult
from lockstep.envs.tensor import CartPole
from lockstep.rollout import TensorCollector

B, T = 5, 8


class Silent(CartPole):
    """Does not return last observations, as environments in rsl_rl's form do not."""

    gives_final_obs = False

    def step(self, actions: Any) -> Any:
        obs, rewards, dones, extras = super().step(actions)
        return obs, rewards, dones, {"time_outs": extras["time_outs"]}


ENVS: dict[str, Any] = {
    "numbers": "tensor/CartPole-v1",
    "images with channels": "tensor/MinAtar-Breakout-v1",
    "a tree": TreeCartPole,
    "no last observations": Silent,
}


def config_of(algorithm: str, env: Any = "tensor/CartPole-v1", frame_stack: int = 3) -> Any:
    env = env if isinstance(env, str) else env(B)
    config = get_config(algorithm).environment(env, frame_stack=frame_stack).rl_module(model_config={"hiddens": (8,)})
    config.env_runners(num_envs_per_env_runner=B, rollout_fragment_length=T).framework(compile=False)
    config.debugging(seed=3).reporting(total_steps=10**6, steps_per_epoch=T * B).evaluation(evaluation_interval=0)
    if config.is_off_policy:
        config.training(train_batch_size=16)
        return config.replay(capacity=20 * T * B, learning_starts=2 * T * B, update_per_step=2 / (T * B))
    return config.training(train_batch_size=T * B, minibatch_size=T * B // 2, num_epochs=2)


def trainer_of(algorithm: str, limit: int = 6) -> Any:
    """Return a trainer on episodes of at most `limit` steps."""
    trainer = config_of(algorithm).build_trainer()
    assert type(trainer.train_collector) is TensorCollector
    trainer.train_collector.tensors.max_episode_length = limit
    return trainer


def arrays(obs: Any) -> Any:
    return map_tree(lambda leaf: leaf.numpy().copy(), obs)


def followed_by_the_host(collector: Any, pipeline: Any, num_collects: int) -> Any:
    """Yield, for each vector step, what a rollout has stored and what the host's connectors make of the raw steps."""
    raw_steps = []
    seen = []
    step = collector.tensors.step

    def recorded_step(actions: torch.Tensor) -> Any:
        acted_on = seen[-1]
        obs, rewards, dones, extras = step(actions)
        seen.append(arrays(obs))
        final_obs = arrays(extras["final_obs"]) if "final_obs" in extras else acted_on
        raw_steps.append((arrays(obs), rewards.numpy(), dones.numpy(), final_obs))
        return obs, rewards, dones, extras

    collector.tensors.step = recorded_step
    pipeline = pipeline.copy()
    expected = None
    for _ in range(num_collects):
        if expected is None:
            collector.reset()
            seen.append(arrays(collector.stepper._obs))
            expected = map_tree(np.copy, pipeline(seen[-1]))
        collector.collect(n_step=T * B)
        rollout = collector.buffer
        for t in range(T):
            obs, rewards, dones, final_obs = raw_steps.pop(0)
            result = StepResult(obs, B)
            result.rewards, result.terminateds = rewards, dones
            rows = np.flatnonzero(dones)
            result.final_obs = (rows, rows_of(final_obs, rows)) if len(rows) else None
            next_obs, last = pipeline.follow(result, rollout.actions[t].numpy())
            expected_next = map_tree(np.copy, next_obs)
            following = map_tree(np.copy, next_obs)
            if last is not None:
                for leaf, value in zip(leaves(following), leaves(last[1])):
                    leaf[rows] = value
            yield arrays(rows_of(rollout.obs, t)), expected
            yield arrays(rows_of(rollout.next_obs, t)), following
            expected = expected_next


@pytest.mark.parametrize("name", ENVS)
def test_stacks_are_those_of_the_host_bit_for_bit(name):
    """Across collects and ends of episodes, last observations included."""
    config = config_of("ppo", ENVS[name])
    policy = config.build_policy()
    collector = config.build_collector(policy)
    assert type(collector) is TensorCollector
    collector.tensors.max_episode_length = 6
    part = policy.acting["default_policy"]
    pairs = list(followed_by_the_host(collector, part.recorded, 3))
    assert len(pairs) == 3 * 2 * T
    for found, expected in pairs:
        by_path = dict(named_leaves("obs", expected))
        for path, leaf in named_leaves("obs", found):
            assert leaf.dtype == by_path[path].dtype
            assert np.array_equal(leaf, by_path[path]), path
    assert collector.collect_episode >= 2 * B
    assert collector.stepper.observation_space == part.stored_observation_space


def test_a_replay_buffer_on_the_device_holds_the_stacks():
    """Within an episode a stack moves by one frame, and the first observation fills it."""
    trainer = steps(trainer_of("dqn"), 4)
    columns = trainer.buffer.columns
    obs = columns["obs"][: 4 * T]
    next_obs = columns["new_obs"][: 4 * T]
    assert obs.shape == (4 * T, B, 3, 4)
    assert torch.equal(next_obs[:, :, :-1], obs[:, :, 1:])
    is_first = (obs[:, :, 0] == obs[:, :, 1]).all(-1) & (obs[:, :, 1] == obs[:, :, 2]).all(-1)
    continues = (obs[1:] == next_obs[:-1]).flatten(2).all(-1)
    assert torch.equal(is_first[1:], ~continues)
    assert is_first[0].all()
    assert is_first.sum() > 2 * B


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_resumed_run_with_stacks_has_the_bits_of_one_that_never_stopped(algorithm, tmp_path):
    whole = steps(trainer_of(algorithm), 7)
    half = steps(trainer_of(algorithm), 4)
    half.save_to_path(tmp_path / "half")
    again = trainer_of(algorithm)
    again.restore_from_path(tmp_path / "half")
    assert difference(whole, steps(again, 3)) == 0.0


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_collect_of_stacks_waits_for_nothing_and_keeps_addresses(algorithm):
    collector = steps(trainer_of(algorithm), 2).train_collector
    stepper = collector.stepper
    captured = stepper.captured(explores=True)
    before = [leaf.data_ptr() for memory in stepper._recording.memories for leaf in memory.values()]
    assert before
    with NoWaits():
        captured.function()
    collector.reset()
    assert [leaf.data_ptr() for memory in stepper._recording.memories for leaf in memory.values()] == before
    assert not stepper._recording.memories[0]["has_frames"].any()


def test_stacks_go_with_a_memory_and_normalised_observations():
    config = config_of("ppo").environment(normalize_observations=True)
    trainer = steps(config.rl_module(model_config={"recurrent": "gru", "hiddens": (8,)}).build_trainer(), 2)
    assert type(trainer.train_collector) is TensorCollector
    (moments,) = trainer.policy.learner_group.learner.connectors["default_policy"].obs.connectors[0].moments
    assert moments.count == 2 * T * B
    assert moments.mean.shape == (3, 4)


def test_a_connector_that_does_not_run_on_a_device_is_refused_by_name():
    config = config_of("ppo", frame_stack=1).env_runners(
        env_to_module_connector=lambda *_: PreviousActions(spaces.Discrete(2))
    )
    policy = config.build_policy()
    with pytest.raises(ValueError, match=r"PreviousActions.*on_device is False"):
        TensorCollector(policy, config.make_envs(B), T)
