"""Replay buffers of `lockstep_sb3`: hindsight, samples, and numbers of gradient steps."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_tasks import Aim, Copy, Count

from lockstep.envs.toys.probes import BitFlipping
from lockstep_sb3 import A2C, DQN, SAC, TD3, HerReplayBuffer
from lockstep_sb3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer
from lockstep_sb3.common.callbacks import BaseCallback
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.her.goal_selection_strategy import GoalSelectionStrategy

SMALL = {"net_arch": [16]}


def goal_model(n_envs: int = 1, **kwargs) -> DQN:
    """Return a model with hindsight in an environment with goals."""
    return DQN(
        "MultiInputPolicy",
        make_vec_env(BitFlipping, n_envs=n_envs),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs=kwargs,
        policy_kwargs=SMALL,
        learning_starts=20,
        seed=1,
    )


# -- hindsight ---


@pytest.mark.parametrize("strategy", ["future", "final", "episode", GoalSelectionStrategy.EPISODE])
def test_hindsight_relabels_with_rewards_of_the_environment(strategy):
    model = goal_model(n_envs=2, n_sampled_goal=3, goal_selection_strategy=strategy)
    model.learn(80)
    buffer = model.replay_buffer
    assert isinstance(buffer, HerReplayBuffer)
    assert (buffer.size(), buffer.n_sampled_goal) == (40, 3)

    batch = buffer.sample(2000)
    reached = (batch.next_observations["achieved_goal"] == batch.observations["desired_goal"]).all(-1)
    torch.testing.assert_close(batch.rewards[:, 0], reached.float() - 1.0)
    # Random actions hardly ever reach the goals of the environment, and often those of hindsight.
    stored = model.buffer.all()
    achieved = stored["new_obs"]["achieved_goal"]
    shares = [(achieved == stored["obs"]["desired_goal"]).all(-1).mean(), float(reached.float().mean())]
    assert shares[0] < 0.1 < shares[1]


def test_hindsight_is_saved_with_the_model_and_continues_in_new_environments(tmp_path):
    model = goal_model(goal_selection_strategy=GoalSelectionStrategy.FINAL, copy_info_dict=False)
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    loaded = DQN.load(tmp_path / "model")
    assert loaded.replay_buffer.goal_selection_strategy is GoalSelectionStrategy.FINAL
    loaded.load_replay_buffer(tmp_path / "replay")
    loaded.set_env(make_vec_env(BitFlipping))
    assert loaded.learn(32, reset_num_timesteps=False).replay_buffer.size() == 92


def test_a_buffer_made_by_hand_relabels_as_well():
    envs = make_vec_env(BitFlipping, n_envs=2)
    buffer = HerReplayBuffer(100, envs.observation_space, envs.action_space, envs, n_envs=2)
    obs = envs.reset()
    for _ in range(30):
        actions = np.array([envs.action_space.sample() for _ in range(2)])
        next_obs, rewards, dones, infos = envs.step(actions)
        buffer.add(obs, next_obs, actions, rewards, dones, infos)
        obs = next_obs
    assert (buffer.size(), buffer.pos, buffer.full, buffer.buffer_size) == (30, 30, False, 50)
    assert buffer.sample(200).rewards.max() == 0.0


# -- samples ---


def test_rows_that_are_added_come_back_as_tensors():
    space = spaces.Box(-1.0, 1.0, (2,))
    buffer = ReplayBuffer(8, space, spaces.Box(-2.0, 2.0, (1,)), device="cpu", n_envs=2)
    for step in range(5):
        obs = np.full((2, 2), step / 10, np.float32)
        over = np.array([step == 4, step == 4])
        infos = [{"TimeLimit.truncated": step == 4}, {}]
        buffer.add(obs, obs + 0.1, np.full((2, 1), 0.5), np.array([1.0, 2.0]), over, infos)
    assert (buffer.size(), buffer.pos, buffer.full) == (4, 1, True)

    batch = buffer.sample(400)
    shapes = [tuple(column.shape) for column in batch[:5]]
    assert shapes == [(400, 2), (400, 1), (400, 2), (400, 1), (400, 1)]
    torch.testing.assert_close(batch.next_observations, batch.observations + 0.1)
    assert batch.observations.min() == pytest.approx(0.1)  # the first step is overwritten
    assert batch.discounts is None
    # Only the second environment has terminated, the first one was truncated.
    assert set(batch.rewards[batch.dones == 1.0].tolist()) == {2.0}
    buffer.reset()
    assert buffer.size() == 0


def test_the_replay_buffer_of_a_model_is_sampled_filled_and_shared():
    model = DQN("MlpPolicy", make_vec_env(Count, n_envs=2), learning_starts=10, policy_kwargs=SMALL).learn(24)
    buffer = model.replay_buffer
    assert type(buffer) is ReplayBuffer
    assert (buffer.size(), buffer.pos, buffer.n_envs) == (12, 12, 2)
    batch = buffer.sample(16)
    assert batch.actions.dtype == torch.int64
    assert batch.actions.shape == (16, 1)
    torch.testing.assert_close(batch.next_observations, batch.rewards)  # `Count` rewards its number of steps

    obs = np.zeros((2, 1))
    buffer.add(obs, obs, np.array([0, 1]), np.array([7.0, 7.0]), np.array([True, True]), [{}, {}])
    assert 7.0 in buffer.sample(400).rewards
    other = DQN("MlpPolicy", make_vec_env(Count, n_envs=2), learning_starts=10, policy_kwargs=SMALL)
    other.replay_buffer = buffer
    other.learn(24)
    assert buffer.size() == 25


def test_the_classes_of_plain_buffers_are_accepted():
    options = {"handle_timeout_termination": True}
    model = SAC("MlpPolicy", Aim(), replay_buffer_class=ReplayBuffer, replay_buffer_kwargs=options)
    assert model.config.replay.n_step == 1
    model = SAC("MlpPolicy", Aim(), replay_buffer_class=NStepReplayBuffer, replay_buffer_kwargs={"n_steps": 5})
    assert model.config.replay.n_step == 5
    assert issubclass(HerReplayBuffer, DictReplayBuffer)


class Doubled(ReplayBuffer):
    """Buffer of a program's own."""


