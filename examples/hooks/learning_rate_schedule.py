"""A learning-rate schedule: linear to zero over the run; and one that a hook changes by what it sees.

`python examples/hooks/learning_rate_schedule.py`
"""

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner


class SlowerWhenFar(PPOLearner):
    def setup_module(self, module_id):
        super().setup_module(module_id)
        self.register_state(f"{module_id}/last_kl", 0.0)  # in the state, so that a resumed run goes on the same way

    def before_gradient_based_update(self, *, timesteps):
        super().before_gradient_based_update(timesteps=timesteps)  # the schedule's value at this time
        if self.registered["default_policy/last_kl"] > self.config.learner_config_dict["max_kl"]:
            optimizer = self.get_optimizer("default_policy")
            self._set_optimizer_lr(optimizer, 0.5 * self._get_optimizer_lr(optimizer))

    def after_gradient_based_update(self, *, timesteps):
        super().after_gradient_based_update(timesteps=timesteps)
        self.registered["default_policy/last_kl"] = self.metrics.pass_mean("default_policy", "mean_kl_loss")


def main(max_kl=0.02, total_steps=20_000):
    config = PPOConfig().environment("CartPole-v1").reporting(total_steps=total_steps)
    config.training(lr=[[0, 1e-3], [total_steps, 0.0]])
    trainer = config.training(learner_class=SlowerWhenFar, learner_config_dict={"max_kl": max_kl}).build_trainer()
    stats = [epoch.training_stat.get_loss_stats_dict() for epoch in trainer.run().history]
    return [numbers["default_optimizer_learning_rate"] for numbers in stats]


if __name__ == "__main__":
    print(main())
