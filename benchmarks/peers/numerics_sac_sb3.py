"""Stable-Baselines3's SAC on the gradient steps of ``numerics_sac.py``: its ``train()`` on one given batch each."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numerics_sac as n
import numpy as np
import stable_baselines3
import torch
from numerics import NUM_UPDATES, Recording, Weights
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

LOGGED = {
    "critic_loss": "train/critic_loss",
    "actor_loss": "train/actor_loss",
    "alpha_loss": "train/ent_coef_loss",
    "alpha": "train/ent_coef",
}


class Spaces(gym.Env):
    """An environment that only tells its spaces."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (n.OBS_SIZE,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (n.NUM_ACTIONS,), np.float32)


def parts(model: Any) -> dict[str, list[Any]]:
    """Each neutral name's parameters; those of the policy's last layer are two, one below the other."""
    actor, found = model.actor, {}
    for end in ("weight", "bias"):
        for layer in (0, 1):
            found[f"policy.{layer}.{end}"] = [getattr(actor.latent_pi[2 * layer], end)]
        found[f"policy.2.{end}"] = [getattr(actor.mu, end), getattr(actor.log_std, end)]
        for name, critic in (("critic", model.critic), ("target", model.critic_target)):
            for k, network in enumerate(critic.q_networks):
                for layer in range(3):
                    found[f"{name}{k}.{layer}.{end}"] = [getattr(network[2 * layer], end)]
    return found


def arrays(named: dict[str, list[Any]]) -> dict[str, np.ndarray]:
    """Joined."""
    return {name: np.concatenate([value.detach().numpy() for value in values]) for name, values in named.items()}


def watch(model: Any, recording: Recording) -> None:
    """Record gradients at each optimizer's step; the critics take theirs after the policy's.

    Stable-Baselines3's policy learns from critics that have just moved, ours from those before.
    """
    optimizers = {"policy": model.actor.optimizer, "critic": model.critic.optimizer, "alpha": model.ent_coef_optimizer}
    steps = {name: optimizer.step for name, optimizer in optimizers.items()}
    held: list[torch.Tensor] = []

    def keep(start: str) -> None:
        named = {name: values for name, values in parts(model).items() if name.startswith(start)}
        recording.keep("gradient", arrays({name: [p.grad for p in values] for name, values in named.items()}))

    def critic_step() -> None:
        keep("critic")
        held[:] = [p.grad.clone() for p in model.critic.parameters()]

    def policy_step() -> None:
        keep("policy")
        steps["policy"]()
        for param, grad in zip(model.critic.parameters(), held, strict=True):
            param.grad = grad
        steps["critic"]()

    def alpha_step() -> None:
        recording.keep("gradient", {"log_alpha": model.log_ent_coef.grad.numpy()})
        steps["alpha"]()

    optimizers["critic"].step, optimizers["policy"].step = critic_step, policy_step
    optimizers["alpha"].step = alpha_step


def run(weights: Weights, rows: dict[str, np.ndarray]) -> Recording:
    """Fifty calls of ``train()``."""
    model = SAC(
        "MlpPolicy",
        Spaces(),
        learning_rate=n.LEARNING_RATE,
        batch_size=n.BATCH,
        tau=n.TAU,
        gamma=n.GAMMA,
        ent_coef=f"auto_{n.INITIAL_ALPHA}",
        policy_kwargs={"net_arch": list(n.HIDDENS)},
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.actor.action_dist.epsilon = 0.0
    with torch.no_grad():
        for name, params in parts(model).items():
            given = torch.from_numpy(weights[name.replace("target", "critic")])
            for param, value in zip(params, given.chunk(len(params)), strict=True):
                param.copy_(value)
    recording, noise = Recording(), []
    watch(model, recording)
    torch.distributions.Normal.rsample = lambda self, sample_shape=(): self.loc + self.scale * noise.pop(0)

    for number in range(1, NUM_UPDATES + 1):
        index = n.rows_of_update(number)
        columns = {name: torch.from_numpy(column[index]) for name, column in rows.items()}
        ends, rewards = columns["terminateds"].float()[:, None], columns["rewards"][:, None]
        batch = ReplayBufferSamples(columns["obs"], columns["actions"], columns["new_obs"], ends, rewards)
        model.replay_buffer.sample = lambda *_, batch=batch, **__: batch
        noise[:] = torch.from_numpy(n.noise_of_update(number))
        recording.rows.append(index)
        model.train(gradient_steps=1, batch_size=n.BATCH)
        recording.keep("parameter", {**arrays(parts(model)), "log_alpha": model.log_ent_coef.detach().numpy()})
        recording.losses.append({name: float(model.logger.name_to_value[key]) for name, key in LOGGED.items()})
    return recording


n.peer_main("Stable-Baselines3", run, stable_baselines3.__version__)
