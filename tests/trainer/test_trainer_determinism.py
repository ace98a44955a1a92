"""The same seed gives the same bits: every algorithm, 1 and 4 environments, sync and async vectorisation."""

from functools import partial

import pytest
from algorithm_cases import NAMES, OFF_POLICY, OFFLINE
from parts import fast_if
from trainer_tools import by_hand, collected, digest, learned, smallest_config

from lockstep import Collector
from lockstep.tracking import TraceLogger
from lockstep.trainer import restore_trainer, save_trainer

ONE_OF_A_FAMILY = ("ppo", "dqn", "td3", "bc")
"""algorithms that learn and explore in different ways; the others share their parts"""


def trace_of(algorithm: str, num_envs: int, seed: int = 11, vectorize_mode: str = "auto"):
    """The trace of a short run, and the hashes of all that it left in memory."""
    config = smallest_config(algorithm, num_envs=num_envs, seed=seed)
    config.env_runners(vectorize_mode=vectorize_mode)
    trainer = config.build_trainer()
    trace = TraceLogger(trainer.policy.module)
    trainer.logger = trace
    trainer.callbacks[0].logger = trace
    trainer.run()
    hashes = learned(trainer), collected(trainer)
    for collector in (trainer.train_collector, trainer.test_collector):
        if collector is not None:
            collector.close()
    return trace, hashes


@pytest.mark.parametrize("num_envs", [pytest.param(1, marks=pytest.mark.exhaustive), 4])
@pytest.mark.parametrize("algorithm", fast_if(ONE_OF_A_FAMILY.__contains__, NAMES))
def test_the_same_seed_gives_the_same_bits(algorithm, num_envs):
    (one, hashes), (two, again) = trace_of(algorithm, num_envs), trace_of(algorithm, num_envs)
    assert one.first_difference(two) is None
    assert (one.digest(), hashes) == (two.digest(), again)
    scopes = {line.split()[0] for line in one.lines}
    expected = {"test", "update", "info"} | (set() if algorithm in OFFLINE else {"train"})
    assert expected <= scopes
    assert sum("hash/module" in line for line in one.lines) >= 2
    if num_envs == 4 and algorithm in ("ppo", "dqn", "td3", "bc"):
        spawned, same = trace_of(algorithm, num_envs, vectorize_mode="async")
        assert one.first_difference(spawned) is None
        assert same == hashes
        other, _ = trace_of(algorithm, num_envs, seed=12)
        assert one.digest() != other.digest()


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.long
def test_every_algorithm_goes_on_bit_by_bit_from_a_checkpoint(algorithm, folder):
    def bits(trainer):
        return learned(trainer), collected(trainer), digest(trainer.own_folders().get("offline")), len(trainer.history)

    straight, first, again = (smallest_config(algorithm).build_trainer() for _ in range(3))
    straight.run()
    next(first)
    path = save_trainer(first, folder / "checkpoint")
    restore_trainer(again, path)
    again.run()
    assert bits(again) == bits(straight)
    if algorithm in OFF_POLICY:
        assert digest(again.buffer.get_state()) == digest(straight.buffer.get_state())


def test_collectors_by_hand_without_a_seed_use_that_of_the_policy():
    def weights(policy_seed, **seed):
        trainer = by_hand(
            smallest_config("ppo", seed=policy_seed),
            train_collector=partial(Collector, env="CartPole-v1"),
            test_collector=partial(Collector, env="CartPole-v1", **seed),
        )
        trainer.run()
        return learned(trainer), list(trainer.history[-1].test_collect_stat.lens)

    assert weights(3) == weights(3)
    assert weights(3)[0] != weights(4)[0]
    assert weights(3, seed=5)[1] != weights(3)[1]
    assert weights(3, seed=5)[0] == weights(3)[0]
