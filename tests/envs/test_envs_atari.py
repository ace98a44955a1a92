"""Atari: each back end gives, frame for frame, what gymnasium's own preprocessing of a single game gives."""

import gymnasium as gym
import numpy as np
import pytest
from parts import fast_if

from lockstep import DQNConfig, PPOConfig
from lockstep.data.columns import Columns
from lockstep.envs import make_vector
from lockstep.recipes.families import FAMILIES
from lockstep.recipes.training import find_settings

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")
gym.register_envs(ale_py)
STILL = {"repeat_action_probability": 0.0}
GAME = "ALE/Breakout-v5"


def reference(game=GAME, *, noop_max=0, stack=0, **options):
    """Return the game as gymnasium makes and preprocesses it."""
    env = gym.make(game, frameskip=1, **{**STILL, **options})
    env = gym.wrappers.AtariPreprocessing(env, noop_max=noop_max)
    return gym.wrappers.FrameStackObservation(env, stack, padding_type="reset") if stack else env


@pytest.mark.parametrize(
    ("mode", "frames"),
    fast_if(
        lambda mode, frames: (mode, frames) in (("auto", 108_000), ("async", 203), ("envpool", 200)),
        [("auto", 108_000), ("auto", 203), ("sync", 203), ("async", 203), ("envpool", 108_000), ("envpool", 200)],
    ),
)
def test_every_transition_is_that_of_gymnasiums_preprocessing(mode, frames):
    """Endings by the last life and by the limit of frames, true last observations and first ones included."""
    if mode == "envpool":
        pytest.importorskip("envpool")
    config = {**STILL, "max_num_frames_per_episode": frames}
    boundary = make_vector(GAME, num_envs=2, mode=mode, env_config=config, seed=1)
    is_pool = mode == "envpool"  # it begins with a no-op, and counts actions where the console counts frames
    single = reference(noop_max=int(is_pool), max_num_frames_per_episode=108_000 if is_pool else frames)
    assert boundary.backend == {"auto": "native", "sync": "light_sync", "async": "workers"}.get(mode, mode)
    assert boundary.observation_space == single.observation_space == gym.spaces.Box(0, 255, (84, 84), np.uint8)
    rng = np.random.default_rng(0)
    wanted, _ = single.reset(seed=1)
    obs, endings, rewards = boundary.reset([1, 2]), np.zeros(2, int), 0.0
    limited, length = frames < 108_000, 0
    while endings.sum() < 2:
        assert (obs == wanted).all()
        action = int(rng.integers(4))
        step = boundary.step(np.array([action, action]))
        wanted, reward, terminated, truncated, _ = single.step(action)
        length += 1
        if is_pool:
            truncated = length == -(-frames // 4)
        assert (step.rewards == reward).all()
        assert (step.terminateds == terminated).all()
        assert (step.truncateds == truncated).all()
        rewards += reward
        if terminated or truncated:
            rows, final = step.final_obs
            assert rows.tolist() == [0, 1]
            assert (final == wanted).all()
            endings += terminated, truncated
            length = 0
            wanted, _ = single.reset()
            if is_pool:
                step = boundary.step(np.array([0, 0]))
                assert not step.valid.any()
        obs = step.obs
    assert endings[int(limited)] == 2
    assert limited or rewards > 0
    boundary.close()


def test_sticky_actions_follow_the_id_and_the_seed_of_each_row():
    """With the console's own seed, a single game repeats the same actions at the same frames."""
    boundary = make_vector(GAME, num_envs=3)
    obs = boundary.reset([11, 5, 11])
    single = reference(repeat_action_probability=0.25)
    console = single.unwrapped.ale
    console.setInt("random_seed", 5)
    console.loadROM(ale_py.roms.get_rom_path("breakout"))
    single.unwrapped.seed_game = lambda *args: None
    wanted, _ = single.reset()
    rng = np.random.default_rng(0)
    differ = False
    for _ in range(60):
        assert (obs[1] == wanted).all()
        assert (obs[0] == obs[2]).all()
        differ |= bool((obs[0] != obs[1]).any())
        action = int(rng.integers(4))
        obs = boundary.step(np.full(3, action)).obs
        wanted = single.step(action)[0]
    assert differ, "rows of other seeds repeat other actions"


@pytest.mark.parametrize(
    "capacity", [pytest.param(200, id="all", marks=pytest.mark.long), pytest.param(60, id="overwritten")]
)
def test_replay_stores_each_frame_once_and_returns_gymnasiums_stacks(capacity):
    config = (
        DQNConfig()
        .environment(GAME, frame_stack=4, env_config={**STILL, "max_num_frames_per_episode": 120})
        .env_runners(num_envs_per_env_runner=1)
        .replay(capacity=capacity, n_step=2)
        .rl_module(model_config={"conv_filters": ((4, 8, 8),), "image_hiddens": (8,)})
    )
    collector = config.build_collector()
    buffer, actions = collector.buffer, []
    for _ in range(3):
        collector.collect(n_step=50, random=True)
        actions += buffer.store.take(Columns.ACTIONS, buffer.ring.newest_rows(np.array([50]))[0]).tolist()
    stacks, ends, lasts = gymnasiums_stacks(actions)
    assert buffer.schema[Columns.OBS].shape == (84, 84)
    assert buffer.schema[Columns.OBS].dtype == np.uint8
    assert buffer.nbytes() < 1.2 * capacity * 84 * 84
    batch = buffer.sample(100)
    assert batch[Columns.OBS].dtype == np.uint8
    for row, place in enumerate(batch["batch_indexes"].tolist()):
        t = max(t for t in range(150) if t % buffer.maxsize == place)
        np.testing.assert_array_equal(batch[Columns.OBS][row], stacks[t])
        last = t if t in ends or t == 149 else t + 1  # of two steps
        np.testing.assert_array_equal(batch[Columns.NEXT_OBS][row], lasts[last])


def gymnasiums_stacks(actions):
    """Return the stack before each action, the actions that end an episode, and the stack after each."""
    env = reference(stack=4, max_num_frames_per_episode=120)
    seen, ends, after = [env.reset()[0]], set(), []
    for t, action in enumerate(actions):
        obs, _, terminated, truncated, _ = env.step(action)
        after.append(obs)
        if terminated or truncated:
            ends.add(t)
            obs = env.reset()[0]
        seen.append(obs)
    return seen, ends, after


def test_the_check_of_memory_counts_each_frame_once():
    config = DQNConfig().environment(GAME, frame_stack=4).replay(capacity=1_000)
    policy = config.build_policy()
    much = config.copy().replay(capacity=10**9)
    with pytest.raises(ValueError, match=r"needs 6,5\d\d\.\d GiB"):
        much.build_collector(policy)


def test_stacks_of_numbers_are_normalised_as_they_are_read():
    config = DQNConfig().environment("CartPole-v1", frame_stack=3, normalize_observations=True)
    config.env_runners(num_envs_per_env_runner=2).replay(learning_starts=20).training(train_batch_size=8)
    trainer = config.reporting(total_steps=60).evaluation(evaluation_interval=0).build_trainer()
    trainer.run()
    part = trainer.policy.acting["default_policy"]
    assert trainer.buffer.schema[Columns.OBS].shape == (4,)
    assert [moments.shape for moments in part.connectors.obs.connectors[0].moments] == [(3, 4)]
    assert part.connectors.obs.connectors[0].moments[0].count > 40


def test_settings_for_atari_learn_from_signs_and_report_the_games_scores():
    """Every algorithm that has some begins as its paper does; four frames are stacked and rewards are the game's."""
    for algorithm in {family.algorithm for family in FAMILIES if family.pattern == "ALE/*"}:
        settings = find_settings(algorithm, "ALE/Breakout-v5", options={"reporting.total_steps": 20_000})
        assert settings.sources[0].startswith("the settings of")
        config = settings.config
        config.validate()
        assert config.environment.frame_stack == 4
        assert type(config)().update_from_dict(config.to_dict()) == config
        assert not config.is_off_policy or config.replay.learning_starts == 2_000
    assert find_settings("ppo", "ALE/Breakout-v5", recipe=False).config.environment.frame_stack == 1
    ppo = find_settings("ppo", "ALE/Breakout-v5").config
    assert (ppo.lr, ppo.clip_param) == ([[0, 2.5e-4], [10_000_000, 0]], 0.1)
    assert (ppo.env_runners.num_envs, ppo.train_batch_size, ppo.minibatch_size, ppo.num_epochs) == (8, 1024, 256, 4)

    class Scores(gym.Wrapper):
        """A score of 50 in each step."""

        def step(self, action):
            obs, _, *rest = self.env.step(action)
            return obs, 50.0, *rest

    small = {"conv_filters": ((4, 8, 8),), "image_hiddens": (8,)}
    ppo.environment(lambda: gym.wrappers.TimeLimit(Scores(reference()), 5)).rl_module(model_config=small)
    ppo.env_runners(num_envs_per_env_runner=2).training(train_batch_size=20, minibatch_size=10, lambda_=1.0, gamma=1.0)
    ppo.training(num_epochs=1).evaluation(evaluation_duration=1).reporting(total_steps=20)
    trainer = ppo.build_trainer()
    result = trainer.run()
    assert result.best_score == 250.0
    losses = result.history[-1].training_stat.get_loss_stats_dict()
    assert losses["vf_loss"] < 25, "returns of at most five signs, not of 250"


def test_game_options_are_checked_and_raw_observations_available():
    with pytest.raises(ValueError, match=r"no option of ALE/Breakout-v5. Did you mean 'frameskip'"):
        make_vector(GAME, env_config={"frame_skip": 2})
    with pytest.raises(ValueError, match=r"noop_max.*at least 0"):
        make_vector(GAME, env_config={"noop_max": -1})
    assert make_vector(GAME, env_config={"obs_type": "ram"}).observation_space.shape == (128,)
    small = make_vector(GAME, env_config={"screen_size": 42, "full_action_space": True, "noop_max": 3})
    assert (small.observation_space.shape, small.action_space.n) == ((42, 42), 18)
    assert make_vector(GAME).max_episode_steps == 27_000


def test_a_game_is_rendered_by_a_single_environment_whoever_steps_it():
    config = PPOConfig().environment(GAME).env_runners(vectorize_mode="vector")
    with config.make_envs(1, render_mode="rgb_array") as envs:
        envs.reset([0])
        assert envs.render().shape == (210, 160, 3)
