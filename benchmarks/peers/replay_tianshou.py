"""Time Tianshou's replay buffers at the work of ``replay_speed.py``."""

from __future__ import annotations

import gymnasium as gym
import protocol
import replay_work as work
import tianshou
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net

protocol.read(__doc__)

NAMES = {
    "obs": "obs",
    "act": "actions",
    "rew": "rewards",
    "terminated": "terminateds",
    "truncated": "truncateds",
    "obs_next": "new_obs",
}


def collector() -> Collector:
    """Return a collector with 8 environments, a Q network, a buffer."""
    environments = DummyVectorEnv([lambda: gym.make(work.ENVIRONMENT) for _ in range(work.ENVS)])
    action_space, observation_space = environments.action_space[0], environments.observation_space[0]
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=observation_space.shape, action_shape=action_space.n, hidden_sizes=work.HIDDENS),
        action_space=action_space,
        observation_space=observation_space,
        eps_training=work.EPSILON,
        eps_inference=work.EPSILON,
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
    made = Collector(algorithm, environments, VectorReplayBuffer(work.SIZE, work.ENVS), exploration_noise=True)
    made.reset()
    return made


def main() -> None:
    """Fill the buffers and measure."""
    steps, frames = (
        [Batch(**{name: step[ours] for name, ours in NAMES.items()}, info=Batch()) for step in rows]
        for rows in (work.steps(), work.frame_steps())
    )
    single = [Batch(**{name: step[name][0] for name in NAMES}, info=Batch()) for step in frames]
    buffers = {
        "uniform": VectorReplayBuffer(work.SIZE, work.ENVS),
        "large": VectorReplayBuffer(work.LARGE, work.ENVS),
        "prioritized": PrioritizedVectorReplayBuffer(work.SIZE, work.ENVS, alpha=0.6, beta=0.4),
    }
    for buffer in buffers.values():
        work.full(buffer, steps)
    buffers["stacked"] = work.full(ReplayBuffer(work.FRAMES, stack_num=4, ignore_obs_next=True), single)
    seconds = work.measure(buffers, steps, single, lambda sample: sample[1], collector)
    protocol.print_line("tianshou", tianshou.__version__, seconds=seconds)


main()
