"""SAC and TD3 on Pendulum-v1 with Tianshou 2: its procedural API and trainer as in its MuJoCo examples, no evaluation.

One environment in its DummyVectorEnv, one gradient step after each collected step. Actions lie in [-1, 1] in the memory
and in the networks, and are scaled to the environment's bounds by the policy.
"""

from __future__ import annotations

from typing import Any

import sac_protocol as p

OPTIONS = p.parse("Tianshou's SAC and TD3 on Pendulum-v1")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import tianshou  # noqa: E402
import torch  # noqa: E402
from tianshou.algorithm import SAC, TD3  # noqa: E402
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy  # noqa: E402
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.exploration import GaussianNoise  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.net.continuous import (  # noqa: E402
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou_noting import NotingCollector  # noqa: E402


def make_algorithm(observation_space: gym.spaces.Box, action_space: gym.spaces.Box) -> SAC | TD3:
    """Actor and two critics, each with networks and an optimizer of its own."""
    shape = observation_space.shape

    def critic() -> ContinuousCritic:
        net = Net(state_shape=shape, action_shape=action_space.shape, hidden_sizes=p.HIDDENS, concat=True)
        return ContinuousCritic(preprocess_net=net)

    net = Net(state_shape=shape, hidden_sizes=p.HIDDENS)
    spaces = {"action_space": action_space, "observation_space": observation_space}
    common: dict[str, Any] = {
        "policy_optim": AdamOptimizerFactory(lr=p.LEARNING_RATE),
        "critic": critic(),
        "critic_optim": AdamOptimizerFactory(lr=p.LEARNING_RATE),
        "critic2": critic(),
        "critic2_optim": AdamOptimizerFactory(lr=p.LEARNING_RATE),
        "tau": p.TAU,
        "gamma": p.GAMMA,
    }
    if OPTIONS.algorithm == "sac":
        actor = ContinuousActorProbabilistic(
            preprocess_net=net, action_shape=action_space.shape, unbounded=True, conditioned_sigma=True
        )
        entropy = -float(np.prod(action_space.shape))
        alpha = AutoAlpha(target_entropy=entropy, log_alpha=0.0, optim=AdamOptimizerFactory(lr=p.LEARNING_RATE))
        return SAC(policy=SACPolicy(actor=actor, **spaces), alpha=alpha, **common)
    policy = ContinuousDeterministicPolicy(
        actor=ContinuousActorDeterministic(preprocess_net=net, action_shape=action_space.shape),
        exploration_noise=GaussianNoise(sigma=p.NOISE),
        **spaces,
    )
    return TD3(
        policy=policy,
        policy_noise=p.TARGET_NOISE,
        noise_clip=p.NOISE_CLIP,
        update_actor_freq=p.POLICY_DELAY,
        **common,
    )


def main() -> None:
    np.random.seed(OPTIONS.seed)  # noqa: NPY002 - Tianshou draws from numpy's global generator
    torch.manual_seed(OPTIONS.seed)
    environments = DummyVectorEnv([lambda: gym.make(p.ENVIRONMENT)])
    environments.seed(OPTIONS.seed)
    algorithm = make_algorithm(environments.observation_space[0], environments.action_space[0])
    buffer = VectorReplayBuffer(p.CAPACITY, 1)
    collector = NotingCollector(algorithm, environments, buffer, exploration_noise=OPTIONS.algorithm == "td3")
    clock = p.Clock(OPTIONS.steps)
    collector.clock = clock
    collector.reset()
    collector.collect(n_step=p.RANDOM_STEPS, random=True)

    def before_step(_epoch: int, steps: int) -> None:
        clock.mark(p.RANDOM_STEPS + steps)

    parameters = OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=None,
        max_epochs=1,
        epoch_num_steps=OPTIONS.steps - p.RANDOM_STEPS,
        collection_step_num_env_steps=1,
        update_step_num_gradient_steps_per_sample=1.0,
        batch_size=p.BATCH,
        training_fn=before_step,
        verbose=False,
        show_progress=False,
    )
    trainer = algorithm.create_trainer(parameters)
    trainer.run()
    clock.mark(OPTIONS.steps)
    updates = next(iter(algorithm.critic_optim._optim.state.values()))["step"]
    clock.report("tianshou", tianshou.__version__, OPTIONS, gradient_steps=int(updates))


main()
