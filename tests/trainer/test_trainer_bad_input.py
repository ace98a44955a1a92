"""Every wrong or contradictory parameter is refused at construction, with its name and its value."""

import math
import re
from functools import partial

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv
from scenario_tools import Paying, trainer_of
from trainer_tools import config_for

from lockstep import Collector, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.trainer import Callback, CheckpointCallback, EarlyStop
from lockstep.trainer.video import VideoCallback


@pytest.fixture(scope="module")
def template():
    return config_for().build_trainer()


def given(template, **changes):
    options = {
        "max_epoch": 1,
        "batch_size": 32,
        "train_collector": template.train_collector,
        "test_collector": template.test_collector,
        "step_per_epoch": 64,
        "repeat_per_collect": 1,
        "step_per_collect": 64,
        "episode_per_test": 2,
    }
    return {**options, **changes}


WRONG = [
    ("max_epoch", -1),
    ("max_epoch", 1.5),
    ("max_epoch", None),
    ("max_epoch", True),
    ("batch_size", 0),
    ("batch_size", "64"),
    ("step_per_epoch", 0),
    ("step_per_epoch", None),
    ("step_per_epoch", 1e3),
    ("repeat_per_collect", 0),
    ("repeat_per_collect", None),
    ("repeat_per_collect", 2.0),
    ("step_per_collect", 0),
    ("step_per_collect", 64.0),
    ("episode_per_test", 0),
    ("episode_per_test", None),
    ("episode_per_test", 2.5),
    ("test_interval", 0),
    ("checkpoint_interval", 0),
    ("checkpoint_interval", "often"),
    ("train_fn", 3),
    ("test_fn", "now"),
    ("stop_fn", 475.0),
    ("compute_score_fn", "mean"),
    ("save_best_fn", "best"),
    ("save_checkpoint_fn", "checkpoints"),
    ("logger", "jsonl"),
    ("nan_policy", "skip"),
    ("seed", -1),
    ("seed", 1.5),
    ("test_in_train", "yes"),
    ("resume_from_log", 1),
    ("verbose", None),
    ("show_progress", "bar"),
]


@pytest.mark.parametrize("name, value", WRONG, ids=[f"{name}={value}" for name, value in WRONG])
def test_a_wrong_value_is_refused_with_name_and_value(template, name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} is not allowed")):
        OnpolicyTrainer(template.policy, **given(template, **{name: value}))


def test_an_episode_count_is_checked_like_a_step_count(template):
    with pytest.raises(ValueError, match="episode_per_collect=0 is not allowed"):
        OnpolicyTrainer(template.policy, **given(template, step_per_collect=None, episode_per_collect=0))


@pytest.mark.parametrize("both", [(None, None), (64, 5)])
def test_exactly_one_of_step_per_collect_and_episode_per_collect(template, both):
    expected = f"exactly one of step_per_collect and episode_per_collect, not {both[0]} and {both[1]}"
    with pytest.raises(ValueError, match=expected):
        OnpolicyTrainer(template.policy, **given(template, step_per_collect=both[0], episode_per_collect=both[1]))


@pytest.mark.parametrize("name", ["stop_fn", "test_fn", "save_best_fn", "compute_score_fn"])
def test_what_only_evaluation_calls_is_refused_without_it(template, name):
    changes = {"test_collector": None, "episode_per_test": None, name: lambda *arguments: None}
    with pytest.raises(ValueError, match=f"{name} is never called without evaluation"):
        OnpolicyTrainer(template.policy, **given(template, **changes))


def test_a_callback_that_is_none_is_refused(template):
    with pytest.raises(ValueError, match="callbacks: <function"):
        OnpolicyTrainer(template.policy, **given(template, callbacks=[lambda event: None]))


