"""A module added in mid-training: a copy of the policy as it is now, kept as an opponent that does not learn.

`python examples/hooks/add_module.py`
"""

from lockstep import PPOConfig, policy_within_training_step
from lockstep.data.rollout import RolloutStore


def main(num_updates=4):
    policy = PPOConfig().environment("CartPole-v1").build_policy()
    group, collector = policy.learner_group, policy.config.build_collector(policy)
    collector.buffer = RolloutStore(64, 8, collector.observation_space, policy.action_space)
    results = []
    for update in range(num_updates):
        if update == num_updates // 2:
            spec = group.learner.module["default_policy"].spec()
            group.add_module(module_id="opponent", module_spec=spec, new_should_module_be_updated=["default_policy"])
            group.set_weights({"opponent": group.get_weights()["default_policy"]})
        with policy_within_training_step(policy):
            collector.collect(n_step=512)
        episodes = list(collector.buffer.episodes())
        for episode in episodes:
            episode.module_id = "default_policy"  # with two modules, whose steps these are must be said
        results.append(group.update_from_episodes(episodes, minibatch_size=64, num_epochs=4))
        collector.reset_buffer()
    return group, results


if __name__ == "__main__":
    print(list(main()[0].learner.module))
