"""A trainer trains several agents, and `reward_metric` makes one number of their returns wherever returns are used."""

import itertools
import json
import warnings

import numpy as np
import pytest
from agent_games import BitGame, CountingGame, DictGame, TurnGame, game_config
from parts import fast_if
from trainer_tools import build, by_hand, digest, learned

import lockstep
from lockstep import (
    A2CConfig,
    BCConfig,
    Collector,
    DQNConfig,
    MultiAgentCollector,
    OfflineTrainer,
    OffpolicyTrainer,
    PPOConfig,
)
from lockstep.runs.run import resume
from lockstep.tracking import JsonlLogger, TraceLogger, asdict
from lockstep.tracking.records import read_metrics
from lockstep.trainer import EarlyStop, restore_trainer, save_trainer


def second_minus_first(returns):
    """Of agents in the order of `possible_agents`."""
    assert returns.dtype == np.float64
    assert returns.ndim == 2
    return returns[:, 1] - returns[:, 0]


@pytest.mark.parametrize("env", [CountingGame, TurnGame])
def test_without_reward_metric_the_return_is_the_sum_over_agents(env):
    trainer = game_config(env).build_trainer()
    steps = 0
    for _, stats, info in trainer:
        steps += stats.training_stat.gradient_steps
        assert info.gradient_step == steps > 0
        assert stats.train_collect_stat.n_collected_steps == 32
        for collected in (stats.train_collect_stat, stats.test_collect_stat):
            assert collected.returns.tolist() == [float(sum(env.returns(length))) for length in collected.lens]
            assert collected.agent_returns == tuple(env.returns(length) for length in collected.lens)
            json.dumps(asdict(collected))
        assert {"first/policy_loss", "others/policy_loss"} <= set(stats.training_stat.metrics)
    assert info.train_step == 64


def test_reward_metric_is_applied_in_training_statistics_and_evaluation():
    trainer = game_config(multi_agent={"reward_metric": second_minus_first}).build_trainer()
    stats = trainer.run().history[-1]
    for collected in (stats.train_collect_stat, stats.test_collect_stat):
        assert collected.returns.tolist() == [20.0 - length for length in collected.lens]
        assert collected.agent_returns == tuple(CountingGame.returns(length) for length in collected.lens)
    assert stats.test_collect_stat.returns_stat.mean == np.mean(stats.test_collect_stat.returns)


def test_reward_metric_is_applied_to_the_best_score_and_early_stop():
    asked = []
    trainer = by_hand(
        game_config(),
        reward_metric=lambda returns: returns.min(axis=1) - 1000.0,
        stop_fn=lambda score: asked.append(score) or False,
        callbacks=[EarlyStop(threshold=-990.0)],
    )
    info = trainer.run()
    scores = [asked[0], *(epoch.test_collect_stat.returns_stat.mean for epoch in info.history)]
    assert asked == scores
    assert all(-1000.0 < score <= -995.0 for score in scores)
    assert info.best_score == info.best_reward == max(scores)
    assert info.stop_reason == "max_epoch"
    stopped = by_hand(
        game_config(), reward_metric=lambda returns: returns[:, 2], callbacks=[EarlyStop(threshold=1.0)]
    ).run()
    assert stopped.stop_reason.startswith("score ")
    assert stopped.train_step == 0


def test_reward_metric_is_applied_to_training_returns_in_test_in_train():
    asked = []
    trainer = by_hand(
        game_config(),
        reward_metric=lambda returns: returns[:, 0] + 5000.0,
        test_in_train=True,
        stop_fn=lambda score: asked.append(score) or len(asked) > 1,
    )
    assert trainer.run().stop_reason == "stop_fn"
    assert trainer.test_episode == 9  # before, within, and at the end of the last epoch
    assert all(score > 5000.0 for score in asked)


def test_reward_metric_is_applied_in_logs_with_returns_of_each_agent(folder):
    path = folder / "metrics.jsonl"
    with JsonlLogger(path, train_interval=1, test_interval=1, info_interval=1) as logger:
        by_hand(game_config(), reward_metric=second_minus_first, logger=logger).run()
    records = read_metrics(path)
    for scope in ("train", "test"):
        rows = [record["data"] for record in records if record["scope"] == scope]
        assert rows
        for row in rows:
            of_agents = [row[f"returns/{agent}"] for agent in "abc"]
            assert row["returns_stat/mean"] == pytest.approx(of_agents[1] - of_agents[0])
            assert row["lens_stat/mean"] == pytest.approx(of_agents[0])
    best = [record["data"]["best_score"] for record in records if record["scope"] == "info"]
    assert all(10.0 < score < 20.0 for score in best)


