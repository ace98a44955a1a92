"""Options for each module: two networks in one learner, with a learning rate and an entropy bonus of their own.

`python examples/hooks/per_module_config.py`
"""

import gymnasium
import numpy as np

from lockstep import PPOConfig
from lockstep.data.episode import SingleAgentEpisode
from lockstep.modules import MultiRLModuleSpec, RLModuleSpec


def episode(env, module_id, seed):
    obs, actions, done = [env.reset(seed=seed)[0]], [], False
    while not done:
        actions.append(int(env.action_space.sample()))
        *step, _ = env.step(actions[-1])
        obs, done = [*obs, step[0]], step[2] or step[3]
    return SingleAgentEpisode(observations=np.stack(obs), actions=np.array(actions), terminated=True,
                              rewards=np.ones(len(actions)), module_id=module_id)  # fmt: skip


def main(num_updates=3):
    config = PPOConfig().environment("CartPole-v1").training(lr=3e-4)
    overrides = {"bold": PPOConfig.overrides(lr=1e-2, entropy_coeff=0.01)}
    config.rl_module(algorithm_config_overrides_per_module=overrides)
    spec, env = MultiRLModuleSpec({mid: RLModuleSpec() for mid in ("bold", "calm")}), gymnasium.make("CartPole-v1")
    group = config.build_learner_group(rl_module_spec=spec)
    episodes = [episode(env, mid, seed) for seed in range(10) for mid in ("bold", "calm")]
    return [group.update_from_episodes(episodes, minibatch_size=64, num_epochs=4) for _ in range(num_updates)]


if __name__ == "__main__":
    print({mid: main()[-1][mid]["default_optimizer_learning_rate"] for mid in ("bold", "calm")})
