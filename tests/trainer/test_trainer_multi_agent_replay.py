"""Several agents learn off-policy: a replay buffer for each module, a sub-buffer for each agent of each environment."""

from functools import partial

import numpy as np
import pytest
from agent_games import BitGame, CountingGame, TurnGame, game_config
from trainer_tools import by_hand, digest, learned

from lockstep import DQNConfig, MultiAgentCollector, OffpolicyTrainer
from lockstep.data.rollout import EpisodeStore
from lockstep.envs import EnvironmentStepError
from lockstep.modules import RLModuleSpec
from lockstep.replay import MultiAgentReplayBuffer, VectorReplayBuffer


def collector_of(env=CountingGame, num_envs=2, **replay):
    config = game_config(env, DQNConfig, num_envs=num_envs)
    config.replay(**replay)
    return config.build_collector(config.build_policy())


@pytest.mark.parametrize("env", [CountingGame, TurnGame])
def test_every_agents_step_is_one_true_transition_in_its_own_sub_buffer(env):
    collector = collector_of(env)
    lengths = []
    for n_step in (2, 10, 2, 40):
        lengths += collector.collect(n_step=n_step).lens.tolist()
    buffers = collector.buffer.buffers
    assert {mid: one.buffer_num for mid, one in buffers.items()} == {
        mid: 2 * len(own) for mid, own in collector.agents_of_modules.items()
    }
    agents = dict.fromkeys(env.possible_agents, 0)
    for module_id, buffer in buffers.items():
        batch = buffer.all()
        own = collector.agents_of_modules[module_id]
        sub_buffers = batch["batch_indexes"] % buffer.buffer_num
        for row, sub in enumerate(sub_buffers):
            (time, number), (then, same) = batch["obs"][row], batch["new_obs"][row]
            agent = own[sub % len(own)]
            assert number == same == env.possible_agents.index(agent) + (env is CountingGame)
            ended = bool(batch["terminateds"][row] | batch["truncateds"][row])
            agents[agent] += ended
            if env is CountingGame:
                assert then == time + 1
                assert batch["rewards"][row] == {"a": 1.0, "b": 10.0, "c": 100.0}[agent]
            else:
                assert then == time + 2 or ended
                assert batch["rewards"][row] == (1.0 if ended and then == time + 1 else 11.0)
            following = buffer.next(batch["batch_indexes"][[row]])[0]
            if following != batch["batch_indexes"][row]:
                assert not ended
                np.testing.assert_array_equal(buffer[[following]]["obs"][0], batch["new_obs"][row])
    for agent, ends in agents.items():  # `b` may have ended in games that go on
        assert ends == len(lengths) or (agent == "b" and len(lengths) <= ends <= len(lengths) + 2)


def test_a_failed_collect_leaves_no_rows_and_nothing_crosses_the_boundary():
    collector = collector_of(n_step=5)
    for env in collector.env.envs:
        env.shortest = env.longest = 5
    collector.collect(n_step=4)
    before = len(collector.buffer)
    assert before == 10  # a and b twice, c once, in both
    collector.env.envs[1].options["fails_at"] = 3
    with pytest.raises(EnvironmentStepError, match="environment 1"):
        collector.collect(n_step=4)
    assert len(collector.buffer) == before
    collector.env.envs[1].options.clear()
    collector.collect(n_step=10)
    first = collector.buffer.buffers["first"]
    sums = first.all()["rewards"].reshape(2, -1)  # of `a`, who gets 1 in each step: of those that follow in the episode
    np.testing.assert_allclose(sums, [[sum(0.99**k for k in range(n)) for n in (2, 1, 5, 4, 3, 2, 1)]] * 2, rtol=1e-6)


@pytest.mark.parametrize("prioritized", [pytest.param(False, marks=pytest.mark.long), True])
def test_dqn_learns_each_agents_bit_through_the_trainer_with_reward_metric(prioritized):
    config = game_config(BitGame, DQNConfig, num_envs=8)
    config.multi_agent(reward_metric=lambda returns: returns.min(axis=1))
    config.env_runners(rollout_fragment_length=4)
    config.training(lr=2e-2, train_batch_size=32, target_update_interval=10, epsilon=[[0, 1.0], [600, 0.0]])
    config.replay(capacity=2_000, learning_starts=64, update_per_step=0.5, prioritized=prioritized)
    config.evaluation(evaluation_duration=16, evaluation_num_envs=8)
    config.reporting(total_steps=1_024, steps_per_epoch=512)
    trainer = config.build_trainer()
    info = trainer.run()
    tested = info.history[-1].test_collect_stat
    assert tested.returns.tolist() == [1.0] * 16
    assert tested.agent_returns == ((1.0, 1.0),) * 16
    assert info.best_score == 1.0
    assert info.gradient_step == (1_024 - 64) // 2
    assert info.history[0].train_collect_stat.returns_stat.mean < 0.9
    assert info.history[1].training_stat.metrics["others/qf_loss"].count == 256
    for buffer in trainer.buffer.buffers.values():
        if prioritized:
            assert len(np.unique(buffer.priorities.tree[buffer.indices()])) > 2
    seen = {"x": np.array([1.0, 0.0], np.float32), "y": np.array([1.0, 1.0], np.float32)}
    with trainer.policy.within_training_step():  # epsilon is 0 by now, for every module
        assert [trainer.policy.compute_actions(seen) for _ in range(20)] == [{"x": 1, "y": 0}] * 20


class FourSteps(CountingGame):
    """Every episode ends with a collect of 8 steps in two environments."""

    def length_of(self, seed):
        return 4


