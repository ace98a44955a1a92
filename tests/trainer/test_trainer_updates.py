"""What an update is made on, how many gradient steps there are, what `OffpolicyTrainer` refuses and saves."""

from functools import partial

import numpy as np
import pytest
from scenario_tools import config_of, trainer_of
from trainer_tools import build, by_hand, config_for, digest

from lockstep import DQNConfig
from lockstep.envs.toys.counting import CountingEnv
from lockstep.replay import ReplayBuffer, VectorReplayBuffer
from lockstep.rollout import MalformedBufferError
from lockstep.state.checkpoint import read_checkpoint
from lockstep.trainer import Callback, restore_trainer, save_trainer
from lockstep.trainer.build import RunLength

off = partial(trainer_of, "off")


def test_the_first_steps_are_random_and_not_learned_from():
    trainer, seen = off(max_epoch=2, step_per_epoch=20, step_per_collect=4, update_per_step=1, learning_starts=10), []
    collect = trainer.train_collector.collect

    def noted(*args, random=False, **options):
        seen.append(random)
        return collect(*args, random=random, **options)

    trainer.train_collector.collect = noted
    info = trainer.run()
    assert seen == [True] * 3 + [False] * 7
    assert info.gradient_step == 28
    assert len(trainer.buffer) == info.train_step == 40


def test_all_gradient_steps_are_in_the_statistics_of_the_epoch():
    (stats,) = list(off(max_epoch=1, update_per_step=2))
    assert stats.training_stat.gradient_steps == 32
    assert stats.training_stat.metrics["qf_loss"].count == 32


def test_a_buffer_to_begin_with_is_learned_from():
    source = off(max_epoch=1)
    source.run()
    trainer = off(max_epoch=1, buffer=source.buffer)
    assert len(trainer.buffer) == 16
    trainer.run()
    assert len(trainer.buffer) == 32


def test_batch_size_none_learns_from_everything_once():
    trainer = off(max_epoch=1, batch_size=None, step_per_epoch=8, update_per_step=0.25)
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


@pytest.mark.parametrize(
    "kind, at, options",
    [
        ("off", 5, {"step_per_collect": 20, "update_per_step": 0.4}),
        ("off", 70, {"step_per_collect": 20, "update_per_step": 5}),
        ("offline", 5, {}),
    ],
)
def test_a_loss_that_is_not_finite_is_reported_with_its_step_and_sample(kind, at, options):
    samples, config = [], config_of(kind)

    class Bad(config.learner_class):
        def compute_loss_for_module(self, *, batch, **given):
            samples.append(batch["obs"].numpy().copy())
            return super().compute_loss_for_module(batch=batch, **given) * (np.nan if len(samples) == at else 1.0)

    trainer = by_hand(config.training(learner_class=Bad), **options)
    with pytest.raises(FloatingPointError, match=f"gradient step {at};"), pytest.warns(RuntimeWarning):
        trainer.run()
    np.testing.assert_array_equal(trainer.bad_batch["obs"], samples[at - 1])


def test_random_steps_for_the_whole_run_are_a_warning():
    with pytest.warns(UserWarning, match="learning_starts=48 is not below the 48 steps of the run"):
        off(learning_starts=48)


def test_restoring_from_no_checkpoint_is_refused():
    with pytest.raises(ValueError, match="path=None: there is no checkpoint to continue from"):
        restore_trainer(off(), None)


def test_a_buffer_with_another_discount_is_refused_at_construction():
    config = config_of("off").training(gamma=0.9)
    for wrong in (VectorReplayBuffer(50, 2, n_step=3), VectorReplayBuffer(50, 2, n_step=3, gamma=0.8)):
        with pytest.raises(ValueError, match=r"sums n_step=3 rewards with gamma=.*, the policy learns with gamma=0.9"):
            by_hand(config, replay=wrong)
    for fitting in (VectorReplayBuffer(50, 2), VectorReplayBuffer(50, 2, n_step=3, gamma=0.9)):
        assert by_hand(config, replay=fitting).buffer is fitting


@pytest.mark.parametrize("returned", [False, True, 1, ""])
def test_a_callback_that_returns_neither_none_nor_a_reason_is_refused(returned):
    class Returns(Callback):
        def on_collect_end(self, event):
            return returned

    with pytest.raises(TypeError, match=rf"Returns returned {returned!r} for CollectEnd; a callback returns None, or"):
        off(callbacks=[Returns()]).run()


def test_a_checkpoint_of_another_algorithm_is_refused_by_name(folder):
    def build(algorithm):
        return config_for(algorithm, env="CartPole-v1", total_steps=128).build_trainer()

    path = save_trainer(build("a2c"), folder / "a2c")
    trainer = build("impala")
    before = digest(trainer)
    with pytest.raises(ValueError, match="is of a run of 'a2c', and this trainer's policy is of 'impala'"):
        restore_trainer(trainer, path)
    assert digest(trainer) == before


