"""Train PPO, DQN, SAC or TD3 with TorchRL as its own examples build them, all with its Collector and replay buffer.

The eight CartPoles are gymnasium's SyncVectorEnv in TorchRL's wrapper, which is faster here than its own ``SerialEnv``.
SAC and TD3: two critics are one vectorised network of stacked parameters, actions lie in the environment's bounds, one
step is collected for each gradient step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import protocol

w = protocol.read(__doc__)
warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402
import torch  # noqa: E402
import torchrl  # noqa: E402
from tensordict import TensorDictBase  # noqa: E402
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential  # noqa: E402
from tensordict.nn.distributions import NormalParamExtractor  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer  # noqa: E402
from torchrl.envs import (  # noqa: E402
    Compose,
    DoubleToFloat,
    GymEnv,
    GymWrapper,
    InitTracker,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import (  # noqa: E402
    MLP,
    AdditiveGaussianModule,
    EGreedyModule,
    ProbabilisticActor,
    QValueActor,
    TanhModule,
    ValueOperator,
)
from torchrl.modules.distributions import TanhNormal  # noqa: E402
from torchrl.objectives import ClipPPOLoss, DQNLoss, HardUpdate, SoftUpdate, group_optimizers  # noqa: E402
from torchrl.objectives.sac import SACLoss  # noqa: E402
from torchrl.objectives.td3 import TD3Loss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402

Update = Callable[[TensorDictBase, int], None]


def cart_poles() -> TransformedEnv:
    """Return eight environments in this process, with the sum of rewards of each episode."""
    vector = gym.vector.SyncVectorEnv(
        [lambda: gym.make(w.environment)] * w.num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    environments = TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())
    environments.set_seed(w.seed)
    return environments


def note_returns(clock: protocol.Clock, batch: TensorDictBase) -> None:
    """Tell the clock of the episodes that ended."""
    ended = batch["next", "done"]
    if ended.any():
        for episode_return in batch["next", "episode_reward"][ended].tolist():
            clock.episode(episode_return)


def make_networks(inputs: int, actions: int) -> tuple[ProbabilisticActor, ValueOperator]:
    """Return separate networks, orthogonally initialised (gain sqrt 2; the policy's head 0.01, the value's 1)."""

    def network(outputs: int, gain: float) -> MLP:
        mlp = MLP(in_features=inputs, out_features=outputs, num_cells=list(w.hiddens), activation_class=nn.Tanh)
        linears = [layer for layer in mlp.modules() if isinstance(layer, nn.Linear)]
        for layer in linears:
            nn.init.orthogonal_(layer.weight, 2**0.5 if layer is not linears[-1] else gain)
            nn.init.zeros_(layer.bias)
        return mlp

    policy = ProbabilisticActor(
        TensorDictModule(network(actions, 0.01), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    return policy, ValueOperator(network(1, 1.0), in_keys=["observation"])


def run_ppo(clock: protocol.Clock) -> None:
    """Train with GAE, ClipPPOLoss and minibatches from a replay buffer."""
    environments = cart_poles()
    policy, value = make_networks(4, 2)
    collector = Collector(
        environments,
        policy,
        frames_per_batch=w.batch,
        total_frames=w.steps,
        track_traj_ids=False,
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(w.batch), sampler=SamplerWithoutReplacement(), batch_size=w.minibatch
    )
    advantage = GAE(gamma=w.gamma, lmbda=w.lambda_, value_network=value, average_gae=False)
    loss_module = ClipPPOLoss(
        policy,
        value,
        clip_epsilon=w.clip,
        entropy_coeff=w.entropy_coeff,
        critic_coeff=w.value_coeff,
        loss_critic_type="l2",
        normalize_advantage=True,
        log_explained_variance=False,
    )
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=w.lr, eps=w.adam_epsilon)
    clock.start()
    steps = 0
    for batch in collector:
        steps += batch.numel()
        note_returns(clock, batch)
        with torch.no_grad():
            advantage(batch)
        buffer.extend(batch.reshape(-1))
        for _ in range(w.num_epochs):
            for minibatch in buffer:
                losses = loss_module(minibatch)
                loss = losses["loss_objective"] + losses["loss_entropy"] + losses["loss_critic"]
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, w.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        clock.mark(steps)
    collector.shutdown()


def run_dqn(clock: protocol.Clock) -> int:
    """Train with QValueActor, EGreedyModule, DQNLoss and HardUpdate; return the gradient steps."""
    environments = cart_poles()
    net = MLP(in_features=4, out_features=2, num_cells=list(w.hiddens), activation_class=nn.ReLU)
    actor = QValueActor(
        net, in_keys=["observation"], action_space="categorical", spec=environments.action_spec_unbatched
    )
    explore = EGreedyModule(
        spec=environments.action_spec,
        eps_init=1.0,
        eps_end=w.last_epsilon,
        annealing_num_steps=w.steps // 2,
    )
    collector = Collector(
        environments,
        TensorDictSequential(actor, explore),
        frames_per_batch=w.round_steps,
        total_frames=w.steps,
        init_random_frames=w.random_steps,
        track_traj_ids=False,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(w.capacity), batch_size=w.batch)
    loss_module = DQNLoss(actor, loss_function="l2", delay_value=True, action_space="categorical")
    loss_module.make_value_estimator(gamma=w.gamma)
    follow = HardUpdate(loss_module, value_network_update_interval=w.rounds_per_target * w.updates)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=w.lr)
    clock.start()
    steps = gradient_steps = 0
    for batch in collector:
        steps += batch.numel()
        explore.step(batch.numel())
        note_returns(clock, batch)
        buffer.extend(batch.reshape(-1))
        if steps <= w.random_steps:
            continue
        for _ in range(w.updates):
            loss = loss_module(buffer.sample())["loss"]
            loss.backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), w.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            follow.step()
        gradient_steps += w.updates
        clock.mark(steps)
    collector.shutdown()
    return gradient_steps


def network(inputs: int, outputs: int) -> MLP:
    """Return rectified layers."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=list(w.hiddens), activation_class=nn.ReLU)


