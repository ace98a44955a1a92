"""PPO on CartPole-v1 with TorchRL: its Collector, GAE, ClipPPOLoss and replay buffer for the minibatches.

The environments are gymnasium's SyncVectorEnv in TorchRL's wrapper, which is faster here than TorchRL's own
``SerialEnv`` of eight environments (``--serial`` measures that one).
"""

from __future__ import annotations

import warnings

import protocol as p

OPTIONS = p.parse("TorchRL's PPO on CartPole-v1", ("--serial", "use TorchRL's SerialEnv"))
warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402
import torch  # noqa: E402
import torchrl  # noqa: E402
from tensordict.nn import TensorDictModule  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer  # noqa: E402
from torchrl.envs import EnvBase, GymEnv, GymWrapper, RewardSum, SerialEnv, TransformedEnv  # noqa: E402
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator  # noqa: E402
from torchrl.objectives import ClipPPOLoss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402


def make_environments() -> EnvBase:
    """Eight environments in this process, with the sum of rewards of each episode."""
    if OPTIONS.serial:
        inner: EnvBase = SerialEnv(p.NUM_ENVS, lambda: GymEnv(p.ENVIRONMENT, categorical_action_encoding=True))
    else:
        vector = gym.vector.SyncVectorEnv(
            [lambda: gym.make(p.ENVIRONMENT)] * p.NUM_ENVS, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
        )
        inner = GymWrapper(vector, categorical_action_encoding=True)
    return TransformedEnv(inner, RewardSum())


def make_networks(inputs: int, actions: int) -> tuple[ProbabilisticActor, ValueOperator]:
    """Separate networks, orthogonally initialised (gain sqrt 2; the policy's head 0.01, the value's 1)."""

    def network(outputs: int, gain: float) -> MLP:
        mlp = MLP(in_features=inputs, out_features=outputs, num_cells=list(p.HIDDENS), activation_class=nn.Tanh)
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


def main() -> None:
    torch.manual_seed(OPTIONS.seed)
    environments = make_environments()
    environments.set_seed(OPTIONS.seed)
    policy, value = make_networks(4, 2)
    collector = Collector(
        environments,
        policy,
        frames_per_batch=p.BATCH,
        total_frames=OPTIONS.steps,
        track_traj_ids=False,
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(p.BATCH), sampler=SamplerWithoutReplacement(), batch_size=p.MINIBATCH
    )
    advantage = GAE(gamma=p.GAMMA, lmbda=p.LAMBDA, value_network=value, average_gae=False)
    loss_module = ClipPPOLoss(
        policy,
        value,
        clip_epsilon=p.CLIP,
        entropy_coeff=p.ENTROPY_COEFFICIENT,
        critic_coeff=p.VALUE_COEFFICIENT,
        loss_critic_type="l2",
        normalize_advantage=True,
        log_explained_variance=False,
    )
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=p.LEARNING_RATE, eps=p.ADAM_EPSILON)
    clock = p.Clock()
    clock.start()
    steps = 0
    for batch in collector:
        steps += batch.numel()
        ended = batch["next", "done"]
        if ended.any():
            for episode_return in batch["next", "episode_reward"][ended].tolist():
                clock.episode(episode_return)
        with torch.no_grad():
            advantage(batch)
        buffer.extend(batch.reshape(-1))
        for _ in range(p.NUM_EPOCHS):
            for minibatch in buffer:
                losses = loss_module(minibatch)
                loss = losses["loss_objective"] + losses["loss_entropy"] + losses["loss_critic"]
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, p.MAX_GRAD_NORM)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        clock.mark(steps)
    collector.shutdown()
    clock.report("torchrl", torchrl.__version__, OPTIONS.threads)


main()
