"""A stored state of the environments continues bit by bit, in other objects, through a checkpoint on disk."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from parts import fast_if, one_in

from lockstep.envs import make_vector
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv
from lockstep.envs.toys.probes import BitFlipping, MemoryProbe, SparseMaze
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint

CLASSIC = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")
EPISODES = ((3, "terminate"), (5, "truncate"))


def short(env_id, **kwargs):
    """A short time limit, so that limits and resets lie on both sides of the checkpoint."""
    return lambda: gym.make(env_id, max_episode_steps=37, disable_env_checker=True, **kwargs)


def sync_vector(env_id, mode):
    return SyncVectorEnv([lambda: gym.make(env_id, max_episode_steps=37)] * 3, autoreset_mode=mode)


def ours(env, **options):
    return lambda: make_vector(env, num_envs=3, **options)


CASES = {
    **{env_id: ours(short(env_id)) for env_id in CLASSIC},
    "counting": ours(CountingEnv, env_config={"episodes": EPISODES}),
    "counting_nested": ours(CountingEnv, env_config={"episodes": EPISODES, "nested": True}),
    "rescaled": ours(lambda: gym.wrappers.RescaleAction(short("Pendulum-v1")(), np.float32(-1), np.float32(1))),
    "sync_next_step": lambda: make_vector(sync_vector("CartPole-v1", AutoresetMode.NEXT_STEP)),
    "sync_disabled": lambda: make_vector(sync_vector("Acrobot-v1", AutoresetMode.DISABLED)),
    "native_cartpole": ours("CartPole-v1", mode="vector", env_config={"max_episode_steps": 37}),
    "native_counting": lambda: make_vector(CountingVectorEnv(3, EPISODES)),
    "memory_probe": ours(MemoryProbe),
    "bit_flipping": ours(BitFlipping, env_config={"num_bits": 6}),
    "sparse_maze": ours(SparseMaze, env_config={"size": 3}),
}
MUJOCO = ("HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5", "Hopper-v5", "InvertedDoublePendulum-v5")


def trace(boundary, actions):
    lines = []
    for action in actions:
        result = boundary.step(action)
        final = () if result.final_obs is None else result.final_obs
        parts = (result.obs, result.rewards, result.terminateds, result.truncateds, *final)
        valid = None if result.valid is None else result.valid.tobytes()
        lines.append((*(flat(part).tobytes() for part in parts), valid))
    return lines


def flat(tree):
    if isinstance(tree, dict):
        return np.concatenate([flat(part) for part in tree.values()])
    if isinstance(tree, tuple):
        return np.concatenate([flat(part) for part in tree])
    return np.asarray(tree, dtype=np.float64).ravel()


def check_continues(make, tmp_path, before, after):
    first = make()
    first.reset([3, 4, 5])
    first.action_space.seed(0)
    actions = [np.stack([first.action_space.sample() for _ in range(3)]) for _ in range(before + after)]
    trace(first, actions[:before])
    state = first.get_state()
    write_checkpoint(tmp_path / "checkpoint", {"": {"env": state}})
    expected = trace(first, actions[before:])
    second = make()
    obs = second.set_state(read_checkpoint(tmp_path / "checkpoint")[""]["env"])
    np.testing.assert_array_equal(flat(obs), flat(state["obs"]))
    assert trace(second, actions[before:]) == expected
    if after > 40:
        assert any(len(line) > 5 for line in expected)
    first.close()
    second.close()


@pytest.mark.parametrize("before", fast_if((36).__eq__, [1, 36, 50]))
@pytest.mark.parametrize("case", CASES)
def test_continues_bit_by_bit(case, before, tmp_path):
    check_continues(CASES[case], tmp_path, before, 90)


@pytest.mark.parametrize("env_id", one_in(3, MUJOCO))
def test_mujoco_continues_bit_by_bit(env_id, tmp_path):
    pytest.importorskip("mujoco")
    check_continues(lambda: make_vector(short(env_id), num_envs=3), tmp_path, 25, 45)


@pytest.mark.parametrize("env_id", one_in(3, MUJOCO))
def test_mujoco_continues_from_every_step_with_and_without_contacts(env_id):
    """Arrays of contacts are of other sizes before and after the last integration, and in the other environment."""
    pytest.importorskip("mujoco")
    first, second = (make_vector(short(env_id)) for _ in range(2))
    first.reset([3])
    second.reset([7])
    first.action_space.seed(0)
    for _ in range(60):
        first.step(first.action_space.sample()[None])
        second.set_state(first.get_state())
        action = first.action_space.sample()[None]
        results = [boundary.step(action) for boundary in (first, second)]
        np.testing.assert_array_equal(flat(results[0].obs), flat(results[1].obs))
        assert results[0].rewards.tolist() == results[1].rewards.tolist()


def test_a_state_does_not_change_afterwards(tmp_path):
    boundary = CASES["CartPole-v1"]()
    boundary.reset([0, 1, 2])
    state = boundary.get_state()
    before = state["obs"].copy(), state["envs"][0]["inner"]["state"].copy()
    for _ in range(5):
        boundary.step(np.ones(3, dtype=np.int64))
    np.testing.assert_array_equal(state["obs"], before[0])
    np.testing.assert_array_equal(state["envs"][0]["inner"]["state"], before[1])


def test_environments_with_unknown_state_return_none():
    vector = gym.wrappers.vector.RecordEpisodeStatistics(sync_vector("CartPole-v1", AutoresetMode.SAME_STEP))
    stacked = gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 2)
    for env in (stacked, "FrozenLake-v1", vector):
        boundary = make_vector(env)
        boundary.reset([0] * boundary.num_envs)
        assert boundary.get_state() is None
    with pytest.raises(ValueError, match="cannot be put into a stored state"):
        boundary.set_state({})
    assert CASES["CartPole-v1"]().get_state() is None  # never reset: there is nothing to continue


def test_a_state_of_other_environments_is_refused():
    boundary = CASES["CartPole-v1"]()
    boundary.reset([0, 1, 2])
    state = boundary.get_state()
    with pytest.raises(ValueError, match="got 3 states for 2 environments"):
        make_vector("CartPole-v1", num_envs=2).set_state(state)
    with pytest.raises(ValueError, match=r"of a CartPoleEnv, the environment is a PendulumEnv"):
        make_vector("Pendulum-v1", num_envs=3).set_state(state)
