"""An environment that raises, dies or hangs: which one, after which action, with its own traceback."""

import os
import sys
import threading
import time
import traceback
import warnings

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from lockstep.envs import EnvironmentStepError, EnvironmentTimeoutError, WorkerVectorEnv, gymnasium_vectors, make_vector
from lockstep.envs.toys.counting import CountingEnv

NUM_ENVS, BAD_ROW = 3, 1


class Needs(Exception):
    """An exception that cannot be made from its message alone."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")


class Broke(Exception):
    """An ordinary exception: gymnasium's own workers can tell it."""


class Breaking(CountingEnv):
    """Does something bad at its third step (or at its second reset)."""

    def __init__(self, how=None):
        super().__init__(((2, "terminate"),) if how and "reset" in how else ((9, "terminate"),))
        self.how = how

    def step(self, action):
        if self.step_number == 2 and self.how:
            self.break_down()
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        if self.how == "reset" and self.episode_number == 0:
            raise Broke("the reset failed")
        if self.how == "exit in reset" and self.episode_number == 0:
            sys.exit(0)
        return super().reset(seed=seed)

    def break_down(self):
        if self.how == "raise":
            raise Broke("42: the wheel came off")
        if self.how == "raise needs":
            raise Needs(42, "the wheel came off")
        if self.how == "raise unpicklable":
            error = Broke("the wheel came off")
            error.reason = lambda: None
            raise error
        if self.how == "die":
            os._exit(3)
        if self.how == "exit":
            sys.exit(0)
        if self.how == "hang":
            time.sleep(60)


def makers(how):
    return [lambda row=row: Breaking(how if row == BAD_ROW else None) for row in range(NUM_ENVS)]


def light(how):
    made = iter(makers(how))
    return make_vector(lambda: next(made)(), num_envs=NUM_ENVS)


BACKENDS = {
    "light": light,
    "sync": lambda how: make_vector(SyncVectorEnv(makers(how), autoreset_mode="SameStep")),
    "async": lambda how: make_vector(AsyncVectorEnv(makers(how), autoreset_mode="SameStep")),
    "workers": lambda how: WorkerVectorEnv(makers(how)),
    "async_pipes": lambda how: make_vector(AsyncVectorEnv(makers(how), shared_memory=False)),
}


