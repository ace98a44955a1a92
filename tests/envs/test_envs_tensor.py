"""Tensor environments: gymnasium's and MinAtar's numbers, steps for a graph, and environments of other libraries."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from parts import fast_if
from scipy.stats import kstest
from tensor_trees import MaskedSteps, TreeCartPole, TreePendulum, flat_of
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep import PPOConfig
from lockstep.data.trees import leaves, map_tree, named_leaves, rows_of, trees_equal
from lockstep.envs import TENSOR_ENVS, JaxEnv, RslRlEnv, TensorEnv, make_tensor_env, make_vector
from lockstep.envs.tensor import CartPole, Pendulum, SingleTensorEnv, TensorVecEnv
from lockstep.rollout import TensorCollector

CLASSIC = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1")
RESETS = {"CartPole-v1": 0.05 * np.ones(4), "Pendulum-v1": np.array([math.pi, 1.0]), "Acrobot-v1": 0.1 * np.ones(4)}
"""first states lie evenly between these numbers and their negatives"""


def random_actions(env, generator):
    space = env.single_action_space
    if isinstance(space, gym.spaces.Discrete):
        return torch.randint(0, int(space.n), (env.num_envs,), generator=generator)
    return torch.empty(env.num_envs, *space.shape).uniform_(-2.5, 2.5, generator=generator)  # some out of bounds


def play(env, num_steps, seed=0):
    """Return the results of `num_steps` random steps."""
    generator = torch.Generator().manual_seed(seed)
    return [env.step(random_actions(env, generator)) for _ in range(num_steps)]


def assert_same(one, other):
    for (*left, extras), (*right, others) in zip(one, other, strict=True):
        assert extras.keys() == others.keys()
        for a, b in zip([*left, *extras.values()], [*right, *others.values()], strict=True):
            assert torch.equal(a, b)


# -- gymnasium's numbers ---


@pytest.mark.parametrize(
    "dtype, tolerance",
    fast_if(lambda dtype, _: dtype is torch.float64, [(torch.float64, 1e-12), (torch.float32, 2e-5)]),
)
@pytest.mark.parametrize("limit", fast_if((25).__eq__, [None, 25]))
@pytest.mark.parametrize("name", CLASSIC)
def test_a_step_equals_gymnasiums(name, limit, dtype, tolerance):
    """From the same state, at each step; ends, their kind, and rewards as well."""
    num_envs = 3
    env = TENSOR_ENVS[f"tensor/{name}"](num_envs, dtype=dtype, max_episode_length=limit)
    singles = [gym.make(name, max_episode_steps=limit, disable_env_checker=True) for _ in range(num_envs)]
    for single in singles:
        single.reset(seed=0)
    generator, ends = torch.Generator().manual_seed(1), 0
    for _ in range(60 if limit else 510 if name == "Acrobot-v1" else 210):
        before = env.get_state()["state"]["physics"].double().numpy()
        actions = random_actions(env, generator)
        obs, rewards, dones, extras = env.step(actions)
        after = env.get_state()["state"]["physics"].double().numpy()
        for row, single in enumerate(singles):
            single.unwrapped.state = before[row].copy()
            expected, reward, terminated, truncated, _ = single.step(actions[row].numpy())
            np.testing.assert_allclose(extras["final_obs"][row], expected, rtol=0, atol=max(tolerance, 1e-6))
            np.testing.assert_allclose(rewards[row], reward, rtol=1e-6, atol=max(tolerance, 1e-6))
            assert bool(dones[row]) == (terminated or truncated)
            assert bool(extras["time_outs"][row]) == (truncated and not terminated)
            if dones[row]:
                ends += 1
                single.reset()
                assert (np.abs(after[row]) <= RESETS[name] + 1e-7).all()
            else:
                np.testing.assert_allclose(after[row], single.unwrapped.state, rtol=0, atol=tolerance)
                assert torch.equal(obs[row], extras["final_obs"][row])
    assert ends >= num_envs


@pytest.mark.parametrize("name", CLASSIC)
def test_steps_far_from_the_start_equal_gymnasiums(name):
    """At speeds up to the limits, where angles and speeds leave their ranges."""
    env = make_tensor_env(f"tensor/{name}", 400, dtype=torch.float64)
    highs = {"CartPole-v1": [2.3, 9, 0.2, 9], "Pendulum-v1": [30, 8], "Acrobot-v1": [math.pi, math.pi, 12.5, 28]}
    generator = torch.Generator().manual_seed(0)
    physics = (torch.rand(400, len(highs[name]), dtype=torch.float64, generator=generator) * 2 - 1) * torch.tensor(
        highs[name], dtype=torch.float64
    )
    env.set_state({**env.get_state(), "state": {"physics": physics}})
    actions = random_actions(env, generator)
    _, rewards, dones, extras = env.step(actions)
    single = gym.make(name, disable_env_checker=True).unwrapped
    for row in range(400):
        single.reset()
        single.state = physics[row].numpy()
        expected, reward, terminated, _, _ = single.step(actions[row].numpy())
        np.testing.assert_allclose(extras["final_obs"][row], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(rewards[row], reward, rtol=1e-6)
        assert bool(dones[row]) == terminated


@pytest.mark.parametrize("name", CLASSIC)
def test_spaces_and_limits_are_gymnasiums(name):
    env, single = make_tensor_env(f"tensor/{name}", 3), gym.make(name)
    assert env.single_observation_space == single.observation_space
    assert env.single_action_space == single.action_space
    assert env.max_episode_length == single.spec.max_episode_steps
    obs = env.get_observations()
    assert obs.shape == (3, *single.observation_space.shape)
    assert obs.dtype == torch.float32


@pytest.mark.parametrize("name", CLASSIC)
def test_first_states_are_spread_evenly_as_gymnasiums(name):
    """Those of a reset, and those that a step begins with."""
    env = TENSOR_ENVS[f"tensor/{name}"](20_000, seed=3, max_episode_length=1)
    before = env.get_state()["state"]["physics"]
    (_, _, dones, _), *_ = play(env, 1)
    assert dones.all()
    after = env.get_state()["state"]["physics"]
    for states in (before, after):
        for column, high in enumerate(RESETS[name]):
            assert kstest(states[:, column].numpy(), "uniform", args=(-high, 2 * high)).pvalue > 1e-3
        assert np.abs(np.corrcoef(states.numpy().T) - np.eye(states.shape[1])).max() < 0.03
    assert np.abs(np.corrcoef(before[:, 0], after[:, 0])[0, 1]) < 0.03


def test_an_end_by_the_task_in_the_last_step_is_no_time_out():
    env = TENSOR_ENVS["tensor/CartPole-v1"](2, max_episode_length=5)
    env.episode_length_buf = torch.tensor([4, 4])
    state = env.get_state()
    state["state"]["physics"] = torch.tensor([[2.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    env.set_state(state)
    _, _, dones, extras = env.step(torch.tensor([0, 0]))
    assert dones.tolist() == [True, True]
    assert extras["time_outs"].tolist() == [False, True]
    assert env.episode_length_buf.tolist() == [0, 0]


# -- MinAtar's game ---


class Scripted:
    """Gives MinAtar's game its random numbers."""

    def __init__(self):
        self.sticky, self.side = 1.0, 0

    def rand(self):
        return self.sticky

    def randint(self, _):
        return self.side


