"""One encoder shared by two modules: one optimizer under ALL_MODULES steps each parameter once.

`python examples/hooks/shared_encoder.py`
"""

import torch

from lockstep import PPOConfig
from lockstep.algorithms import PPOLearner
from lockstep.modules import MultiRLModuleSpec, RLModuleSpec


class SharedEncoder(PPOLearner):
    def _make_module(self):
        modules = super()._make_module()
        modules["right"].encoder = modules["left"].encoder
        return modules

    def configure_optimizers(self):
        params = list(self.module.parameters())  # torch lists a shared parameter once
        self.register_optimizer(optimizer=torch.optim.Adam(params, lr=self.config.lr), params=params)


def main():
    config = PPOConfig().environment("CartPole-v1").training(learner_class=SharedEncoder)
    config.rl_module(model_config={"vf_share_layers": True})
    return config.build_learner_group(
        rl_module_spec=MultiRLModuleSpec({"left": RLModuleSpec(), "right": RLModuleSpec()})
    )


if __name__ == "__main__":
    print(sum(param.numel() for param in main().learner.module.parameters()), "parameters")
