"""Take the gradient steps of ``numerics.py`` with RLlib's PPO learner, whose own minibatch loop chooses the rows."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import numerics as n

warnings.filterwarnings("ignore")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch  # noqa: E402

logging.getLogger("ray").setLevel(logging.ERROR)
MODULE = "default_policy"
NAMES = {
    "policy.0": "encoder.actor_encoder.net.mlp.0",
    "policy.1": "encoder.actor_encoder.net.mlp.2",
    "policy.2": "pi.net.mlp.0",
    "value.0": "encoder.critic_encoder.net.mlp.0",
    "value.1": "encoder.critic_encoder.net.mlp.2",
    "value.2": "vf.net.mlp.0",
    "log_std": "pi.log_std",
}


class RecordingPPO(PPOTorchLearner):
    """RLlib's learner, looked at between its steps."""

    recording: n.Recording

    def by_name(self, gradients: dict[Any, Any] | None = None) -> dict[str, np.ndarray]:
        """Return parameters, or the given gradients, under their neutral names."""
        found = {}
        parameters = dict(self.module[MODULE].named_parameters())
        for neutral, name in NAMES.items():
            for end in ("", ".weight", ".bias"):
                if (param := parameters.get(name + end)) is not None:
                    value = param if gradients is None else gradients[self.get_param_ref(param)]
                    found[neutral + end] = value.detach().numpy()
        return found

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Any:
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        names = ("policy_loss", "vf_loss", "entropy", "mean_kl_loss")
        parts = {name: float(self.metrics.peek((module_id, name))) for name in names}
        self.recording.rows.append(batch["rows"].numpy().copy())
        self.recording.losses.append({"total_loss": loss.item(), **parts})
        return loss

    def postprocess_gradients(self, gradients_dict: Any) -> Any:
        self.recording.keep("gradient", self.by_name(gradients_dict))
        clipped = super().postprocess_gradients(gradients_dict)
        self.recording.keep("clipped gradient", self.by_name(clipped))
        return clipped

    def apply_gradients(self, gradients_dict: Any) -> None:
        super().apply_gradients(gradients_dict)
        self.recording.keep("parameter", self.by_name())


def run_ppo(case: n.Case, weights: n.Weights, batch: dict[str, np.ndarray]) -> n.Recording:
    """Take four epochs (62 gradient steps) of the peer's own loop over the batch."""
    box = gym.spaces.Box(-10.0, 10.0, (n.OBS_SIZE,), np.float32)
    actions = gym.spaces.Discrete(n.NUM_ACTIONS) if case.discrete else gym.spaces.Box(-1, 1, (n.NUM_ACTIONS,))
    config = (
        PPOConfig()
        .learners(num_learners=0)
        .training(
            learner_class=RecordingPPO,
            lr=n.LEARNING_RATE,
            clip_param=n.CLIP,
            entropy_coeff=n.ENTROPY_COEFFICIENT,
            vf_loss_coeff=n.VALUE_COEFFICIENT,
            vf_clip_param=math.inf,
            use_kl_loss=case.kl_coeff > 0,
            kl_coeff=case.kl_coeff,
            grad_clip=case.grad_clip,
            grad_clip_by=case.grad_clip_by,
            train_batch_size_per_learner=n.NUM_ROWS,
            minibatch_size=n.MINIBATCH,
            num_epochs=4,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(n.HIDDENS),
                fcnet_activation="tanh",
                vf_share_layers=False,
                free_log_std=not case.discrete,
            )
        )
    )
    np.random.seed(3)  # noqa: NPY002 (its minibatches are shuffled by the global generator)
    learner = config.build_learner(spaces={MODULE: (box, actions)})
    learner.recording = n.Recording()
    parameters = dict(learner.module[MODULE].named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            neutral, _, end = name.rpartition(".") if name != "log_std" else (name, "", "")
            parameters[f"{NAMES[neutral]}.{end}".rstrip(".")].copy_(torch.from_numpy(value))
    columns = {name: torch.from_numpy(value) for name, value in batch.items()}
    columns["rows"] = torch.arange(n.NUM_ROWS)
    learner.update(
        batch=MultiAgentBatch({MODULE: SampleBatch(columns)}, n.NUM_ROWS),
        num_epochs=4,
        minibatch_size=n.MINIBATCH,
        shuffle_batch_per_epoch=True,
    )
    recording = learner.recording
    del recording.rows[n.NUM_UPDATES :], recording.losses[n.NUM_UPDATES :]
    return recording


n.peer_main(__doc__, n.RLLIB_CASES, run_ppo, ray.__version__)
