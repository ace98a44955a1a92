"""PPO on CartPole-v1 with Tianshou 2: its procedural API, its trainer, its DummyVectorEnv, no evaluation."""

from __future__ import annotations

from typing import Any

import protocol as p

OPTIONS = p.parse("Tianshou's PPO on CartPole-v1")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import tianshou  # noqa: E402
import torch  # noqa: E402
from tianshou.algorithm import PPO  # noqa: E402
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.trainer import OnPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import ActorCritic, Net  # noqa: E402
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic  # noqa: E402
from tianshou_noting import NotingCollector  # noqa: E402
from torch import nn  # noqa: E402


def categorical(logits: torch.Tensor) -> torch.distributions.Categorical:
    """The action distribution over the actor's output."""
    return torch.distributions.Categorical(logits=logits)


def build(observation_space: gym.Space[Any], action_space: gym.spaces.Discrete) -> PPO:
    """The algorithm with separate networks, initialised as Tianshou's own examples do."""

    def body() -> Net:
        return Net(state_shape=observation_space.shape, hidden_sizes=p.HIDDENS, activation=nn.Tanh)

    actor = DiscreteActor(preprocess_net=body(), action_shape=(int(action_space.n),), softmax_output=False)
    critic = DiscreteCritic(preprocess_net=body())
    for module in ActorCritic(actor, critic).modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.zeros_(module.bias)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=categorical,
        action_space=action_space,
        observation_space=observation_space,
        action_scaling=False,
        action_bound_method=None,
    )
    return PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=p.LEARNING_RATE, eps=p.ADAM_EPSILON),
        gamma=p.GAMMA,
        gae_lambda=p.LAMBDA,
        eps_clip=p.CLIP,
        vf_coef=p.VALUE_COEFFICIENT,
        ent_coef=p.ENTROPY_COEFFICIENT,
        max_grad_norm=p.MAX_GRAD_NORM,
        max_batchsize=p.BATCH,
        advantage_normalization=True,
    )


def main() -> None:
    np.random.seed(OPTIONS.seed)  # noqa: NPY002 - Tianshou draws minibatches from numpy's global generator
    torch.manual_seed(OPTIONS.seed)
    environments = DummyVectorEnv([lambda: gym.make(p.ENVIRONMENT) for _ in range(p.NUM_ENVS)])
    environments.seed(OPTIONS.seed)
    algorithm = build(environments.observation_space[0], environments.action_space[0])
    collector = NotingCollector(algorithm, environments, VectorReplayBuffer(p.BATCH, p.NUM_ENVS))
    clock = collector.clock = p.Clock()
    parameters = OnPolicyTrainerParams(
        training_collector=collector,
        test_collector=None,
        max_epochs=1,
        epoch_num_steps=OPTIONS.steps,
        collection_step_num_env_steps=p.BATCH,
        update_step_num_repetitions=p.NUM_EPOCHS,
        batch_size=p.MINIBATCH,
        training_fn=lambda _epoch, steps: clock.mark(steps),
        verbose=False,
        show_progress=False,
    )
    trainer = algorithm.create_trainer(parameters)
    clock.start()
    trainer.run()
    clock.mark(OPTIONS.steps)
    clock.report("tianshou", tianshou.__version__, OPTIONS.threads)


main()
