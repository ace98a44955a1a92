"""What collectors store, for every back end and autoreset mode, is what a single environment gives."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from acting_tools import Exploring, NotingBuffer
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from parts import one_in

from lockstep import PPOConfig, RLModuleSpec, RolloutStore
from lockstep.data.trees import map_tree
from lockstep.envs import LightSyncVectorEnv, WorkerVectorEnv, make_vector
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv
from lockstep.modules import RLModule
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import Collector, MalformedBufferError

EPISODES = ((1, "terminate"), (3, "truncate"), (2, "both"), (1, "truncate"), (4, "terminate"), (9, "truncate"))
NUM_ENVS = 4
COLLECTS = (24, 4, 48, 20)
MODES = ("NextStep", "SameStep", "Disabled")
GAMMA, LAMBDA = 0.9, 0.8
NAMES = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds")


def makers(nested=False):
    return [partial(CountingEnv, EPISODES, offset=row, nested=nested) for row in range(NUM_ENVS)]


class ReusesAll(LightSyncVectorEnv):
    """Gives its final observations in one array that the next ending overwrites, as a boundary may."""

    def step(self, actions):
        result = super().step(actions)
        if result.final_obs is not None:
            rows, final = result.final_obs
            self.shared = getattr(self, "shared", np.zeros((self.num_envs, 2), np.float32))
            self.shared[: len(rows)] = final
            result.final_obs = rows, self.shared[: len(rows)]
        return result


BACKENDS = {
    "light": lambda mode: LightSyncVectorEnv(makers()),
    "light_reusing_memory": lambda mode: ReusesAll(makers()),
    "workers": lambda mode: WorkerVectorEnv(makers()),
    "sync": lambda mode: SyncVectorEnv(makers(), autoreset_mode=mode),
    "sync_wrapped": lambda mode: gym.wrappers.vector.RecordEpisodeStatistics(
        SyncVectorEnv(makers(), autoreset_mode=mode)
    ),
    "async": lambda mode: AsyncVectorEnv(makers(), autoreset_mode=mode),
    "async_pipes": lambda mode: AsyncVectorEnv(makers(), shared_memory=False, autoreset_mode=mode),
    "native": lambda mode: CountingVectorEnv(NUM_ENVS, EPISODES, mode),
    "native_plain_final": lambda mode: CountingVectorEnv(NUM_ENVS, EPISODES, mode, plain_final_obs=True),
}
CASES = [
    ("light", "SameStep"),
    ("light_reusing_memory", "SameStep"),
    ("workers", "SameStep"),
    ("native_plain_final", "SameStep"),
    ("async_pipes", "NextStep"),
]
CASES += [(name, mode) for name in ("sync", "sync_wrapped", "async", "native") for mode in MODES]


def collector_of(env, frame_stack=1):
    boundary = make_vector(env)
    collector = Collector(Exploring().stacking(frame_stack, boundary), boundary)
    collector.buffer = RolloutStore(5, NUM_ENVS, collector.observation_space, boundary.action_space)
    return collector


def replaying(env, frame_stack=1, buffer=None, **options):
    buffer = VectorReplayBuffer(4000, NUM_ENVS, **options) if buffer is None else buffer
    boundary = make_vector(env)
    return Collector(Exploring().stacking(frame_stack, boundary), boundary, buffer=buffer, seed=1)


def rows_by_env(buffer):
    """Transitions of each environment in a replay buffer, oldest first, as tuples."""
    rows = [[] for _ in range(buffer.buffer_num)]
    indices = buffer.ring.in_order()
    data = buffer[indices]
    for k, index in enumerate(indices):
        rows[index % buffer.buffer_num].append(tuple(map_tree(lambda leaf, k=k: leaf[k], data[n]) for n in NAMES))
    return rows


def reference(env, actions):
    """(obs, action, reward, next_obs, terminated, truncated) of the same actions in one environment alone."""
    rows, (obs, _) = [], env.reset(seed=0)
    for action in actions:
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, next_obs, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return rows


def rows_of(episode):
    data = episode.get_data_dict()
    return [
        tuple(map_tree(lambda leaf, t=t: np.array(leaf[t]), data[name]) for name in NAMES) for t in range(len(episode))
    ]


def env_of(episode, store):
    """The environment of a piece: where its rewards lie in the store."""
    offset = episode.get_rewards().__array_interface__["data"][0] - store.rewards.__array_interface__["data"][0]
    return offset // store.rewards.itemsize % store.num_envs


def assert_rows(got, expected):
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected):
        for left, right in zip(one, other):
            assert_same(left, right)


def assert_same(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, tuple):
        for part, other in zip(left, right, strict=True):
            assert_same(part, other)
    else:
        np.testing.assert_array_equal(left, right)


def assert_as_alone(rows, nested=False):
    """The transitions of each environment are those of the same actions in it alone."""
    for b, of_one in enumerate(rows):
        assert_rows(of_one, reference(CountingEnv(EPISODES, offset=b, nested=nested), [row[1] for row in of_one]))


def gather_rows(collector, collects=COLLECTS):
    """Transitions by environment over several collects, and all pieces with their environment."""
    rows, pieces = [[] for _ in range(NUM_ENVS)], []
    for n_step in collects:
        collector.collect(n_step=n_step)
        for episode in collector.buffer.episodes():
            b = env_of(episode, collector.buffer)
            rows[b] += rows_of(episode)
            pieces.append(
                (b, episode.id_, episode.t_started, episode.t, map_tree(np.copy, episode.get_observations(0)))
            )
        collector.buffer.clear()
    return rows, pieces


@pytest.mark.parametrize("backend, mode", CASES)
def test_every_stored_transition_equals_the_single_environment(backend, mode):
    collector = collector_of(BACKENDS[backend](mode))
    with collector.env:
        rows, pieces = gather_rows(collector)
    assert all(sum(row[4] or row[5] for row in of_one) >= 5 for of_one in rows)
    assert_as_alone(rows)
    # an id for each episode, however many collects it spans, and where in its episode each piece begins
    names = {(b, int(first[1])): id_ for b, id_, _, _, first in pieces}
    assert len(set(names.values())) == len(names)
    for b, id_, t_started, _, first in pieces:
        assert names[b, int(first[1])] == id_
        assert t_started == first[0]
    assert any(t_started > 0 for _, _, t_started, _, _ in pieces)


@pytest.mark.parametrize("ignore_obs_next", one_in(2, [False, True]))
@pytest.mark.parametrize("backend, mode", CASES)
def test_every_replay_transition_equals_the_single_environment(backend, mode, ignore_obs_next):
    collector = replaying(BACKENDS[backend](mode), ignore_obs_next=ignore_obs_next)
    with collector.env:
        pieces = (4, 24, 4, 8, NUM_ENVS * 140)  # the last one is added in two
        steps = sum(collector.collect(n_step=n).n_collected_steps for n in pieces)
    assert len(collector.buffer) == steps
    rows = rows_by_env(collector.buffer)
    assert all(sum(row[4] or row[5] for row in of_one) >= 5 for of_one in rows)
    assert_as_alone(rows)


@pytest.mark.parametrize("backend, mode", CASES)
def test_n_step_is_reached_with_real_transitions_alone(backend, mode):
    collector = collector_of(BACKENDS[backend](mode))
    with collector.env:
        for n_step in (4, 48, 8):
            stats, store = collector.collect(n_step=n_step), collector.buffer
            assert n_step <= stats.n_collected_steps == len(store) < n_step + NUM_ENVS
            assert store.trajectories().num_rows == len(store) == np.count_nonzero(store.rewards[: store.size] >= 10.0)
            if not collector.env.has_invalid_rows:
                assert store.size == n_step // NUM_ENVS
            store.clear()


class ValueIsStep(RLModule):
    """V(obs) = obs[0], the step of the episode; uniform policy."""

    def setup(self):
        import torch

        self.weight = torch.nn.Parameter(torch.zeros(1))

    def _forward(self, batch):
        return {"action_dist_inputs": batch["obs"].new_zeros(len(batch["obs"]), 4) + self.weight}

    def forward_train(self, batch):
        return {**self._forward(batch), "vf_preds": self.compute_values(batch)}

    def compute_values(self, batch):
        return batch["obs"][:, 0] + 0 * self.weight


@pytest.fixture(scope="module")
def learner():
    config = PPOConfig().environment(CountingEnv).rl_module(rl_module_spec=RLModuleSpec(module_class=ValueIsStep))
    config.training(gamma=GAMMA, lambda_=LAMBDA, normalize_advantages=None)
    return config.build_learner()


def advantages_by_hand(piece):
    """Equations 11 and 12 of the GAE paper on one piece of an episode, from its true next observations."""
    advantages, following = [], 0.0
    for obs, _, reward, next_obs, terminated, _ in reversed(piece):
        next_value = 0.0 if terminated else next_obs[0]
        following = reward + GAMMA * next_value - obs[0] + GAMMA * LAMBDA * following
        advantages.append(following)
    return advantages[::-1]


@pytest.mark.parametrize("backend, mode", [("light", "SameStep"), ("sync", "NextStep"), ("native", "NextStep")])
def test_truncation_bootstraps_with_the_final_obs_and_termination_not(learner, backend, mode):
    collector = collector_of(BACKENDS[backend](mode))
    seen = set()
    with collector.env:
        for n_step in COLLECTS:
            collector.collect(n_step=n_step)
            trajectories = collector.buffer.trajectories()
            columns = learner.prepare_batch(trajectories, module_id="default_policy")
            pieces = [rows_of(episode) for episode in collector.buffer.episodes()]
            expected = {}
            for piece in pieces:
                seen.add((bool(piece[-1][4]), bool(piece[-1][5])))
                for row, advantage in zip(piece, advantages_by_hand(piece), strict=True):
                    expected.setdefault((tuple(row[0]), int(row[1])), []).append(advantage)
            got = {}
            for obs, action, advantage, target in zip(
                columns["obs"].numpy(), columns["actions"].numpy(), columns["advantages"], columns["value_targets"]
            ):
                got.setdefault((tuple(obs), int(action)), []).append(float(advantage))
                assert float(target) == pytest.approx(float(advantage) + obs[0], rel=1e-5)
            assert got.keys() == expected.keys()
            for key in got:
                np.testing.assert_allclose(sorted(got[key]), sorted(expected[key]), rtol=1e-4)
            collector.buffer.clear()
    assert seen >= {(False, False), (True, False), (False, True), (True, True)}


@pytest.mark.parametrize("vector", [LightSyncVectorEnv, partial(SyncVectorEnv, autoreset_mode="NextStep")])
def test_nested_observations_are_stored_leaf_by_leaf(vector):
    rows, _ = gather_rows(collector_of(vector(makers(True))))
    assert_as_alone(rows, nested=True)
    collector = replaying(vector(makers(True)))
    collector.collect(n_step=120)
    assert_as_alone(rows_by_env(collector.buffer), nested=True)


@pytest.mark.parametrize("backend, mode", [("light", "SameStep"), ("native", "NextStep"), ("sync", "Disabled")])
def test_frame_stacks_never_cross_episodes_and_the_final_stack_is_true(backend, mode):
    collector = collector_of(BACKENDS[backend](mode), frame_stack=3)
    with collector.env:
        rows, _ = gather_rows(collector)
    for b in range(NUM_ENVS):
        expected = []
        for obs, action, reward, next_obs, terminated, truncated in reference(
            CountingEnv(EPISODES, offset=b), [row[1] for row in rows[b]]
        ):
            stack = [[max(0.0, obs[0] - back), obs[1]] for back in (2, 1, 0)]
            following = [[max(0.0, next_obs[0] - back), next_obs[1]] for back in (2, 1, 0)]
            expected.append((stack, action, reward, following, terminated, truncated))
        assert_rows(rows[b], expected)


def test_envpool_transitions_follow_the_equations_of_the_pole():
    pytest.importorskip("envpool")
    boundary = make_vector("CartPole-v1", num_envs=4, mode="envpool")
    collector = Collector(Exploring(), boundary)
    collector.policy.draw_noise = lambda rng, shape: rng.integers(0, 2, shape)
    collector.buffer = RolloutStore(64, 4, boundary.observation_space, boundary.action_space)
    with boundary:
        stats = collector.collect(n_step=400)
    single = gym.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    episodes = list(collector.buffer.episodes())
    assert 400 <= sum(len(episode) for episode in episodes) == stats.n_collected_steps < 404
    assert sum(episode.is_terminated for episode in episodes) == stats.n_collected_episodes > 8
    for episode in episodes:
        for obs, action, reward, next_obs, terminated, _ in rows_of(episode):
            single.state = tuple(np.asarray(obs, np.float64))
            single.steps_beyond_terminated = None
            expected, _, ended, _, _ = single.step(int(action))
            np.testing.assert_allclose(next_obs, expected, atol=1e-4)
            assert (reward, bool(terminated)) == (1.0, ended)
    assert sorted(stats.lens) == sorted(e.t for e in episodes if e.is_done)


class PaysForResets(CountingVectorEnv):
    """Its reset rows come with a reward, which is nobody's."""

    def step(self, actions):
        resetting = self._ended.copy()
        obs, rewards, terminated, truncated, infos = super().step(actions)
        return obs, rewards + 1000.0 * resetting, terminated, truncated, infos