REFUSED = [
    ({"replay_buffer_class": Doubled}, "Doubled"),
    ({"replay_buffer_kwargs": {"handle_timeout_termination": False}}, "handle_timeout_termination"),
    ({"replay_buffer_kwargs": {"n_sampled_goal": 4}}, "n_sampled_goal"),
    ({"replay_buffer_class": NStepReplayBuffer, "replay_buffer_kwargs": {"gamma": 0.5}}, "gamma=0.5"),
    (
        {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"goal_selection_strategy": "past"}},
        "goal_selection_strategy='past'",
    ),
    (
        {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"copy_info_dict": True}},
        "copy_info_dict",
    ),
]


@pytest.mark.parametrize("options, word", REFUSED, ids=[word for _, word in REFUSED])
def test_buffers_without_a_counterpart_are_refused_by_name(options, word):
    with pytest.raises(ValueError, match=word):
        SAC("MlpPolicy", Aim(), **options)


# -- rollouts ---


def test_a_rollout_buffer_computes_gae_as_written_out():
    box = spaces.Box(-1.0, 1.0, (2,))
    buffer = RolloutBuffer(3, box, spaces.Discrete(2), device="cpu", gae_lambda=0.5, gamma=0.5, n_envs=1)
    for step, value in enumerate((1.0, 2.0, 3.0)):
        buffer.add(
            np.full((1, 2), step),
            np.array([1]),
            np.array([4.0]),
            np.array([step == 2]),
            torch.tensor([[value]]),
            torch.zeros(1),
        )
    buffer.compute_returns_and_advantage(torch.tensor([8.0]), np.array([False]))
    # errors: 4 + 0.5 * 2 - 1 = 4;  4 - 2 = 2 (the next step begins an episode);  4 + 0.5 * 8 - 3 = 5
    np.testing.assert_allclose(buffer.advantages[:, 0], [4.0 + 0.25 * 2.0, 2.0, 5.0])
    np.testing.assert_allclose(buffer.returns[:, 0], [5.5, 4.0, 8.0])
    batches = list(buffer.get(2))
    assert [len(batch.returns) for batch in batches] == [2, 1]
    assert sorted(torch.cat([batch.returns for batch in batches]).tolist()) == [4.0, 5.5, 8.0]
    with pytest.raises(ValueError, match="reset"):
        buffer.add(np.zeros((1, 2)), np.zeros(1), np.zeros(1), np.zeros(1), torch.zeros(1), torch.zeros(1))
    buffer.reset()
    with pytest.raises(ValueError, match="0 of its 3 steps"):
        next(buffer.get())


