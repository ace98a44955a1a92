"""Env runners of several agents: m runners of k environments are one collector of m * k; what is lost, what goes on."""

import copy
import warnings

import numpy as np
import pytest
from agent_games import (
    CountingGame,
    DictGame,
    Duel,
    TellingCountingGame,
    TellingDictGame,
    TellingTurnGame,
    TurnGame,
    game_config,
)
from parts import fast_if
from runner_tools import ManyRunners

from lockstep import APPOConfig, DQNConfig, IMPALAConfig, PPOConfig, RLModuleSpec, SACConfig
from lockstep.data.rollout import EpisodeStore
from lockstep.rollout.group_collector import AsyncGroupCollector, GroupCollector
from lockstep.rollout.multi_agent_collector import MultiAgentCollector
from lockstep.trainer import Callback, SelfPlay


@pytest.fixture(autouse=True)
def runners_in_this_process(monkeypatch):
    """Runners are several in this process instead of in others."""

    def made(build, section, **options):
        return ManyRunners(build, section.num_env_runners)

    monkeypatch.setattr("lockstep.cluster.ray_runners.RayRunnerBackend", made)


def config_of(num_runners, env=CountingGame, algorithm=PPOConfig, num_envs=4, **sections):
    config = game_config(env, algorithm, **sections).framework(dtype="float64")
    if issubclass(env, DictGame):
        config.multi_agent(policy_mapping_fn={"a": "first", "b": "first", "c": "others"})
    return config.env_runners(num_env_runners=num_runners, num_envs_per_env_runner=num_envs // max(1, num_runners))


def run_of(*arguments, **options):
    """Return the returns of each agent in each collect and evaluation, and the weights at the end."""
    trainer = config_of(*arguments, **options).build_trainer()
    assert isinstance(trainer.train_collector, GroupCollector if arguments[0] else MultiAgentCollector)
    epochs = trainer.run().history
    trainer.close()
    stats = [(e.train_collect_stat, e.test_collect_stat) for e in epochs]
    returns = [(train.returns.tolist(), train.agent_returns, test.agent_returns) for train, test in stats]
    return returns, trainer.policy.learner_group.get_weights()


def assert_same(found, expected):
    assert found[0] == expected[0]
    for module_id, own in expected[1].items():
        for name, array in own.items():
            np.testing.assert_allclose(found[1][module_id][name], array, rtol=0, atol=1e-12, err_msg=name)


CASES = {
    "ppo": {},
    "in turns": {"env": TurnGame},
    "dicts": {"env": DictGame},
    "recurrent": {"env": TurnGame, "rl_module": {"model_config": {"hiddens": (4,), "recurrent": "gru"}}},
    "whole episodes": {"env_runners": {"batch_mode": "complete_episodes"}},
    "normalised": {"environment": {"normalize_observations": True, "normalize_rewards": True}},
    "a central critic": {"multi_agent": {"centralized_critic": True, "agent_id_in_obs": True}},
    "dqn": {"algorithm": DQNConfig},
    "dqn in turns": {"env": TurnGame, "algorithm": DQNConfig, "replay": {"n_step": 3, "prioritized": True}},
    "sac dicts": {"env": DictGame, "algorithm": SACConfig},
}


@pytest.mark.filterwarnings("ignore:.*rows are left out")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.long
def test_the_number_of_env_runners_changes_no_bit_of_multi_agent_runs(case):
    one = run_of(0, **CASES[case])
    assert sum(len(collected[0]) for collected in one[0]) > 4
    for num_runners in (1, 2):
        assert_same(run_of(num_runners, **CASES[case]), one)


def collector_of(num_runners, env=CountingGame, **sections):
    config = config_of(num_runners, env, **sections)
    return config.build_collector(config.build_policy())


def rows_of(store):
    return [
        (piece.id_, piece.env_t_started, b, agent, single.get_observations().tolist(), single.get_actions().tolist())
        for piece, b in store.pieces
        for agent, single in piece.agent_episodes.items()
        if len(single)
    ]


@pytest.mark.parametrize("random", [False, True])
def test_runners_give_the_pieces_of_one_collector_in_its_order(random):
    one, four = collector_of(0), collector_of(4)
    for collector in (one, four):
        collector.buffer = EpisodeStore()
    for n_step in (12, 40, 4):
        stats, others = (collector.collect(n_step=n_step, random=random) for collector in (one, four))
        assert (stats.n_collected_steps, stats.lens.tolist()) == (others.n_collected_steps, others.lens.tolist())
        assert stats.agent_returns == others.agent_returns
        assert rows_of(one.buffer) == rows_of(four.buffer)
        assert [b for _, b in one.buffer.pieces] == sorted(b for _, b in one.buffer.pieces)
        one.buffer.clear(), four.buffer.clear()
    assert four.collect(n_episode=6).n_collected_episodes == 6


@pytest.mark.parametrize("num_runners", [0, 2])
def test_complete_episodes_are_whole_and_each_environment_has_its_share(num_runners):
    collector = collector_of(num_runners, env_runners={"batch_mode": "complete_episodes"})
    collector.buffer = EpisodeStore()
    for _ in range(2):
        stats = collector.collect(n_step=40)
        pieces = collector.buffer.pieces
        assert all(piece.is_done and piece.env_t_started == 0 for piece, _ in pieces)
        steps = [sum(len(piece) for piece, b in pieces if b == number) for number in range(4)]
        last = [[len(piece) for piece, b in pieces if b == number][-1] for number in range(4)]
        assert all(taken >= 10 > taken - ended for taken, ended in zip(steps, last))
        assert (stats.n_collected_steps, stats.n_collected_episodes) == (sum(steps), len(pieces))
        collector.buffer.clear()


def test_of_a_lost_runner_only_its_own_unfinished_episodes_are_lost():
    collector = collector_of(2)
    collector.buffer = EpisodeStore()
    for game in (runner.collector.env.envs[i] for runner in collector.group._backend.runners for i in (0, 1)):
        game.shortest = game.longest = 9
    collector.collect(n_step=16)
    collector.buffer.clear()
    collector.group._backend.lost.add(1)
    assert collector.collect(n_step=16).n_collected_steps == 16
    started = {b: piece.env_t_started for piece, b in reversed(collector.buffer.pieces)}
    assert started == {0: 4, 1: 4, 2: 0, 3: 0}
    assert collector.group.num_restarts == 1


def test_nothing_in_replay_reaches_over_the_loss_of_a_runner():
    collector = collector_of(2, algorithm=DQNConfig, replay={"n_step": 3})
    games = [game for runner in collector.group._backend.runners for game in runner.collector.env.envs]
    for game in games:
        game.shortest = game.longest = 50
    collector.collect(n_step=16)
    collector.group._backend.lost.add(1)
    collector.collect(n_step=16)
    rows = collector.buffer.buffers["first"][collector.buffer.buffers["first"].permutation()]
    passed = rows["new_obs"][:, 0] - rows["obs"][:, 0]
    assert len(passed) == 32
    assert set(passed) == {1.0, 2.0, 3.0}


def test_runner_states_resume_with_new_episodes_and_count_the_cut_ones():
    one, other = collector_of(2), collector_of(2)
    for collector in (one, other):
        collector.buffer = EpisodeStore()
    one.collect(n_step=16)
    one.buffer.clear()
    state = one.get_state()
    other.set_state(state)
    one.set_state(state)
    assert other.episodes_cut == one.episodes_cut > 0
    for collector in (one, other):
        collector.collect(n_step=16)
    assert rows_of(one.buffer) == rows_of(other.buffer)


GRU = {"rl_module": {"model_config": {"hiddens": (4,), "recurrent": "gru"}}}


@pytest.mark.filterwarnings("ignore:.*rows are left out")
@pytest.mark.parametrize("num_runners", [0, 2])
@pytest.mark.parametrize(
    ("env", "algorithm", "sections"),
    [
        (TellingCountingGame, PPOConfig, {}),
        (TellingCountingGame, PPOConfig, {"multi_agent": {"centralized_critic": True, "agent_id_in_obs": True}}),
        (TellingTurnGame, PPOConfig, GRU),
        (TellingDictGame, PPOConfig, {}),
        (TellingTurnGame, DQNConfig, {"replay": {"n_step": 3}}),
    ],
)
@pytest.mark.long
def test_a_run_resumes_bit_for_bit_mid_episode_if_environments_save_state(
    num_runners, env, algorithm, sections, tmp_path
):
    def trainer_of(total_steps):
        sections_of = {**sections, "reporting": {"total_steps": total_steps, "steps_per_epoch": 32}}
        return config_of(num_runners, env, algorithm, **sections_of).build_trainer()

    whole, half, rest = trainer_of(96), trainer_of(96), trainer_of(96)
    expected = whole.run().history
    iterator = iter(half)
    next(iterator)
    half.save_to_path(tmp_path / "half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would say that episodes were cut
        rest.restore_from_path(tmp_path / "half")
    found = rest.run().history
    assert any(episode.train_collect_stat.lens.tolist() for episode in found)
    for epoch, other in zip(expected, found, strict=True):
        for name in ("train_collect_stat", "test_collect_stat"):
            stats, others = getattr(epoch, name), getattr(other, name)
            np.testing.assert_array_equal(stats.agent_returns, others.agent_returns)
            np.testing.assert_array_equal(stats.lens, others.lens)
    weights = whole.policy.learner_group.get_weights()
    for module_id, own in rest.policy.learner_group.get_weights().items():
        for name, array in own.items():
            np.testing.assert_array_equal(array, weights[module_id][name], err_msg=name)
    for trainer in (whole, half, rest):
        trainer.close()


def test_weights_of_other_modules_are_refused():
    collector = collector_of(2)
    weights = collector.policy.acting_weights()
    assert weights.num_bytes == sum(weights.sizes.values())
    with pytest.raises(ValueError, match=r"the weights are of the module 'third', this policy has \[\]"):
        runner = collector.group._backend.runners[0]
        runner.policy.set_weights(type(weights)(1, weights.flat, sizes={"third": weights.sizes["first"]}))


@pytest.mark.parametrize("algorithm", fast_if(lambda config: config is DQNConfig, [PPOConfig, DQNConfig]))
def test_modules_that_come_and_go_and_other_mappings_reach_the_runners(algorithm):
    def run(num_runners):
        trainer = config_of(num_runners, algorithm=algorithm, reporting={"total_steps": 96}).build_trainer()
        seen = []
        for epoch, stats, _ in trainer:
            seen.append((stats.train_collect_stat.agent_modules, stats.train_collect_stat.agent_returns))
            if epoch == 1:
                trainer.add_module("third", init_from="others", frozen=True)
                trainer.set_policy_mapping_fn({"a": "first", "b": "third", "c": "others"})
            if epoch == 2:
                trainer.set_policy_mapping_fn({"a": "first", "b": "others", "c": "others"})
                trainer.remove_module("third")
        trainer.close()
        return seen, trainer.policy.learner_group.get_weights()

    one = run(0)
    assert any("third" in names for names in one[0][1][0])
    assert not any("third" in names for names in one[0][2][0])
    assert_same(run(2), one)


def test_a_module_added_again_under_its_name_is_rebuilt_in_the_runners():
    trainer = config_of(2, num_envs=2, reporting={"total_steps": 96}).build_trainer()
    next(trainer)
    for hiddens in ((4,), (6, 6)):
        trainer.remove_module("others")
        trainer.add_module("others", RLModuleSpec(model_config={"hiddens": hiddens}))
        next(trainer)
        for runner in trainer.train_collector.group._backend.runners:
            found = runner.policy.acting["others"].module.get_flat_weights()
            assert found.size == trainer.policy.acting["others"].module.get_flat_weights().size
    trainer.close()


def play_oneself(num_runners, algorithm, total_steps=256):
    config = config_of(num_runners, Duel, algorithm)
    config.multi_agent(policies=["main"], policy_mapping_fn={"x": "main", "y": "main"})
    config.training(train_batch_size=32, lr=3e-2).reporting(total_steps=total_steps, steps_per_epoch=64)
    if algorithm is DQNConfig:
        config.training(epsilon=0.2).env_runners(rollout_fragment_length=16)
    playing = SelfPlay("main", window=16, max_pool_size=2, draw="prioritized", win_rate_threshold=0.5)
    return config.build_trainer(callbacks=[playing]), playing


@pytest.mark.parametrize("algorithm", fast_if(lambda config: config is PPOConfig, [PPOConfig, DQNConfig]))
def test_self_play_over_env_runners_equals_one_process_and_resumes(algorithm, tmp_path):
    (here, one), (there, two), (half, _), (again, three) = (play_oneself(n, algorithm) for n in (0, 2, 2, 2))
    history = here.run().history
    assert one.num_copies > 1
    assert [e.train_collect_stat.agent_modules for e in there.run().history] == [
        e.train_collect_stat.agent_modules for e in history
    ]
    next(half)
    next(half)
    half.save_to_path(tmp_path / "half")
    again.restore_from_path(tmp_path / "half")
    again.run()
    assert one.get_state() == two.get_state() == three.get_state()
    weights = [trainer.policy.learner_group.get_weights() for trainer in (here, there, again)]
    for module_id, own in weights[0].items():
        for name, array in own.items():
            np.testing.assert_allclose(weights[1][module_id][name], array, rtol=0, atol=1e-12, err_msg=name)
            np.testing.assert_array_equal(weights[2][module_id][name], weights[1][module_id][name], err_msg=name)
    for trainer in (here, there, half, again):
        trainer.close()


# -- collecting while learning ---


def asynchronous(num_runners, env=CountingGame, algorithm=IMPALAConfig, max_lag=0, **training):
    """Fragments of 8 vector steps, two of them (of 2 environments each) a batch."""
    config = config_of(num_runners, env, algorithm).training(train_batch_size=32, lr=1e-2, **training)
    config.env_runners(rollout_fragment_length=8).reporting(total_steps=192, steps_per_epoch=64)
    return config.training(max_lag=max_lag)


@pytest.mark.parametrize(
    ("env", "algorithm", "options"),
    [
        (CountingGame, IMPALAConfig, {}),
        (TurnGame, APPOConfig, {"use_kl_loss": True, "minibatch_size": 8, "num_epochs": 2}),
        (DictGame, IMPALAConfig, {}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*rows are left out")
def test_multi_agent_max_lag_0_collected_in_parallel_equals_one_process(env, algorithm, options):
    found = []
    for num_runners in (0, 2):
        trainer = asynchronous(num_runners, env, algorithm, **options).build_trainer()
        assert isinstance(trainer.train_collector, AsyncGroupCollector if num_runners else MultiAgentCollector)
        epochs = trainer.run().history
        found.append(([e.train_collect_stat.agent_returns for e in epochs], trainer.policy.learner_group.get_weights()))
        trainer.close()
    assert_same(found[1], found[0])


class Lags(Callback):
    """Notes how many updates ago the weights were the learner's that acted, and checks what they said."""

    def __init__(self):
        self.lags, self.errors = [], []

    def on_run_start(self, event):
        self.trainer, self.policies = event.trainer, {}

    def on_collect_end(self, event):
        policy, now = self.trainer.policy, self.trainer.policy.weights_seq_no
        self.policies[now] = copy.deepcopy(policy)
        for piece, _ in self.trainer.buffer.pieces:
            for agent, single in piece.agent_episodes.items():
                if not len(single):
                    continue
                acted = single.get_extra_model_outputs("weights_seq_no")
                logp = single.get_extra_model_outputs("action_logp")
                self.lags += (now - np.asarray(acted)).tolist()
                obs, actions = single.get_observations()[:-1], single.get_actions()
                for version in set(acted.tolist()):
                    part = self.policies[version].acting[piece.module_for(agent)]
                    rows = acted == version
                    self.errors.append(np.abs(part.action_logp(obs[rows], actions[rows]) - logp[rows]).max())


@pytest.mark.parametrize("max_lag", [1, 3])
def test_parallel_collects_know_log_probabilities_and_respect_max_lag(max_lag):
    config, lags = asynchronous(2, max_lag=max_lag), Lags()
    trainer = config.build_trainer(callbacks=[lags])
    trainer.run()
    stats = trainer.train_collector.get_stats()
    trainer.close()
    assert 0 < max(lags.lags) <= max_lag + 1  # an action that waits for its reward comes with the fragment after it
    assert max(lags.errors) < 1e-6
    assert stats["num_steps_collected"] == 192
    assert stats["num_steps_sampled"] == sum(stats[f"num_steps_{n}"] for n in ("collected", "dropped", "waiting"))


def test_pending_data_are_saved_and_those_of_a_removed_module_dropped(tmp_path):
    def trainer_of():
        return asynchronous(2, TellingCountingGame, max_lag=3).build_trainer()

    one, other = trainer_of(), trainer_of()
    next(one)
    one.save_to_path(tmp_path / "half")
    other.restore_from_path(tmp_path / "half")
    waiting = [trainer.train_collector.get_stats()["num_steps_waiting"] for trainer in (one, other)]
    assert waiting[0] == waiting[1] > 0
    for found, expected in zip(
        next(other).train_collect_stat.agent_returns, next(one).train_collect_stat.agent_returns
    ):
        assert list(found) == list(expected)
    one.add_module("third", init_from="others")
    one.set_policy_mapping_fn({"a": "first", "b": "third", "c": "third"})
    before = one.train_collector.get_stats()["num_steps_dropped"]
    one.remove_module("others")
    assert one.train_collector.get_stats()["num_steps_dropped"] > before
    stats = next(one)
    assert {name for names in stats.train_collect_stat.agent_modules for name in names} == {"first", "third"}
    one.close()
    other.close()
