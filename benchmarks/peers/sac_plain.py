"""SAC and TD3 on Pendulum-v1 as one file of plain PyTorch, the way CleanRL writes them; ``compile`` compiles them.

Two separate critics, three backward passes, one optimizer for each part, targets followed parameter by parameter.
Compiled: each of the three updates with ``torch.compile``, as LeanRL does it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import protocol

w = protocol.read(__doc__)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

SAC = w.algorithm == "sac"


def network(inputs: int, outputs: int) -> nn.Sequential:
    first, second = w.hiddens
    layers = (nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs))
    return nn.Sequential(*layers)


class Agent:
    """Networks, optimizers and the gradient steps."""

    def __init__(self) -> None:
        self.actor = network(3, 2 if SAC else 1)
        self.critics = nn.ModuleList([network(4, 1), network(4, 1)])
        self.target_actor, self.targets = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        capturable = {"capturable": True} if w.compile and torch.cuda.is_available() else {}
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=w.lr, **capturable)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=w.lr, **capturable)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=w.lr, **capturable)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        logp = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi) - slope
        return raw.tanh(), logp.sum(-1)

    def values(self, critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> list[Tensor]:
        inputs = torch.cat([obs, actions], -1)
        return [critic(inputs).squeeze(-1) for critic in critics]

    def critic_step(self, obs: Tensor, actions: Tensor, rewards: Tensor, ends: Tensor, following: Tensor) -> None:
        with torch.no_grad():
            if SAC:
                after, logp = self.sample(following)
                value = torch.min(*self.values(self.targets, following, after)) - self.log_alpha.exp() * logp
            else:
                noise = (torch.randn_like(actions) * w.target_noise).clamp(-w.noise_clip, w.noise_clip)
                after = (self.target_actor(following).tanh() + noise).clamp(-1, 1)
                value = torch.min(*self.values(self.targets, following, after))
            target = rewards + w.gamma * (1 - ends) * value
        first, second = self.values(self.critics, obs, actions)
        loss = F.mse_loss(first, target) + F.mse_loss(second, target)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()

    def actor_step(self, obs: Tensor) -> None:
        if SAC:
            actions, logp = self.sample(obs)
            alpha = self.log_alpha.exp().detach()
            loss = (alpha * logp - torch.min(*self.values(self.critics, obs, actions))).mean()
        else:
            loss = -self.values(self.critics, obs, self.actor(obs).tanh())[0].mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        if SAC:
            alpha_loss = (-self.log_alpha.exp() * (logp.detach() - 1.0)).mean()
            self.alpha_optimizer.zero_grad()
            alpha_loss.backward()
            self.alpha_optimizer.step()

    @torch.no_grad()
    def follow(self, target: nn.Module, source: nn.Module) -> None:
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.copy_(w.tau * theirs + (1 - w.tau) * mine)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        inputs = torch.from_numpy(obs)[None]
        if SAC:
            return self.sample(inputs)[0][0].numpy()
        return (self.actor(inputs).tanh() + w.noise * torch.randn(1, 1)).clamp(-1, 1)[0].numpy()


def main() -> None:
    rng = np.random.default_rng(w.seed)
    torch.manual_seed(w.seed)
    env = gym.make(w.environment)
    agent = Agent()
    compiled: Callable[[Any], Any] = torch.compile if w.compile else lambda function: function
    critic_step, actor_step = compiled(agent.critic_step), compiled(agent.actor_step)
    size = w.capacity
    shapes = {"obs": (3,), "actions": (1,), "rewards": (), "ends": (), "following": (3,)}
    memory = {name: np.zeros((size, *shape), np.float32) for name, shape in shapes.items()}
    clock = protocol.Clock(w)
    obs, _ = env.reset(seed=w.seed)
    gradient_steps, episode_return = 0, 0.0
    for step in range(w.steps):
        action = rng.uniform(-1, 1, 1).astype(np.float32) if step < w.random_steps else agent.act(obs)
        after, reward, terminated, truncated, _ = env.step(2 * action)
        row = (obs, action, reward, terminated, after)
        for name, value in zip(memory, row, strict=True):
            memory[name][step % size] = value
        obs, episode_return = after, episode_return + float(reward)
        if terminated or truncated:
            clock.episode(episode_return)
            obs, episode_return = env.reset()[0], 0.0
        if step >= w.random_steps:
            index = rng.integers(0, min(step + 1, size), w.batch)
            batch = [torch.from_numpy(column[index]) for column in memory.values()]
            critic_step(*batch)
            gradient_steps += 1
            if SAC:
                actor_step(batch[0])
                agent.follow(agent.targets, agent.critics)
            elif step % w.policy_delay == 0:
                actor_step(batch[0])
                agent.follow(agent.targets, agent.critics)
                agent.follow(agent.target_actor, agent.actor)
        clock.mark(step + 1)
    name = "plain, compiled" if w.compile else "plain"
    clock.report(name, torch.__version__, gradient_steps=gradient_steps)


main()