def test_nothing_crosses_from_a_foreign_episode_in_a_shared_buffer():
    other, collector = collector_of(FourSteps, n_step=3), collector_of(FourSteps, n_step=3)
    for one in (other, collector):
        one.collect(n_step=4)  # both are in the middle of an episode
    collector.buffer = other.buffer
    collector.collect(n_step=4)
    first = collector.buffer.buffers["first"].to_batch()  # of `a`, in both environments
    assert first["obs"][:, 0].tolist() == [0, 1, 2, 3] * 2
    assert first["eps_id"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    summed = collector.buffer.buffers["first"].all()["rewards"]  # each step pays 1
    np.testing.assert_allclose(summed, [1.99, 1.0] * 4, rtol=1e-6)


def drawn(buffer):
    """What the buffer's own stream draws next."""
    return np.array(buffer.streams.numpy("sample").random(5))


def test_a_trainer_by_hand_makes_the_buffers_and_draws_by_its_seed():
    def run(seed):
        collector = partial(MultiAgentCollector, env=CountingGame, num_envs=2)
        sizes = {"max_epoch": 1, "step_per_epoch": 16, "step_per_collect": 4, "batch_size": None}
        sizes |= {"update_per_step": 0.4, "learning_starts": 0}
        trainer = by_hand(game_config(algorithm=DQNConfig), train_collector=collector, seed=seed, **sizes)
        configured = game_config(algorithm=DQNConfig, debugging={"seed": seed}).build_trainer()
        for module_id, buffer in trainer.buffer.buffers.items():
            as_configured = configured.buffer.buffers[module_id]
            np.testing.assert_array_equal(drawn(buffer), drawn(as_configured))
        trainer.run()
        assert trainer.gradient_step == 6
        assert isinstance(trainer.buffer, MultiAgentReplayBuffer)
        assert len(trainer.buffer) == sum(map(len, trainer.buffer.buffers.values())) > 16
        return learned(trainer)

    assert run(1) == run(1) != run(2)


def test_what_does_not_go_with_the_replay_of_several_agents_is_refused():
    collector = collector_of()
    given = {"max_epoch": 1, "batch_size": 8, "step_per_epoch": 8, "step_per_collect": 8}
    with pytest.raises(ValueError, match="buffer is not allowed with several agents"):
        OffpolicyTrainer(collector.policy, train_collector=collector, buffer=VectorReplayBuffer(8, 2), **given)
    with pytest.raises(ValueError, match=r"replay\.her=True is not allowed where a trainer trains several agents"):
        game_config(algorithm=DQNConfig).replay(her=True).build_trainer()
    with pytest.raises(ValueError, match="empty"), collector.policy.within_training_step():
        collector.policy.update(4, collector.buffer)
    collector.policy.policy_mapping_fn = lambda agent, episode: "others"
    with pytest.raises(
        KeyError, match="agent 'a' is mapped to the module 'others' now, and the replay buffer was made"
    ):
        collector.collect(n_step=2)


def test_pieces_stored_together_equal_pieces_stored_one_by_one():
    config = game_config(CountingGame, num_envs=1)
    source = MultiAgentCollector(config.build_policy(), CountingGame, EpisodeStore())
    pieces = []
    for n_step in (1, 3, 20):
        source.collect(n_step=n_step)
        pieces += [(piece, 0) for piece in source.buffer.episodes()]
        source.buffer.clear()
    together, apart, small = (
        MultiAgentReplayBuffer(source.agents_of_modules, 1, lambda _, number: VectorReplayBuffer(200, number, seed=1))
        for _ in range(3)
    )
    together.add(pieces)
    for one in pieces:
        apart.add([one])
    assert len(together) == sum(piece.agent_steps() for piece, _ in pieces) > 40
    for module_id, buffer in together.buffers.items():
        assert digest(buffer.get_state()) == digest(apart.buffers[module_id].get_state())
    small.agents = {"first": ["a"], "others": ["b"]}
    with pytest.raises(KeyError, match="agent 'c' is mapped to the module 'others' now"):
        small.add(pieces)
    assert len(small) == 0


def test_each_module_sums_its_n_steps_with_its_own_gamma():
    config = game_config(CountingGame, DQNConfig, num_envs=2).replay(n_step=3).training(gamma=0.9)
    first, *others = config.build_collector(config.build_policy()).buffer.buffers
    config = game_config(CountingGame, DQNConfig, num_envs=2).replay(n_step=3).training(gamma=0.9)
    config.rl_module(algorithm_config_overrides_per_module={first: {"gamma": 0.5}})
    buffers = config.build_collector(config.build_policy()).buffer.buffers
    assert buffers[first].options.gamma == 0.5
    assert {buffers[module_id].options.gamma for module_id in others} == {0.9}


def test_modules_with_memory_store_their_states_and_learn_from_sequences():
    """Each module by its own network: one remembers, the other does not."""
    config = game_config(CountingGame, DQNConfig, num_envs=2)
    first, *others = config.module_specs()
    memory = RLModuleSpec(model_config={"hiddens": (4,), "recurrent": "gru", "recurrent_size": 3})
    config.multi_agent(policies={first: memory, **dict.fromkeys(others)})
    config.replay(capacity=400, learning_starts=40, sequence_length=4, burn_in=2, prioritized=True)
    trainer = config.evaluation(evaluation_interval=0).reporting(total_steps=120).build_trainer()
    trainer.run()
    buffers = trainer.buffer.buffers
    assert {mid: buffer.options.sequence_length for mid, buffer in buffers.items()} == {
        first: 4,
        **dict.fromkeys(others),
    }
    batch = buffers[first].to_batch()
    at_start = ~batch["state_in"]["h"].any(axis=1)
    assert np.array_equal(at_start, batch["t"] == 0)
    assert buffers[first].sample(5)["state_in"]["h"].shape == (5, 3)
    assert trainer.gradient_step > 0