def step_until_failure(boundary):
    boundary.reset([0] * NUM_ENVS)
    for number in range(5):
        boundary.step(np.array([0, 3, 1]) if number == 2 else np.zeros(NUM_ENVS, dtype=np.int64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("how", "words"), [("raise", "42: the wheel came off"), ("reset", "the reset failed")])
def test_an_error_tells_row_last_action_and_original_traceback(how, words, backend):
    """Also one in the reset after an episode."""
    with BACKENDS[backend](how) as boundary, pytest.raises(EnvironmentStepError) as caught:
        step_until_failure(boundary)
    error = caught.value
    assert error.env_index == BAD_ROW
    assert f"environment {BAD_ROW} of the" in str(error)
    assert f"raised Broke: {words}" in str(error)
    printed = "".join(traceback.format_exception(error))
    assert "test_envs_errors.py" in printed
    if how == "raise":
        assert int(error.action) == 3
        assert "last action: " in str(error)
        assert "break_down" in printed


@pytest.mark.parametrize("backend", ["light", "sync", "workers"])
@pytest.mark.parametrize("how", ["exit", "exit in reset"])
def test_an_environment_that_exits_the_process_is_an_error(how, backend):
    with BACKENDS[backend](how) as boundary:
        with pytest.raises(EnvironmentStepError, match=rf"environment {BAD_ROW} .* raised SystemExit: 0") as caught:
            step_until_failure(boundary)
        assert caught.value.env_index == BAD_ROW


@pytest.mark.parametrize("how", ["raise needs", "raise unpicklable"])
def test_an_unpicklable_error_of_a_worker_is_reported(how, monkeypatch):
    """Our own workers send it as text; given workers still say which row failed, and nothing hangs."""
    monkeypatch.setattr(gymnasium_vectors, "_REPORT_TIMEOUT", 0.5)
    envs = makers(how)
    with WorkerVectorEnv(envs) as boundary, pytest.raises(EnvironmentStepError, match="the wheel came off") as caught:
        step_until_failure(boundary)
    assert caught.value.env_index == BAD_ROW
    assert "break_down" in "".join(traceback.format_exception(caught.value))
    given = make_vector(AsyncVectorEnv(envs, autoreset_mode="SameStep"))
    with given, pytest.raises(EnvironmentStepError, match="an error that cannot be") as caught:
        step_until_failure(given)
    assert caught.value.env_index == BAD_ROW
    check_all_workers_are_gone(given)


def test_a_light_vector_can_be_reset_after_an_error():
    boundary = light("raise")
    with pytest.raises(EnvironmentStepError):
        step_until_failure(boundary)
    boundary.reset([0] * NUM_ENVS)
    result = boundary.step(np.zeros(NUM_ENVS, dtype=np.int64))
    np.testing.assert_array_equal(result.obs, [[1, 0]] * NUM_ENVS)


@pytest.mark.parametrize("backend", ["async", "async_pipes"])
def test_a_worker_that_dies_is_named(backend):
    boundary = BACKENDS[backend]("die")
    with pytest.raises(
        EnvironmentStepError, match=f"environment {BAD_ROW} of the .* ended without an answer"
    ) as caught:
        step_until_failure(boundary)
    assert int(caught.value.action) == 3
    assert "cannot start a worker again" in str(caught.value)
    assert "mode='async'" in str(caught.value)
    check_all_workers_are_gone(boundary)


class Telling(CountingEnv):
    """Its last info of an episode has parts that cannot be pickled."""

    def step(self, action):
        *answer, _ = super().step(action)
        return (*answer, {"length": self.step_number, "lock": threading.Lock(), "hook": lambda: None})


def test_an_unpicklable_info_is_left_out_and_named_by_key():
    with make_vector(lambda: Telling(((1, "terminate"),)), num_envs=2, mode="async") as envs:
        envs.reset([0, 1])
        with pytest.warns(RuntimeWarning, match=r"info\['(lock|hook)'\] cannot be pickled") as warned:
            result = envs.step(np.zeros(2, np.int64))
        assert {str(one.message)[4:12] for one in warned} == {"['lock']", "['hook']"}
        assert len(warned) == 2  # each key once
        assert result.infos == {0: {"length": 1}, 1: {"length": 1}}
        assert result.terminateds.all()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            envs.step(np.zeros(2, np.int64))
        assert envs.num_restarts == 0


def test_a_hanging_worker_is_named_and_all_processes_are_ended():
    """After gymnasium's time-out the pipes answer the question before: a further step is refused."""
    workers = AsyncVectorEnv([lambda: Breaking("hang")] * NUM_ENVS, autoreset_mode="SameStep")
    boundary = make_vector(workers)
    boundary.reset([0] * NUM_ENVS)
    for _ in range(2):
        boundary.step(np.zeros(NUM_ENVS, dtype=np.int64))
    boundary._step_timeout = 0.05  # from here on no row answers, however long it is waited for
    with pytest.raises(EnvironmentTimeoutError, match=r"environments \[0, 1, 2\] did not answer") as caught:
        boundary.step(np.zeros(NUM_ENVS, dtype=np.int64))
    assert caught.value.env_index == 0
    check_all_workers_are_gone(boundary)


def check_all_workers_are_gone(boundary):
    assert not any(process.is_alive() for process in boundary.env.processes)
    with pytest.raises(EnvironmentStepError, match="build the vector again"):
        boundary.step(np.zeros(NUM_ENVS, dtype=np.int64))
    with pytest.raises(EnvironmentStepError, match="build the vector again"):
        boundary.reset([0] * NUM_ENVS)
    boundary.close()
    boundary.close()


def test_an_interrupt_passes_as_it_is():
    class Interrupting(CountingEnv):
        def step(self, action):
            raise KeyboardInterrupt

    boundary = make_vector(Interrupting, seed=0)
    with pytest.raises(KeyboardInterrupt):
        boundary.step(np.zeros(1, dtype=np.int64))


def ended_in_one_flag(self, action):
    obs, reward, terminated, truncated, info = CountingEnv.step(self, action)
    return obs, reward, terminated or truncated, info


def of_another_shape(self, action):
    return (np.zeros(3, np.float32), *CountingEnv.step(self, action)[1:])


def without_info(self, *, seed=None, options=None):
    return [1.0, 2.0, 3.0]


def without_space(self):
    CountingEnv.__init__(self)
    self.observation_space = None


def with_a_number_of_actions(self):
    CountingEnv.__init__(self)
    self.action_space = 4


FORMS = [
    ("step", ended_in_one_flag, r"step must return 5 values, \(observation, reward, .*shimmy.*API, check_environment"),
    ("reset", without_info, r"reset must return 2 values, \(observation, info\).*shimmy"),
    ("step", of_another_shape, r"shape \(3,\), its space says \(2,\); return observations of that shape"),
    ("__init__", without_space, r"observation_space of .* is None; it must be a gymnasium space.*Box\("),
    ("__init__", with_a_number_of_actions, r"action_space of .* is 4; it must be a gymnasium space.*Discrete\("),
]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("method", "changed", "words"), FORMS, ids=[changed.__name__ for _, changed, _ in FORMS])
def test_an_environment_with_another_interface_is_refused_with_advice(method, changed, words, mode):
    env = type("Changed", (CountingEnv,), {method: changed})

    def run():
        with make_vector(env, num_envs=2, mode=mode) as envs:
            envs.reset([0, 1])
            envs.step(np.zeros(2, np.int64))

    with pytest.raises((EnvironmentStepError, ValueError), match=words):
        run()
