"""Take the gradient steps of ``numerics.py`` with Stable-Baselines3: its ``train()`` on one given batch each."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numerics as n
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

NAMES = {
    "policy.0": "mlp_extractor.policy_net.0",
    "policy.1": "mlp_extractor.policy_net.2",
    "policy.2": "action_net",
    "value.0": "mlp_extractor.value_net.0",
    "value.1": "mlp_extractor.value_net.2",
    "value.2": "value_net",
    "log_std": "log_std",
}
PPO_LOGGED = {
    "total_loss": "train/loss",
    "policy_loss": "train/policy_gradient_loss",
    "vf_loss": "train/value_loss",
    "entropy": "train/entropy_loss",
    "mean_kl_loss": "train/approx_kl",
}


class Spaces(gym.Env):
    """An environment that only tells its spaces."""

    def __init__(self, discrete: bool) -> None:
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (n.OBS_SIZE,), np.float32)
        continuous = gym.spaces.Box(-1.0, 1.0, (n.NUM_ACTIONS,), np.float32)
        self.action_space = gym.spaces.Discrete(n.NUM_ACTIONS) if discrete else continuous


def named(policy: Any, gradients: bool) -> dict[str, np.ndarray]:
    """Return the policy's parameters or their gradients under neutral names."""
    parameters = n.by_neutral_name(dict(policy.named_parameters()), NAMES)
    return {name: (param.grad if gradients else param).detach().numpy() for name, param in parameters.items()}


def run_ppo(case: n.Case, weights: n.Weights, batch: dict[str, np.ndarray]) -> n.Recording:
    """Call ``train()`` fifty times; each takes 256 rows of the filled buffer."""
    model = PPO(
        "MlpPolicy",
        Spaces(case.discrete),
        learning_rate=n.LEARNING_RATE,
        n_steps=n.NUM_ROWS,
        batch_size=n.MINIBATCH,
        n_epochs=1,
        clip_range=n.CLIP,
        clip_range_vf=None,
        normalize_advantage=False,
        ent_coef=n.ENTROPY_COEFFICIENT,
        vf_coef=n.VALUE_COEFFICIENT,
        max_grad_norm=case.grad_clip,
        policy_kwargs={
            "net_arch": {"pi": list(n.HIDDENS), "vf": list(n.HIDDENS)},
            "activation_fn": torch.nn.Tanh,
            "optimizer_kwargs": {"eps": case.adam_epsilon},
        },
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    with torch.no_grad():
        for name, param in n.by_neutral_name(dict(model.policy.named_parameters()), NAMES).items():
            param.copy_(torch.from_numpy(weights[name]))
    buffer = model.rollout_buffer
    buffer.reset()
    buffer.observations[:, 0], buffer.log_probs[:, 0] = batch["obs"], batch["action_logp"]
    buffer.actions[:, 0] = batch["actions"].reshape(n.NUM_ROWS, -1)
    buffer.advantages[:, 0], buffer.returns[:, 0] = batch["advantages"], batch["value_targets"]
    buffer.full = True
    next(buffer.get(n.MINIBATCH))  # lets the buffer flatten its columns

    recording = n.Recording()
    clip = torch.nn.utils.clip_grad_norm_

    def clip_and_record(*args: Any, **options: Any) -> Any:
        recording.keep("gradient", named(model.policy, True))
        norm = clip(*args, **options)
        recording.keep("clipped gradient", named(model.policy, True))
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_and_record
    order = np.concatenate([np.random.default_rng(seed).permutation(n.NUM_ROWS)[:3840] for seed in range(4)])
    for rows in order.reshape(-1, n.MINIBATCH)[: n.NUM_UPDATES]:
        buffer.get = lambda _, rows=rows: iter([buffer._get_samples(rows)])
        recording.rows.append(rows)
        model.train()
        recording.keep("parameter", named(model.policy, False))
        values = {name: float(model.logger.name_to_value[key]) for name, key in PPO_LOGGED.items()}
        recording.losses.append({**values, "entropy": -values["entropy"]})
    torch.nn.utils.clip_grad_norm_ = clip
    return recording


# ---- SAC ----------------------------------------------------------------------------------------------------------

SAC_LOGGED = {
    "critic_loss": "train/critic_loss",
    "actor_loss": "train/actor_loss",
    "alpha_loss": "train/ent_coef_loss",
    "alpha": "train/ent_coef",
}


def parts(model: Any) -> dict[str, list[Any]]:
    """Return each neutral name's parameters; those of the policy's last layer are two, one below the other."""
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
    """Join the parts of each."""
    return {name: np.concatenate([value.detach().numpy() for value in values]) for name, values in named.items()}


def watch(model: Any, recording: n.Recording) -> None:
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


def run_sac(weights: n.Weights, rows: dict[str, np.ndarray]) -> n.Recording:
    """Call ``train()`` fifty times."""
    model = SAC(
        "MlpPolicy",
        Spaces(False),
        learning_rate=n.LEARNING_RATE,
        batch_size=n.SAC_BATCH,
        tau=n.TAU,
        gamma=n.GAMMA,
        ent_coef=f"auto_{n.INITIAL_ALPHA}",
        policy_kwargs={"net_arch": list(n.SAC_HIDDENS)},
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.actor.action_dist.epsilon = 0.0
    with torch.no_grad():
        for name, params in parts(model).items():
            array = torch.from_numpy(weights[name.replace("target", "critic")])
            for param, value in zip(params, array.chunk(len(params)), strict=True):
                param.copy_(value)
    recording, noise = n.Recording(), []
    watch(model, recording)
    torch.distributions.Normal.rsample = lambda self, sample_shape=(): self.loc + self.scale * noise.pop(0)

    for number in range(1, n.NUM_UPDATES + 1):
        index = n.rows_of_update(number)
        columns = {name: torch.from_numpy(column[index]) for name, column in rows.items()}
        ends, rewards = columns["terminateds"].float()[:, None], columns["rewards"][:, None]
        batch = ReplayBufferSamples(columns["obs"], columns["actions"], columns["new_obs"], ends, rewards)
        model.replay_buffer.sample = lambda *_, batch=batch, **__: batch
        noise[:] = torch.from_numpy(n.noise_of_update(number))
        recording.rows.append(index)
        model.train(gradient_steps=1, batch_size=n.SAC_BATCH)
        recording.keep("parameter", {**arrays(parts(model)), "log_alpha": model.log_ent_coef.detach().numpy()})
        recording.losses.append({name: float(model.logger.name_to_value[key]) for name, key in SAC_LOGGED.items()})
    return recording


n.peer_main(__doc__, n.SB3_CASES, run_ppo, run_sac, stable_baselines3.__version__)
