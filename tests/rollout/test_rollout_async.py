"""Collecting while learning: staleness, back-pressure, conservation of rows, in step at `max_lag=0`, drained states.

Runners live in this process; fragments arrive in an order that is drawn.
"""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from parts import fast_if, one_in
from runner_tools import ManyRunners

from lockstep import APPOConfig, IMPALAConfig, OnpolicyTrainer
from lockstep.rollout import EnvRunnerGroup
from lockstep.rollout.group_collector import AsyncGroupCollector
from lockstep.trainer import Callback, restore_trainer, save_trainer

ENVS = 4
"""of all runners together"""
MADE = []
"""trainers of the test that runs, to be closed after it"""


class Late(ManyRunners):
    """Fragments become ready in an order that is drawn; those of `slow` runners never before others."""

    def __init__(self, build, num_runners, seed):
        super().__init__(build, num_runners)
        self.rng, self.slow, self.most_under_way = np.random.default_rng(seed), set(), 0

    def wait(self, calls, timeout_s):
        self.most_under_way = max(self.most_under_way, len(calls))
        found = super().wait(calls, timeout_s)
        first = {}
        for call in found:  # one runner works off its calls in order
            first.setdefault(self.calls[call][1], call)
        ready = [call for index, call in first.items() if index not in self.slow] or list(first.values())
        return [ready[self.rng.integers(len(ready))]]


