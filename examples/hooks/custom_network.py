"""A custom network: any plain nn.Module, wrapped in one line that names its outputs.

`python examples/hooks/custom_network.py`
"""

import gymnasium
from torch import nn

from lockstep import PPOConfig
from lockstep.modules import wrap_module


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.LayerNorm(64), nn.SiLU())
        self.policy, self.value = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, obs):
        features = self.body(obs)
        return self.policy(features), self.value(features)


def main(total_steps=20_000):
    env = gymnasium.make("CartPole-v1")
    module = wrap_module(Network(), env.observation_space, env.action_space, ("action_dist_inputs", "vf_preds"))
    config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=module)
    return module.network, config.reporting(total_steps=total_steps).build_trainer().run().best_score


if __name__ == "__main__":
    print(f"best mean return {main()[1]:.0f}")