def test_breakout_is_minatars_game():
    """With the same random choices, played well enough that walls are cleared and built again."""
    minatar = pytest.importorskip("minatar")
    num_envs, cleared, ends, points = 8, 0, 0, 0
    env = make_tensor_env("tensor/MinAtar-Breakout-v1", num_envs, seed=5)
    own = torch.Generator()
    game_actions = [0, 1, 3]  # of the six that MinAtar has; those of MinAtar/Breakout-v1
    games = [minatar.Environment("breakout") for _ in range(num_envs)]
    first = env.get_state()["state"]["game"]
    for game, numbers in zip(games, first):
        game.random = game.env.random = Scripted()
        game.random.side = int(numbers[0] == 9)
        game.reset()
    rng, struck_twice = np.random.default_rng(0), 0
    for step in range(1_200):
        if step % 5 == 0 and step >= 1_000:  # what play seldom reaches
            scatter(env, games, rng)
        own.set_state(env.get_state()["generator"])
        draws = torch.empty(num_envs, 2).uniform_(0, 1, generator=own)
        wanted = [g.env.ball_x - g.env.pos if g.env.ball_y < 7 else next_column(g.env) - g.env.pos for g in games]
        actions = [0 if way == 0 else 1 if way < 0 else 2 for way in wanted]
        actions = [int(rng.integers(3)) if rng.random() < 0.05 else action for action in actions]
        obs, rewards, dones, extras = env.step(torch.tensor(actions))
        for row, game in enumerate(games):
            game.random.sticky, game.random.side = float(draws[row, 0]), int(draws[row, 1] >= 0.5)
            bricks, struck = game.env.brick_map.sum(), game.env.strike
            reward, terminal = game.act(game_actions[actions[row]])
            cleared += game.env.brick_map.sum() > bricks
            assert np.array_equal(extras["final_obs"][row].numpy(), game.state())
            assert (float(rewards[row]), bool(dones[row])) == (reward, terminal)
            struck_twice += struck and game.env.strike
            points += reward
            if terminal:
                ends += 1
                game.reset()
            assert np.array_equal(obs[row].numpy(), game.state())
        assert not extras["time_outs"].any()
    assert cleared >= 1
    assert struck_twice >= 5
    assert ends >= 20
    assert points >= 300


def scatter(env, games, rng):
    """Put the same games, with bricks and ball anywhere, into both."""
    state = env.get_state()
    for row, game in enumerate(games):
        inner = game.env
        inner.brick_map[1:4] = rng.integers(0, 2, (3, 10))
        inner.ball_x, inner.ball_y, inner.pos, inner.last_x = (int(rng.integers(10)) for _ in range(4))
        inner.ball_y, inner.last_y, inner.ball_dir = min(inner.ball_y, 8), inner.ball_y, int(rng.integers(4))
        inner.strike = bool(rng.integers(2))
        ways = ((-1, -1), (1, -1), (1, 1), (-1, 1))[inner.ball_dir]
        numbers = (inner.ball_x, inner.ball_y, *ways, inner.pos, inner.last_x, inner.last_y, inner.strike)
        state["state"]["game"][row] = torch.tensor([int(number) for number in numbers])
        state["state"]["bricks"][row] = torch.from_numpy(inner.brick_map.reshape(-1) == 1)
    env.set_state(state)


def next_column(game):
    """Return the column to which the ball flies next."""
    column = game.ball_x + (1 if game.ball_dir in (1, 2) else -1)
    return min(max(column, 0), 9)


def test_breakout_has_the_spaces_of_minatars_environment():
    pytest.importorskip("minatar")
    from lockstep.envs.make import single_env_factory

    single, env = single_env_factory("MinAtar/Breakout-v1")(), make_tensor_env("tensor/MinAtar-Breakout-v1", 2)
    assert env.single_observation_space == single.observation_space
    assert env.single_action_space == single.action_space
    assert env.get_observations().dtype == torch.bool
    assert env.max_episode_length is None


# -- one step, many times ---


