"""Gradient noise that fades (Neelakantan et al. 2015), added after clipping, from a random stream of its own.

`python examples/hooks/gradient_noise.py`
"""

import torch

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner


class NoisyGradients(PPOLearner):
    def postprocess_gradients(self, gradients):
        gradients = super().postprocess_gradients(gradients)
        deviation = self.config.learner_config_dict["noise"] / (1 + self.weights_seq_no) ** 0.55
        stream = self.streams.torch("gradient_noise")  # belongs to the learner's state, so a resumed run goes on
        return {
            param: gradient + deviation * torch.randn(gradient.shape, generator=stream)
            for param, gradient in gradients.items()
        }


def main(noise=1e-2, total_steps=20_000):
    config = PPOConfig().environment("CartPole-v1").reporting(total_steps=total_steps)
    trainer = config.training(learner_class=NoisyGradients, learner_config_dict={"noise": noise}).build_trainer()
    trainer.run()
    return trainer.policy.learner_group.learner


if __name__ == "__main__":
    print(f"{main().weights_seq_no} updates")