def test_a_callback_with_a_method_that_no_event_calls_is_refused_unless_it_takes_events_itself(template):
    class Misspelt(Callback):
        def on_epoch_ends(self, event):
            raise AssertionError

    class Own(Misspelt):
        def on_event(self, event):
            return None

    with pytest.raises(ValueError, match=r"Misspelt.on_epoch_ends would never be called; did you mean 'on_epoch_end'"):
        OnpolicyTrainer(template.policy, **given(template, callbacks=[Misspelt()]))
    OnpolicyTrainer(template.policy, **given(template, callbacks=[Own()]))


def test_a_callback_may_have_values_whose_names_begin_as_those_of_events(template):
    class Own(Callback):
        on_disk = True

        @property
        def on_time(self):
            return 3

    own = Own()
    assert own in OnpolicyTrainer(template.policy, **given(template, callbacks=[own])).callbacks


def test_a_part_that_is_none_or_of_another_policy_is_refused(template):
    with pytest.raises(ValueError, match=r"policy='ppo' is not allowed; it must be a lockstep.Policy"):
        OnpolicyTrainer("ppo", **given(template))
    with pytest.raises(ValueError, match=r"test_collector=3 is not allowed; it must be a lockstep\.Collector"):
        OnpolicyTrainer(template.policy, **given(template, test_collector=3))
    other = config_for().build_trainer()
    with pytest.raises(ValueError, match="test_collector acts with another policy than the one to train"):
        OnpolicyTrainer(template.policy, **given(template, test_collector=other.test_collector))


@pytest.mark.parametrize("trainer, kind", [(OnpolicyTrainer, "on"), (OffpolicyTrainer, "off")])
@pytest.mark.parametrize("collector", [None, 3])
def test_a_trainer_that_collects_needs_a_collector(trainer, kind, collector):
    made = trainer_of(kind, evaluate=False)
    options = {"max_epoch": 1, "batch_size": 4, "step_per_epoch": 8, "step_per_collect": 8}
    options |= {"repeat_per_collect": 1} if kind == "on" else {}
    with pytest.raises(
        ValueError, match=f"train_collector={collector} is not allowed; it must be a lockstep.Collector"
    ):
        trainer(made.policy, train_collector=collector, **options)


def test_a_policy_that_learns_from_something_else_is_refused_with_the_trainer_that_fits():
    on, off = trainer_of("on", evaluate=False), trainer_of("off", evaluate=False)
    options = {"max_epoch": 1, "batch_size": 4, "step_per_epoch": 8}
    with pytest.raises(ValueError, match=r"policy of 'a2c' learns from whole rollouts, .*; use OnpolicyTrainer"):
        OffpolicyTrainer(on.policy, train_collector=on.train_collector, step_per_collect=8, **options)
    with pytest.raises(ValueError, match=r"policy of 'dqn' learns from samples of a buffer, .*; use OffpolicyTrainer"):
        collector = off.train_collector
        OnpolicyTrainer(off.policy, train_collector=collector, step_per_collect=8, repeat_per_collect=1, **options)
    with pytest.raises(ValueError, match=r"policy of 'a2c' learns from whole rollouts, .*; use OnpolicyTrainer"):
        OfflineTrainer(on.policy, buffer=off.buffer, **options)


def test_one_callback_instead_of_a_list_is_refused(template):
    with pytest.raises(ValueError, match=r"callbacks=<.*> is not allowed; it must be a list"):
        OnpolicyTrainer(template.policy, **given(template, callbacks=Callback()))


@pytest.mark.parametrize(
    "make, name, value",
    [
        (EarlyStop, "threshold", "475"),
        (EarlyStop, "threshold", math.nan),
        (EarlyStop, "patience", 0),
        (EarlyStop, "patience", 1.5),
        (EarlyStop, "time_limit_s", 0),
        (EarlyStop, "time_limit_s", math.inf),
        (partial(CheckpointCallback, "there"), "interval", 1.5),
        (partial(CheckpointCallback, "there"), "num_to_keep", 0),
        (partial(VideoCallback, "there"), "interval", 0),
        (partial(VideoCallback, "there"), "num_episodes", True),
    ],
)
def test_a_wrong_option_of_a_callback_is_refused_with_name_and_value(make, name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} is not allowed; it must be a")):
        make(**{name: value})


