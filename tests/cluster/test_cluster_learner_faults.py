"""Real faults of remote learners, again and again at random moments: recovery in the same call, or a clear error.

`FAULT_REPEATS` (20) is how often each is repeated.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cluster_parts import MODULE, as_configured, assert_all_are, assert_near, batch, faulty, gone, ppo, weights_of

from lockstep.learner.many.reduction import LearnerError
from lockstep.state.checkpoint import verify_checkpoint

pytestmark = pytest.mark.faults
REPEATS = int(os.environ.get("FAULT_REPEATS", "20"))
OPTIONS = {"minibatch_size": 4, "num_epochs": 2, "shuffle_batch_per_epoch": True}
STEPS = 10
TIMEOUT_S = 4.0


def tolerant(config):
    return config.fault_tolerance(max_learner_restarts=10_000, max_restarts_in_window=10_000)


@pytest.fixture
def groups(pool, tmp_path):
    """Two remote learners that fail as they are told, and the one that they must equal."""
    group = pool.group(tolerant(faulty(2, tmp_path, seconds=0.01)))
    yield group, as_configured(group)
    group.shutdown()


def update_both(group, one, number):
    """An update on both, then all learners are equal; seconds that the group's took."""
    began = time.monotonic()
    results = group.update_from_batch(batch(seed=number), **OPTIONS)
    seconds = time.monotonic() - began
    expected = one.update_from_batch(batch(seed=number), **OPTIONS)
    assert results[MODULE]["num_module_steps_trained_lifetime"] == expected[MODULE]["num_module_steps_trained_lifetime"]
    assert_all_are(group, one)
    assert_near(*group.foreach_learner(weights_of), 0.0)
    return seconds


def kill_later(process_id, seconds, how=signal.SIGKILL):
    def kill():
        try:
            os.kill(process_id, how)
        except ProcessLookupError:
            return

    timer = threading.Timer(seconds, kill)
    timer.start()
    return timer


def test_kill_9_at_any_moment_of_an_update_is_recovered_in_the_same_call(groups):
    group, one = groups
    usual = update_both(group, one, 0)
    for number in range(1, REPEATS + 1):
        timer = kill_later(random.choice(group._backend.process_ids()), random.random() * usual)
        update_both(group, one, number)
        timer.join()
    assert group.get_stats()["num_restarts"] >= REPEATS // 2


@pytest.mark.parametrize(("where", "share"), [("in_sum", 0.5), ("after_sum", 0.9), ("raise", 1.0)])
def test_kill_9_around_the_all_reduce_and_errors_update_no_side_alone(groups, tmp_path, where, share):
    group, one = groups
    for number in range(REPEATS):
        (tmp_path / str(random.randrange(2))).write_text(f"{where} {random.randint(1, STEPS)}")
        update_both(group, one, number)
    assert group.get_stats()["num_restarts"] >= REPEATS * share


def test_kill_9_during_saving_leaves_a_complete_present_checkpoint(groups, tmp_path):
    group, one = groups
    began = time.monotonic()
    group.save_to_path(tmp_path / "first")
    usual = time.monotonic() - began
    for number in range(REPEATS):
        timer = kill_later(group._backend.process_ids()[0], random.random() * usual)
        path = group.save_to_path(tmp_path / f"saved{number}")
        timer.join()
        verify_checkpoint(path)
        restored = ppo().build_learner_group()
        restored.restore_from_path(path)
        assert_near(restored.get_weights(), one.get_weights())
        update_both(group, one, number)


@pytest.mark.parametrize("how", ["SIGSTOP", "loop"])
def test_a_hanging_learner_is_ended_and_the_update_is_made_once(pool, tmp_path, how):
    config = tolerant(faulty(2, tmp_path, seconds=0.002)).learners(learner_timeout_s=TIMEOUT_S)
    group = pool.group(config)
    one = as_configured(group)
    for number in range(max(1, REPEATS // 2)):
        (tmp_path / str(random.randrange(2))).write_text(f"{how} {random.randint(1, STEPS)}")
        update_both(group, one, number)
    assert group.get_stats()["num_restarts"] >= REPEATS // 2
    group.shutdown()


@pytest.mark.parametrize("num_learners", [1, 2])
def test_when_all_learners_loop_their_state_before_the_update_is_kept(pool, tmp_path, num_learners):
    config = tolerant(faulty(num_learners, tmp_path)).learners(learner_timeout_s=TIMEOUT_S)
    group = pool.group(config)
    one = as_configured(group)
    one.update_from_batch(batch(), **OPTIONS)
    group.update_from_batch(batch(), **OPTIONS)
    for rank in range(num_learners):
        (tmp_path / str(rank)).write_text("loop 1")
    group.update_from_batch(batch(seed=1), **OPTIONS)
    one.update_from_batch(batch(seed=1), **OPTIONS)
    assert_all_are(group, one)
    group.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_learner_restarts": 10_000}, "No learner is left"),
        ({"max_learner_restarts": 0}, "not started again|is left"),
    ],
)
def test_when_all_learners_die_every_call_names_the_last_checkpoint(pool, tmp_path, options, words):
    group = pool.group(faulty(2, tmp_path).fault_tolerance(max_restarts_in_window=10_000, **options))
    path = group.save_to_path(tmp_path / "saved")
    for process_id in group._backend.process_ids():
        os.kill(process_id, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(LearnerError, match=words) as caught:
            group.update_from_batch(batch())
        assert path in str(caught.value)
        with pytest.raises(LearnerError, match=words):
            group.get_weights()
    group.shutdown()


# -- what needs a driver of its own ---


def driver(what, *arguments, **options):
    """A process that runs `cluster_drivers.py`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("cluster_drivers.py")), what, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def said_by(process, seconds):
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    assert process.returncode == 0, f"{out}\n{err[-3000:]}"
    return out


def test_a_removed_node_is_recovered_in_the_same_call():
    out = said_by(driver("node", REPEATS), 240 + 60 * REPEATS)
    recovered = [line for line in out.splitlines() if line.startswith("recovered")]
    assert len(recovered) == REPEATS
    assert "LearnerError" in next(line for line in out.splitlines() if line.startswith("no room"))


def test_data_larger_than_the_object_store_are_learned_from_all_the_same():
    out = said_by(driver("store", REPEATS), 120 + 30 * REPEATS)
    assert out.count("equal") == REPEATS


@pytest.mark.parametrize("own_ray", [False, True])
def test_no_learner_outlives_a_killed_driver_by_30_seconds(cluster, own_ray):
    import ray

    address = "own" if own_ray else ray.get_runtime_context().gcs_address
    for _ in range(max(2, REPEATS // 10) if own_ray else REPEATS):
        process = driver("updates", address)
        ids = [int(text) for text in process.stdout.readline().split()]
        assert len(ids) == 2, process.communicate()[1][-2000:]
        time.sleep(random.random())
        process.kill()
        process.communicate()
        assert gone(ids, 30)