def test_a_reward_in_a_row_that_only_resets_belongs_to_no_episode():
    collector = collector_of(PaysForResets(NUM_ENVS, EPISODES, "NextStep"))
    with collector.env:
        stats = collector.collect(n_step=160)
    store = collector.buffer
    assert (store.rewards[: store.size] >= 1000.0).any()
    assert stats.n_collected_episodes > 20
    assert sorted(stats.returns) == sorted(e.get_return() for e in store.episodes() if e.is_done)
    assert max(stats.returns) < 1000.0


# -- in a replay buffer ---


def test_the_buffer_and_the_collector_report_equal_returns_and_lengths():
    buffer = NotingBuffer(4000, NUM_ENVS)
    stats = replaying(BACKENDS["light"]("SameStep"), buffer=buffer).collect(n_step=200)
    assert sorted(told for told in buffer.told if told[1]) == sorted(zip(stats.returns, stats.lens))


def test_random_actions_first_and_the_policy_after_them_glue_no_episodes():
    collector = replaying(BACKENDS["light"]("SameStep"))
    collector.collect(n_step=36, random=True)
    collector.collect(n_step=36)
    assert_as_alone(rows_by_env(collector.buffer))
    assert collector.num_resets == 1


class GivesNan(CountingEnv):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return (obs, float("nan") if self.step_number == 140 else reward, *rest)


