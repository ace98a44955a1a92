"""A second optimizer: Adam for the policy network, SGD with a learning rate of its own for the value network.

`python examples/hooks/second_optimizer.py`
"""

import torch

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner


class TwoOptimizers(PPOLearner):
    def configure_optimizers_for_module(self, module_id, config):
        module = self.module[module_id]
        policy = [*module.encoder.parameters(), *module.policy_head.parameters()]
        value = [*module.value_encoder.parameters(), *module.value_head.parameters()]
        adam, sgd = torch.optim.Adam(policy, eps=1e-5), torch.optim.SGD(value, lr=1e-2, momentum=0.9)
        self.register_optimizer(module_id=module_id, optimizer_name="adam", optimizer=adam, params=policy,
                                lr_or_lr_schedule=config.lr)  # fmt: skip
        self.register_optimizer(module_id=module_id, optimizer_name="sgd", optimizer=sgd, params=value)


def main(total_steps=20_000):
    config = PPOConfig().environment("CartPole-v1").training(learner_class=TwoOptimizers)
    trainer = config.reporting(total_steps=total_steps).build_trainer()
    trainer.run()
    return trainer.policy.learner_group.learner


if __name__ == "__main__":
    print([name for name, _ in main().get_optimizers_for_module("default_policy")])