def config_of(config=IMPALAConfig, *, num_runners=2, length=8, batch=64, model=None, fixed_lag=False, **training):
    return (
        config()
        .environment("CartPole-v1", normalize_observations=True)
        .env_runners(num_envs_per_env_runner=ENVS // num_runners, rollout_fragment_length=length)
        .training(train_batch_size=batch, lr=1e-2, fixed_lag=fixed_lag, **training)
        .rl_module(model_config={"hiddens": (8,), **(model or {})})
        .evaluation(evaluation_interval=0)
        .debugging(seed=3)
    )


@pytest.fixture(autouse=True)
def closed_after_each_test():
    yield
    while MADE:
        MADE.pop().train_collector.close()


def trainer_of(config, num_runners=2, seed=0, max_epoch=2, updates=4, callbacks=()):
    """A trainer over runners in this process, which are late at random."""
    policy = config.build_policy()
    build = partial(config.build_env_runner, config.find_spaces(), config.max_lag > 0)
    group = EnvRunnerGroup(Late(build, num_runners, seed), config.sections["env_runners"])
    sized = config.copy()
    sized.sections["env_runners"].num_env_runners = num_runners
    length, number = sized.fragments()
    collector = AsyncGroupCollector(
        policy,
        group,
        fragment_length=length,
        fragments_per_batch=number,
        max_lag=config.max_lag,
        fixed_lag=config.training.fixed_lag,
    )
    assert collector.steps_per_collect == sized.steps_per_batch
    trainer = OnpolicyTrainer(
        policy,
        max_epoch=max_epoch,
        batch_size=config.minibatch_size,
        train_collector=collector,
        step_per_epoch=updates * collector.steps_per_collect,
        step_per_collect=collector.steps_per_collect,
        repeat_per_collect=config.num_epochs,
        callbacks=callbacks,
    )
    MADE.append(trainer)
    return trainer


def steps_of(trainer):
    """How many steps were sampled, and of them trained, dropped and kept waiting."""
    stats = trainer.train_collector.get_stats()
    return [stats[f"num_steps_{name}"] for name in ("sampled", "collected", "dropped", "waiting")]


def assert_none_is_lost(stats):
    """Every step that was sampled is trained, dropped, or waits."""
    assert stats["num_steps_sampled"] == sum(stats[f"num_steps_{n}"] for n in ("collected", "dropped", "waiting"))


def weights_of(trainer):
    return torch.cat([p.detach().reshape(-1) for p in trainer.policy.module.parameters()]).numpy().copy()


class Watch(Callback):
    """After each update: versions of the steps in it, and the counts."""

    def __init__(self):
        self.lags, self.stats, self.seen = [], [], []

    def on_event(self, event):
        name = type(event).__name__
        if name == "RunStart":
            self.trainer = event.trainer
        if name == "CollectEnd":
            store, policy = self.trainer.buffer, self.trainer.policy
            self.lags += (policy.weights_seq_no - store.sampler_versions()).tolist()
            self.seen.append((store.versions, store.weights_seq_no, store.action_logp))
        if name == "UpdateEnd":
            self.stats.append(self.trainer.train_collector.get_stats())


# -- in step ---


@pytest.mark.parametrize(
    ("config", "options", "model", "rounding"),
    [
        (IMPALAConfig, {"minibatch_size": 32, "num_epochs": 2}, None, 0.0),
        (APPOConfig, {"use_kl_loss": True}, None, 0.0),
        # Torch's LSTM rounds by the number of rows on some processors, and two runners have half as many each.
        (IMPALAConfig, {}, {"recurrent": "lstm", "recurrent_size": 4, "max_seq_len": 4}, 1e-6),
    ],
)
def test_max_lag_0_is_the_synchronous_trainer_to_the_last_bit(config, options, model, rounding):
    sync = config_of(config, num_runners=1, length=16, model=model, max_lag=0, **options)
    expected = sync.reporting(total_steps=8 * 64, steps_per_epoch=4 * 64).build_trainer()
    MADE.append(expected)
    expected.run()
    for seed in range(2):
        trainer = trainer_of(config_of(config, length=16, model=model, max_lag=0, **options), seed=seed)
        trainer.run()
        assert trainer.env_step == expected.env_step == 512
        np.testing.assert_allclose(weights_of(trainer), weights_of(expected), rtol=0, atol=rounding)
        returns = [[e.train_collect_stat.returns.tolist() for e in t.history] for t in (trainer, expected)]
        assert [sorted(part) for part in returns[0]] == [sorted(part) for part in returns[1]]


def test_max_lag_0_does_not_depend_on_who_is_fast_when_shares_are_uneven():
    found = []
    for seed in range(3):
        trainer = trainer_of(config_of(max_lag=0, batch=48), seed=seed)  # three fragments of two runners
        trainer.run()
        found.append(weights_of(trainer))
        assert trainer.train_collector.get_stats()["num_steps_dropped"] == 0
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


# -- a fixed lag ---


@pytest.mark.parametrize(
    ("config", "options"), [(IMPALAConfig, {"minibatch_size": 32}), (APPOConfig, {"use_kl_loss": True})]
)
@pytest.mark.parametrize("max_lag", fast_if((2).__eq__, [1, 2]))
def test_a_fixed_lag_run_is_equal_for_any_number_and_speed_of_runners(config, options, max_lag):
    """Bit for bit, and update u is acted by the weights of update u - `max_lag`."""
    found = []
    for num_runners, seed in [(1, 0), (2, 1), (2, 2), (4, 3)]:
        watch = Watch()
        settings = config_of(config, num_runners=num_runners, max_lag=max_lag, fixed_lag=True, **options)
        trainer = trainer_of(settings, num_runners=num_runners, seed=seed, callbacks=[watch])
        trainer.run()
        found.append(weights_of(trainer))
        assert watch.lags == np.repeat([min(update, max_lag) for update in range(8)], 64).tolist()
        assert trainer.train_collector.get_stats()["num_steps_dropped"] == 0
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_a_fixed_lag_continues_after_an_error_with_what_each_runner_lacks():
    trainer = trainer_of(config_of(max_lag=2, fixed_lag=True))
    collector = trainer.train_collector
    collector.collect()
    collector.buffer.clear()
    collector.schedule.take(collector.group.drain())
    schedule = collector.schedule
    schedule.waiting = [fragment for fragment in schedule.waiting if fragment.runner]  # the other's are lost
    before = collector.get_stats()["num_steps_sampled"]
    collector.collect()
    assert collector.get_stats()["num_steps_collected"] == 128
    assert collector.get_stats()["num_steps_sampled"] > before


# -- out of step ---


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@pytest.mark.parametrize("seed", one_in(3, range(3)))
def test_max_lag_holds_every_step_is_counted_and_requests_are_bounded(max_lag, seed):
    watch = Watch()
    config = config_of(num_runners=4, max_lag=max_lag, batch=32)
    config.env_runners(max_requests_in_flight_per_env_runner=3)
    trainer = trainer_of(config, num_runners=4, seed=seed, updates=8, callbacks=[watch])
    group = trainer.train_collector.group
    trainer.run()
    lags = Counter(watch.lags)
    assert max(lags) <= max_lag
    assert (max_lag == 0) == (max(lags) == 0)
    for stats in watch.stats:
        assert_none_is_lost(stats)
        assert stats["num_in_flight"] * 8 + stats["num_steps_waiting"] <= max_lag * 32
    assert group._backend.most_under_way <= trainer.train_collector.fragments_per_batch * (max_lag + 1)
    lifetime = trainer.policy.last_results["__all_modules__"]["num_env_steps_trained_lifetime"]
    assert lifetime == trainer.env_step == watch.stats[-1]["num_steps_collected"] == 16 * 32


def test_results_say_how_old_the_policy_was_that_acted():
    watch = Watch()
    trainer = trainer_of(config_of(max_lag=2, batch=32), updates=6, callbacks=[watch])
    trainer.run()
    said = trainer.policy.last_results["default_policy"]["diff_num_grad_updates_vs_sampler_policy"]
    assert said == pytest.approx(np.mean(watch.lags[-32:]))
    assert said > 0


def test_fragment_of_a_runner_that_was_too_slow_is_dropped_and_counted():
    trainer = trainer_of(config_of(max_lag=1, batch=16, num_runners=2), updates=10)
    collector = trainer.train_collector
    collector.group._backend.slow = {1}
    for number, _ in enumerate(trainer):
        if number == 0:
            assert collector.get_stats()["num_steps_dropped"] == 0  # it is still under way
            collector.group._backend.slow = set()
    stats = collector.get_stats()
    assert stats["num_steps_dropped"] == 16
    assert stats["num_steps_sampled"] == stats["num_steps_collected"] + 16 + stats["num_steps_waiting"]


def test_old_steps_keep_the_log_probabilities_of_the_policy_that_acted():
    policy = config_of().build_policy()
    config = config_of(max_lag=2, batch=32)
    trainer, watch, weights = trainer_of(config), Watch(), {}

    class Keep(Callback):
        def on_event(self, event):
            name = type(event).__name__
            if name in ("RunStart", "UpdateEnd"):
                weights[trainer.policy.weights_seq_no] = trainer.policy.acting_weights()
            if name == "CollectEnd":
                store = trainer.buffer
                assert store.action_logp is None or store.versions is not None or store.weights_seq_no < max(weights)
                if store.action_logp is not None:
                    check(store)

    checked = []

    def check(store):
        obs = store.obs[: store.size].reshape(-1, 4)
        versions = store.sampler_versions().reshape(store.size, -1)[0]
        for envs, version in enumerate(versions):
            mine = store.action_logp[:, envs]
            if version == max(weights):
                assert np.isnan(mine).all()
                continue
            policy.set_weights(weights[version])
            logp = policy.action_logp(obs, store.actions[: store.size].reshape(-1)).reshape(store.size, -1)
            np.testing.assert_allclose(mine, logp[:, envs], atol=1e-6)
            checked.append(max(weights) - version)

    trainer.callbacks += [watch, Keep()]
    trainer.run()
    assert set(checked) >= {1}
    ratios = trainer.policy.last_results["default_policy"]["mean_importance_weight"]
    assert ratios != 1.0


def test_lost_runner_is_replaced_and_no_step_counts_twice():
    trainer = trainer_of(config_of(max_lag=1, batch=32), updates=3, max_epoch=4)
    collector = trainer.train_collector
    for epoch in trainer:
        if epoch.epoch == 2:
            collector.group._backend.lost.add(1)
    stats = collector.get_stats()
    assert stats["num_restarts"] == 1
    assert trainer.env_step == stats["num_steps_collected"] == 12 * 32
    assert_none_is_lost(stats)


def test_runners_that_lack_steps_complete_an_unfinished_batch():
    """As after an error of one runner: its fragment is missing, the other's waits."""
    trainer = trainer_of(config_of(max_lag=0))
    collector = trainer.train_collector
    collector.group.set_weights(collector.policy.acting_weights())
    collector.schedule.published = collector.policy.weights_seq_no
    collector.group.ask(1, collector.fragment_length * collector.envs_per_runner)
    collector.schedule.take(collector.group.drain())
    collector.collect()
    assert collector.get_stats()["num_steps_collected"] == collector.get_stats()["num_steps_sampled"] == 64


def test_fragments_that_come_beside_an_error_are_returned_by_the_next_call():
    trainer = trainer_of(config_of(max_lag=1))
    group = trainer.train_collector.group
    group.set_weights(trainer.policy.acting_weights())
    for index in range(2):
        group.ask(index, 16)
    fine, bad = list(group._in_flight)
    group._backend.wait = lambda calls, timeout_s: [fine, bad]
    original = group._backend.result

    def result(call):
        if call == bad:
            raise RuntimeError("the environment failed")
        return original(call)

    group._backend.result = result
    with pytest.raises(RuntimeError, match="the environment failed"):
        group.ready(1.0)
    assert [len(fragment) for fragment in group.ready(1.0)] == [16]
    assert group.ready(0.0) == []


# -- states, resets, ends ---


@pytest.mark.parametrize(("max_lag", "fixed_lag"), [(0, False), (2, False), (2, True)])
def test_a_checkpoint_at_a_drained_point_resumes_to_the_last_bit(max_lag, fixed_lag, tmp_path):
    """One run goes on after a checkpoint, another is built anew from it: both do the same."""
    config = config_of(max_lag=max_lag, fixed_lag=fixed_lag, batch=32)
    first = trainer_of(config, max_epoch=4)
    kept = []
    for epoch in first:
        if epoch.epoch == 2:
            save_trainer(first, tmp_path / "checkpoint")
            first.train_collector.group._backend.rng = np.random.default_rng(9)
            kept.append(steps_of(first))
            assert first.train_collector.get_stats()["num_in_flight"] == 0
    second = trainer_of(config, max_epoch=4, seed=9)
    restore_trainer(second, tmp_path / "checkpoint")
    second.train_collector.group._backend.rng = np.random.default_rng(9)
    assert steps_of(second) == kept[0]
    assert (kept[0][3] > 0) == (max_lag > 0)
    second.run()
    np.testing.assert_array_equal(weights_of(first), weights_of(second))
    assert steps_of(first) == steps_of(second)


def test_interrupted_run_ends_in_order_and_goes_on():
    class Interrupt(Callback):
        def on_event(self, event):
            if type(event).__name__ == "UpdateEnd" and event.gradient_step == 3:
                raise KeyboardInterrupt

    trainer = trainer_of(config_of(max_lag=2, batch=32), callbacks=[Interrupt()])
    info = trainer.run()
    assert info.stop_reason == "interrupted"
    trainer.callbacks.pop()
    collector = trainer.train_collector
    collector.get_state()
    assert collector.get_stats()["num_in_flight"] == 0
    trainer.run()
    assert_none_is_lost(collector.get_stats())


def test_reset_drops_what_waits_and_begins_new_episodes_everywhere():
    trainer = trainer_of(config_of(max_lag=2, batch=32))
    trainer.run()
    collector = trainer.train_collector
    before = collector.get_stats()
    assert before["num_in_flight"] * 16 + before["num_steps_waiting"] > 0
    collector.reset()
    stats = collector.get_stats()
    assert (stats["num_in_flight"], stats["num_steps_waiting"]) == (0, 0)
    assert stats["num_steps_sampled"] == stats["num_steps_collected"] + stats["num_steps_dropped"]
    first = {}
    while len(first) < 2:
        collector.schedule.ask(6)
        for fragment in collector.group.ready(1.0):
            first.setdefault(fragment.runner, fragment)
    assert all(np.all(fragment.begins) and not fragment.t_started.any() for fragment in first.values())


# -- refusals ---


def test_amounts_that_are_no_rollout_are_refused():
    trainer = trainer_of(config_of())
    collector = trainer.train_collector
    for amount in ({"n_step": 65}, {"n_episode": 2}, {"n_step": 64, "random": True}):
        with pytest.raises(ValueError, match="has 64 steps"):
            collector.collect(**amount)
    assert collector.schedule.published == -1  # the runners have no weights yet


def test_evaluation_with_runners_that_are_always_at_work_is_refused():
    first, second = trainer_of(config_of()), trainer_of(config_of())
    train, test = first.train_collector, second.train_collector
    test.policy = first.policy
    common = {"max_epoch": 1, "batch_size": 64, "step_per_epoch": 64, "step_per_collect": 64, "repeat_per_collect": 1}
    with pytest.raises(ValueError, match="test_collector is an AsyncGroupCollector, whose runs are not repeatable"):
        OnpolicyTrainer(first.policy, train_collector=train, test_collector=test, episode_per_test=1, **common)


@pytest.mark.parametrize(
    ("section", "options", "words"),
    [
        ("env_runners", {"batch_mode": "complete_episodes"}, "batch_mode='complete_episodes'"),
        ("rl_module", {"model_config": {"recurrent": "lstm"}}, "max_lag=1"),
        ("training", {"max_lag": -1}, "max_lag=-1"),
    ],
)
def test_what_does_not_go_with_collecting_while_learning_is_refused(section, options, words):
    config = config_of().env_runners(num_env_runners=2)
    with pytest.raises(ValueError, match=words):
        getattr(config.copy(), section)(**options).validate()
    config.rl_module(model_config={"recurrent": "lstm"}).training(max_lag=0).validate()


@pytest.mark.parametrize(
    ("batch", "length", "runners", "expected"),
    [(500, None, 2, (125, 2)), (500, 50, 2, (50, 5)), (64, 50, 1, (50, 1)), (800, None, 4, (200, 4))],
)
def test_train_batch_is_made_of_whole_fragments(batch, length, runners, expected):
    config = IMPALAConfig().training(train_batch_size=batch)
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=2 if runners == 2 else 1)
    config.env_runners(rollout_fragment_length=length)
    assert config.fragments()[0] == expected[0]
    assert config.steps_per_batch >= batch
