"""DQN on CartPole-v1 with TorchRL: its Collector, QValueActor, EGreedyModule, DQNLoss, HardUpdate and replay buffer.

The environments are gymnasium's SyncVectorEnv in TorchRL's wrapper, as in ``torchrl_ppo.py``.
"""

from __future__ import annotations

import warnings

import dqn_setting as s
import protocol as p

OPTIONS = p.parse("TorchRL's DQN on CartPole-v1", s.UPDATES)
warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402
import torch  # noqa: E402
import torchrl  # noqa: E402
from tensordict.nn import TensorDictSequential  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer  # noqa: E402
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv  # noqa: E402
from torchrl.modules import MLP, EGreedyModule, QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss, HardUpdate  # noqa: E402


def main() -> None:
    torch.manual_seed(OPTIONS.seed)
    vector = gym.vector.SyncVectorEnv(
        [lambda: gym.make(p.ENVIRONMENT)] * p.NUM_ENVS, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    environments = TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())
    environments.set_seed(OPTIONS.seed)
    net = MLP(in_features=4, out_features=2, num_cells=list(s.HIDDENS), activation_class=nn.ReLU)
    actor = QValueActor(
        net, in_keys=["observation"], action_space="categorical", spec=environments.action_spec_unbatched
    )
    explore = EGreedyModule(
        spec=environments.action_spec,
        eps_init=1.0,
        eps_end=s.LAST_EPSILON,
        annealing_num_steps=OPTIONS.steps // 2,
    )
    collector = Collector(
        environments,
        TensorDictSequential(actor, explore),
        frames_per_batch=s.ROUND,
        total_frames=OPTIONS.steps,
        init_random_frames=s.STARTS,
        track_traj_ids=False,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(s.CAPACITY), batch_size=s.BATCH)
    loss_module = DQNLoss(actor, loss_function="l2", delay_value=True, action_space="categorical")
    loss_module.make_value_estimator(gamma=p.GAMMA)
    follow = HardUpdate(loss_module, value_network_update_interval=s.ROUNDS_PER_TARGET * OPTIONS.updates)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=s.LEARNING_RATE)
    clock = p.Clock()
    clock.start()
    steps = gradient_steps = 0
    for batch in collector:
        steps += batch.numel()
        explore.step(batch.numel())
        ended = batch["next", "done"]
        if ended.any():
            for episode_return in batch["next", "episode_reward"][ended].tolist():
                clock.episode(episode_return)
        buffer.extend(batch.reshape(-1))
        if steps <= s.STARTS:
            continue
        for _ in range(OPTIONS.updates):
            loss = loss_module(buffer.sample())["loss"]
            loss.backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), s.MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            follow.step()
        gradient_steps += OPTIONS.updates
        clock.mark(steps)
    collector.shutdown()
    clock.report("torchrl", torchrl.__version__, OPTIONS.threads, gradient_steps=gradient_steps)


main()
