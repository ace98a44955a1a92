"""RLlib's SAC learner (new API stack) on the gradient steps of ``numerics_sac.py``: one update of one batch each."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import numerics_sac as n

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from numerics import NUM_UPDATES, Recording, Weights  # noqa: E402
from ray.rllib.algorithms.sac import SACConfig  # noqa: E402
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner  # noqa: E402
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch  # noqa: E402
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME  # noqa: E402
from rllib_joined_critics import module_options  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)
MODULE = "default_policy"
LAYERS = {
    "policy": ("pi_encoder.net.mlp.0", "pi_encoder.net.mlp.2", "pi.net.mlp.0"),
    "critic0": ("qf_encoder.encoder.net.mlp.0", "qf_encoder.encoder.net.mlp.2", "qf.net.mlp.0"),
}
for neutral, own in (("critic1", "qf_twin"), ("target0", "target_qf"), ("target1", "target_qf_twin")):
    LAYERS[neutral] = tuple(name.replace("qf", own, 1) for name in LAYERS["critic0"])


class RecordingLearner(SACTorchLearner):
    """RLlib's learner, looked at between its steps."""

    recording: Recording

    def parameters(self) -> dict[str, Any]:
        """By neutral name."""
        own = dict(self.module[MODULE].named_parameters())
        found = {
            f"{neutral}.{layer}.{end}": own[f"{name}.{end}"]
            for neutral, names in LAYERS.items()
            for layer, name in enumerate(names)
            for end in ("weight", "bias")
        }
        return {**found, "log_alpha": self.curr_log_alpha[MODULE]}

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Any:
        alpha = float(self.curr_log_alpha[MODULE].detach().exp())
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        kept = {name: float(value) for (_, name), value in self._temp_losses.items()}
        worst = max(
            (fwd_out[name] - self.targets(batch, fwd_out, alpha)).abs().max() for name in ("qf_preds", "qf_twin_preds")
        )
        assert worst < 1.0, f"a critic is off by {worst}: there RLlib's error is not squared any more"
        self.recording.losses.append(
            {
                "critic_loss": kept["qf_loss"] + kept["qf_twin_loss"],
                "actor_loss": kept["policy_loss"],
                "alpha_loss": kept["alpha_loss"],
                "alpha": alpha,
            }
        )
        return loss

    def targets(self, batch: Any, fwd_out: Any, alpha: float) -> Any:
        """What the critics should say."""
        following = fwd_out["q_target_next"] - alpha * fwd_out["logp_next_resampled"]
        return batch["rewards"] + n.GAMMA * (1.0 - batch["terminateds"].float()) * following

    def postprocess_gradients(self, gradients_dict: Any) -> Any:
        found = {}
        for name, param in self.parameters().items():
            if not name.startswith("target"):
                found[name] = gradients_dict[self.get_param_ref(param)].numpy()
        self.recording.keep("gradient", found)
        return super().postprocess_gradients(gradients_dict)


def make_learner(weights: Weights) -> RecordingLearner:
    """Built, with the given weights."""
    config = (
        SACConfig()
        .learners(num_learners=0)
        .training(
            learner_class=RecordingLearner,
            actor_lr=n.LEARNING_RATE,
            critic_lr=n.LEARNING_RATE,
            alpha_lr=n.LEARNING_RATE,
            gamma=n.GAMMA,
            tau=n.TAU,
            initial_alpha=n.INITIAL_ALPHA,
            train_batch_size_per_learner=n.BATCH,
        )
        .rl_module(**module_options(n.HIDDENS))
    )
    observations = gym.spaces.Box(-10.0, 10.0, (n.OBS_SIZE,), np.float32)
    actions = gym.spaces.Box(-1.0, 1.0, (n.NUM_ACTIONS,), np.float32)
    learner = config.build_learner(spaces={MODULE: (observations, actions)})
    with torch.no_grad():
        for name, param in learner.parameters().items():
            if name != "log_alpha":
                param.copy_(torch.from_numpy(weights[name.replace("target", "critic")]))
    return learner


def run(weights: Weights, rows: dict[str, np.ndarray]) -> Recording:
    """Fifty updates."""
    learner = make_learner(weights)
    learner.recording, noise = Recording(), []

    def draw(self: torch.distributions.Normal, sample_shape: Any = ()) -> torch.Tensor:
        return self.loc + self.scale * noise.pop(0)

    torch.distributions.Normal.rsample = torch.distributions.Normal.sample = draw
    for number in range(1, NUM_UPDATES + 1):
        index = n.rows_of_update(number)
        columns = {name: torch.from_numpy(column[index]) for name, column in rows.items()}
        columns.update(weights=torch.ones(n.BATCH), n_step=torch.ones(n.BATCH))
        noise[:] = torch.from_numpy(n.noise_of_update(number))
        learner.recording.rows.append(index)
        learner.update(
            batch=MultiAgentBatch({MODULE: SampleBatch(columns)}, n.BATCH),
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: number},
        )
        named = {name: param.detach().numpy() for name, param in learner.parameters().items()}
        learner.recording.keep("parameter", named)
    return learner.recording


n.peer_main("RLlib", run, ray.__version__)