def test_the_rollout_buffer_of_a_model_has_the_rollout_that_ends():
    seen = []

    class Seen(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            buffer = self.model.rollout_buffer
            assert isinstance(buffer, RolloutBuffer)
            assert (buffer.size(), buffer.full, buffer.n_envs) == (self.model.n_steps, True, 2)
            seen.append((buffer.rewards, buffer.observations, buffer.actions))

    model = A2C("MlpPolicy", make_vec_env(Count, n_envs=2), n_steps=6, rollout_buffer_class=RolloutBuffer)
    model.learn(12, callback=Seen())
    ((rewards, observations, actions),) = seen
    np.testing.assert_array_equal(rewards[:, 0], [1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(observations[:, 1, 0], [0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    assert actions.shape == (6, 2, 1)

    # A model is given longer rollouts, as programs do after loading it.
    model.n_steps = 12
    model.rollout_buffer.buffer_size = 12
    model.rollout_buffer.n_envs = 2
    model.rollout_buffer.reset()
    model.learn(24, callback=Seen())
    assert seen[-1][0].shape == (12, 2)
    with pytest.raises(ValueError, match="buffer_size=7"):
        model.rollout_buffer.buffer_size = 7


def test_parameters_are_copied_from_a_model_or_a_file(tmp_path):
    kwargs = {"policy_kwargs": SMALL, "learning_starts": 8, "batch_size": 8}
    model = SAC("MlpPolicy", Aim(), seed=1, **kwargs).learn(20)
    parameters = model.get_parameters()
    assert set(parameters) == {"policy", "actor.optimizer", "critic.optimizer", "ent_coef_optimizer"}
    model.save(tmp_path / "model")
    for source in (parameters, tmp_path / "model"):
        other = SAC("MlpPolicy", Aim(), seed=2, **kwargs)
        other.set_parameters(source)
        obs = np.ones(2, np.float32)
        assert other.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]
        other.learn(20)
    with pytest.raises(ValueError, match="wings"):
        model.set_parameters({"wings": {}}, exact_match=False)
    with pytest.raises(ValueError, match=r"actor\.optimizer"):
        model.set_parameters({"policy": parameters["policy"]})
    model.set_parameters({"policy": parameters["policy"]}, exact_match=False)


# -- numbers of gradient steps ---


def test_a_number_of_gradient_steps_for_each_episode():
    options = {"train_freq": (2, "episode"), "gradient_steps": 7, "learning_starts": 20}
    model = TD3("MlpPolicy", Aim(), policy_kwargs=SMALL, **options).learn(100)
    assert model.trainer.gradient_step == 4 * 7  # 100 steps are 10 episodes, of which 2 are random


def test_no_gradient_steps_leave_learning_to_the_program():
    model = SAC("MlpPolicy", Aim(), gradient_steps=0, policy_kwargs=SMALL, batch_size=8).learn(150)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(50, reset_num_timesteps=False)
    assert all(torch.equal(value, before[name]) for name, value in model.policy.state_dict().items())
    model.train(gradient_steps=3, batch_size=8)
    assert not all(torch.equal(value, before[name]) for name, value in model.policy.state_dict().items())


def test_a_truncated_episode_is_not_terminated():
    model = DQN("MlpPolicy", Count(terminates=False), policy_kwargs=SMALL, learning_starts=9).learn(9)
    assert model.replay_buffer.sample(100).dones.sum() == 0.0
    model = DQN("MlpPolicy", Copy(), policy_kwargs=SMALL, learning_starts=20).learn(20)
    assert model.replay_buffer.sample(100).dones.sum() == 0.0
    model = DQN("MlpPolicy", Count(), policy_kwargs=SMALL, learning_starts=9).learn(9)
    assert model.replay_buffer.sample(100).dones.sum() > 0.0


def test_a_loop_of_ones_own_fills_and_samples_a_buffer():
    """As in CleanRL's programs, whose `dones` are terminations already, and whose infos are a dict of arrays."""
    envs = gym.vector.SyncVectorEnv([Copy, Copy], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    space = envs.single_observation_space
    buffer = ReplayBuffer(100, space, envs.single_action_space, "cpu", n_envs=2, handle_timeout_termination=False)
    obs, _ = envs.reset(seed=0)
    for _ in range(12):
        actions = envs.action_space.sample()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        buffer.add(obs, next_obs, actions, rewards, terminations | truncations, infos)
        obs = next_obs
    data = buffer.sample(64)
    assert data.observations.shape == data.next_observations.shape == (64, 1)
    assert data.actions.shape == data.rewards.shape == data.dones.shape == (64, 1)
    assert torch.equal(data.rewards, (data.actions == data.observations).float())
    assert 0 < data.dones.sum() < 64
    assert buffer.size() == 12