def test_an_unknown_parameter_is_refused_by_name_with_what_was_meant(template):
    with pytest.raises(TypeError, match=r"OnpolicyTrainer has no parameter 'max_epochs'; did you mean 'max_epoch'\?"):
        OnpolicyTrainer(template.policy, **given(template, max_epochs=3))
    with pytest.raises(TypeError, match=r"OnpolicyTrainer has no parameter 'xyz'; there are batch_size, callbacks, "):
        OnpolicyTrainer(template.policy, **given(template, xyz=3))
    with pytest.raises(TypeError, match=r"OffpolicyTrainer has no parameter 'learn_starts'; .* 'learning_starts'\?"):
        trainer_of("off", learn_starts=3)


def test_evaluation_in_the_environments_of_training_is_refused(template):
    vector = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    collectors = [Collector(template.policy, vector) for _ in range(2)]
    assert collectors[0].env is not collectors[1].env
    changes = {"train_collector": collectors[0], "test_collector": collectors[1], "batch_size": None}
    with pytest.raises(ValueError, match="test_collector has the environments of train_collector"):
        OnpolicyTrainer(template.policy, **given(template, **changes))
    same = {"test_collector": template.train_collector}
    with pytest.raises(ValueError, match="test_collector has the environments of train_collector"):
        OnpolicyTrainer(template.policy, **given(template, **same))


def test_one_environment_given_in_the_configuration_cannot_be_trained_on_and_evaluated_at_once():
    vector = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(ValueError, match="environments"):
        config_for(env=vector, num_envs=2).build_trainer()
    trainer = config_for(env=vector, num_envs=2, evaluation={"evaluation_interval": 0}).build_trainer()
    assert next(trainer).train_collect_stat.n_collected_steps == 128


def test_learning_outside_of_a_training_step_is_refused(template):
    with pytest.raises(RuntimeError, match="policy_within_training_step"):
        template.policy.update(0, template.buffer)
    with template.policy.within_training_step(), pytest.raises(ValueError, match="sample_size=32"):
        template.policy.update(32, template.buffer)


@pytest.mark.parametrize("name, value", [("buffer", []), ("update_per_step", 0.5), ("learning_starts", 9)])
def test_what_belongs_to_other_trainers_is_refused_with_what_to_do(template, name, value):
    with pytest.raises(ValueError, match=f"{name} does not apply to OnpolicyTrainer: it "):
        OnpolicyTrainer(template.policy, **given(template, **{name: value}))
    OnpolicyTrainer(template.policy, **given(template, **{name: None}))


class Endless(Paying):
    """Its episodes never end."""

    def step(self, action):
        obs, reward, _, *rest = super().step(action)
        return obs, reward, False, *rest


def test_no_word_of_episodes_that_never_end_before_one_could_have(recwarn):
    trainer_of("on", env=Endless, max_epoch=12, evaluate=False).run()  # 96 steps of each environment
    assert not [one for one in recwarn if "no training episode ended" in str(one.message)]
    with pytest.warns(UserWarning, match="in the first 208 steps of 2 env.*max_episode_steps") as told:
        trainer_of("on", env=Endless, max_epoch=16, evaluate=False).run()
    assert len([one for one in told if "no training episode ended" in str(one.message)]) == 1


@pytest.mark.parametrize("by_hand", [False, True])
def test_no_word_of_episodes_that_never_end_before_their_known_limit(by_hand, recwarn):
    trainer = config_for(env="Pendulum-v1", total_steps=768).build_trainer()  # 192 steps of each, episodes have 200
    if by_hand:
        vector = SyncVectorEnv([lambda: gym.make("Pendulum-v1")] * 4, autoreset_mode="SameStep")
        trainer = OnpolicyTrainer(
            trainer.policy,
            **given(trainer, train_collector=Collector(trainer.policy, vector), max_epoch=12),
        )
    assert trainer.run().train_step == 768
    assert not [one for one in recwarn if "no training episode ended" in str(one.message)]
