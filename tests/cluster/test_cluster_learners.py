"""Learners in real Ray actors act as one learner in this process."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from gymnasium import spaces

from lockstep import PPOConfig, SampleBatch
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.multi_agent_batch import MultiAgentBatch
from lockstep.learner.errors import LearnerError
from lockstep.modules import DefaultActorCriticModule, ModelConfig, RLModuleSpec

ray = pytest.importorskip("ray")
MODULE, ALL = "default_policy", "__all_modules__"
BOX, THREE = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(3)


def ppo(num_learners=0, **training):
    training = {"train_batch_size": 64, "minibatch_size": 8, "lr": 1e-2, **training}
    return (
        PPOConfig()
        .environment(observation_space=BOX, action_space=THREE)
        .framework(dtype="float64")
        .rl_module(model_config={"hiddens": (4,)})
        .training(**training)
        .learners(num_learners=num_learners, learner_timeout_s=60.0)
        .debugging(seed=0)
    )


def episodes(seed=0):
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode(
            observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
            actions=rng.integers(3, size=length),
            rewards=rng.normal(size=length).astype(np.float32),
            terminated=end == 0,
            truncated=end == 1,
        )
        for length, end in ((3, 0), (19, 1), (4, 2))
    ]


def batch(rows=23, seed=0):
    rng = np.random.default_rng(seed)
    return SampleBatch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=rng.integers(3, size=rows),
        action_logp=np.log(rng.uniform(0.2, 0.6, size=rows)),
        advantages=rng.normal(size=rows),
        value_targets=rng.normal(size=rows),
    )


def assert_near(group, other):
    expected = other.get_weights()[MODULE]
    for weights in group.foreach_learner(lambda learner: learner.module["default_policy"].get_state()):
        for name, array in expected.items():
            np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-12, err_msg=name)


@pytest.fixture(scope="module")
def cluster():
    path = os.pathsep.join(filter(None, sys.path))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def two(cluster):
    with ppo(2).build_learner_group() as group:
        yield group


def test_two_remote_learners_end_20_updates_with_the_parameters_of_one(two):
    one = ppo().build_learner_group()
    two.set_state(one.get_state())
    for update in range(20):
        options = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": bool(update % 2)}
        kind, given = ("update_from_batch", batch) if update % 4 == 3 else ("update_from_episodes", episodes)
        results = getattr(two, kind)(given(seed=update), **options)
        expected = getattr(one, kind)(given(seed=update), **options)
        assert results[MODULE]["vf_loss"] == pytest.approx(expected[MODULE]["vf_loss"], abs=1e-9)
    assert_near(two, one)


def test_every_method_of_the_group_works_remotely(two, tmp_path):
    assert (two.is_local, two.is_remote, len(two)) == (False, True, 2)
    assert two.foreach_learner(lambda learner: learner.reducer.rank) == [0, 1]
    each = two.update_from_episodes(episodes(), reduce_results=False, return_state=True)
    assert ["_rl_module_state_after_update" in part for part in each] == [True, False]
    first = two.get_stats()["last_call_id"]
    two.update_from_episodes(episodes(), async_update=True)
    two.update_from_batch(batch(), async_update=True)
    ids = [part["call_id"] for part in two.drain()]
    assert ids == [first + 1, first + 2]
    path = two.save_to_path(tmp_path / "saved")
    other = ppo().build_learner_group()
    other.restore_from_path(path)
    assert_near(two, other)
    two.update_from_batch(batch(seed=1))
    two.restore_from_path(path)
    two.set_weights(other.get_weights())
    assert_near(two, other)
    assert all(array.flags.writeable for array in two.get_weights()[MODULE].values())
    assert two.update_from_episodes([])[ALL]["num_updates_skipped"] == 1
    with pytest.raises(RuntimeError, match="in other processes; use foreach_learner"):
        two.learner
    with pytest.raises(KeyError, match="no module 'x'"):
        two.remove_module("x")


class Faulty(PPOLearner):
    """Does on learner 1 what `fault` says, in its second gradient step."""

    fault = ""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        type(self).steps = getattr(type(self), "steps", 0) + 1
        if type(self).steps == 2 and self.reducer.rank == 1 and self.fault == "raise":
            raise ArithmeticError("a loss that raises")
        if self.fault == "slow":
            time.sleep(0.3)
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def set_fault(learner, fault):
    type(learner).fault, type(learner).steps = fault, 0


@pytest.fixture(scope="module")
def faulty(two):
    two.shutdown()
    with ppo(2, learner_class=Faulty).build_learner_group() as group:
        yield group


def test_a_learner_that_raises_gives_its_traceback_and_no_learner_is_updated(faulty):
    before = ppo().build_learner_group()
    faulty.set_state(before.get_state())
    faulty.foreach_learner(set_fault, "raise")
    with pytest.raises(LearnerError, match=r"(?s)learner 1 of 2 failed.*ArithmeticError: a loss that raises"):
        faulty.update_from_batch(batch(), minibatch_size=4)
    faulty.foreach_learner(set_fault, "")
    assert_near(faulty, before)
    faulty.update_from_batch(batch(), minibatch_size=4)
    before.update_from_batch(batch(), minibatch_size=4)
    assert_near(faulty, before)


def test_a_learner_killed_during_an_update_is_started_again_and_the_update_is_made_once(faulty):
    one = ppo().build_learner_group()
    faulty.set_state(one.get_state())
    faulty.add_module(
        module_id="more", module_spec=RLModuleSpec(DefaultActorCriticModule, BOX, THREE, model_config=ModelConfig())
    )
    faulty.foreach_learner(set_fault, "slow")
    victim = faulty._backend.process_ids()[1]
    killer = threading.Timer(0.7, os.kill, (victim, signal.SIGKILL))
    killer.start()
    given = MultiAgentBatch({MODULE: batch()}, 23)
    faulty.update_from_batch(given, minibatch_size=4, shuffle_batch_per_epoch=True)
    killer.join()
    one.update_from_batch(batch(), minibatch_size=4, shuffle_batch_per_epoch=True)
    assert faulty.get_stats()["num_restarts"] == 1
    assert victim not in faulty._backend.process_ids()
    assert faulty.foreach_learner(lambda learner: list(learner.module)) == [[MODULE, "more"]] * 2
    assert_near(faulty, one)


def test_shutdown_ends_the_processes_of_the_learners(faulty):
    ids = faulty._backend.process_ids()
    faulty.shutdown()
    until = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in ids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in ids if os.path.exists(f"/proc/{pid}")]
