"""`OffpolicyTrainer`: the order of events, how many gradient steps, what is refused, what a checkpoint holds."""

import numpy as np
import pytest
from trainer_tools import config_for, digest, noting

from lockstep import Collector, DQNConfig, OffpolicyTrainer
from lockstep.envs import make_vector
from lockstep.replay import ReplayBuffer, VectorReplayBuffer
from lockstep.state.checkpoint import read_checkpoint
from lockstep.trainer import Callback, restore_trainer, save_trainer

NUM_ENVS = 4


def trainer_of(test=False, max_epoch=2, **options):
    config = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=NUM_ENVS)
    config.rl_module(model_config={"hiddens": (8,)}).replay(capacity=400)
    policy = options.pop("policy", None) or config.build_policy()
    given = {"batch_size": 8, "step_per_epoch": 16, "step_per_collect": 8, "update_per_step": 0.25, **options}
    given.setdefault("train_collector", config.build_collector(policy))
    if test:
        given |= {"test_collector": Collector(policy, "CartPole-v1"), "episode_per_test": 1}
    if given.get("episode_per_collect"):
        given.pop("step_per_collect")
    return OffpolicyTrainer(policy, max_epoch=max_epoch, **given)


def test_events_come_in_the_order_of_the_contract():
    log = []
    trainer = trainer_of(
        test=True,
        max_epoch=1,
        learning_starts=8,
        step_per_epoch=24,
        **noting(log),
    )
    trainer.run()
    evaluation = ["score", "EvaluationEnd", "save_best", "stop_fn"]
    kept = [entry for entry in log if not entry.startswith("log ")]
    assert kept == [
        "RunStart",
        "test_fn 0 0",
        *evaluation,
        "train_fn 1 0",
        "CollectEnd",  # random actions: not learned from
        "train_fn 1 8",
        "CollectEnd",
        "UpdateEnd",
        "train_fn 1 16",
        "CollectEnd",
        "UpdateEnd",
        "test_fn 1 24",
        *evaluation,
        "checkpoint (1, 24, 4)",
        "EpochEnd",
        "RunEnd",
        "finalize",
    ]


@pytest.mark.parametrize(
    "update_per_step, step_per_collect, expected",
    [
        (0.25, 4, [1, 2, 3, 4, 5, 6]),
        (0.25, 8, [2, 4, 6]),
        (0.1, 4, [0, 0, 1, 1, 2, 2]),
        (3, 4, [12, 24, 36]),
        (0.29, 4, [1, 2, 3, 4, 5, 6, 8]),
        (0.01, 4, [0] * 24 + [1]),
    ],
)
def test_the_fraction_of_update_per_step_is_carried_over(update_per_step, step_per_collect, expected):
    total = step_per_collect * len(expected)
    trainer = trainer_of(
        max_epoch=1, update_per_step=update_per_step, step_per_collect=step_per_collect, step_per_epoch=total
    )
    trainer.reset()
    done = []
    for _ in expected:
        trainer.training_step()
        done.append(trainer.gradient_step)
    assert done == expected


def test_the_first_steps_are_random_and_not_learned_from():
    seen = []

    class Watched(Collector):
        def collect(self, *args, random=False, **options):
            seen.append(random)
            return super().collect(*args, random=random, **options)

    base = trainer_of()
    collector = Watched(base.policy, "CartPole-v1", buffer=ReplayBuffer(200))
    trainer = OffpolicyTrainer(
        base.policy,
        max_epoch=2,
        batch_size=8,
        train_collector=collector,
        step_per_epoch=20,
        step_per_collect=4,
        learning_starts=10,
    )
    info = trainer.run()
    assert seen == [True] * 3 + [False] * 7
    assert info.gradient_step == 28
    assert len(collector.buffer) == info.train_step == 40


def test_all_gradient_steps_are_in_the_statistics_of_the_epoch():
    (stats,) = list(trainer_of(max_epoch=1, update_per_step=2))
    assert stats.training_stat.gradient_steps == 32
    assert stats.training_stat.metrics["qf_loss"].count == 32


def test_a_reset_keeps_the_buffer_unless_asked_and_begins_new_episodes():
    trainer = trainer_of(max_epoch=1)
    trainer.run()
    trainer.run()
    assert (trainer.env_step, trainer.gradient_step, len(trainer.buffer)) == (16, 4, 32)
    trainer.reset(reset_buffer=True)
    assert len(trainer.buffer) == 0
    trainer.run()
    assert len(trainer.buffer) == 16