def test_nan_in_a_new_row_is_refused_by_environment_step_and_column():
    collector = replaying(
        LightSyncVectorEnv([CountingEnv, CountingEnv, lambda: GivesNan(((500, "terminate"),))] + [CountingEnv])
    )
    with pytest.raises(MalformedBufferError, match=r"environment 2 .* column 'rewards' at step 139 of this collect"):
        collector.collect(n_step=200 * NUM_ENVS)
    assert len(collector.buffer) == 128 * NUM_ENVS
    assert np.isfinite(collector.buffer.all()["rewards"]).all()
    collector.collect(n_step=4 * NUM_ENVS)  # the next one begins new episodes
    assert collector.num_resets == 2
    buffer = VectorReplayBuffer(4000, NUM_ENVS)
    free = Collector(Exploring(), collector.env, buffer, raise_on_nan_in_buffer=False)
    free.collect(n_step=200 * NUM_ENVS)
    assert free.buffer.hasnull()


def test_stacks_are_put_together_from_single_frames():
    stacked = replaying(LightSyncVectorEnv(makers()), frame_stack=3, stack_num=3, save_only_last_obs=True)
    stacked.collect(n_step=120)
    batch = stacked.buffer.sample(200)
    for name in ("obs", "new_obs"):
        frames = batch[name]
        back = np.maximum(frames[:, -1:, 0] - np.array([2, 1, 0]), 0)
        np.testing.assert_array_equal(frames[:, :, 0], back)
        assert (frames[:, :, 1] == frames[:, -1:, 1]).all()


def test_a_collector_continues_bit_by_bit_with_its_buffer_saved_beside():
    whole, first, second = (replaying(BACKENDS["light"]("SameStep"), n_step=3) for _ in range(3))
    for collector in (whole, first):
        collector.collect(n_step=20)
    second.set_state(first.get_state())
    second.buffer.set_state(first.buffer.get_state())
    for collector in (whole, second):
        collector.collect(n_step=40)
    drawn, expected = second.buffer.all(), whole.buffer.all()
    for name, column in expected.items():
        np.testing.assert_array_equal(drawn[name], column, err_msg=name)
