"""Arguments of `make_vector` and its errors; EnvPool and native vectors by id."""

import importlib
import sys
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from warm import run_python

from lockstep.envs import RestartLimits, check_environment, make, make_vector
from lockstep.envs.gymnasium_vectors import EnvPoolBoundary
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv

EPISODE = ((2, "truncate"),)
FINISHED = CountingEnv(EPISODE)
"""A finished environment, which has no name."""


def counting_vector():
    return CountingVectorEnv(3, EPISODE)


@pytest.mark.parametrize(
    "name",
    ["gymnasium:CartPole-v1", "own_envs:Own/Pole-v3", "own_envs:Own/Pole", "own_envs/Pole-v1", "own_envs:Pole"],
)
@pytest.mark.parametrize("mode", ["auto", "async"])
def test_the_name_of_an_environment_is_looked_up_as_gymnasium_does(name, mode, tmp_path, monkeypatch):
    """Its package is imported, which registers it; `module:Class` is the class."""
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv as Pole\n"
        "for name in ('Own/Pole-v3', 'own_envs/Pole-v1'):\n"
        "    gym.register(name, entry_point='own_envs:Pole')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym.envs.registration, "registry", registry := dict(gym.registry))
    monkeypatch.setattr(gym, "registry", registry)
    sys.modules.pop("own_envs", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # gymnasium tells that it takes the latest version
        with make_vector(name, num_envs=2, mode=mode) as env:
            assert env.reset([1, 2]).shape == (2, 4)


def test_environments_of_atari_need_no_import_by_the_user():
    pytest.importorskip("ale_py")
    code = "from lockstep.envs import make_vector; print(make_vector('ALE/Pong-v5').action_space)"
    done = run_python(["-c", code])
    assert "Discrete(6)" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CartPol-v1", "'CartPol-v1' is unknown. Did you mean 'CartPole-v1'"),
        ("CartPole-v7", "'CartPole-v7' is unknown. Did you mean 'CartPole-v1'"),
        ("no.where/CartPole-v1", "Did you mean .*'CartPole-v1'"),
        ("/Env-v0", "'/Env-v0' is unknown"),
        ("no_such_package/Env-v0", "unknown.*must be registered first"),
        ("no_such_package:Env-v0", "there is no module 'no_such_package'.*pip install"),
        ("gymnasium:CartPol-v1", "Did you mean 'CartPole-v1'.*no class or function 'CartPol-v1'"),
        ("lockstep.envs.toys.counting:CountingEnf", "Did you mean 'CountingEnv'"),
        ("no_such.module", "there is no module 'no_such.module'.*pip install"),
        (f"{__name__}:FINISHED", "no class or function 'FINISHED'"),
        ("no_such.module", r"named 'module:Class' or 'path/file\.py:Class'"),
        ("./no_file.py:Env", r"there is no Python file '\./no_file\.py'. .*'module:Class' or 'path/file\.py:Class'"),
        ("no/folder:Env", "there is no Python file 'no/folder'"),
        ("lockstep.envs.toys.counting.CountingEnv", "Did you mean 'lockstep.envs.toys.counting:CountingEnv'"),
        ("pettingzoo.classic.connect_for_v3", "Did you mean 'connect_four_v3'.*pip install 'pettingzoo>="),
        ("lockstep.envs.toys.counting", "has no function parallel_env or env.*'module:Class'"),
    ],
)
@pytest.mark.parametrize("make", [make_vector, check_environment, partial(make_vector, mode="vector")])
def test_a_name_that_cannot_be_found_says_what_to_do(name, words, make):
    with pytest.raises(ValueError, match=words):
        make(name)


def test_a_class_in_a_file_is_named_by_the_files_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    source = "from lockstep.envs.toys.probes import ActionProbe\n\n\nclass Own(ActionProbe):\n    pass\n"
    (tmp_path / "folder" / "probe_in_a_file.py").write_text(source)
    for name in ("folder/probe_in_a_file.py:Own", str(tmp_path / "folder/probe_in_a_file.py:Own")):
        assert make.named_environment(name).__module__ == "probe_in_a_file"
    with pytest.raises(ValueError, match="Did you mean 'Own'"):
        make.named_environment("folder/probe_in_a_file.py:Omn")
    (tmp_path / "json.py").write_text("class Own:\n    pass\n")
    with pytest.raises(ValueError, match="another module is called 'json'"):
        make.named_environment("./json.py:Own")