@pytest.mark.parametrize(
    "metric, error, message",
    [
        (lambda returns: returns, ValueError, r"given returns of shape \(3, 3\).* it must return one number for each"),
        (lambda returns: returns.sum(axis=0)[:2], ValueError, r"returned shape \(2,\); it must return one number for"),
        (lambda returns: returns.sum(), ValueError, r"returned shape \(\); it must return one number for each episode"),
        (lambda returns: None, TypeError, "and returned None; it must return numbers, one for each episode"),
        (lambda returns: ["a"] * len(returns), TypeError, r"returned \['a', 'a', 'a'\]; it must return numbers"),
        (lambda returns: [[1.0], [1.0, 2.0], 3.0], TypeError, "it must return numbers, one for each episode"),
    ],
)
def test_reward_metric_must_return_one_number_per_episode(metric, error, message):
    with pytest.raises(error, match=message):
        by_hand(game_config(), reward_metric=metric).run()


def test_reward_metric_is_refused_where_there_is_one_agent():
    message = "reward_metric needs several agents, and train_collector has one"
    with pytest.raises(ValueError, match=message):
        build(reward_metric=sum)
    with pytest.raises(ValueError, match="reward_metric=3 is not allowed; it must be a function"):
        by_hand(game_config(), reward_metric=3)
    with pytest.raises(ValueError, match=r"multi_agent\.reward_metric=.* needs several agents"):
        PPOConfig().environment("CartPole-v1").multi_agent(reward_metric=sum).validate()
    with pytest.raises((TypeError, ValueError), match="reward_metric=3"):
        game_config(multi_agent={"reward_metric": 3}).validate()


@pytest.mark.parametrize("algorithm, shared", [(PPOConfig, False), (PPOConfig, True), (A2CConfig, False)])
@pytest.mark.long
def test_each_agent_learns_its_bit_with_modules_of_its_own_or_a_shared_one(algorithm, shared):
    config = game_config(BitGame, algorithm, num_envs=16)
    config.training(train_batch_size=256, lr=3e-2)
    if algorithm is PPOConfig:
        config.training(minibatch_size=128, num_epochs=4)
    if shared:
        config.environment(BitGame, env_config={"alike": True})
        config.multi_agent(policies=["default_policy"], policy_mapping_fn=None)
    config.evaluation(evaluation_duration=16, evaluation_num_envs=16)
    config.reporting(total_steps=256 * (30 if algorithm is A2CConfig else 12), steps_per_epoch=512)
    info = config.build_trainer().run()
    assert info.history[-1].test_collect_stat.agent_returns == ((1.0, 1.0),) * 16


def trace_of(seed=1):
    trainer = by_hand(game_config(), seed=seed)
    trace = TraceLogger({mid: one.module for mid, one in trainer.policy.acting.items()})
    trainer.logger = trainer.callbacks[0].logger = trace
    trainer.run()
    return trace, learned(trainer)


def test_the_same_seed_gives_the_same_multi_agent_bits_with_evaluation():
    (one, bits), (two, again) = trace_of(), trace_of()
    assert one.first_difference(two) is None
    assert bits == again
    assert trace_of(seed=2)[1] != bits
    without = by_hand(game_config(), evaluate=False, seed=1)
    without.run()
    assert learned(without) == bits


class FourSteps(CountingGame):
    """Every episode ends with a collect of 16 steps in two environments."""

    def length_of(self, seed):
        return 4


