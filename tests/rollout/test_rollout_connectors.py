"""Collectors follow connectors with a memory in every autoreset mode, and so does a policy that is called by hand."""

from functools import partial

import numpy as np
import pytest
from acting_tools import Exploring
from agent_games import CountingGame, TurnGame, game_config
from gymnasium.vector import SyncVectorEnv
from picture_env import PictureEnv, play, see, turn
from runner_tools import ManyRunners

from lockstep import Collector, MultiAgentCollector, Policy, PPOConfig, RolloutStore
from lockstep.connectors import ObsPipeline, PreviousActions, PreviousRewards
from lockstep.data.rollout import EpisodeStore
from lockstep.data.trees import leaves, map_tree
from lockstep.envs import LightSyncVectorEnv, StepResult, make_vector
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import EnvRunnerGroup, rollout_of
from lockstep.trainer import restore_trainer, save_trainer

EPISODES = ((3, "terminate"), (1, "truncate"), (4, "both"), (2, "terminate"))


def makers():
    return [lambda b=b: CountingEnv(EPISODES, offset=b) for b in range(3)]


VECTORS = {
    "light": lambda: LightSyncVectorEnv(makers()),
    **{f"native {mode}": lambda mode=mode: CountingVectorEnv(3, EPISODES, mode) for mode in ("SameStep", "NextStep")},
    "native Disabled": lambda: CountingVectorEnv(3, EPISODES, "Disabled"),
    "sync NextStep": lambda: SyncVectorEnv(makers(), autoreset_mode="NextStep"),
}


def remembering(vector, buffer=None):
    env = make_vector(VECTORS[vector]())
    policy = Exploring()
    policy.recorded = ObsPipeline([PreviousRewards(), PreviousActions(env.action_space)], env.observation_space)
    collector = Collector(policy, env, buffer, seed=1)
    if buffer is None:
        collector.buffer = RolloutStore(5, 3, collector.observation_space, env.action_space)
    return collector


def assert_told(obs):
    """The counting environment gives 10 times its step plus the action: each observation knows what led to it."""
    steps, rewards = obs["obs"][..., 0], obs["previous_rewards"][..., 0]
    begins = steps == 0
    assert begins.any()
    assert not begins.all()
    assert not obs["previous_actions"][begins].any()
    assert not rewards[begins].any()
    assert (obs["previous_actions"].sum(-1) == ~begins).all()
    actions = obs["previous_actions"].argmax(-1)
    np.testing.assert_array_equal(rewards[~begins], 10 * steps[~begins] + actions[~begins])


@pytest.mark.parametrize("vector", VECTORS)
def test_earlier_actions_and_rewards_are_in_every_stored_observation(vector):
    collector = remembering(vector)
    collector.collect(n_step=120)
    found = collector.buffer.trajectories()
    rows = slice(None) if found.rows() is None else found.rows()
    assert_told(map_tree(lambda leaf: leaf[rows], found.flat_obs()))
    following = map_tree(lambda leaf: leaf[rows], found.next_obs())
    assert (following["obs"][..., 0] > 0).all()  # the true last observations, not those after the reset
    actions = found.flat_actions()[rows]
    np.testing.assert_array_equal(following["previous_actions"].argmax(-1), actions)
    np.testing.assert_array_equal(following["previous_rewards"][:, 0], found.rewards.reshape(-1)[rows])
    buffer = VectorReplayBuffer(600, 3)
    remembering(vector, buffer).collect(n_step=120)
    batch = buffer[buffer.indices()]
    assert_told(batch["obs"])
    np.testing.assert_array_equal(batch["new_obs"]["previous_actions"].argmax(-1), batch["actions"])
    np.testing.assert_array_equal(batch["new_obs"]["previous_rewards"][:, 0], batch["rewards"])


