"""A frozen encoder: features from elsewhere stay as they are, only the heads learn.

`python examples/hooks/frozen_encoder.py`
"""

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner
from lockstep.modules import RLModule


class FrozenEncoder(PPOLearner):
    def _make_module(self):
        module = super()._make_module()
        encoder = module["default_policy"].encoder
        if "checkpoint" in self.config.learner_config_dict:
            trained = RLModule.from_checkpoint(self.config.learner_config_dict["checkpoint"])
            encoder.load_state_dict(trained.encoder.state_dict())
        encoder.requires_grad_(False)  # what needs no gradient gets no optimizer, no moments and no clipping
        return module


def main(checkpoint=None, total_steps=20_000):
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"vf_share_layers": True})
    config.training(learner_class=FrozenEncoder, learner_config_dict={"checkpoint": checkpoint} if checkpoint else {})
    trainer = config.reporting(total_steps=total_steps).build_trainer()
    trainer.run()
    return trainer.policy.learner_group.learner.module["default_policy"]


if __name__ == "__main__":
    print([name for name, param in main().named_parameters() if param.requires_grad])
