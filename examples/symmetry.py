"""A pole that is swung up equally to both sides: PPO with a symmetry. `python examples/symmetry.py`"""

import numpy as np
import torch
from torch import Tensor

from lockstep import Policy, PPOConfig


def swing(observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mirror images of Pendulum-v1: sine, speed and torque change their signs, the cosine does not."""
    cosine, sine, speed = observations.unbind(-1)
    return torch.stack([cosine, -sine, -speed], -1), -actions


def difference_from_mirror_image(policy: Policy) -> float:
    """Return the mean difference between the torques at mirrored observations and the mirrored torques."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(-np.pi, np.pi, 1_000)
    observations = np.stack([np.cos(angles), np.sin(angles), rng.uniform(-8, 8, 1_000)], -1).astype(np.float32)
    mirrored = observations * np.array([1, -1, -1], np.float32)
    return float(np.abs(policy.compute_actions(mirrored) + policy.compute_actions(observations)).mean())


def main(total_steps: int = 20_000) -> dict[str, float]:
    """Train without the mirror, with mirrored rows, and with a symmetric network; return the differences."""
    differences = {}
    for name in ("plain", "mirrored rows", "symmetric network"):
        config = PPOConfig().environment("Pendulum-v1", normalize_observations=True).debugging(seed=1)
        config.training(lr=1e-3, gamma=0.9, train_batch_size=1024, minibatch_size=128)
        config.env_runners(num_envs_per_env_runner=8).reporting(total_steps=total_steps)
        if name != "plain":
            config.training(symmetry=swing)
        if name == "symmetric network":
            config.rl_module(model_config={"symmetric": True})
        trainer = config.build_trainer()
        trainer.run()
        differences[name] = difference_from_mirror_image(trainer.policy)
        print(f"{name}: torques differ from their mirror images by {differences[name]:.4f}")
    return differences


if __name__ == "__main__":
    main()