def test_an_update_uses_the_whole_rollout_and_empties_it():
    """64 steps of 4 environments: 16 rows each, in two passes of two minibatches; episodes are of 20 steps."""
    trainer = build(partial(CountingEnv, ((20, "truncate"),)), evaluate=False, repeat_per_collect=2, max_epoch=1)
    given, update = [], trainer.policy.update

    def noted(sample_size, buffer, batch_size, repeat):
        stats = update(sample_size, buffer, batch_size, repeat)
        given.append((sample_size, buffer is trainer.buffer, len(buffer), batch_size, repeat, stats.gradient_steps))
        return stats

    trainer.policy.update = noted
    stats = next(trainer)
    assert given == [(0, True, 64, 32, 2, 4)] * 2
    assert len(trainer.buffer) == 0
    assert stats.train_collect_stat.lens.tolist() == [20] * 4  # over two rollouts of 16 rows
    assert [sum(10 * step for step in range(1, 21))] * 4 <= list(stats.train_collect_stat.returns)


def test_gradient_step_counts_optimizer_steps_as_the_learner_reports_them():
    trainer = build(repeat_per_collect=3, batch_size=16)
    info = trainer.run()
    (entry,) = trainer.policy.learner_group.learner.optimizers
    (adam,) = entry.optimizer.state.values()
    assert info.gradient_step == int(adam["step"]) == 4 * 3 * 4  # rollouts, passes, minibatches
    assert info.gradient_step == sum(stats.training_stat.gradient_steps for stats in info.history)


def filled():
    """A buffer with 16 steps of two environments, which pay -1 each."""
    source = off(max_epoch=1)
    source.run()
    return source.buffer


@pytest.mark.parametrize("into_its_own", [False, True])
def test_an_initial_buffer_passes_process_buffer_once_and_is_sampled(into_its_own):
    calls = []

    class Doubling(DQNConfig):
        def process_buffer(self, buffer):
            calls.append(buffer)
            return ReplayBuffer.from_batch({**buffer.to_batch(), "rewards": 2 * buffer.to_batch()["rewards"]})

    given = filled()
    replay = given if into_its_own else VectorReplayBuffer(64, 2)
    trainer = by_hand(config_of("off", config_class=Doubling), replay=replay, buffer=given, max_epoch=1)
    assert calls == [given]
    assert (trainer.buffer is given) == into_its_own
    assert trainer.buffer.all()["rewards"].tolist() == [-2.0] * 16
    trainer.run()
    assert (len(calls), len(trainer.buffer)) == (1, 32)
    assert set(trainer.buffer.sample(200)["rewards"].tolist()) == {-1.0, -2.0}


@pytest.mark.parametrize("made", ["other columns", "a view of the same rows", "no buffer"])
def test_a_buffer_is_unchanged_if_the_result_of_process_buffer_is_refused(made):
    class Making(DQNConfig):
        def process_buffer(self, buffer):
            if made == "other columns":
                return ReplayBuffer.from_batch({**buffer.to_batch(), "values": np.zeros(16)})
            return buffer.with_whole_returns(0.9) if made == "a view of the same rows" else buffer.to_batch()

    given = filled()
    before = digest(given.get_state())
    with pytest.raises(MalformedBufferError, match=r"does not fit|process_buffer gave a SampleBatch"):
        by_hand(config_of("off", config_class=Making), replay=given, buffer=given)
    assert len(given) == 16
    assert digest(given.get_state()) == before


def test_exploration_of_a_new_run_starts_where_its_counters_start():
    seen = []
    trainer = off(max_epoch=1)
    part = trainer.policy.acting["default_policy"]
    draw = part.draw_noise

    def noted(rng, shape):
        seen.append(next(iter(trainer.policy.timesteps.values())))
        return draw(rng, shape)

    part.draw_noise = noted
    for _ in range(2):
        trainer.run()
    assert seen == [0, 8, 0, 8]
    trainer.logger.restore_data = lambda: (1, 16, 4)
    trainer.max_epoch, trainer.resume_from_log = 2, True
    trainer.run()
    assert seen[4:] == [16, 24]


def test_each_gradient_step_is_made_on_a_fresh_sample():
    samples = []

    class Noting(DQNConfig.learner_class):
        def compute_loss_for_module(self, *, batch, **given):
            samples.append(batch["obs"].numpy().copy())
            return super().compute_loss_for_module(batch=batch, **given)

    trainer = by_hand(config_of("off").training(learner_class=Noting), step_per_collect=16, update_per_step=1)
    assert next(trainer).info_stat.gradient_step == len(samples) == 16
    assert all(sample.shape == (4, 2) for sample in samples)
    assert len({sample.tobytes() for sample in samples}) == 16


@pytest.mark.parametrize(
    ("update_per_step", "num_envs", "fragment", "expected"),
    [
        (0.25, 1, None, 4),
        (0.25, 2, None, 4),
        (0.25, 8, None, 8),
        (1 / 3, 1, None, 3),
        (0.4, 1, None, 2),
        (1.0, 1, None, 1),
        (2.0, 1, None, 1),
        (0.25, 1, 1, 1),
        (1e-6, 1, None, 64),
    ],
)
def test_a_collect_has_the_steps_that_make_a_gradient_step_due(update_per_step, num_envs, fragment, expected):
    config = DQNConfig().environment("CartPole-v1").replay(update_per_step=update_per_step)
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment)
    assert RunLength.of(config).per_update == expected
