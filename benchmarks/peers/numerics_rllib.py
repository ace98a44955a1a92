"""Take the gradient steps of ``numerics.py`` with RLlib's PPO and SAC learners (new API stack).

PPO's own minibatch loop chooses the rows; SAC takes one update of one given batch each.
"""

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
from ray.rllib.algorithms.sac import SACConfig  # noqa: E402
from ray.rllib.algorithms.sac.torch.sac_torch_learner import SACTorchLearner  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch  # noqa: E402
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME  # noqa: E402
from rllib_joined_critics import module_options  # noqa: E402

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
        return {
            name: (param if gradients is None else gradients[self.get_param_ref(param)]).detach().numpy()
            for name, param in n.by_neutral_name(dict(self.module[MODULE].named_parameters()), NAMES).items()
        }

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
    with torch.no_grad():
        for name, param in n.by_neutral_name(dict(learner.module[MODULE].named_parameters()), NAMES).items():
            param.copy_(torch.from_numpy(weights[name]))
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


# ---- SAC ----------------------------------------------------------------------------------------------------------

LAYERS = {
    "policy": ("pi_encoder.net.mlp.0", "pi_encoder.net.mlp.2", "pi.net.mlp.0"),
    "critic0": ("qf_encoder.encoder.net.mlp.0", "qf_encoder.encoder.net.mlp.2", "qf.net.mlp.0"),
}
for neutral, theirs in (("critic1", "qf_twin"), ("target0", "target_qf"), ("target1", "target_qf_twin")):
    LAYERS[neutral] = tuple(name.replace("qf", theirs, 1) for name in LAYERS["critic0"])


class RecordingSAC(SACTorchLearner):
    """RLlib's learner, looked at between its steps."""

    recording: n.Recording

    def parameters(self) -> dict[str, Any]:
        """Return parameters by neutral name."""
        named = dict(self.module[MODULE].named_parameters())
        found = {
            f"{neutral}.{layer}.{end}": named[f"{name}.{end}"]
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
        """Return what the critics should say."""
        following = fwd_out["q_target_next"] - alpha * fwd_out["logp_next_resampled"]
        return batch["rewards"] + n.GAMMA * (1.0 - batch["terminateds"].float()) * following

    def postprocess_gradients(self, gradients_dict: Any) -> Any:
        found = {}
        for name, param in self.parameters().items():
            if not name.startswith("target"):
                found[name] = gradients_dict[self.get_param_ref(param)].numpy()
        self.recording.keep("gradient", found)
        return super().postprocess_gradients(gradients_dict)


def make_sac(weights: n.Weights) -> RecordingSAC:
    """Build a learner with the given weights."""
    config = (
        SACConfig()
        .learners(num_learners=0)
        .training(
            learner_class=RecordingSAC,
            actor_lr=n.LEARNING_RATE,
            critic_lr=n.LEARNING_RATE,
            alpha_lr=n.LEARNING_RATE,
            gamma=n.GAMMA,
            tau=n.TAU,
            initial_alpha=n.INITIAL_ALPHA,
            train_batch_size_per_learner=n.SAC_BATCH,
        )
        .rl_module(**module_options(n.SAC_HIDDENS))
    )
    observations = gym.spaces.Box(-10.0, 10.0, (n.OBS_SIZE,), np.float32)
    actions = gym.spaces.Box(-1.0, 1.0, (n.NUM_ACTIONS,), np.float32)
    learner = config.build_learner(spaces={MODULE: (observations, actions)})
    with torch.no_grad():
        for name, param in learner.parameters().items():
            if name != "log_alpha":
                param.copy_(torch.from_numpy(weights[name.replace("target", "critic")]))
    return learner


def run_sac(weights: n.Weights, rows: dict[str, np.ndarray]) -> n.Recording:
    """Make fifty updates."""
    learner = make_sac(weights)
    learner.recording, noise = n.Recording(), []

    def draw(self: torch.distributions.Normal, sample_shape: Any = ()) -> torch.Tensor:
        return self.loc + self.scale * noise.pop(0)

    torch.distributions.Normal.rsample = torch.distributions.Normal.sample = draw
    for number in range(1, n.NUM_UPDATES + 1):
        index = n.rows_of_update(number)
        columns = {name: torch.from_numpy(column[index]) for name, column in rows.items()}
        columns.update(weights=torch.ones(n.SAC_BATCH), n_step=torch.ones(n.SAC_BATCH))
        noise[:] = torch.from_numpy(n.noise_of_update(number))
        learner.recording.rows.append(index)
        learner.update(
            batch=MultiAgentBatch({MODULE: SampleBatch(columns)}, n.SAC_BATCH),
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: number},
        )
        named = {name: param.detach().numpy() for name, param in learner.parameters().items()}
        learner.recording.keep("parameter", named)
    return learner.recording


n.peer_main(__doc__, n.RLLIB_CASES, run_ppo, run_sac, ray.__version__)
