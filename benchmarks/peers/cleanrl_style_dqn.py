"""DQN on CartPole-v1 in one file, in the manner of single-file implementations; written for this benchmark.

(none)      plain and eager: numpy replay arrays, torch's default Adam, one `.item()` for each logged round
compile   the same with torch.compile over the whole update (targets, loss, backward, Adam) and over acting;
            compile time counts in the total and is left out of the steady rate
"""

from __future__ import annotations

import protocol

w = protocol.read(__doc__)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from torch import Tensor, nn  # noqa: E402

B = w.num_envs


def network() -> nn.Sequential:
    """Return the rectified layers."""
    first, second = w.hiddens
    return nn.Sequential(nn.Linear(4, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 2))


class Memory:
    """A ring of transitions in numpy arrays."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self.obs, self.next_obs = np.zeros((size, 4), np.float32), np.zeros((size, 4), np.float32)
        self.actions, self.rewards = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self.ended = np.zeros(size, np.float32)

    def add(self, *rows: np.ndarray) -> None:
        """Add one transition of each environment."""
        where = np.arange(self.count, self.count + B) % self.size
        for column, values in zip((self.obs, self.next_obs, self.actions, self.rewards, self.ended), rows):
            column[where] = values
        self.count += B

    def sample(self, rng: np.random.Generator) -> list[Tensor]:
        """Return a batch as tensors."""
        where = rng.integers(0, min(self.count, self.size), w.batch)
        columns = (self.obs, self.next_obs, self.actions, self.rewards, self.ended)
        return [torch.from_numpy(column[where]) for column in columns]


def main() -> None:
    rng = np.random.default_rng(w.seed)
    torch.manual_seed(w.seed)
    envs = SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(w.environment))] * B,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    net, target = network(), network()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=w.lr, capturable=False)

    def update(obs: Tensor, next_obs: Tensor, actions: Tensor, rewards: Tensor, ended: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = rewards + w.gamma * target(next_obs).max(1).values * (1.0 - ended)
        taken = net(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = nn.functional.mse_loss(taken, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def act(obs: Tensor) -> Tensor:
        return net(obs).argmax(1)

    if w.compile:
        update, act = torch.compile(update), torch.compile(act)
    memory, clock, gradient_steps = Memory(w.capacity), protocol.Clock(w), 0
    obs = envs.reset(seed=w.seed)[0]
    clock.start()
    for number in range(w.steps // w.round_steps):
        for _ in range(w.vector_steps):
            step = memory.count
            if step < w.random_steps or rng.random() < protocol.epsilon_at(w, step):
                actions = rng.integers(0, 2, B)
            else:
                with torch.no_grad():
                    actions = act(torch.from_numpy(obs)).numpy()
            following, rewards, terminated, truncated, info = envs.step(actions)
            final = following
            done = terminated | truncated
            if done.any():
                final = following.copy()
                for index in np.flatnonzero(done):
                    final[index] = info["final_obs"][index]
                    clock.episode(info["final_info"]["episode"]["r"][index])
            memory.add(obs, final, actions, rewards, terminated)
            obs = following
        if memory.count <= w.random_steps:
            continue
        for _ in range(w.updates):
            loss = update(*memory.sample(rng))
        gradient_steps += w.updates
        if number % 10 == 0:
            loss.item()
        if number % w.rounds_per_target == 0:
            target.load_state_dict(net.state_dict())
        clock.mark(memory.count)
    name = "cleanrl-style, compiled" if w.compile else "cleanrl-style"
    clock.report(name, torch.__version__, gradient_steps=gradient_steps)


main()
