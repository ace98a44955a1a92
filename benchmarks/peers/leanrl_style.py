"""PPO on CartPole-v1 as LeanRL's published PPO does it, written here from what is known of it, without tensordict.

What makes it lean: acting and learning go through plain functions that can be compiled, on the same memory; steps of a
rollout are gathered in a list and stacked once; distributions do not check their arguments; advantages are a torch loop
over time; the optimizer is fused. ``compile`` compiles acting, advantages and the update step (no CUDA graphs here).
``cleanrl_style.py lean`` goes further than that.
"""

from __future__ import annotations

import protocol

w = protocol.read(__doc__)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from cleanrl_style import Agent, ppo_loss  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributions import Categorical, Distribution  # noqa: E402

Distribution.set_default_validate_args(False)


def evaluate(agent: Agent, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return actions (drawn unless given), log-probabilities, entropies and values [N] of observations [N, 4]."""
    distribution = Categorical(logits=agent.actor(obs))
    if action is None:
        action = distribution.sample()
    return action, distribution.log_prob(action), distribution.entropy(), agent.critic(obs).flatten()


def advantages_of(next_value: Tensor, rewards: Tensor, values: Tensor, dones: Tensor) -> tuple[Tensor, Tensor]:
    """Return GAE and value targets [T, B]; ``dones`` end their step, ``next_value`` [B] follows the last."""
    running = (1.0 - dones).unbind(0)
    rewards_of, values_of = rewards.unbind(0), values.unbind(0)
    last, after, found = torch.zeros_like(next_value), next_value, []
    for t in range(len(rewards_of) - 1, -1, -1):
        delta = rewards_of[t] + w.gamma * after * running[t] - values_of[t]
        last = delta + w.gamma * w.lambda_ * running[t] * last
        found.append(last)
        after = values_of[t]
    advantages = torch.stack(found[::-1])
    return advantages, advantages + values


def main() -> None:
    np.random.seed(w.seed)  # noqa: NPY002
    torch.manual_seed(w.seed)
    envs = SyncVectorEnv([lambda: gym.make(w.environment)] * w.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=w.lr, eps=w.adam_epsilon, fused=True)

    def act(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        action, logp, _, value = evaluate(agent, obs)
        return action, logp, value

    def update(obs: Tensor, action: Tensor, logp: Tensor, advantage: Tensor, target: Tensor, value: Tensor) -> Tensor:
        """Take one gradient step and return the loss."""
        optimizer.zero_grad()
        _, new_logp, entropy, new_value = evaluate(agent, obs, action)
        loss = ppo_loss(new_logp, entropy, new_value, logp, advantage, target, value)
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), w.max_grad_norm)
        optimizer.step()
        return loss.detach()

    estimate = advantages_of
    if w.compile:
        act, estimate, update = torch.compile(act), torch.compile(advantages_of), torch.compile(update)

    clock = protocol.Clock(w)
    obs = torch.as_tensor(envs.reset(seed=w.seed)[0])
    returns = np.zeros(w.num_envs)
    clock.start()
    for number in range(w.steps // w.batch):
        steps: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for _ in range(w.steps_per_env):
                action, logp, value = act(obs)
                observed, reward, terminated, truncated, _ = envs.step(action.numpy())
                returns += reward
                done = np.logical_or(terminated, truncated)
                for index in np.flatnonzero(done):
                    clock.episode(returns[index])
                returns[done] = 0.0
                reward, ended = torch.as_tensor(reward, dtype=torch.float32), torch.as_tensor(done).float()
                steps.append((obs, action, logp, reward, ended, value))
                obs = torch.as_tensor(observed)
            columns = [torch.stack(column) for column in zip(*steps)]
            advantages, targets = estimate(agent.critic(obs).flatten(), columns[3], columns[5], columns[4])
        flat = [c.flatten(0, 1) for c in (*columns[:3], advantages, targets, columns[5])]
        for _ in range(w.num_epochs):
            for rows in torch.randperm(w.batch).split(w.minibatch):
                update(*[column[rows] for column in flat])
        clock.mark((number + 1) * w.batch)
    clock.report("leanrl-style, compiled" if w.compile else "leanrl-style", torch.__version__)


main()