class Operations(TorchDispatchMode):
    """Lists the operations that are not views."""

    views = {"unbind", "view", "unsqueeze", "squeeze", "select", "slice", "expand", "split", "detach", "empty"}

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split("::")[1].split(".")[0]
        if name not in self.views:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


WAITS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "index", "_unique2", "is_nonzero", "equal"}


@pytest.mark.parametrize("env_id, most", [*zip(TENSOR_ENVS, (24, 40, 135, 80), strict=True)])
def test_a_step_waits_for_nothing_and_takes_few_operations(env_id, most):
    env = make_tensor_env(env_id, 5)
    actions = random_actions(env, torch.Generator())
    with Operations() as found:
        env.step(actions)
    assert not WAITS & set(found.names)
    assert len(found.names) <= most


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_a_captured_step_continues_from_the_state(env_id):
    """As a CUDA graph does: the operations of one step are recorded with their memory, and only they are repeated."""
    env, recorded = (TENSOR_ENVS[env_id](7, seed=2, max_episode_length=20) for _ in range(2))
    state, generator = recorded.get_state(), torch.Generator().manual_seed(0)
    actions, draws = random_actions(recorded, generator), recorded.draw()
    graph = make_fx(lambda actions, draws: recorded.transition(actions, draws))(actions, draws)
    recorded.set_state(state)
    for _ in range(60):
        actions = random_actions(env, generator)
        assert_same([env.step(actions)], [graph(actions, recorded.draw())])
    assert torch.equal(env.episode_length_buf, recorded.episode_length_buf)
    assert torch.equal(env.get_observations(), recorded.get_observations())


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_seeds_and_states_bring_the_same_bits(env_id):
    env, other = make_tensor_env(env_id, 4, seed=7), make_tensor_env(env_id, 4, seed=8)
    play(env, 30)
    state = env.get_state()
    following = play(env, 40, seed=1)
    other.set_state(state)
    assert_same(following, play(other, 40, seed=1))
    first = env.reset(seed=7)
    assert torch.equal(first, make_tensor_env(env_id, 4, seed=7).get_observations())
    again = play(env, 40)
    assert_same(again, play(make_tensor_env(env_id, 4, seed=7), 40))
    assert state["generator"].dtype == torch.uint8
    assert not torch.equal(env.reset(seed=8), first) or env_id.startswith("tensor/MinAtar")


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_tensors_that_a_step_returned_may_be_written_to(env_id):
    env, other = make_tensor_env(env_id, 4), make_tensor_env(env_id, 4)
    expected = play(env, 30)
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(30):
        other.get_observations().zero_()
        obs, rewards, dones, extras = other.step(random_actions(other, generator))
        found.append((obs.clone(), rewards.clone(), dones.clone(), {key: x.clone() for key, x in extras.items()}))
        for tensor in (obs, rewards, dones, *extras.values()):
            tensor.zero_()
    assert_same(expected, found)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_a_cuda_graph_holds_a_step(env_id):
    env, captured = (TENSOR_ENVS[env_id](64, "cuda", seed=2, max_episode_length=20) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    actions = random_actions(env, generator).cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        captured.step(actions)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(captured.generator)
    with torch.cuda.graph(graph):
        outcome = captured.step(actions)
    env.reset(seed=3)
    captured.reset(seed=3)
    for _ in range(60):
        actions.copy_(random_actions(env, generator))
        expected = env.step(actions)
        graph.replay()
        assert_same([expected], [outcome])


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: make_tensor_env("tensor/CartPole-v0", 2), ["CartPole-v0", *TENSOR_ENVS, "Did you mean"]),
        (lambda: make_tensor_env("tensor/CartPole-v1", 0), ["num_envs=0", "at least 1"]),
        (lambda: make_tensor_env("tensor/CartPole-v1", 2, dtype=torch.float16), ["float16", "float32", "float64"]),
        (lambda: make_tensor_env("tensor/CartPole-v1", 2, seed=-1), ["seed=-1"]),
        (lambda: make_tensor_env("tensor/CartPole-v1", 2).step(torch.zeros(3, dtype=torch.int64)), ["(3,)", "(2,)"]),
        (lambda: make_tensor_env("tensor/Pendulum-v1", 2).step(torch.zeros(2)), ["(2,)", "(2, 1)"]),
        (
            lambda: make_tensor_env("tensor/CartPole-v1", 2).set_state(
                make_tensor_env("tensor/CartPole-v1", 3).get_state()
            ),
            ["other environments", "(3, 4)", "(2, 4)"],
        ),
    ],
)
def test_errors_say_what_is_allowed(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert [word for word in words if word not in str(error.value)] == []


# -- environments of other libraries ---


class Simulator:
    """Counts steps; its three rows end every 7, 3 and 5 steps, that in the middle by its time limit.

    Its form is that of rsl_rl's `VecEnv`, of which there are some.
    """

    lengths = torch.tensor([7, 3, 5])

    num_envs, num_actions, max_episode_length, device = 3, 2, 5, "cpu"

    def __init__(self, form):
        self.form, self.seeds = form, []
        self.episode_length_buf = torch.zeros(3, dtype=torch.long)
        self.buffer, self.rewards = torch.zeros(3, 4), torch.zeros(3)
        self.extras = {}

    def observed(self):
        self.buffer[:] = self.episode_length_buf[:, None]
        critic = torch.cat((self.buffer, self.buffer), 1)
        if self.form in ("tensor", "legged_gym"):
            return self.buffer
        if self.form == "tuple":
            return self.buffer, {"observations": {"critic": critic}}
        groups = {"policy": self.buffer, "critic": critic}
        if self.form == "tensordict":
            return pytest.importorskip("tensordict").TensorDict(groups, batch_size=[3])
        return groups

    def get_observations(self):
        return self.observed()

    def reset(self):
        self.episode_length_buf[:] = 0
        return self.observed(), {}

    def seed(self, seed):
        self.seeds.append(seed)

    def step(self, actions):
        self.episode_length_buf += 1
        self.rewards += actions.sum(1)
        dones = self.episode_length_buf >= self.lengths
        if dones.any():  # told in such steps only; afterwards the old ones stay
            self.extras["time_outs"] = dones & torch.tensor([False, True, False])
        self.episode_length_buf[dones] = 0
        obs = self.observed()
        if self.form == "tuple":
            obs, extras = obs
            self.extras.update(extras)
        if self.form == "legged_gym":
            return obs, torch.cat((obs, obs), 1), self.rewards, dones.long(), self.extras
        return obs, self.rewards, dones.long(), self.extras


class LeggedGym(Simulator):
    def get_privileged_observations(self):
        return torch.cat((self.observed(), self.observed()), 1)


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict", "tensordict", "legged_gym"])
def test_environments_in_each_form_of_rsl_rl_are_stepped(form):
    simulator = (LeggedGym if form == "legged_gym" else Simulator)(form)
    env = RslRlEnv(simulator)
    assert (env.num_envs, env.device, env.max_episode_length) == (3, torch.device("cpu"), 5)
    has_critic = form != "tensor"
    shapes = {"policy": (4,), "critic": (8,)} if has_critic else {}
    space = env.single_observation_space
    assert {name: part.shape for name, part in space.spaces.items()} == shapes if has_critic else space.shape == (4,)
    assert env.observation_groups == (
        {"policy": ["policy"], "critic": ["critic"], "teacher": ["policy"], "intrinsic": ["policy"]}
        if has_critic
        else {}
    )
    assert env.single_action_space.shape == (2,)
    assert not env.gives_final_obs
    assert not env.capturable
    first = env.reset(seed=11)
    assert (first["policy"] if has_critic else first).tolist() == [[0.0] * 4] * 3
    assert simulator.seeds == [11]
    results = []
    for step in range(1, 8):
        observed, rewards, dones, extras = env.step(torch.ones(3, 2))
        obs = observed["policy"] if has_critic else observed
        results.append((obs, rewards))
        assert dones.dtype == torch.bool
        assert dones.tolist() == [step % length == 0 for length in (7, 3, 5)]
        assert extras["time_outs"].tolist() == [False, step % 3 == 0, False]
        assert "final_obs" not in extras
        if has_critic:
            assert torch.equal(observed["critic"], torch.cat((obs, obs), 1))
        assert trees_equal(env.get_observations(), observed)
    for step, (obs, rewards) in enumerate(results, 1):  # not overwritten by later steps
        assert obs[:, 0].tolist() == [step % length for length in (7, 3, 5)]
        assert rewards.tolist() == [2.0 * step] * 3
    env.episode_length_buf = torch.tensor([0, 1, 2])
    assert simulator.episode_length_buf.tolist() == [0, 1, 2]


def test_missing_methods_of_rsl_rls_interface_are_named():
    with pytest.raises(TypeError, match=r"Env has no .*num_actions|num_actions.*get_observations"):
        RslRlEnv(gym.make("CartPole-v1"))
    env = RslRlEnv(Simulator("tensor"))
    with pytest.raises(ValueError, match=r"\(3, 1\).*\(3, 2\)"):
        env.step(torch.zeros(3, 1))
    assert env.get_state() is None
    with pytest.raises(ValueError, match="cannot be put into a stored state"):
        env.set_state({})
    simulator = Simulator("tensor")
    type(simulator).seed, kept = property(), Simulator.seed
    try:
        with pytest.warns(UserWarning, match="seed=3 is ignored"):
            RslRlEnv(simulator).reset(seed=3)
    finally:
        Simulator.seed = kept


@pytest.mark.parametrize(
    ("obs_groups", "words"),
    [
        ({"actors": ["policy"]}, ["actors", "did you mean 'actor'"]),
        ({"actor": []}, ["'actor'", "list"]),
        ({"actor": "policy"}, ["'actor'", "list"]),
        ({"critic": ["critik"]}, ["'critic'", "'critik'", "'critic'"]),
        ({"actor": ["policy"], "student": ["critic"]}, ["two sets for the policy"]),
    ],
)
def test_bad_sets_of_rsl_rl_are_refused_by_name(obs_groups, words):
    with pytest.raises(ValueError) as error:
        RslRlEnv(Simulator("dict"), obs_groups=obs_groups)
    assert [word for word in words if word not in str(error.value)] == []


def test_sets_for_an_environment_with_one_tensor_are_refused():
    with pytest.raises(ValueError, match="are one tensor"):
        RslRlEnv(Simulator("tensor"), obs_groups={"actor": ["policy"]})


class Groups(Simulator):
    """Observes the groups that it is given: their sizes, also in groups within groups."""

    def __init__(self, **sizes):
        self.sizes = sizes
        super().__init__("groups")

    def observed(self):
        return self.of(self.sizes)

    def of(self, sizes):
        def entry(size):
            return self.of(size) if isinstance(size, dict) else torch.zeros(3, size) + self.episode_length_buf[:, None]

        return {name: entry(size) for name, size in sizes.items()}


NESTED = {"sensors": {"left": 2, "right": 3}, "policy": 1}


@pytest.mark.parametrize(
    ("sizes", "obs_groups", "expected"),
    [
        ({"a": 1, "b": 2}, None, {}),
        ({"a": 1, "b": 2}, {"actor": ["b", "a"]}, {"policy": ["b", "a"]}),
        ({"a": 1, "b": 2}, {"student": ["a"], "teacher": ["a", "b"]}, {"policy": ["a"], "teacher": ["a", "b"]}),
        ({"a": 1, "b": 2}, {"policy": ["a"], "rnd_state": ["b"]}, {"policy": ["a"], "intrinsic": ["b"]}),
        (
            {"policy": 1, "critic": 2, "rnd_state": 3},
            {"actor": ["critic"]},
            {"policy": ["critic"], "critic": ["critic"], "intrinsic": ["rnd_state"], "teacher": ["policy"]},
        ),
        (
            NESTED,
            {"critic": ["sensors/left", "policy"], "teacher": ["sensors"]},
            {
                "policy": ["policy"],
                "critic": ["sensors/left", "policy"],
                "teacher": ["sensors"],
                "intrinsic": ["policy"],
            },
        ),
    ],
)
def test_sets_of_rsl_rl_become_groups_of_parts(sizes, obs_groups, expected):
    """As rsl_rl resolves them: a set that is left out is the group of its name, or else the group "policy"."""
    env = RslRlEnv(Groups(**sizes), obs_groups=obs_groups)
    assert env.observation_groups == expected
    assert make_vector(env).observation_groups == expected


def test_groups_within_groups_are_entries_of_the_space():
    env = RslRlEnv(Groups(**NESTED))
    assert {path: leaf.shape for path, leaf in named_leaves("obs", env.get_observations())} == {
        "obs/sensors/left": (3, 2),
        "obs/sensors/right": (3, 3),
        "obs/policy": (3, 1),
    }
    assert list(env.single_observation_space.spaces) == ["sensors", "policy"]
    assert env.single_observation_space["sensors"]["right"].shape == (3,)
    boundary = make_vector(env)
    boundary.reset([0] * 3)
    result = boundary.step(np.zeros((3, 2), np.float32))
    assert result.obs["sensors"]["left"].tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize("sizes", [{"a": 2, "b": 2}, {"a": 1}, {"a": 1, "b": {"c": 2}}])
def test_groups_that_change_their_shapes_are_refused(sizes):
    simulator = Groups(a=1, b=2)
    env = RslRlEnv(simulator)
    simulator.sizes = sizes
    with pytest.raises(ValueError, match=r"Groups gave observations of the shapes .*'a'.*groups and shapes must not"):
        env.step(torch.zeros(3, 2))


def test_the_names_of_groups_of_version_02_still_work():
    with pytest.warns(DeprecationWarning, match=r"policy_group='a'.*obs_groups=\{'actor': \['a'\]\}"):
        env = RslRlEnv(Groups(a=1, b=2), policy_group="a")
    assert env.observation_groups == {"policy": ["a"]}
    with pytest.warns(DeprecationWarning, match="critic_group"):
        env = RslRlEnv(Groups(policy=1, b=2), critic_group="b")
    assert (env.observation_groups["policy"], env.observation_groups["critic"]) == (["policy"], ["b"])


def test_entries_that_are_no_floats_keep_their_types():
    class Kinds(Simulator):
        def observed(self):
            numbers = torch.zeros(3, 2)
            kinds = {
                "half": numbers.half(),
                "double": numbers.double(),
                "bytes": numbers.byte(),
                "flags": numbers.bool(),
            }
            return {**kinds, "counts": numbers.long()}

    env = RslRlEnv(Kinds("dict"))
    dtypes = {name: part.dtype for name, part in env.single_observation_space.spaces.items()}
    assert dtypes == {
        "half": np.float32,
        "double": np.float64,
        "bytes": np.uint8,
        "flags": np.bool_,
        "counts": np.int64,
    }
    boundary = make_vector(env)
    obs = boundary.reset([0] * 3)
    assert all(rows_of(obs, row) in env.single_observation_space for row in range(3))


def jax_counter(num_envs=3, final=True, **options):
    """A JAX environment: counts to 3, or is cut after 2 steps of action 1."""
    jax = pytest.importorskip("jax")
    number = jax.numpy.float32

    def reset(key):
        return number(0).reshape(1), {"count": number(0), "first": jax.random.uniform(key)}

    def step(key, state, action):
        count = state["count"] + 1
        terminated, truncated = count >= 3, (count >= 2) & (action == 1)
        first, fresh = reset(key)
        arrived = (count + 0 * first[0]).reshape(1)
        following = {"count": count, "first": state["first"]}
        done = terminated | truncated
        state = jax.tree.map(lambda a, b: jax.numpy.where(done, a, b), fresh, following)
        info = {"final_observation": arrived} if final else {}
        return jax.numpy.where(done, first, arrived), state, count, terminated, truncated, info

    box = gym.spaces.Box(0, 3, (1,))
    env = JaxEnv(reset, step, box, gym.spaces.Discrete(2), num_envs=num_envs, **options)
    env.functions = reset, step
    return env


def test_functions_of_jax_are_stepped():
    env = jax_counter()
    assert env.gives_final_obs
    assert env.get_observations().tolist() == [[0.0]] * 3
    seen = []
    for actions in ([0, 1, 0], [0, 1, 0], [0, 1, 1]):  # at last both ends at once: not by the limit alone
        obs, rewards, dones, extras = env.step(torch.tensor(actions))
        seen.append(
            (obs[:, 0].tolist(), dones.tolist(), extras["time_outs"].tolist(), extras["final_obs"][:, 0].tolist())
        )
        assert rewards.dtype == torch.float32
        assert torch.equal(rewards, extras["final_obs"][:, 0])
    no, yes = False, True
    assert seen == [
        ([1, 1, 1], [no, no, no], [no, no, no], [1, 1, 1]),
        ([2, 0, 2], [no, yes, no], [no, yes, no], [2, 2, 2]),
        ([0, 1, 0], [yes, no, yes], [no, no, no], [3, 1, 3]),
    ]
    assert env.episode_length_buf.tolist() == [0, 1, 0]
    assert not jax_counter(final=False).gives_final_obs


def test_a_jax_environment_continues_from_its_state():
    env, other = jax_counter(seed=1), jax_counter(seed=2)
    play(env, 4)
    state = env.get_state()
    following = play(env, 20, seed=1)
    other.set_state(state)
    assert_same(following, play(other, 20, seed=1))
    for name, leaf in env.get_state()["leaves"].items():
        assert torch.equal(leaf, other.get_state()["leaves"][name])
    with pytest.raises(ValueError, match="other environments"):
        jax_counter(num_envs=2).set_state(state)


def test_gymnaxs_cartpole_is_ours():
    pytest.importorskip("gymnax")
    theirs, ours = JaxEnv.from_gymnax("CartPole-v1", num_envs=8, seed=4), make_tensor_env("tensor/CartPole-v1", 8)
    assert theirs.max_episode_length == 500
    assert theirs.gives_final_obs
    generator, ends = torch.Generator().manual_seed(0), 0
    for _ in range(200):
        state = ours.get_state()
        state["state"]["physics"] = theirs.get_observations()
        ours.set_state(state)
        actions = random_actions(ours, generator)
        _, rewards, dones, extras = ours.step(actions)
        _, other_rewards, other_dones, other_extras = theirs.step(actions)
        assert torch.allclose(extras["final_obs"], other_extras["final_obs"], atol=1e-6)
        assert torch.equal(rewards, other_rewards)
        assert torch.equal(dones, other_dones)
        assert torch.equal(extras["time_outs"], other_extras["time_outs"])
        assert torch.equal(ours.episode_length_buf, theirs.episode_length_buf)
        ends += int(dones.sum())
    assert ends > 20
    assert JaxEnv.from_gymnax("Pendulum-v1", num_envs=2).step(torch.zeros(2, 1))[0].shape == (2, 3)


# -- memory that a subclass hands on ---


def joined(obs):
    """Return the numbers of a tree of observations as one tensor."""
    return torch.cat(list(leaves(obs)), -1)


class UncopiedState(TensorEnv):
    """Position that moves in every step, and goal of an episode. Returns tensors of the state without copies."""

    num_draws = 1
    time_limit = 3
    single_observation_space = gym.spaces.Box(-9, 9, (3,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def make_state(self):
        names = ("goal", "place", "last_place", "earned")
        self.buffer = torch.zeros(self.num_envs, 3)
        return {name: torch.zeros(self.num_envs) for name in names}

    def begin(self, draws):
        return {"place": torch.zeros_like(draws[:, 0]), "goal": draws[:, 0], "earned": torch.zeros_like(draws[:, 0])}

    def advance(self, state, actions, draws):
        after = {
            "goal": state["goal"],
            "place": state["place"] + 1,
            "last_place": state["place"],  # of its state before, which is overwritten
            "earned": state["earned"] + 1,
        }
        return after, state["earned"], torch.zeros(self.num_envs, dtype=torch.bool)

    def observe(self, state):
        return torch.stack([state["place"], state["goal"], state["last_place"]], -1)


class ObservesInto(UncopiedState):
    """The same, whose observations are always the same tensor."""

    def observe(self, state):
        return torch.stack([state["place"], state["goal"], state["last_place"]], -1, out=self.buffer)


class ObservesState(UncopiedState):
    """The same, whose observations are part of its state."""

    def make_state(self):
        return {"seen": torch.zeros(self.num_envs, 3), "earned": torch.zeros(self.num_envs)}

    def begin(self, draws):
        zeros = torch.zeros_like(draws[:, 0])
        return {"seen": torch.stack([zeros, draws[:, 0], zeros], -1), "earned": zeros}

    def advance(self, state, actions, draws):
        place, goal, _ = state["seen"].unbind(-1)
        after = {"seen": torch.stack([place + 1, goal, place], -1), "earned": state["earned"] + 1}
        return after, state["earned"], torch.zeros(self.num_envs, dtype=torch.bool)

    def observe(self, state):
        return state["seen"]


class WritesIntoItsState(UncopiedState):
    """The same, which moves and begins in its own tensors, so that a new episode overwrites the old one."""

    def make_state(self):
        super().make_state()
        self.own = {name: torch.zeros(self.num_envs) for name in ("goal", "place", "last_place", "earned")}
        return self.own

    def begin(self, draws):
        for name in ("place", "last_place", "earned"):
            self.own[name].zero_()
        self.own["goal"].copy_(draws[:, 0])
        return self.own

    def advance(self, state, actions, draws):
        rewards = self.own["earned"].clone()
        self.own["last_place"].copy_(self.own["place"])
        for name in ("place", "earned"):
            self.own[name] += 1
        return self.own, rewards, torch.zeros(self.num_envs, dtype=torch.bool)


class ObservesTree(ObservesInto):
    """The same, whose observations are a tree of parts of one tensor."""

    single_observation_space = gym.spaces.Dict(
        {"place": gym.spaces.Box(-9, 9, (1,)), "rest": gym.spaces.Box(-9, 9, (2,))}
    )

    def observe(self, state):
        numbers = super().observe(state)
        return {"place": numbers[:, :1], "rest": numbers[:, 1:]}


class PromisesForItsBase(CartPole):
    """Inherits the promise that tensors are new, and observes into its own."""

    def make_state(self):
        self.seen = torch.zeros(self.num_envs, 4)
        return super().make_state()

    def observe(self, state):
        return self.seen.copy_(super().observe(state))


def test_a_promise_of_new_tensors_is_not_inherited_by_other_methods():
    env, plain = PromisesForItsBase(5, max_episode_length=4), CartPole(5, max_episode_length=4)
    given, kept = play(env, 12), play(plain, 12)
    assert_same(given, kept)


@pytest.mark.parametrize("make", [UncopiedState, ObservesInto, ObservesState, WritesIntoItsState, ObservesTree])
def test_a_step_returns_the_final_observation_of_its_own_episode(make):
    env = make(4, seed=0)
    obs, time = joined(env.reset(seed=1)), 0
    actions = torch.zeros(4, dtype=torch.int64)
    steps, trees = [], []
    for _ in range(7):
        after, rewards, dones, extras = env.step(actions)
        trees.append((after, extras["final_obs"]))
        after, extras = joined(after), {"final_obs": joined(extras["final_obs"])}
        steps.append((after, rewards, dones, extras["final_obs"]))
        ends = time == 2
        final = extras["final_obs"]
        assert final[:, 0].tolist() == [time + 1] * 4
        assert torch.equal(final[:, 1], obs[:, 1])
        assert final[:, 2].tolist() == [time] * 4
        assert rewards.tolist() == [time] * 4
        assert dones.tolist() == [ends] * 4
        assert ends or torch.equal(after, final)
        assert not ends or not torch.equal(after[:, 1], final[:, 1])
        assert torch.equal(joined(env.get_observations()), after)
        kept = [tensor.clone() for step in steps for tensor in step]
        obs, time = after.clone(), 0 if ends else time + 1
    env.step(actions)
    assert all(map(torch.equal, kept, [tensor for step in steps for tensor in step]))  # a step's own
    for (after, final), (kept_after, _, _, kept_final) in zip(trees, steps, strict=True):
        assert torch.equal(joined(after), kept_after)
        assert torch.equal(joined(final), kept_final)


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_later_steps_leave_earlier_results_unchanged(env_id):
    env = make_tensor_env(env_id, 5)
    generator = torch.Generator().manual_seed(0)
    given, kept = [env.reset(seed=1)], []
    for _ in range(30):
        kept += [tensor.clone() for tensor in given[len(kept) :]]
        *tensors, extras = env.step(random_actions(env, generator))
        given += [*tensors, *extras.values(), env.get_observations()]
    assert all(map(torch.equal, kept, given))


def test_an_rsl_rl_environment_may_have_a_limit_per_row():
    class Limited:
        num_envs, num_actions = 2, 1
        max_episode_length = torch.tensor([3, 5])
        episode_length_buf = torch.zeros(2, dtype=torch.int64)

        def get_observations(self):
            return torch.zeros(2, 1)

        def step(self, actions):
            return torch.zeros(2, 1), torch.zeros(2), torch.zeros(2), {}

    assert RslRlEnv(Limited()).max_episode_length == 5
    Limited.max_episode_length = torch.tensor(4.0)
    assert RslRlEnv(Limited()).max_episode_length == 4


# -- trees of observations ---


@pytest.mark.parametrize(("tree", "flat"), [(TreeCartPole, CartPole), (TreePendulum, Pendulum)])
def test_an_environment_with_a_tree_steps_as_its_flat_form(tree, flat):
    one, other = tree(5, seed=1, max_episode_length=8), flat(5, seed=1, max_episode_length=8)
    assert torch.equal(flat_of(one.reset(seed=2)), other.reset(seed=2))
    for (obs, *results, extras), (flat_obs, *others, flat_extras) in zip(play(one, 20), play(other, 20), strict=True):
        assert torch.equal(flat_of(obs), flat_obs)
        assert torch.equal(flat_of(extras["final_obs"]), flat_extras["final_obs"])
        assert all(map(torch.equal, results, others))
    assert torch.equal(flat_of(one.get_observations()), other.get_observations())


@pytest.mark.parametrize("env", [TreeCartPole, MaskedSteps])
def test_a_boundary_gives_trees_of_arrays_in_the_space(env):
    """Final observations too, next to a single environment of gymnasium's form."""
    boundary, tensors = make_vector(env(4, max_episode_length=5)), env(4, max_episode_length=5)
    single = SingleTensorEnv(env(1, max_episode_length=5))
    space, wanted, ends = tensors.single_observation_space, tensors.reset(0), 0
    assert trees_equal(boundary.reset([0] * 4), map_tree(torch.Tensor.numpy, wanted))
    assert single.reset(seed=0)[0] in space
    for step in range(12):
        actions = np.full(4, step % 2)
        result = boundary.step(actions)
        obs, _, dones, extras = tensors.step(torch.from_numpy(actions))
        assert trees_equal(result.obs, map_tree(torch.Tensor.numpy, obs))
        assert all(rows_of(result.obs, row) in space for row in range(4))
        if dones.any():
            rows, final = result.final_obs
            assert trees_equal(final, rows_of(map_tree(torch.Tensor.numpy, extras["final_obs"]), rows))
            ends += len(rows)
        assert single.step(0)[0] in space
    assert ends >= 4


class OverwritesItsLastObservations(TensorVecEnv):
    """Counts to 3 in its own tensors: `final_obs` is in the memory of `obs`."""

    num_envs, device, max_episode_length = 2, torch.device("cpu"), None
    single_observation_space = gym.spaces.Dict({"count": gym.spaces.Box(0, 9, (1,))})
    single_action_space = gym.spaces.Discrete(2)
    gives_final_obs = True
    episode_length_buf = torch.zeros(2, dtype=torch.int64)

    def __init__(self):
        self.count = torch.zeros(2, 1)

    def reset(self, seed=None):
        self.count.zero_()
        return self.get_observations()

    def get_observations(self):
        return {"count": self.count}

    def step(self, actions):
        self.count += 1
        final = self.get_observations()
        dones = self.count[:, 0] >= 3
        self.count[dones] = 0.0
        extras = {"time_outs": torch.zeros_like(dones), "final_obs": final} if self.gives_final_obs else {}
        return self.get_observations(), torch.ones(2), dones, {"time_outs": torch.zeros_like(dones), **extras}

    def get_state(self):
        return None

    def set_state(self, state):
        raise ValueError


class KeepsItsObservations(OverwritesItsLastObservations):
    """The same, without `final_obs`."""

    gives_final_obs = False


class OverwritesItsOwnTensor(OverwritesItsLastObservations):
    """The same, with copies as observations: `final_obs` alone is in memory that is written to again."""

    def step(self, actions):
        obs, *rest = super().step(actions)
        return {"count": obs["count"].clone()}, *rest


class KeepsItsLastObservations(OverwritesItsLastObservations):
    """Writes `final_obs` into the same memory in each step, before episodes begin."""

    def __init__(self):
        super().__init__()
        self.final = torch.zeros(2, 1)

    def step(self, actions):
        self.final.copy_(self.count + 1)
        obs, rewards, dones, extras = super().step(actions)
        return {"count": obs["count"].clone()}, rewards, dones, {**extras, "final_obs": {"count": self.final}}


def collect_three(env):
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=2, rollout_fragment_length=3)
    collector = config.training(train_batch_size=6, minibatch_size=6).build_collector()
    assert type(collector) is TensorCollector
    collector.collect(n_step=6)
    return collector.buffer


def step_three(env):
    boundary = make_vector(env)
    boundary.reset([0, 0])
    return [boundary.step(np.zeros(2, np.int64)).final_obs for _ in range(3)]


def step_single(env):
    env.num_envs, env.count = 1, env.count[:1]
    single = SingleTensorEnv(env)
    single.reset()
    return [single.step(0) for _ in range(3)]


@pytest.mark.parametrize("run", [collect_three, step_three, step_single])
@pytest.mark.parametrize("kind", [OverwritesItsLastObservations, OverwritesItsOwnTensor])
def test_last_observations_that_were_overwritten_are_refused_by_name(kind, run):
    with pytest.raises(ValueError, match=rf"{kind.__name__}.step returned extras\['final_obs'\].*copy"):
        run(kind())


def test_last_observations_may_be_in_memory_that_steps_write_to_again():
    rollout = collect_three(KeepsItsLastObservations())
    assert rollout.next_obs["count"][:, 0, 0].tolist() == [1.0, 2.0, 3.0]


class TakesParts(OverwritesItsLastObservations):
    single_action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(2)})


