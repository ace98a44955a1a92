"""What is refused is told with what was given, whose it is, and what to do instead."""

import gymnasium as gym
import numpy as np
import pytest

from lockstep import Policy, load_policy
from lockstep.algorithms import DQNConfig, IQLConfig, PPOConfig, SACConfig, TD3Config
from lockstep.state.checkpoint import CheckpointError
from lockstep.tracking import JsonlLogger
from lockstep.trainer import EarlyStop, build_trainer
from lockstep.trainer.run import prepare_run

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)


def config_of(cls=PPOConfig):
    config = cls().environment("CartPole-v1").rl_module(model_config={"hiddens": (8,)})
    return config.reporting(total_steps=64).evaluation(evaluation_episodes=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = config_of().training(train_batch_size=64, minibatch_size=32)
    return prepare_run(config, tmp_path_factory.mktemp("runs")).finish().path


def test_the_state_of_another_algorithm_is_refused_with_both_names(tmp_path):
    learner, other = config_of().build_learner(), config_of(DQNConfig).build_learner()
    of_both = r"does not fit this PPOLearner \(of DefaultActorCriticModule\): it is of a DQNLearner; from_checkpoint"
    for path in (other.save_to_path(tmp_path / "learner"), config_of(DQNConfig).build_policy().save_to_path()):
        with pytest.raises(ValueError, match=of_both):
            learner.restore_from_path(path)
    with pytest.raises(ValueError, match=of_both):
        config_of().build_policy().restore_from_path(path)
    with pytest.raises(ValueError, match=r"does not fit this PPOLearner \(of DefaultActorCriticModule\), nothing"):
        learner.set_state(other.get_state())


def test_a_folder_of_a_run_says_where_its_policy_is(run):
    for path in (run, run / "best", run / "checkpoints"):
        with pytest.raises(CheckpointError, match=r"is in best/policy of its folder, and lockstep.load_policy"):
            Policy.from_checkpoint(path)
    assert isinstance(load_policy(run), Policy)
    with pytest.raises(CheckpointError, match=r"it is not a directory$"):
        Policy.from_checkpoint("nothing/at/all")


def test_what_a_checkpoint_without_a_policy_holds_is_told():
    learner = config_of().build_learner()
    module = learner.module["default_policy"].save_to_path()
    with pytest.raises(ValueError, match=r"holds no policy, but an RLModule \(RLModule.from_checkpoint reads it\)"):
        Policy.from_checkpoint(module)
    with pytest.raises(ValueError, match=r"there is no policy, but a learner \(Learner.from_checkpoint reads it\)"):
        config_of().build_policy().restore_from_path(learner.save_to_path())


def test_what_save_checkpoint_fn_returns_is_a_path():
    trainer = build_trainer(config_of().training(train_batch_size=64))
    trainer.save_checkpoint_fn = lambda epoch, env_step, gradient_step: 3
    with pytest.raises(TypeError, match="save_checkpoint_fn returned 3; it must return the path of what it wrote"):
        trainer.run()


@pytest.mark.parametrize(
    "cls, actions",
    [(DQNConfig, OBS), (SACConfig, gym.spaces.MultiDiscrete([2, 3])), (TD3Config, gym.spaces.Discrete(2))],
)
def test_refused_spaces_are_told_with_the_algorithm(cls, actions):
    name = cls.algorithm
    with pytest.raises(ValueError, match=f"{name} cannot be built for these spaces .* needs? a .* action space, not"):
        cls().environment(observation_space=OBS, action_space=actions).build_learner()
    with pytest.raises(
        ValueError, match=r"^iql cannot be built for these spaces or options: no network for observation"
    ):
        IQLConfig().environment(observation_space=gym.spaces.Text(3), action_space=OBS).build_learner()


def test_one_callback_without_a_list_is_refused_before_anything_is_built():
    with pytest.raises(ValueError, match=r"must be a list of .*Callback; put it into one, callbacks=\[...\]"):
        build_trainer(config_of(), callbacks=EarlyStop(patience=1))


def test_a_configuration_of_a_finished_environment_says_how_to_evaluate():
    with pytest.raises(
        ValueError, match=r"a function or class that makes them .* or evaluation\(evaluation_interval=0\)"
    ):
        DQNConfig().environment(gym.make("CartPole-v1")).build_trainer()


def test_a_logger_whose_folder_is_missing_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*new for metrics.jsonl; make it first"):
        JsonlLogger(tmp_path / "new" / "metrics.jsonl")