@pytest.mark.parametrize("algorithm", [PPOConfig, DQNConfig])
def test_a_multi_agent_run_resumes_bit_for_bit_if_episodes_end_there(algorithm, folder):
    def build():
        config = game_config(FourSteps, algorithm)
        if algorithm is DQNConfig:
            config.env_runners(rollout_fragment_length=4).replay(n_step=2, prioritized=True)
        return config.build_trainer()

    straight, first, again = build(), build(), build()
    straight.run()
    next(first)
    path = save_trainer(first, folder / "checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore_trainer(again, path)
    again.run()
    assert learned(again) == learned(straight)
    assert digest(again.own_folders()) == digest(straight.own_folders())
    returns = [[stats.test_collect_stat.returns for stats in trainer.history] for trainer in (again, straight)]
    assert digest(returns[0]) == digest(returns[1])


def test_multi_agent_episodes_end_at_a_checkpoint_with_a_message(folder):
    first, again, third = (game_config(num_envs=4).build_trainer() for _ in range(3))
    next(first)
    path = save_trainer(first, folder / "checkpoint")
    cut = int(np.count_nonzero(first.train_collector.get_state()["lengths"]))
    assert cut > 0
    for trainer in (again, third):
        with pytest.warns(RuntimeWarning, match=f"the 'pettingzoo' environments .* {cut} running episodes end"):
            restore_trainer(trainer, path)
        assert trainer.run().train_step == 64
    assert learned(again) == learned(third)


def test_a_loss_that_is_not_finite_ends_a_multi_agent_run_with_its_batch(folder):
    trainer = by_hand(game_config())
    learner = trainer.policy.learner_group.learner
    before = learner.compute_losses

    def bad(**given):
        losses = before(**given)
        learner.log("others", policy_loss=losses["others"] * float("nan"))
        return losses

    learner.compute_losses = bad
    with pytest.raises(FloatingPointError, match="others/policy_loss is not finite at environment step 16"):
        trainer.run()
    assert set(trainer.bad_batch) == {"first", "others"}
    assert trainer.bad_batch["first"]["obs"].shape == (16, 2)
    save_trainer(trainer, folder / "bad")


@pytest.mark.parametrize(
    "section, options, message",
    [
        ("env_runners", {"vectorize_mode": "async"}, "env_runners.vectorize_mode='async' is not allowed"),
        ("multi_agent", {"count_steps_by": "agent_steps"}, "multi_agent.count_steps_by='agent_steps' is not allowed"),
    ],
)
def test_what_several_agents_cannot_be_trained_with_is_refused(section, options, message):
    with pytest.raises(ValueError, match=message):
        game_config(**{section: options}).build_trainer()


def test_single_agent_trainers_refuse_multi_agent_policies_with_advice():
    policy = game_config().build_policy()
    with pytest.raises(ValueError, match="collect with a MultiAgentCollector"):
        Collector(policy, "CartPole-v1")
    given = {"max_epoch": 1, "batch_size": 8, "step_per_epoch": 8, "step_per_collect": 8}
    with pytest.raises(ValueError, match="policy of 'ppo' learns from whole rollouts, OffpolicyTrainer gives it"):
        OffpolicyTrainer(policy, train_collector=MultiAgentCollector(policy, CountingGame), **given)
    with pytest.raises(ValueError, match="policy is of several agents, which OfflineTrainer does not train"):
        OfflineTrainer(policy, buffer=None, max_epoch=1, batch_size=8, step_per_epoch=8)
    offline = BCConfig().environment(CountingGame).multi_agent(policies=["default_policy"])
    with pytest.raises(ValueError, match="bc learns from data that are there already, which no trainer does for sev"):
        offline.build_trainer()
    same = MultiAgentCollector(policy, CountingGame())
    other = MultiAgentCollector(policy, same.env.envs[0])
    with pytest.raises(ValueError, match="test_collector has the environments of train_collector"):
        by_hand(game_config(), policy=policy, train_collector=same, test_collector=other)


@pytest.mark.parametrize(
    ("env", "algorithm"),
    fast_if(
        lambda env, algorithm: (env is CountingGame) is (algorithm == "dqn"),
        itertools.product([CountingGame, TurnGame, DictGame], ["ppo", "dqn"]),
    ),
)
def test_train_takes_an_environment_of_several_agents_as_it_is(env, algorithm, folder):
    settings = {"rl_module.model_config": {"hiddens": [4]}, "training.train_batch_size": 16}
    of_dqn = {"replay.capacity": 100, "replay.learning_starts": 16}
    settings |= of_dqn if algorithm == "dqn" else {"training.minibatch_size": 8}
    result = lockstep.train(algorithm, env, total_steps=64, num_envs=2, root=folder, settings=settings)
    assert result.info.train_step == 64
    expected = ["a", "c"] if env is DictGame else ["default_policy"]
    assert list(result.policy.acting) == expected
    again = lockstep.load_policy(result.path)
    observations = DictGame().reset()[0]
    assert set(again.compute_actions(observations)) == {"a", "b"}
    assert resume(result.path, total_steps=96).info.train_step == 96


@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_masked_actions_of_a_turn_based_pettingzoo_game_are_never_taken(recurrent):
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="pip install 'pettingzoo>=1.25'")
    config = game_config(tictactoe.env, algorithm=A2CConfig)
    config.multi_agent(policies=["first", "others"], policy_mapping_fn=by_number)
    config.rl_module(model_config={"hiddens": (8,), "recurrent": recurrent, "recurrent_size": 4})
    trainer = config.build_trainer()
    stats = next(trainer)
    drawn = trainer.test_collector.collect(n_episode=20, random=True)
    for collected in (stats.train_collect_stat, stats.test_collect_stat, drawn):
        assert len(collected.returns)
        assert all(total == 0.0 for total in collected.returns)  # nobody lost by an illegal move
        assert all(5 <= length <= 9 for length in collected.lens)


def by_number(agent, episode):
    return "first" if agent == "player_1" else "others"
