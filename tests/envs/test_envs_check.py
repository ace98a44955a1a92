"""`check_environment` finds each fault that was put into an environment, and none in sound ones."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.data.actions import allows_nothing
from lockstep.envs.check import check_environment
from lockstep.envs.toys.counting import CountingEnv
from lockstep.envs.toys.probes import PROBES


class Sound(gym.Env):
    """Draws its observations from its seeded generator and ends after 10 steps; each fault changes one thing."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        return self.observe(), self.reward(), self.ended(), False, self.info()

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reward(self):
        return 1.0

    def ended(self):
        return self.count >= 10

    def info(self):
        return {}


def fault(**methods):
    return type("Faulty", (Sound,), methods)


def raising(self):
    raise ZeroDivisionError("the wheel came off")


class Strict(Sound):
    """Raises for a move that the mask forbids."""

    observation_space = spaces.Dict(board=spaces.Box(-1.0, 1.0, (2,)), action_mask=spaces.MultiBinary(5))
    action_space = spaces.Discrete(5, start=1)

    def observe(self):
        self.mask = np.zeros(5, np.int8)
        self.mask[self.np_random.integers(5)] = 1
        return {"board": super().observe(), "action_mask": self.mask.copy()}

    def step(self, action):
        if not self.mask[action - 1]:
            raise ValueError(f"{action} is forbidden by {self.mask}")
        return super().step(action)


def masked(**methods):
    sampled = {"observe": lambda self: self.observation_space.sample(), "step": Sound.step}
    return type("Broken", (Strict,), {**sampled, **methods})


FAULTS = {
    "observation_shape": fault(observe=lambda self: np.zeros(3, dtype=np.float32)),
    "observation_not_finite": fault(observe=lambda self: np.array([0.0, np.nan], dtype=np.float32)),
    "observation_outside": fault(observe=lambda self: np.array([0.0, 1.5], dtype=np.float32)),
    "observation_type": fault(observe=lambda self: "here"),
    "observation_dtype": fault(observe=lambda self: self.np_random.uniform(-1, 1, 2)),
    "observation_keys": fault(
        observation_space=spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}),
        observe=lambda self: {"a": np.int64(1)},
    ),
    "reward_not_finite": fault(reward=lambda self: float("nan")),
    "reward_type": fault(reward=lambda self: np.array([1.0, 2.0])),
    "terminated_not_bool": fault(ended=lambda self: int(self.count >= 10)),
    "info_type": fault(info=lambda self: None),
    "info_keys": fault(info=lambda self: {1: 2}),
    "never_ends": fault(ended=lambda self: False),
    "seed_ignored": fault(observe=lambda self: np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)),
    "step_raises": fault(reward=raising),
    "reset_raises": fault(observe=raising),
    "step_form": fault(step=lambda self, action: (self.observe(), 1.0, False, {})),
    "reset_form": fault(reset=lambda self, seed=None, options=None: np.zeros(2, dtype=np.float32)),
    "observation_space_missing": fault(observation_space=None),
    "action_space_unsupported": fault(action_space=spaces.Text(3)),
    "action_space_unbounded": fault(action_space=spaces.Box(-np.inf, np.inf, (1,))),
    "cannot_be_made": fault(__init__=raising),
    "action_mask_shape": masked(action_space=spaces.Discrete(4)),
    "action_mask_kind": masked(action_space=spaces.Box(-1.0, 1.0, (5,))),
    "action_mask_empty": masked(
        observe=lambda self: {**self.observation_space.sample(), "action_mask": np.zeros(5, np.int8)}
    ),
    "action_mask_place": masked(observation_space=spaces.Dict(game=Strict.observation_space)),
}


@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_is_found_by_its_name_and_alone(code):
    findings = check_environment(FAULTS[code], num_steps=60)
    faults = {finding.code: finding for finding in findings if finding.level != "info"}
    assert set(faults) == {code}
    assert len(faults[code].message) > 20


def test_an_error_names_the_line_where_the_environment_raised():
    (finding,) = check_environment(FAULTS["step_raises"])
    assert "ZeroDivisionError: the wheel came off" in finding.message
    assert "test_envs_check.py:" in finding.message
    assert "step 1 with action" in finding.message


CLASSIC = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Acrobot-v1")


@pytest.mark.parametrize("env", [*CLASSIC, Sound, Strict, CountingEnv, partial(CountingEnv, nested=True), *PROBES])
def test_sound_environments_have_no_fault_and_a_speed(env):
    """The actions of the check keep to the mask."""
    *returns, speed = check_environment(env, num_steps=300)
    assert [(fact.level, fact.code) for fact in returns] in ([], [("info", "random_return")])
    assert (speed.level, speed.code) == ("info", "speed")
    assert speed.value > 100


def test_an_empty_mask_is_allowed_at_the_end_of_an_episode_only():
    class Ending(Strict):
        def observe(self):
            obs = super().observe()
            return {**obs, "action_mask": obs["action_mask"] * np.int8(self.count < 10)}

    assert {finding.level for finding in check_environment(Ending, num_steps=60)} == {"info"}
    space = spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Box(-1, 1, (1,))))
    assert [allows_nothing(space, np.array(mask)) for mask in ([0, 1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 1, 1])] == [
        False,
        True,
    ]


def test_the_mean_return_of_random_episodes_is_reported():
    for env, mean in ((Sound, 10.0), (partial(CountingEnv, [(4, "terminate")]), None)):
        (told,) = [finding for finding in check_environment(env, num_steps=60) if finding.code == "random_return"]
        assert mean is None or told.value == mean
    assert "10 is the mean return of 6 episodes" in str(check_environment(Sound, num_steps=60)[0])


def test_nested_observations_are_looked_into():
    class Bad(CountingEnv):
        def _observation(self):
            obs = super()._observation()
            return {**obs, "rest": (obs["rest"][0], np.array([1, 2], dtype=np.int8))}

    (fault, *_) = check_environment(Bad, env_config={"nested": True}, num_steps=50)
    assert fault.code == "observation_outside"
    assert "['rest'][1]" in fault.message


def test_a_finished_environment_is_left_open_and_usable():
    env = gym.make("CartPole-v1")
    check_environment(env, num_steps=20)
    env.reset(seed=0)
    env.step(0)


def test_a_reused_observation_array_is_reported():
    class Reusing(Sound):
        buffer = np.zeros(2, dtype=np.float32)

        def observe(self):
            self.buffer[:] = self.np_random.uniform(-1, 1, 2)
            return self.buffer

    findings = check_environment(Reusing, num_steps=50)
    assert [finding.code for finding in findings] == ["observation_reused", "random_return", "speed"]
    assert {finding.level for finding in findings} == {"info"}


class Large(Sound):
    """Has rewards of 338 and observations of 3,000."""

    observation_space = spaces.Box(-1e4, 1e4, (2,), dtype=np.float32)

    def observe(self):
        return np.float32(3000) * self.np_random.uniform(0.5, 1, 2).astype(np.float32)

    def reward(self):
        return 338.0


def test_odd_scales_are_reported_with_the_option_to_set():
    warned = {each.code: each.message for each in check_environment(Large) if each.level == "warning"}
    assert "338" in warned["reward_scale"]
    assert "environment.normalize_rewards=True" in warned["reward_scale"]
    assert "environment.normalize_observations=True" in warned["observation_scale"]
    codes = {each.code for each in check_environment(fault(reward=lambda self: 1e-5))}
    assert "reward_scale" in codes
    assert not {"reward_scale", "observation_scale"} & {each.code for each in check_environment(Sound)}
