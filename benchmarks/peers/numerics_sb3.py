"""Take the gradient steps of ``numerics.py`` with Stable-Baselines3: its ``train()`` on one given batch each."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numerics as n
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger

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
    found = {}
    parameters = dict(policy.named_parameters())
    for neutral, name in NAMES.items():
        for end in ("", ".weight", ".bias"):
            if (param := parameters.get(name + end)) is not None:
                found[neutral + end] = (param.grad if gradients else param).detach().numpy()
    return found


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
    parameters = dict(model.policy.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            neutral, _, end = name.rpartition(".") if name != "log_std" else (name, "", "")
            parameters[f"{NAMES[neutral]}.{end}".rstrip(".")].copy_(torch.from_numpy(value))
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


n.peer_main(__doc__, n.SB3_CASES, run_ppo, stable_baselines3.__version__)