def test_a_buffer_to_begin_with_is_learned_from():
    source = trainer_of(max_epoch=1)
    source.run()
    trainer = trainer_of(max_epoch=1, buffer=source.buffer)
    assert len(trainer.buffer) == 16
    trainer.run()
    assert len(trainer.buffer) == 32


def test_batch_size_none_learns_from_everything_once():
    trainer = trainer_of(max_epoch=1, batch_size=None, step_per_epoch=8)
    trainer.run()
    assert sorted(trainer.policy.last_batch["batch_indexes"]) == list(range(8))


def test_the_replay_buffer_is_part_of_the_checkpoint(folder):
    trainer = config_for("dqn", total_steps=256).build_trainer()
    trainer.run()
    path = save_trainer(trainer, folder / "checkpoint")
    assert "replay" in read_checkpoint(path)
    other = config_for("dqn", total_steps=256, debugging={"seed": 9}).build_trainer()
    restore_trainer(other, path)
    assert digest(other.buffer.get_state()) == digest(trainer.buffer.get_state())
    assert other.steps_learned_from == trainer.steps_learned_from == 192
    assert np.array_equal(other.buffer.sample_indices(50), trainer.buffer.sample_indices(50))
    with pytest.raises(ValueError, match="no replay buffer"):
        other.set_own_folders({"trainer": {}})


@pytest.mark.parametrize("at, steps", [(5, 8), (70, 100)])
def test_a_loss_that_is_not_finite_is_told_with_its_gradient_step_and_the_sample_of_that_step(at, steps):
    samples = []

    class Bad(DQNConfig.learner_class):
        def compute_loss_for_module(self, *, batch, **given):
            samples.append(batch["obs"].numpy().copy())
            return super().compute_loss_for_module(batch=batch, **given) * (np.nan if len(samples) == at else 1.0)

    base = config_for("dqn", replay={"prioritized": False, "n_step": 1}, training={"learner_class": Bad})
    policy = base.build_policy()
    collector = Collector(policy, make_vector("CartPole-v1", num_envs=NUM_ENVS), VectorReplayBuffer(100, NUM_ENVS))
    options = {"max_epoch": 1, "step_per_epoch": 20, "step_per_collect": 20, "batch_size": 4}
    trainer = OffpolicyTrainer(policy, train_collector=collector, update_per_step=steps / 20, **options)
    with pytest.raises(FloatingPointError, match=f"gradient step {at};"), pytest.warns(RuntimeWarning):
        trainer.run()
    np.testing.assert_array_equal(trainer.bad_batch["obs"], samples[at - 1])


def test_random_steps_for_the_whole_run_are_told_at_construction():
    with pytest.warns(UserWarning, match="learning_starts=32 is not below the 32 steps of the run"):
        trainer_of(learning_starts=32)


def test_nothing_to_restore_from_is_told_as_such():
    with pytest.raises(ValueError, match="path=None: there is no checkpoint to go on from"):
        restore_trainer(trainer_of(), None)


def test_a_buffer_that_discounts_otherwise_than_the_policy_is_refused_at_construction():
    policy = config_for("dqn", training={"gamma": 0.9}).build_policy()
    for buffer in (VectorReplayBuffer(50, NUM_ENVS, n_step=3), VectorReplayBuffer(50, NUM_ENVS, n_step=3, gamma=0.8)):
        collector = Collector(policy, make_vector("CartPole-v1", num_envs=NUM_ENVS), buffer)
        with pytest.raises(ValueError, match=r"sums n_step=3 rewards with gamma=.*, the policy learns with gamma=0.9"):
            trainer_of(policy=policy, train_collector=collector)
    for fitting in (VectorReplayBuffer(50, NUM_ENVS), VectorReplayBuffer(50, NUM_ENVS, n_step=3, gamma=0.9)):
        trainer_of(policy=policy, train_collector=Collector(policy, collector.env, fitting))


@pytest.mark.parametrize("returned", [False, True, 1, ""])
def test_a_callback_that_returns_neither_none_nor_a_reason_is_told(returned):
    class Returns(Callback):
        def on_collect_end(self, event):
            return returned

    with pytest.raises(TypeError, match=rf"Returns returned {returned!r} for CollectEnd; a callback returns None, or"):
        trainer_of(callbacks=[Returns()]).run()


def test_a_checkpoint_of_another_algorithm_is_refused_by_name(folder):
    def build(algorithm):
        return config_for(algorithm, env="CartPole-v1", total_steps=128).build_trainer()

    path = save_trainer(build("a2c"), folder / "a2c")
    trainer = build("impala")
    before = digest(trainer)
    with pytest.raises(ValueError, match="is of a run of 'a2c', and this trainer's policy is of 'impala'"):
        restore_trainer(trainer, path)
    assert digest(trainer) == before
