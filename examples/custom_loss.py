"""A loss of your own in ten lines: PPO with a penalty on large logits. `python examples/custom_loss.py`"""

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner


class PenalisedPPO(PPOLearner):
    """PPO's loss and a penalty, logged beside PPO's own metrics."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        penalty = self.masked_mean(fwd_out["action_dist_inputs"].pow(2).sum(-1), batch)
        self.log(module_id, penalty=penalty)
        return loss + config.learner_config_dict["penalty"] * penalty


def main(total_steps: int = 20_000) -> float:
    """Trains with it and returns the last update's mean penalty."""
    config = PPOConfig().environment("CartPole-v1").reporting(total_steps=total_steps)
    config.training(learner_class=PenalisedPPO, learner_config_dict={"penalty": 1e-2})
    info = config.build_trainer().run()
    return info.history[-1].training_stat.get_loss_stats_dict()["penalty"]


if __name__ == "__main__":
    print(f"penalty at the end: {main():.3f}")
