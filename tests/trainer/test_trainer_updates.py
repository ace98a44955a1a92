"""What an update is made on, how many gradient steps there are, what `OffpolicyTrainer` refuses and saves."""

from functools import partial

import numpy as np
import pytest
from trainer_tools import build, config_for, digest, random_transitions

from lockstep import Collector, DQNConfig, OffpolicyTrainer
from lockstep.envs import make_vector
from lockstep.envs.counting import CountingEnv
from lockstep.replay import ReplayBuffer, VectorReplayBuffer
from lockstep.rollout import MalformedBufferError
from lockstep.state.checkpoint import read_checkpoint
from lockstep.trainer import Callback, restore_trainer, save_trainer

NUM_ENVS = 4


def trainer_of(max_epoch=2, **options):
    config = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=NUM_ENVS)
    config.rl_module(model_config={"hiddens": (8,)}).replay(capacity=400)
    policy = options.pop("policy", None) or config.build_policy()
    given = {"batch_size": 8, "step_per_epoch": 16, "step_per_collect": 8, "update_per_step": 0.25, **options}
    given.setdefault("train_collector", config.build_collector(policy))
    return OffpolicyTrainer(policy, max_epoch=max_epoch, **given)


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


def test_an_update_is_made_on_the_whole_rollout_which_is_empty_afterwards_and_episodes_go_on():
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


@pytest.mark.parametrize("into_its_own", [False, True])
def test_a_buffer_to_begin_with_goes_through_process_buffer_once_and_what_that_gives_is_drawn(into_its_own):
    calls = []

    class Doubling(DQNConfig):
        def process_buffer(self, buffer):
            calls.append(buffer)
            return ReplayBuffer.from_batch({**buffer.to_batch(), "rewards": 2 * buffer.to_batch()["rewards"]})

    config = Doubling().environment("CartPole-v1").rl_module(model_config={"hiddens": (4,)})
    policy = config.env_runners(num_envs_per_env_runner=NUM_ENVS).build_policy()
    given = VectorReplayBuffer(400, NUM_ENVS)
    given.extend(random_transitions("CartPole-v1", 12))
    collector = Collector(policy, make_vector("CartPole-v1", num_envs=NUM_ENVS), given if into_its_own else None)
    trainer = trainer_of(policy=policy, train_collector=collector, buffer=given, max_epoch=1)
    assert calls == [given]
    assert (trainer.buffer is given) == into_its_own
    assert trainer.buffer.all()["rewards"].tolist() == [2.0] * 12  # CartPole pays 1 a step
    trainer.run()
    assert (len(calls), len(trainer.buffer)) == (1, 28)
    drawn = trainer.buffer.sample(200)["rewards"]
    assert set(drawn.tolist()) == {1.0, 2.0}


@pytest.mark.parametrize("made", ["other columns", "a view of the same rows", "no buffer"])
def test_a_buffer_is_as_before_where_what_process_buffer_makes_of_it_does_not_fit(made):
    class Making(DQNConfig):
        def process_buffer(self, buffer):
            if made == "other columns":
                return ReplayBuffer.from_batch({**buffer.to_batch(), "values": np.zeros(12)})
            return buffer.with_whole_returns(0.9) if made == "a view of the same rows" else buffer.to_batch()

    config = Making().environment("CartPole-v1").rl_module(model_config={"hiddens": (4,)})
    policy = config.env_runners(num_envs_per_env_runner=NUM_ENVS).build_policy()
    given = VectorReplayBuffer(400, NUM_ENVS)
    given.extend(random_transitions("CartPole-v1", 12))
    before = digest(given.get_state())
    collector = Collector(policy, make_vector("CartPole-v1", num_envs=NUM_ENVS), given)
    with pytest.raises(MalformedBufferError, match=r"does not fit|process_buffer gave a SampleBatch"):
        trainer_of(policy=policy, train_collector=collector, buffer=given)
    assert len(given) == 12
    assert digest(given.get_state()) == before


def test_a_new_run_and_one_from_counters_begin_exploration_where_their_steps_begin():
    seen = []
    trainer = trainer_of(max_epoch=1)
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

    config = config_for("dqn", replay={"prioritized": False, "n_step": 1}, training={"learner_class": Noting})
    policy = config.build_policy()
    collector = Collector(policy, make_vector("CartPole-v1", num_envs=NUM_ENVS), VectorReplayBuffer(400, NUM_ENVS))
    options = {"step_per_epoch": 80, "step_per_collect": 80, "update_per_step": 0.25}
    info = trainer_of(policy=policy, train_collector=collector, max_epoch=1, **options).run()
    assert info.gradient_step == len(samples) == 20
    assert all(sample.shape == (8, 4) for sample in samples)
    assert len({sample.tobytes() for sample in samples}) == 20