def test_actions_that_are_not_one_tensor_are_refused_by_name():
    for make in (make_vector, SingleTensorEnv):
        with pytest.raises(ValueError, match=r"TakesParts has the action space Dict.*one tensor of actions"):
            make(TakesParts())


def test_an_environment_that_writes_into_returned_observations_keeps_them_apart():
    """The last observation that was acted on stands for the final one, though the environment has overwritten it."""
    rollout = collect_three(KeepsItsObservations())
    assert rollout.obs["count"][:, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert rollout.next_obs["count"][:, 0, 0].tolist() == [1.0, 2.0, 2.0]
    assert rollout.terminateds[:, 0].tolist() == [False, False, True]
    rows, final = step_three(KeepsItsObservations())[2]
    assert rows.tolist() == [0, 1]
    assert final["count"].tolist() == [[2.0], [2.0]]


def test_observations_without_the_entries_of_their_space_are_refused():
    class Lacks(TreeCartPole):
        def observe(self, state):
            return {"cart": super().observe(state)["cart"]}

    class Wide(TreeCartPole):
        def observe(self, state):
            obs = super().observe(state)
            return {**obs, "cart": obs["cart"].repeat(1, 2)}

    with pytest.raises(ValueError, match=r"observation of Lacks has keys \['cart'\], its space says .*pole"):
        collect_three(Lacks(2))
    with pytest.raises(ValueError, match=r"observation of Wide\['cart'\] has shape \(2, 4\), its space says \(2, 2\)"):
        collect_three(Wide(2))


def test_functions_of_jax_may_observe_trees():
    jax = pytest.importorskip("jax")

    def tree_of(obs):
        return {"count": obs, "more": (obs + 1.0, {"twice": 2.0 * obs})}

    flat = jax_counter(seed=3)
    reset, step = flat.functions
    space = gym.spaces.Box(0, 9, (1,))
    spaces = gym.spaces.Dict({"count": space, "more": gym.spaces.Tuple((space, gym.spaces.Dict({"twice": space})))})

    def tree_reset(key):
        obs, state = reset(key)
        return tree_of(obs), state

    def tree_step(key, state, action):
        obs, *rest, info = step(key, state, action)
        return tree_of(obs), *rest, {"final_observation": tree_of(info["final_observation"])}

    env = JaxEnv(tree_reset, tree_step, spaces, gym.spaces.Discrete(2), num_envs=3, seed=3)
    for (obs, *results, extras), (flat_obs, *others, flat_extras) in zip(play(env, 20), play(flat, 20), strict=True):
        assert trees_equal(obs, tree_of(flat_obs))
        assert trees_equal(extras["final_obs"], tree_of(flat_extras["final_obs"]))
        assert all(map(torch.equal, results, others))
    assert jax.devices()[0].platform == "cpu"
    state = env.get_state()
    following = play(env, 5)
    env.set_state(state)
    assert all(trees_equal(one[0], other[0]) for one, other in zip(following, play(env, 5), strict=True))
