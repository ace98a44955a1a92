"""A pipeline of a user's own on Ray: runners sample and learners learn as one process does."""

import numpy as np
import pytest
from picture_env import PictureEnv, play, see, turn

from lockstep import DQNConfig, Policy, PPOConfig
from lockstep.trainer import restore_trainer, save_trainer

ray = pytest.importorskip("ray")


def configured(config, num_env_runners):
    config.environment(PictureEnv, normalize_rewards=True).debugging(seed=3).framework(dtype="float64")
    config.rl_module(model_config={"hiddens": (4,)}).evaluation(evaluation_interval=0)
    return config.env_runners(
        num_env_runners=num_env_runners,
        num_envs_per_env_runner=4 // max(1, num_env_runners),
        num_cpus_per_env_runner=0.5,
        env_to_module_connector=see,
        module_to_env_connector=turn,
    )


def trained(config, num_learners, num_env_runners):
    config = configured(config, num_env_runners).learners(num_learners=num_learners, learner_timeout_s=60.0)
    trainer = config.build_trainer()
    try:
        trainer.run()
        return {name: tensor.numpy() for name, tensor in trainer.policy.state_dict().items()}
    finally:
        trainer.close()


def ppo():
    return PPOConfig().training(train_batch_size=32, minibatch_size=8, lr=1e-2).reporting(total_steps=64)


def dqn():
    config = DQNConfig().training(train_batch_size=8, lr=1e-2).reporting(total_steps=64)
    return config.replay(learning_starts=24, capacity=100, update_per_step=0.25)


@pytest.mark.parametrize("make", [ppo, dqn])
def test_two_learners_and_two_runners_are_one_with_statistics(make, cluster):
    one, several = trained(make(), 0, 0), trained(make(), 2, 2)
    assert one.keys() == several.keys()
    assert any("connectors" in name for name in one)
    for name, value in one.items():
        np.testing.assert_allclose(several[name], value, rtol=0, atol=1e-12, err_msg=name)


def test_actions_are_the_same_bits_here_on_ray_in_evaluation_by_hand_and_after_a_resume(cluster, tmp_path):
    """Collected, learned from and evaluated in this process, and on Ray with a resume in the middle."""

    def trainer_of(num_env_runners):
        config = configured(dqn().reporting(steps_per_epoch=16), num_env_runners).training(lr=1e-3)
        config.rl_module(model_config={"policy_gain": 1.0}).debugging(seed=5)
        config.evaluation(evaluation_interval=1, evaluation_duration=4, evaluation_num_env_runners=num_env_runners)
        return config.build_trainer()

    def outcome(trainer):
        returns = [trainer.last_test.returns.tolist(), trainer.last_test.lens.tolist()]
        return trainer.buffer.column("actions").tolist(), returns, play(trainer.policy)

    here, begun, resumed = trainer_of(0), trainer_of(2), trainer_of(2)
    try:
        here.run()
        for _ in range(2):
            next(begun)
        save_trainer(begun, tmp_path / "checkpoint")
        restore_trainer(resumed, tmp_path / "checkpoint")
        resumed.run()
        assert len(set(play(here.policy))) > 1
        assert outcome(here) == outcome(resumed)
        assert play(begun.policy) == play(Policy.from_checkpoint(tmp_path / "checkpoint"))
    finally:
        for trainer in (here, begun, resumed):
            trainer.close()