def critic() -> ValueOperator:
    """Return a critic of actions; the loss module makes two of it."""
    return ValueOperator(in_keys=["action", "observation"], module=network(4, 1))


def optimizer_of(params: Any) -> torch.optim.Adam:
    """Return Adam over a loss module's parameters."""
    return torch.optim.Adam(list(params.flatten_keys().values()), lr=w.lr)


def sac(spec: Any) -> tuple[Any, Update]:
    """Return what acts, and the gradient step."""
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
    losses.make_value_estimator(gamma=w.gamma)
    follow = SoftUpdate(losses, tau=w.tau)
    optimizer = group_optimizers(
        optimizer_of(losses.actor_network_params),
        optimizer_of(losses.qvalue_network_params),
        torch.optim.Adam([losses.log_alpha], lr=w.lr),
    )

    def update(batch: TensorDictBase, _number: int) -> None:
        found = losses(batch)
        (found["loss_actor"] + found["loss_qvalue"] + found["loss_alpha"]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        follow.step()

    return actor, update


def td3(spec: Any) -> tuple[Any, Update]:
    """Return what acts, and the gradient step. Noise is in the environment's units here: twice the setting's."""
    half_width = float(spec.space.high[0])
    actor = TensorDictSequential(
        TensorDictModule(network(3, 1), in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=spec),
    )
    explore = AdditiveGaussianModule(sigma_init=1, sigma_end=1, mean=0, std=w.noise * half_width, spec=spec)
    losses = TD3Loss(
        actor_network=actor,
        qvalue_network=critic(),
        num_qvalue_nets=2,
        loss_function="l2",
        action_spec=spec,
        policy_noise=w.target_noise * half_width,
        noise_clip=w.noise_clip * half_width,
    )
    losses.make_value_estimator(gamma=w.gamma)
    follow = SoftUpdate(losses, tau=w.tau)
    actor_optimizer = optimizer_of(losses.actor_network_params)
    critic_optimizer = optimizer_of(losses.qvalue_network_params)

    def update(batch: TensorDictBase, number: int) -> None:
        loss, *_ = losses.value_loss(batch)
        loss.backward()
        critic_optimizer.step()
        critic_optimizer.zero_grad(set_to_none=True)
        if number % w.policy_delay == 0:
            loss, *_ = losses.actor_loss(batch)
            loss.backward()
            actor_optimizer.step()
            actor_optimizer.zero_grad(set_to_none=True)
            follow.step()

    return TensorDictSequential(actor, explore), update


def run_sac_or_td3(clock: protocol.Clock) -> int:
    """Train with SACLoss or TD3Loss and SoftUpdate; return the gradient steps."""
    transforms = Compose(InitTracker(), StepCounter(), DoubleToFloat(), RewardSum())
    environment = TransformedEnv(GymEnv(w.environment), transforms)
    environment.set_seed(w.seed)
    acting, update = (sac if w.algorithm == "sac" else td3)(environment.action_spec_unbatched)
    collector = Collector(
        environment,
        acting,
        init_random_frames=w.random_steps,
        frames_per_batch=1,
        total_frames=w.steps,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(w.capacity), batch_size=w.batch)
    gradient_steps = 0
    for step, data in enumerate(collector, start=1):
        collector.update_policy_weights_()
        note_returns(clock, data)
        buffer.extend(data.reshape(-1))
        if step > w.random_steps:
            update(buffer.sample(), gradient_steps)
            gradient_steps += 1
        clock.mark(step)
    collector.shutdown()
    return gradient_steps


def main() -> None:
    """Train and report."""
    torch.manual_seed(w.seed)
    clock = protocol.Clock(w)
    gradient_steps = {"ppo": run_ppo, "dqn": run_dqn}.get(w.algorithm, run_sac_or_td3)(clock)
    facts = {} if gradient_steps is None else {"gradient_steps": gradient_steps}
    clock.report("torchrl", torchrl.__version__, **facts)


main()