def test_a_missing_package_of_a_known_namespace_is_named(monkeypatch):
    monkeypatch.setitem(make.PACKAGES, "Else", make.EnvPackage("no_such_package.gym", "no-such-package"))
    with pytest.raises(ValueError, match="pip install no-such-package"):
        make_vector("Else/Env-v0")


def test_a_package_that_registers_by_a_function_is_asked_to(monkeypatch, tmp_path):
    """As MinAtar does, whose import registers nothing."""
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "__init__.py").write_text("")
    (tmp_path / "asked" / "gym.py").write_text(
        "import gymnasium\n"
        "def register_envs():\n"
        "    gymnasium.register('Asked/Pole-v1', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym.envs.registration, "registry", registry := dict(gym.registry))
    monkeypatch.setattr(gym, "registry", registry)
    monkeypatch.setitem(make.PACKAGES, "Asked", make.EnvPackage("asked.gym", "asked", "register_envs"))
    assert make_vector("Asked/Pole-v1").observation_space.shape == (4,)


def test_games_of_minatar_are_made_by_their_ids():
    pytest.importorskip("minatar")
    with make_vector("MinAtar/Breakout-v1", num_envs=2) as env:
        assert env.reset([1, 2]).shape == (2, 10, 10, 4)
        assert env.action_space.n == 3
    with make_vector("MinAtar/Breakout-v0") as env:
        assert env.action_space.n == 6


def test_a_missing_part_of_pettingzoo_is_named_by_its_extra(monkeypatch, tmp_path):
    game = importlib.import_module("pettingzoo.classic").__path__
    monkeypatch.setattr(importlib.import_module("pettingzoo.classic"), "__path__", [*game, str(tmp_path)])
    (tmp_path / "odd_v0.py").write_text("import no_such_engine\n")
    with pytest.raises(ValueError, match=r"needs the module 'no_such_engine'.*pip install 'pettingzoo\[classic\]'"):
        make_vector("pettingzoo.classic.odd_v0")


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("CartPole-v1", {"mode": "asnyc"}, "Did you mean 'async'"),
        ("CartPole-v1", {"num_envs": 0}, "num_envs=0.*at least 1"),
        ("Pendulum-v1", {"mode": "vector"}, "has no native vector form"),
        ("CartPole-v1", {"step_timeout": 1.0}, "step_timeout applies to mode='async' only"),
        (counting_vector(), {"step_timeout": 1.0}, "step_timeout applies to mode='async' only"),
        ("CartPole-v1", {"restarts": RestartLimits(0)}, "restarts applies to mode='async' only"),
        (CountingEnv, {"mode": "async", "step_timeout": 0}, "step_timeout must be a positive number"),
        (CountingEnv, {"mode": "async", "step_timeout": -1.0}, "step_timeout must be a positive number"),
        (CountingEnv, {"mode": "async", "step_timeout": "soon"}, "step_timeout must be a positive number"),
        (gym.make("CartPole-v1"), {"num_envs": 4}, "apply to ids and functions only"),
        (counting_vector(), {"mode": "async"}, "apply to ids and functions only"),
        (3, {}, "env must be an environment id"),
        ([CountingEnv, CountingEnv], {}, "of several functions make gymnasium"),
        (CountingEnv, {"mode": "vector"}, "mode='vector' needs an environment id"),
        (CountingEnv, {"mode": "envpool"}, "mode='envpool' needs an environment id"),
    ],
)
def test_wrong_options_say_what_is_allowed(env, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make_vector(env, **options)


class Talking(CountingEnv):
    """Observes words, which have no array of fixed size."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"words": spaces.Text(5)})


class Scalar(CountingEnv):
    """Ends its episode with an observation of another shape, which a plain write would spread over the row."""

    def _observation(self):
        return np.float32(3.0) if self.step_number else super()._observation()


def with_attributes(vector, **attributes):
    vars(vector).update(attributes)
    return vector


def run(env, steps=2, **options):
    boundary = make_vector(env, **options)
    boundary.reset(list(range(boundary.num_envs)))
    for _ in range(steps):
        boundary.step(np.zeros(boundary.num_envs, dtype=np.int64))


nested = iter([CountingEnv(), CountingEnv(nested=True)])
one = CountingEnv()
REFUSED = {
    "one environment twice": (
        lambda: make_vector(lambda: gym.wrappers.OrderEnforcing(one), num_envs=2),
        "environments 0 and 1 are the same .*must make a new one at each call",
    ),
    "no array": (lambda: make_vector(Talking), r"observation space\['words'\] is Text"),
    "unequal spaces": (lambda: make_vector(lambda: next(nested), num_envs=2), "environment 1 has observation_space"),
    "no mode": (
        lambda: make_vector(with_attributes(counting_vector(), metadata={}, autoreset_mode=None)),
        "does not say how it resets",
    ),
    "part of the rows": (lambda: make_vector(with_attributes(counting_vector(), batch_size=2)), "answers 2 of its 3"),
    "no final_obs": (
        lambda: run(with_attributes(CountingVectorEnv(2, EPISODE, "SameStep"), _infos=lambda done: {})),
        r"no infos\['final_obs'\] for rows \[0, 1\]",
    ),
    "wrong shape": (
        lambda: run(Scalar, env_config={"episodes": ((1, "truncate"),)}),
        r"has shape \(\), its space says",
    ),
    "not reset": (lambda: make_vector("CartPole-v1").step(np.zeros(1, np.int64)), "before reset"),
    "vector not reset": (lambda: make_vector(counting_vector()).step(np.zeros(3, np.int64)), "before reset"),
    "seeds": (lambda: make_vector("CartPole-v1", num_envs=2).reset([0]), "reset got 1 seeds"),
    "seeds of a vector": (lambda: make_vector(counting_vector()).reset([0]), "reset got 1 seeds"),
    "actions": (
        lambda: make_vector("CartPole-v1", num_envs=2, seed=0).step(np.zeros(3, np.int64)),
        "3 actions for 2 environments",
    ),
}


@pytest.mark.parametrize(("mistake", "words"), REFUSED.values(), ids=REFUSED)
def test_environments_and_calls_that_do_not_fit_are_refused(mistake, words):
    with pytest.raises((ValueError, RuntimeError), match=words):
        mistake()


def test_the_mode_of_the_instance_precedes_metadata_of_the_class():
    """AtariVectorEnv writes the mode of the instance made last into metadata of the class."""

    shared = {"autoreset_mode": "Disabled"}
    first = with_attributes(CountingVectorEnv(2, EPISODE, "SameStep"), metadata=shared)
    assert make_vector(first).autoreset_mode == "SAME_STEP"
    del first.autoreset_mode
    assert make_vector(first).autoreset_mode == "DISABLED"


def test_the_reset_mask_passed_to_the_vector_is_a_copy():
    """gymnasium empties the options that it is given, and an environment may keep or change the mask."""

    class Greedy(CountingVectorEnv):
        def reset(self, *, seed=None, options=None):
            answer = super().reset(seed=seed, options=options)
            if options:
                options.pop("reset_mask")[:] = False
            return answer

    boundary = make_vector(Greedy(2, ((1, "truncate"),), "Disabled"))
    boundary.reset([0, 1])
    for _ in range(3):
        result = boundary.step(np.zeros(2, dtype=np.int64))
        assert result.truncateds.all()
        np.testing.assert_array_equal(result.final_obs[0], [0, 1])


def cartpole():
    return gym.make("CartPole-v1")


KINDS = {
    "id": (lambda: make_vector("CartPole-v1", num_envs=2), "light_sync", 2, 500),
    "id, async": (lambda: make_vector("CartPole-v1", num_envs=2, mode="async"), "workers", 2, 500),
    "id, vector": (lambda: make_vector("CartPole-v1", num_envs=2, mode="vector"), "native", 2, 500),
    "options": (lambda: make_vector("CartPole-v1", env_config={"max_episode_steps": 3}), "light_sync", 1, 3),
    "spec": (lambda: make_vector(gym.spec("CartPole-v1"), num_envs=2), "light_sync", 2, 500),
    "class": (lambda: make_vector(CountingEnv, num_envs=2), "light_sync", 2, None),
    "environment": (lambda: make_vector(cartpole()), "light_sync", 1, 500),
    "vector": (lambda: make_vector(SyncVectorEnv([cartpole] * 2)), "gymnasium_sync", 2, 500),
}


@pytest.mark.parametrize(("made", "backend", "num_envs", "limit"), KINDS.values(), ids=KINDS)
def test_every_kind_of_env_becomes_a_boundary_with_the_registered_limit(made, backend, num_envs, limit):
    with made() as boundary:
        assert (boundary.backend, boundary.num_envs, boundary.max_episode_steps) == (backend, num_envs, limit)
        assert make_vector(boundary) is boundary


def test_seeds_are_used_at_an_explicit_reset_only():
    """The generator continues after an episode: two episodes of a seeded run differ, two seeded runs are equal."""
    boundary = make_vector("CartPole-v1", num_envs=2)

    def firsts():
        obs = [boundary.reset([5, 5]).copy()]
        while len(obs) < 4:
            result = boundary.step(np.ones(2, dtype=np.int64))
            if result.any_done:
                obs.append(result.obs.copy())
        return obs

    one, two = firsts(), firsts()
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one[0][0], one[0][1])
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one[1], one[2])


def cartpole_next(obs, actions):
    """CartPole's equations (Barto, Sutton and Anderson 1983; Euler steps of 0.02 s)."""
    x, x_dot, theta, theta_dot = obs.T.astype(np.float64)
    force = np.where(actions == 1, 10.0, -10.0)
    temp = (force + 0.05 * theta_dot**2 * np.sin(theta)) / 1.1
    theta_acc = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (0.5 * (4 / 3 - 0.1 * np.cos(theta) ** 2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * np.cos(theta) / 1.1
    return np.stack([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc], 1)


@pytest.mark.parametrize("mode", ["sync", "vector", "envpool"])
def test_every_cartpole_transition_obeys_the_equations_of_motion(mode):
    """No transition crosses an ending: also where the back end cannot be compared with a single environment."""
    if mode == "envpool":
        pytest.importorskip("envpool")
    boundary = make_vector("CartPole-v1", num_envs=5, mode=mode, env_config={"max_episode_steps": 15})
    rng = np.random.default_rng(3)
    obs = boundary.reset([1, 2, 3, 4, 5]).copy()
    lengths = np.zeros(5, dtype=int)
    counts = np.zeros(3, dtype=int)
    for _ in range(200):
        actions = rng.integers(0, 2, 5)
        result = boundary.step(actions)
        valid = np.ones(5, dtype=bool) if result.valid is None else result.valid
        true_next = result.obs.copy()
        if result.final_obs is not None:
            true_next[result.final_obs[0]] = result.final_obs[1]
        np.testing.assert_allclose(true_next[valid], cartpole_next(obs, actions)[valid], atol=2e-5)
        assert (result.rewards[valid] == 1).all()
        lengths[valid] += 1
        done = result.terminateds | result.truncateds
        fallen = (np.abs(true_next[:, 2]) > 12 * np.pi / 180) | (np.abs(true_next[:, 0]) > 2.4)
        np.testing.assert_array_equal(done, valid & (fallen | (lengths == 15)))
        np.testing.assert_array_equal(result.truncateds, valid & (lengths == 15))
        counts += result.terminateds.sum(), result.truncateds.sum(), (~valid).sum()
        lengths[done] = 0
        assert (np.abs(result.obs[~valid]) <= 0.05).all()
        obs = result.obs.copy()
    assert counts[0] > 3
    assert counts[1] > 10
    assert (counts[2] > 0) == boundary.has_invalid_rows == (mode != "sync")


def test_envpool_is_seeded_by_reset_and_checked():
    envpool = pytest.importorskip("envpool")
    with pytest.raises(ValueError, match="Did you mean 'CartPole-v1'"):
        make_vector("CartPole-v8", mode="envpool")
    boundary = make_vector("CartPole-v1", num_envs=3, mode="envpool")
    one, other = boundary.reset([7, 8, 9]).copy(), boundary.reset([1, 2, 3]).copy()
    np.testing.assert_array_equal(boundary.reset([7, 8, 9]), one)
    assert not np.array_equal(one, other)
    assert boundary.get_state() is None
    boundary.close()
    pool = make_vector(envpool.make_gymnasium("CartPole-v1", num_envs=2))
    assert isinstance(pool, EnvPoolBoundary)
    with pytest.warns(UserWarning, match="takes its seeds when it is made"):
        pool.reset([0, 1])
    with pytest.raises(ValueError, match="answers 1 of its 2 rows"):
        make_vector(envpool.make_gymnasium("CartPole-v1", num_envs=2, batch_size=1))


@pytest.mark.parametrize("made", [None, SyncVectorEnv([CountingEnv] * 2)])
def test_a_factory_that_returns_no_single_environment_is_refused(made):
    def maker():
        return made

    told = "it must return one gymnasium.Env at each call" + (", or give the vector itself" if made else "")
    with pytest.raises(TypeError, match=f"maker.* made .*; {told}"):
        make_vector(maker, num_envs=2)
    (finding,) = check_environment(maker)
    assert (finding.code, told in finding.message) == ("cannot_be_made", True)
