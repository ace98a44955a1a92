"""Tianshou's replay buffers at the work of ``replay_speed.py``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import replay_work as w
import tianshou
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net

NAMES = {
    "obs": "obs",
    "act": "actions",
    "rew": "rewards",
    "terminated": "terminateds",
    "truncated": "truncateds",
    "obs_next": "new_obs",
}


def collector() -> Collector:
    """8 environments, a Q network, a buffer."""
    environments = DummyVectorEnv([lambda: gym.make(w.ENVIRONMENT) for _ in range(w.ENVS)])
    action_space, observation_space = environments.action_space[0], environments.observation_space[0]
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=observation_space.shape, action_shape=action_space.n, hidden_sizes=w.HIDDENS),
        action_space=action_space,
        observation_space=observation_space,
        eps_training=w.EPSILON,
        eps_inference=w.EPSILON,
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
    made = Collector(algorithm, environments, VectorReplayBuffer(w.SIZE, w.ENVS), exploration_noise=True)
    made.reset()
    return made


def main() -> None:
    """Fills the buffers and measures."""
    torch.set_num_threads(1)
    errors = w.errors()
    steps, frames = (
        [Batch(**{name: step[ours] for name, ours in NAMES.items()}, info=Batch()) for step in given]
        for given in (w.steps(), w.frame_steps())
    )
    single = [Batch(**{name: step[name][0] for name in NAMES}, info=Batch()) for step in frames]

    def add(buffer: Any, step: Any) -> None:
        buffer.add(step)

    def sample(buffer: Any, k: int) -> None:
        buffer.sample(w.BATCH)

    def sample_and_update(buffer: Any, k: int) -> None:
        _, indices = buffer.sample(w.BATCH)
        buffer.update_weight(indices, errors[k % len(errors)])

    def collect_random(collector: Any, k: int) -> None:
        collector.collect(n_step=w.COLLECTED, random=True)

    def collect(collector: Any, k: int) -> None:
        collector.collect(n_step=w.COLLECTED)

    def full(buffer: Any, given: list[Any]) -> Any:
        while len(buffer) < buffer.maxsize:
            for step in given:
                buffer.add(step)
        return buffer

    uniform = full(VectorReplayBuffer(w.SIZE, w.ENVS), steps)
    large = full(VectorReplayBuffer(w.LARGE, w.ENVS), steps)
    prioritized = full(PrioritizedVectorReplayBuffer(w.SIZE, w.ENVS, alpha=0.6, beta=0.4), steps)
    stacked = full(ReplayBuffer(w.FRAMES, stack_num=4, ignore_obs_next=True), single)
    w.measure(
        "tianshou",
        tianshou.__version__,
        add,
        {
            "add": (uniform, steps, None),
            "add_prioritized": (prioritized, steps, None),
            "add_frames": (stacked, single, None),
            "sample": (uniform, [], sample),
            "sample_large": (large, [], sample),
            "sample_prioritized": (prioritized, [], sample_and_update),
            "sample_frames": (stacked, [], sample),
            "collect_random": (collector(), [], collect_random),
            "collect_network": (collector(), [], collect),
        },
    )


main()
