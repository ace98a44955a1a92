"""DQN on CartPole-v1 with Tianshou 2: its procedural API, its trainer, its DummyVectorEnv, no evaluation."""

from __future__ import annotations

import dqn_setting as s
import protocol as p

OPTIONS = p.parse("Tianshou's DQN on CartPole-v1", s.UPDATES)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import tianshou  # noqa: E402
import torch  # noqa: E402
from tianshou.algorithm import DQN  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou_noting import NotingCollector  # noqa: E402


def main() -> None:
    np.random.seed(OPTIONS.seed)  # noqa: NPY002 - Tianshou draws from numpy's global generator
    torch.manual_seed(OPTIONS.seed)
    environments = DummyVectorEnv([lambda: gym.make(p.ENVIRONMENT) for _ in range(p.NUM_ENVS)])
    environments.seed(OPTIONS.seed)
    action_space, observation_space = environments.action_space[0], environments.observation_space[0]
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=observation_space.shape, action_shape=action_space.n, hidden_sizes=s.HIDDENS),
        action_space=action_space,
        observation_space=observation_space,
        eps_training=1.0,
        eps_inference=0.0,
    )
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=s.LEARNING_RATE),
        gamma=p.GAMMA,
        target_update_freq=s.ROUNDS_PER_TARGET * OPTIONS.updates,
        is_double=False,
    )
    collector = NotingCollector(
        algorithm, environments, VectorReplayBuffer(s.CAPACITY, p.NUM_ENVS), exploration_noise=True
    )
    clock = p.Clock()
    clock.start()
    collector.reset()
    collector.collect(n_step=s.STARTS, random=True)
    collector.clock = clock

    def before_round(_epoch: int, steps: int) -> None:
        policy.set_eps_training(s.epsilon_at(s.STARTS + steps, OPTIONS.steps))
        if steps:
            clock.mark(s.STARTS + steps)

    parameters = OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=None,
        max_epochs=1,
        epoch_num_steps=OPTIONS.steps - s.STARTS,
        collection_step_num_env_steps=s.ROUND,
        update_step_num_gradient_steps_per_sample=OPTIONS.updates / s.ROUND,
        batch_size=s.BATCH,
        training_fn=before_round,
        verbose=False,
        show_progress=False,
    )
    trainer = algorithm.create_trainer(parameters)
    trainer.run()
    clock.mark(OPTIONS.steps)
    updates = next(iter(algorithm.optim._optim.state.values()))["step"]
    clock.report("tianshou", tianshou.__version__, OPTIONS.threads, gradient_steps=int(updates))


main()
