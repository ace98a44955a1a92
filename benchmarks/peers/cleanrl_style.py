"""PPO in one file: the plain loop of single-file implementations, and the same loop made lean.

The plain loop takes CartPole-v1 and Atari games, the others CartPole-v1.

Written for this benchmark from the papers (PPO, arXiv:1707.06347; GAE, arXiv:1506.02438) and the well-known
list of implementation details ("The 37 implementation details of proximal policy optimization", 2022):
orthogonal initialisation, advantages normalised per minibatch, clipped value loss, Adam's epsilon of 1e-5,
both heads evaluated at every step. The three modes compute the same thing from the same random numbers: with
one seed the two eager ones end with the same returns.

    (none)      plain and eager: one wrapper per environment for statistics, torch.distributions,
                the advantages in a Python loop over tensors, torch's default Adam
    lean      eager, without what costs: Gumbel-argmax instead of distribution objects, statistics and
                advantages in numpy, one gather for each minibatch, fused Adam, nothing read back from tensors
    compile   the lean loop with torch.compile over the acting step and the whole update step
                (loss, backward, clipping, Adam); compile time counts in the total and is left out of the
                steady rate

What LeanRL publishes is closer to the plain loop: see ``leanrl_style.py``, which takes agent and loss from here.
"""

from __future__ import annotations

import protocol

w = protocol.read(__doc__)
LEAN = getattr(w, "lean", False)

from collections.abc import Callable  # noqa: E402

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

