"""What holds environments says that it cannot be copied; what is copied goes on by itself."""

import copy
import pickle

import pytest
from scenario_tools import TRAINERS, trainer_of

import lockstep
from lockstep import A2CConfig
from lockstep.envs import make_vector
from lockstep.rollout import GroupCollector

COPIES = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": pickle.dumps}


@pytest.mark.parametrize("how", COPIES)
def test_trainers_and_collectors_say_what_to_do_instead_of_copying_them(how):
    trainers = [trainer_of(kind) for kind in TRAINERS]
    collectors = [trainers[0].train_collector, trainers[1].test_collector]
    config = A2CConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (4,)})
    policy = config.build_policy()
    runners = GroupCollector(policy, config.build_env_runner_group())
    for trainer in trainers:
        match = (
            rf"this {type(trainer).__name__} holds .* save_trainer\(trainer, path\) and restore_trainer\(other, path\)"
        )
        with pytest.raises(TypeError, match=match):
            COPIES[how](trainer)
    for collector in [*collectors, runners]:
        match = rf"this {type(collector).__name__} holds .* then other.set_state\(collector.get_state\(\)\)"
        with pytest.raises(TypeError, match=match):
            COPIES[how](collector)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_copies_of_a_config_share_its_finished_environment(mode, folder):
    with make_vector("CartPole-v1", num_envs=2, mode=mode) as env:
        config = A2CConfig().environment(env).rl_module(model_config={"hiddens": (4,)})
        config.evaluation(evaluation_interval=0).training(train_batch_size=16)
        assert config.copy().env is env
        result = lockstep.train(config, total_steps=32, root=folder)
        assert result.info.train_step == 32
        assert env.get_state() is not None  # it was stepped, and is still open