def test_a_row_that_was_lost_begins_anew():
    env = CountingEnv()
    pipeline = ObsPipeline([PreviousActions(env.action_space)], env.observation_space)
    obs = np.zeros((2, 2), np.float32)
    pipeline(obs)
    step = StepResult(obs, 2)
    step.valid, step.lost = np.array([True, False]), np.array([1])
    seen, final = pipeline.follow(step, np.array([3, 3]))
    assert seen["previous_actions"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert final is None


def config_of(config=None, **runners):
    return (
        (config or PPOConfig().training(train_batch_size=32, minibatch_size=16))
        .environment(PictureEnv)
        .env_runners(num_envs_per_env_runner=2, env_to_module_connector=see, module_to_env_connector=turn, **runners)
        .rl_module(model_config={"hiddens": (8,)})
        .debugging(seed=3)
    )


def test_a_custom_pipeline_acts_equally_by_hand_in_collectors_and_runners():
    config = config_of()
    policy = config.build_policy()
    assert list(policy.stored_observation_space) == ["picture", "room", "speed", "previous_actions", "previous_rewards"]
    sent = []

    class Noting(PictureEnv):
        def step(self, action):
            sent.append(int(action))
            return super().step(action)

    env = make_vector(LightSyncVectorEnv([Noting]))
    collector = Collector(policy, env, RolloutStore(8, 1, policy.stored_observation_space, env.action_space), seed=1)
    collector.streams.seeds = lambda name, number: [5] * number
    collector.collect(n_step=20)
    assert play(policy) == sent
    assert len(set(sent)) > 1
    np.testing.assert_array_equal(2 - collector.buffer.actions[:20, 0], sent)  # the module's own are stored
    assert collector.buffer.obs["picture"].shape == (21, 1, 8, 8)


def test_m_runners_give_the_rows_of_one_collector():
    config, spaces = config_of(), (PictureEnv.observation_space, PictureEnv.action_space)
    policy = config.build_policy()
    policy.connectors.obs.update(
        map_tree(lambda leaf: leaf[None] + leaf.dtype.type(1), policy.stored_observation_space.sample())
    )
    group = EnvRunnerGroup(ManyRunners(partial(config.build_env_runner, spaces), 2), config.env_runners)
    group.set_weights(policy.acting_weights())
    collector = config_of().env_runners(num_envs_per_env_runner=4).build_collector(policy)
    collector.buffer = RolloutStore(10, 4, policy.stored_observation_space, policy.action_space)
    for _ in range(2):
        collector.buffer.clear()
        collector.collect(n_step=40)
        fragments = group.sample(40)
    store = rollout_of(fragments, policy.stored_observation_space, policy.action_space)
    mine, theirs = collector.buffer.trajectories(), store.trajectories()
    for name in ("obs", "actions", "rewards", "bootstrap_obs"):
        for left, right in zip(leaves(getattr(mine, name)), leaves(getattr(theirs, name)), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=name)


def test_a_run_goes_on_after_a_resume_as_if_it_had_not_stopped(tmp_path):
    def trainer_of(total_steps):
        return config_of().evaluation(evaluation_duration=3).reporting(total_steps=total_steps).build_trainer()

    whole, half, rest = trainer_of(128), trainer_of(64), trainer_of(128)
    whole.run()
    half.run()
    save_trainer(half, tmp_path / "checkpoint")
    restore_trainer(rest, tmp_path / "checkpoint")
    rest.run()
    assert rest.last_test.returns.tolist() == whole.last_test.returns.tolist()
    for left, right in zip(whole.policy.state_dict().values(), rest.policy.state_dict().values(), strict=True):
        np.testing.assert_array_equal(left.numpy(), right.numpy())
    assert play(whole.policy) == play(rest.policy)
    assert play(half.policy) == play(Policy.from_checkpoint(tmp_path / "checkpoint"))


def test_rows_by_hand():
    policy = config_of().build_policy()
    obs = map_tree(lambda leaf: np.repeat(np.asarray(leaf)[None], 2, 0), PictureEnv().reset(seed=1)[0])
    first = policy.compute_actions(obs)
    with pytest.raises(ValueError, match="rewards="):
        policy.compute_actions(obs)
    policy.compute_actions(obs, rewards=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"1 observations, and the policy remembers 2 rows; call policy.reset\(\)"):
        policy.compute_single_action(map_tree(lambda leaf: leaf[0], obs))
    policy.reset()
    assert policy.compute_actions(obs).tolist() == first.tolist()


def see_agents(observation_space, action_space):
    return [PreviousActions(action_space), PreviousRewards()]


EARNED = {"a": 1.0, "b": 10.0, "c": 100.0}


@pytest.mark.parametrize("game", [CountingGame, TurnGame])
@pytest.mark.parametrize("off_policy", [False, True])
def test_each_agent_in_each_environment_has_a_memory_of_its_own(game, off_policy):
    config = game_config().environment(game).env_runners(env_to_module_connector=see_agents)
    policy = config.build_policy()
    collector = MultiAgentCollector(policy, game, EpisodeStore(), exploration_noise=True, num_envs=2, seed=1)
    if off_policy:
        collector.buffer = config.build_replay_buffers(collector.agents_of_modules, 2)
    collector.collect(n_step=40)
    if off_policy:
        batches = [buffer[buffer.indices()] for buffer in collector.buffer.buffers.values()]
    else:
        singles = [each for episode in collector.buffer.episodes() for each in episode.agent_episodes.values()]
        batches = [single.get_data_dict() for single in singles if len(single)]
    for batch in batches:
        seen, following = batch["obs"], batch["new_obs"]
        np.testing.assert_array_equal(following["previous_actions"].argmax(-1), batch["actions"])
        np.testing.assert_array_equal(following["previous_rewards"][:, 0], batch["rewards"])
        begins = seen["previous_actions"].sum(-1) == 0
        assert not seen["previous_rewards"][begins].any()


def test_agents_by_hand_have_memories_of_their_own():
    policy = game_config().env_runners(env_to_module_connector=see_agents).build_policy()
    obs = {"a": np.ones(2, np.float32), "b": np.zeros(2, np.float32)}
    first = policy.compute_actions(obs, explore=False)
    with pytest.raises(ValueError, match="rewards="):
        policy.compute_actions(obs, explore=False)
    policy.compute_actions(obs, explore=False, rewards={"a": 1.0, "b": 50.0})
    policy.reset("a")
    with pytest.raises(ValueError, match="rewards="):
        policy.compute_actions({"b": obs["b"]}, explore=False)
    policy.compute_actions({"a": obs["a"]}, explore=False)
    policy.reset()
    assert policy.compute_actions(obs, explore=False) == first
