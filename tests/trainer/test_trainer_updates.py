"""What an update is made on, what is counted of it, and what a trainer begins with."""

from functools import partial

import numpy as np
import pytest
from test_trainer_offpolicy import NUM_ENVS
from test_trainer_offpolicy import trainer_of as offpolicy_trainer_of
from trainer_tools import build, config_for, digest, random_transitions

from lockstep import Collector, DQNConfig
from lockstep.envs import make_vector
from lockstep.envs.counting import CountingEnv
from lockstep.replay import ReplayBuffer, VectorReplayBuffer
from lockstep.rollout import MalformedBufferError


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
    trainer = offpolicy_trainer_of(policy=policy, train_collector=collector, buffer=given, max_epoch=1)
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
        offpolicy_trainer_of(policy=policy, train_collector=collector, buffer=given)
    assert len(given) == 12
    assert digest(given.get_state()) == before


def test_a_new_run_and_one_from_counters_begin_exploration_where_their_steps_begin():
    seen = []
    trainer = offpolicy_trainer_of(max_epoch=1)
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
    info = offpolicy_trainer_of(policy=policy, train_collector=collector, max_epoch=1, **options).run()
    assert info.gradient_step == len(samples) == 20
    assert all(sample.shape == (8, 4) for sample in samples)
    assert len({sample.tobytes() for sample in samples}) == 20
