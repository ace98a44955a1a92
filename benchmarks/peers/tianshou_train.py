"""Train PPO, DQN, SAC or TD3 with Tianshou 2: its procedural API, its trainers and DummyVectorEnv, no evaluation.

Networks are built as in its own examples. SAC and TD3 take one gradient step after each collected step; their actions
lie in [-1, 1] in the memory and in the networks, and are scaled to the environment's bounds by the policy.
"""

from __future__ import annotations

from typing import Any

import protocol

w = protocol.read(__doc__)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import tianshou  # noqa: E402
import torch  # noqa: E402
from tianshou.algorithm import DQN, PPO, SAC, TD3  # noqa: E402
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy  # noqa: E402
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import Collector, CollectStats, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.exploration import GaussianNoise  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import ActorCritic, Net  # noqa: E402
from tianshou.utils.net.continuous import (  # noqa: E402
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic  # noqa: E402
from torch import nn  # noqa: E402


class NotingCollector(Collector):
    """Tianshou's collector; hands the returns of finished episodes to the clock, where there is one."""

    clock: Any = None

    def collect(self, *args: Any, **kwargs: Any) -> CollectStats:
        stats = super().collect(*args, **kwargs)
        for value in stats.returns if self.clock else ():
            self.clock.episode(value)
        return stats


def categorical(logits: torch.Tensor) -> torch.distributions.Categorical:
    """Return the action distribution over the actor's output."""
    return torch.distributions.Categorical(logits=logits)


def ppo(observation_space: Any, action_space: Any) -> PPO:
    """Build separate networks, initialised as Tianshou's own examples do."""

    def body() -> Net:
        return Net(state_shape=observation_space.shape, hidden_sizes=w.hiddens, activation=nn.Tanh)

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
        optim=AdamOptimizerFactory(lr=w.lr, eps=w.adam_epsilon),
        gamma=w.gamma,
        gae_lambda=w.lambda_,
        eps_clip=w.clip,
        vf_coef=w.value_coeff,
        ent_coef=w.entropy_coeff,
        max_grad_norm=w.max_grad_norm,
        max_batchsize=w.batch,
        advantage_normalization=True,
    )


def dqn(observation_space: Any, action_space: Any) -> DQN:
    """Build the Q network and its algorithm."""
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=observation_space.shape, action_shape=action_space.n, hidden_sizes=w.hiddens),
        action_space=action_space,
        observation_space=observation_space,
        eps_training=1.0,
        eps_inference=0.0,
    )
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=w.lr),
        gamma=w.gamma,
        target_update_freq=w.rounds_per_target * w.updates,
        is_double=False,
    )


def sac_or_td3(observation_space: Any, action_space: Any) -> SAC | TD3:
    """Build actor and two critics, each with networks and an optimizer of its own."""
    shape = observation_space.shape

    def critic() -> ContinuousCritic:
        net = Net(state_shape=shape, action_shape=action_space.shape, hidden_sizes=w.hiddens, concat=True)
        return ContinuousCritic(preprocess_net=net)

    net = Net(state_shape=shape, hidden_sizes=w.hiddens)
    spaces = {"action_space": action_space, "observation_space": observation_space}
    common: dict[str, Any] = {
        "policy_optim": AdamOptimizerFactory(lr=w.lr),
        "critic": critic(),
        "critic_optim": AdamOptimizerFactory(lr=w.lr),
        "critic2": critic(),
        "critic2_optim": AdamOptimizerFactory(lr=w.lr),
        "tau": w.tau,
        "gamma": w.gamma,
    }
    if w.algorithm == "sac":
        actor = ContinuousActorProbabilistic(
            preprocess_net=net, action_shape=action_space.shape, unbounded=True, conditioned_sigma=True
        )
        entropy = -float(np.prod(action_space.shape))
        alpha = AutoAlpha(target_entropy=entropy, log_alpha=0.0, optim=AdamOptimizerFactory(lr=w.lr))
        return SAC(policy=SACPolicy(actor=actor, **spaces), alpha=alpha, **common)
    policy = ContinuousDeterministicPolicy(
        actor=ContinuousActorDeterministic(preprocess_net=net, action_shape=action_space.shape),
        exploration_noise=GaussianNoise(sigma=w.noise),
        **spaces,
    )
    return TD3(
        policy=policy,
        policy_noise=w.target_noise,
        noise_clip=w.noise_clip,
        update_actor_freq=w.policy_delay,
        **common,
    )


def parameters_of(algorithm: Any, clock: protocol.Clock) -> dict[str, Any]:
    """Return what the trainer is told beside the collector; what it calls before each update marks the clock."""
    if w.algorithm == "ppo":
        return {
            "epoch_num_steps": w.steps,
            "collection_step_num_env_steps": w.batch,
            "update_step_num_repetitions": w.num_epochs,
            "batch_size": w.minibatch,
            "training_fn": lambda _epoch, steps: clock.mark(steps),
        }

    def before_update(_epoch: int, steps: int) -> None:
        if w.algorithm == "dqn":
            algorithm.policy.set_eps_training(protocol.epsilon_at(w, w.random_steps + steps))
        if steps or w.algorithm != "dqn":
            clock.mark(w.random_steps + steps)

    steps_of_round, updates = (w.round_steps, w.updates) if w.algorithm == "dqn" else (1, 1.0)
    return {
        "epoch_num_steps": w.steps - w.random_steps,
        "collection_step_num_env_steps": steps_of_round,
        "update_step_num_gradient_steps_per_sample": updates / steps_of_round,
        "batch_size": w.batch,
        "training_fn": before_update,
    }


def main() -> None:
    """Train and report."""
    np.random.seed(w.seed)  # noqa: NPY002 - Tianshou draws from numpy's global generator
    torch.manual_seed(w.seed)
    environments = DummyVectorEnv([lambda: gym.make(w.environment) for _ in range(w.num_envs)])
    environments.seed(w.seed)
    build = {"ppo": ppo, "dqn": dqn}.get(w.algorithm, sac_or_td3)
    algorithm = build(environments.observation_space[0], environments.action_space[0])
    buffer = VectorReplayBuffer(w.batch if w.algorithm == "ppo" else w.capacity, w.num_envs)
    collector = NotingCollector(algorithm, environments, buffer, exploration_noise=w.algorithm in ("dqn", "td3"))
    clock = protocol.Clock(w)
    clock.start()
    if w.algorithm != "ppo":
        collector.clock = clock if w.algorithm != "dqn" else None
        collector.reset()
        collector.collect(n_step=w.random_steps, random=True)
    collector.clock = clock
    params = OnPolicyTrainerParams if w.algorithm == "ppo" else OffPolicyTrainerParams
    trainer = algorithm.create_trainer(
        params(
            training_collector=collector,
            test_collector=None,
            max_epochs=1,
            verbose=False,
            show_progress=False,
            **parameters_of(algorithm, clock),
        )
    )
    trainer.run()
    clock.mark(w.steps)
    optimizers = {"ppo": None, "dqn": "optim"}
    if (name := optimizers.get(w.algorithm, "critic_optim")) is None:
        clock.report("tianshou", tianshou.__version__)
    else:
        updates = next(iter(getattr(algorithm, name)._optim.state.values()))["step"]
        clock.report("tianshou", tianshou.__version__, gradient_steps=int(updates))


main()
