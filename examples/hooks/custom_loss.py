"""A custom loss: PPO with a penalty on large logits, reported like PPO's own metrics.

`python examples/hooks/custom_loss.py`
"""

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner


class SmallLogits(PPOLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        penalty = self.masked_mean(fwd_out["action_dist_inputs"].pow(2).sum(-1), batch)
        self.log(module_id, logit_penalty=penalty)
        return loss + config.learner_config_dict["penalty"] * penalty


def main(penalty=0.1, total_steps=20_000):
    config = PPOConfig().environment("CartPole-v1").reporting(total_steps=total_steps)
    trainer = config.training(learner_class=SmallLogits, learner_config_dict={"penalty": penalty}).build_trainer()
    trainer.run()
    return trainer.policy.learner_group.learner.last_series["default_policy", "logit_penalty"][-1]


if __name__ == "__main__":
    print(f"squared logits with the penalty {main(0.1):.3f}, without {main(0.0):.3f}")