T, B = w.steps_per_env, w.num_envs


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Return two tanh layers and a linear head, orthogonally initialised."""
    layers: list[nn.Module] = []
    for size in w.hiddens:
        layers += [nn.Linear(inputs, size), nn.Tanh()]
        inputs = size
    layers.append(nn.Linear(inputs, outputs))
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    """Separate policy and value networks."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor = network(inputs, actions, 0.01)
        self.critic = network(inputs, 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values."""
        return self.actor(obs), self.critic(obs).flatten()


class ImageAgent(nn.Module):
    """Policy and value on one network of convolutions, that of Mnih et al. 2015."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        hidden, self.actor, self.critic = nn.Linear(64 * 7 * 7, 512), nn.Linear(512, actions), nn.Linear(512, 1)
        gains = {**dict.fromkeys([*convolutions, hidden], 2**0.5), self.actor: 0.01, self.critic: 1.0}
        for layer, gain in gains.items():
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        rectified = [part for layer in convolutions for part in (layer, nn.ReLU())]
        self.trunk = nn.Sequential(*rectified, nn.Flatten(), hidden, nn.ReLU())

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values."""
        hidden = self.trunk(obs / 255.0)
        return self.actor(hidden), self.critic(hidden).flatten()


def ppo_loss(
    new_logp: Tensor,
    entropy: Tensor,
    value: Tensor,
    logp: Tensor,
    advantage: Tensor,
    target: Tensor,
    old_value: Tensor,
) -> Tensor:
    """Return the clipped objective with the clipped value loss and the entropy bonus; all arguments [N]."""
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (new_logp - logp).exp()
    policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - w.clip, 1 + w.clip)).mean()
    clipped = old_value + (value - old_value).clamp(-w.clip, w.clip)
    value_loss = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2).mean()
    return policy_loss - w.entropy_coeff * entropy.mean() + w.value_coeff * value_loss


# ------------------------------------------------------------------------------------------------ plain


def make_game() -> gym.Env:
    """Return an Atari game with stacks of four frames; returns are those of the game."""
    game = gym.make(w.environment, frameskip=1)
    game = gym.wrappers.AtariPreprocessing(game, noop_max=0)
    game = gym.wrappers.TransformReward(gym.wrappers.RecordEpisodeStatistics(game), np.sign)
    return gym.wrappers.FrameStackObservation(game, 4)


def plain(clock: protocol.Clock) -> None:
    """Train with the plain loop: clear before fast."""
    has_frames = protocol.has_frames(w)

    def make() -> gym.Env:
        return make_game() if has_frames else gym.wrappers.RecordEpisodeStatistics(gym.make(w.environment))

    envs = SyncVectorEnv([make] * B, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = ImageAgent(envs.single_action_space.n) if has_frames else Agent(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=w.lr, eps=w.adam_epsilon)
    obs, actions = torch.zeros(T, B, *envs.single_observation_space.shape), torch.zeros(T, B, dtype=torch.int64)
    logps, rewards, dones, values = (torch.zeros(T, B) for _ in range(4))
    next_obs = torch.as_tensor(envs.reset(seed=w.seed)[0])
    next_done = torch.zeros(B)
    clock.start()
    for update in range(w.steps // w.batch):
        for t in range(T):
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                logits, values[t] = agent(next_obs)
                distribution = torch.distributions.Categorical(logits=logits)
                action = distribution.sample()
                actions[t], logps[t] = action, distribution.log_prob(action)
            observed, reward, terminated, truncated, info = envs.step(action.numpy())
            rewards[t] = torch.as_tensor(reward)
            next_obs = torch.as_tensor(observed)
            next_done = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
            if "final_info" in info:
                for row in np.flatnonzero(info["_final_info"]):
                    clock.episode(info["final_info"]["episode"]["r"][row])
        with torch.no_grad():
            next_value = agent(next_obs)[1]
            advantages = torch.zeros_like(rewards)
            last = torch.zeros(B)
            for t in reversed(range(T)):
                running = 1 - (next_done if t == T - 1 else dones[t + 1])
                after = next_value if t == T - 1 else values[t + 1]
                delta = rewards[t] + w.gamma * after * running - values[t]
                advantages[t] = last = delta + w.gamma * w.lambda_ * running * last
            targets = advantages + values
        columns = [c.flatten(0, 1) for c in (obs, actions, logps, advantages, targets, values)]
        for _ in range(w.num_epochs):
            for rows in torch.randperm(w.batch).split(w.minibatch):
                o, a, logp, advantage, target, value = (c[rows] for c in columns)
                logits, new_value = agent(o)
                distribution = torch.distributions.Categorical(logits=logits)
                loss = ppo_loss(
                    distribution.log_prob(a), distribution.entropy(), new_value,
                    logp, advantage, target, value,
                )  # fmt: skip
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), w.max_grad_norm)
                optimizer.step()
        clock.mark((update + 1) * w.batch)


# ------------------------------------------------------------------------------------------------- lean

Acting = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
Updating = Callable[[Tensor, Tensor], None]


def lean_steps(agent: Agent) -> tuple[Acting, Updating]:
    """Return the two steps that the lean loop calls; compiled when asked."""
    parameters = list(agent.parameters())
    optimizer = torch.optim.Adam(parameters, lr=w.lr, eps=w.adam_epsilon, fused=True)

    def act(obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, log-probabilities and values [B] of observations [B, 4] and Gumbel noise [B, 2]."""
        logp = functional.log_softmax(agent.actor(obs), dim=-1)
        action = (logp + noise).argmax(dim=-1)
        return action, logp.gather(1, action[:, None]).squeeze(1), agent.critic(obs).squeeze(1)

    def loss_of(obs: Tensor, rest: Tensor) -> Tensor:
        """Return the loss of a minibatch: observations [N, 4]; action, logp, advantage, target, value as [N, 5]."""
        action, logp, advantage, target, old_value = rest.unbind(1)
        all_logp = functional.log_softmax(agent.actor(obs), dim=-1)
        new_logp = all_logp.gather(1, action.to(torch.int64)[:, None]).squeeze(1)
        entropy = -(all_logp.exp() * all_logp).sum(dim=-1)
        value = agent.critic(obs).squeeze(1)
        return ppo_loss(new_logp, entropy, value, logp, advantage, target, old_value)

    def update(obs: Tensor, rest: Tensor) -> None:
        """Take one gradient step."""
        optimizer.zero_grad(set_to_none=True)
        loss_of(obs, rest).backward()
        nn.utils.clip_grad_norm_(parameters, w.max_grad_norm)
        optimizer.step()

    if w.compile:
        return torch.compile(act), torch.compile(update)
    return act, update


def advantages_of(rewards: np.ndarray, values: np.ndarray, dones: np.ndarray, next_value: np.ndarray) -> np.ndarray:
    """Return GAE over [T, B] columns; ``next_value`` [B] follows the last step."""
    running = 1.0 - dones
    deltas = rewards + w.gamma * running * np.concatenate((values[1:], next_value[None])) - values
    running *= w.gamma * w.lambda_
    advantages = np.empty_like(deltas)
    last = np.zeros(B, np.float32)
    for t in range(T - 1, -1, -1):
        last = deltas[t] + running[t] * last
        advantages[t] = last
    return advantages


def lean(clock: protocol.Clock) -> None:
    """Train with the lean loop: tensors and arrays share memory, columns are written in place."""
    envs = SyncVectorEnv([lambda: gym.make(w.environment)] * B, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent(4, 2)
    act, update_step = lean_steps(agent)
    obs_column, rest_column = torch.zeros(T, B, 4), torch.zeros(T, B, 5)
    obs_array, rest_array = obs_column.numpy(), rest_column.numpy()
    flat_obs, flat_rest = obs_column.view(w.batch, 4), rest_column.view(w.batch, 5)
    rewards, dones = np.zeros((T, B), np.float32), np.zeros((T, B), np.float32)
    next_obs, _ = envs.reset(seed=w.seed)
    running_return = np.zeros(B)
    clock.start()
    for update in range(w.steps // w.batch):
        with torch.inference_mode():
            noise = -torch.empty(T, B, 2).exponential_().log_()
            for t in range(T):
                obs_array[t] = next_obs
                action, logp, value = act(obs_column[t], noise[t])
                actions = action.numpy()
                row = rest_array[t]
                row[:, 0], row[:, 1], row[:, 4] = actions, logp.numpy(), value.numpy()
                next_obs, reward, terminated, truncated, _ = envs.step(actions)
                rewards[t] = reward
                running_return += reward
                done = terminated | truncated
                dones[t] = done
                if done.any():
                    for index in np.flatnonzero(done):
                        clock.episode(running_return[index])
                    running_return[done] = 0.0
            next_value = agent.critic(torch.from_numpy(next_obs)).squeeze(1).numpy()
        advantages = advantages_of(rewards, rest_array[:, :, 4], dones, next_value)
        rest_array[:, :, 2] = advantages
        np.add(advantages, rest_array[:, :, 4], out=rest_array[:, :, 3])
        for _ in range(w.num_epochs):
            for rows in torch.randperm(w.batch).split(w.minibatch):
                update_step(flat_obs[rows], flat_rest[rows])
        clock.mark((update + 1) * w.batch)


def main() -> None:
    np.random.seed(w.seed)  # noqa: NPY002
    torch.manual_seed(w.seed)
    clock = protocol.Clock(w)
    if LEAN or w.compile:
        lean(clock)
    else:
        plain(clock)
    name = "own-lean, compiled" if w.compile else "own-lean" if LEAN else "cleanrl-style"
    clock.report(name, torch.__version__)


if __name__ == "__main__":
    main()
