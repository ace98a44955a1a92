"""PPO with a loop of your own: environments, network, estimator and learner by hand. `python examples/own_loop.py`"""

import numpy as np
import torch

from lockstep import PPOConfig, SampleBatch
from lockstep.envs import make_vector
from lockstep.ops import gae


def main(num_updates=40, num_steps=128, num_envs=8):
    learner = PPOConfig().environment("CartPole-v1").training(lr=1e-3).build_learner()
    module, envs = learner.module["default_policy"], make_vector("CartPole-v1", num_envs=num_envs)
    obs = envs.reset(list(range(num_envs))).copy()
    for _ in range(num_updates):
        rows = []
        for _ in range(num_steps):
            with torch.inference_mode():
                inputs = module.forward_exploration({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
                actions = module.action_dist_cls.from_inputs(inputs).sample().numpy()
            step = envs.step(actions)
            next_obs = step.obs.copy()  # the true next observation: where an episode ended, its own last one
            if step.final_obs is not None:
                next_obs[step.final_obs[0]] = step.final_obs[1]
            rows.append((obs, actions, next_obs, *map(np.copy, (step.rewards, step.terminateds, step.truncateds))))
            obs = step.obs.copy()
        obs_column, actions, next_obs, rewards, terminateds, truncateds = map(np.stack, zip(*rows))  # [T, B, ...]
        flat_obs, flat_actions, flat_next = (
            torch.from_numpy(x.reshape(-1, *x.shape[2:])) for x in (obs_column, actions, next_obs)
        )
        with torch.no_grad():
            out = module.forward_train({"obs": flat_obs})
            logp = module.action_dist_cls.from_inputs(out["action_dist_inputs"]).log_prob(flat_actions)
            values = out["vf_preds"].numpy().reshape(rewards.shape)
            next_values = module.compute_values({"obs": flat_next}).numpy().reshape(rewards.shape)
        advantages, targets = gae(rewards, values, next_values, terminateds, truncateds, gamma=0.99, lambda_=0.95)
        batch = SampleBatch(obs=flat_obs, actions=flat_actions, action_logp=logp)
        batch.update(advantages=torch.from_numpy(advantages.ravel()), value_targets=torch.from_numpy(targets.ravel()))
        learner.update_from_batch(batch, num_epochs=10, minibatch_size=256, shuffle_batch_per_epoch=True)
    num_ended = np.count_nonzero(np.logical_or(terminateds, truncateds))
    return rewards.size / max(1, num_ended)  # steps for each ended episode


if __name__ == "__main__":
    print(f"steps for each episode in the last update: {main():.0f}")
