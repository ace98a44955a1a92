"""A Lagrange multiplier as registered state: it rises while the policy's entropy is below what is asked for.

`python examples/hooks/lagrange_multiplier.py`
"""

import torch

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner


class EntropyAtLeast(PPOLearner):
    def setup_module(self, module_id):
        super().setup_module(module_id)
        self.register_state(f"{module_id}/multiplier", torch.tensor(0.0, dtype=self.dtype, device=self.device))

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out["action_dist_inputs"])
        return loss - self.registered[f"{module_id}/multiplier"] * self.masked_mean(dist.entropy(), batch)

    def after_gradient_based_update(self, *, timesteps):
        super().after_gradient_based_update(timesteps=timesteps)
        missing = self.config.learner_config_dict["entropy"] - self.metrics.pass_mean("default_policy", "entropy")
        self.registered["default_policy/multiplier"].add_(0.5 * missing).clamp_(min=0.0)


def main(entropy=0.6, total_steps=40_000):
    config = PPOConfig().environment("CartPole-v1").reporting(total_steps=total_steps)
    trainer = config.training(learner_class=EntropyAtLeast, learner_config_dict={"entropy": entropy}).build_trainer()
    trainer.run()
    return trainer.policy.learner_group.learner


if __name__ == "__main__":
    print(f"multiplier {main().registered['default_policy/multiplier']:.3f}")
