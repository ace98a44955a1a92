"""SAC and TD3 on Pendulum-v1 with TorchRL as its own examples build them: GymEnv, Collector, SACLoss or TD3Loss,
SoftUpdate and its replay buffer; one step collected, one gradient step.

Its two critics are one vectorised network of stacked parameters, its actions lie in the environment's bounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import sac_protocol as p

OPTIONS = p.parse("TorchRL's SAC and TD3 on Pendulum-v1")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torchrl  # noqa: E402
from tensordict import TensorDictBase  # noqa: E402
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential  # noqa: E402
from tensordict.nn.distributions import NormalParamExtractor  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer  # noqa: E402
from torchrl.envs import (  # noqa: E402
    Compose,
    DoubleToFloat,
    GymEnv,
    InitTracker,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import MLP, AdditiveGaussianModule, ProbabilisticActor, TanhModule, ValueOperator  # noqa: E402
from torchrl.modules.distributions import TanhNormal  # noqa: E402
from torchrl.objectives import SoftUpdate, group_optimizers  # noqa: E402
from torchrl.objectives.sac import SACLoss  # noqa: E402
from torchrl.objectives.td3 import TD3Loss  # noqa: E402

Update = Callable[[TensorDictBase, int], None]


def network(inputs: int, outputs: int) -> MLP:
    """Rectified layers."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=list(p.HIDDENS), activation_class=nn.ReLU)


def critic() -> ValueOperator:
    """Of actions; the loss module makes two of it."""
    return ValueOperator(in_keys=["action", "observation"], module=network(4, 1))


def optimizer_of(params: Any) -> torch.optim.Adam:
    """Adam over a loss module's parameters."""
    return torch.optim.Adam(list(params.flatten_keys().values()), lr=p.LEARNING_RATE)


def sac(spec: Any) -> tuple[Any, Update]:
    """What acts, and the gradient step."""
    net = nn.Sequential(network(3, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        spec=spec,
        in_keys=["loc", "scale"],
        module=TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=False,
    )
    losses = SACLoss(actor_network=actor, qvalue_network=critic(), num_qvalue_nets=2, loss_function="l2")
    losses.make_value_estimator(gamma=p.GAMMA)
    follow = SoftUpdate(losses, tau=p.TAU)
    optimizer = group_optimizers(
        optimizer_of(losses.actor_network_params),
        optimizer_of(losses.qvalue_network_params),
        torch.optim.Adam([losses.log_alpha], lr=p.LEARNING_RATE),
    )

    def update(batch: TensorDictBase, _number: int) -> None:
        found = losses(batch)
        (found["loss_actor"] + found["loss_qvalue"] + found["loss_alpha"]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        follow.step()

    return actor, update


def td3(spec: Any) -> tuple[Any, Update]:
    """What acts, and the gradient step. Noise is in the environment's units here: twice the setting's."""
    half_width = float(spec.space.high[0])
    actor = TensorDictSequential(
        TensorDictModule(network(3, 1), in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=spec),
    )
    explore = AdditiveGaussianModule(sigma_init=1, sigma_end=1, mean=0, std=p.NOISE * half_width, spec=spec)
    losses = TD3Loss(
        actor_network=actor,
        qvalue_network=critic(),
        num_qvalue_nets=2,
        loss_function="l2",
        action_spec=spec,
        policy_noise=p.TARGET_NOISE * half_width,
        noise_clip=p.NOISE_CLIP * half_width,
    )
    losses.make_value_estimator(gamma=p.GAMMA)
    follow = SoftUpdate(losses, tau=p.TAU)
    actor_optimizer = optimizer_of(losses.actor_network_params)
    critic_optimizer = optimizer_of(losses.qvalue_network_params)

    def update(batch: TensorDictBase, number: int) -> None:
        loss, *_ = losses.value_loss(batch)
        loss.backward()
        critic_optimizer.step()
        critic_optimizer.zero_grad(set_to_none=True)
        if number % p.POLICY_DELAY == 0:
            loss, *_ = losses.actor_loss(batch)
            loss.backward()
            actor_optimizer.step()
            actor_optimizer.zero_grad(set_to_none=True)
            follow.step()

    return TensorDictSequential(actor, explore), update


def main() -> None:
    torch.manual_seed(OPTIONS.seed)
    transforms = Compose(InitTracker(), StepCounter(), DoubleToFloat(), RewardSum())
    environment = TransformedEnv(GymEnv(p.ENVIRONMENT), transforms)
    environment.set_seed(OPTIONS.seed)
    acting, update = (sac if OPTIONS.algorithm == "sac" else td3)(environment.action_spec_unbatched)
    collector = Collector(
        environment,
        acting,
        init_random_frames=p.RANDOM_STEPS,
        frames_per_batch=1,
        total_frames=OPTIONS.steps,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(p.CAPACITY), batch_size=p.BATCH)
    clock = p.Clock(OPTIONS.steps)
    gradient_steps = 0
    for step, data in enumerate(collector, start=1):
        collector.update_policy_weights_()
        ended = data["next", "done"]
        if ended.any():
            clock.episode(data["next", "episode_reward"][ended].item())
        buffer.extend(data.reshape(-1))
        if step > p.RANDOM_STEPS:
            update(buffer.sample(), gradient_steps)
            gradient_steps += 1
        clock.mark(step)
    collector.shutdown()
    clock.report("torchrl", torchrl.__version__, OPTIONS, gradient_steps=gradient_steps)


main()
