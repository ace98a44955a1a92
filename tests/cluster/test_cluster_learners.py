"""Learners in real processes act as one learner in this process: every method of a group, every algorithm.

One file, so that one process runs it and the learners are started once.
"""

import time

import numpy as np
import pytest
from algorithm_cases import ALGORITHM_CASES, NAMES, ON_POLICY
from cluster_parts import (
    ACTIONS,
    ALL,
    BOX,
    MODULE,
    THREE,
    Recorder,
    another_module,
    as_configured,
    assert_all_are,
    assert_near,
    batch,
    episodes,
    faulty,
    gone,
    ppo,
    small,
    transitions,
    weights_of,
    without_seconds,
)
from parts import one_in

from lockstep import LearnerGroup, RolloutStore, SampleBatch, get_config
from lockstep.algorithms.ppo import PPOLearner
from lockstep.data.sample_batch import MultiAgentBatch
from lockstep.learner import LearnersSection
from lockstep.learner.many.reduction import LearnerError
from lockstep.modules import RLModule
from lockstep.policy.policy import row_errors

NOW = {"num_env_steps_sampled_lifetime": 50}
SCHEDULE = [[0, 1e-2], [100, 0.0]]


@pytest.fixture
def group(pool, num_learners):
    return pool.group(ppo(num_learners))


@pytest.fixture
def one():
    """The learner in this process that the group is compared with."""
    return ppo().build_learner_group()


@pytest.mark.parametrize(
    "options",
    one_in(
        2,
        [
            {},
            {"num_epochs": 3, "minibatch_size": 7, "shuffle_batch_per_epoch": True},
            {"num_epochs": 2, "minibatch_size": 5, "shuffle_batch_per_epoch": False, "timesteps": NOW},
            {"minibatch_size": 100, "shuffle_batch_per_epoch": True},
        ],
    ),
)
def test_updates_from_episodes_and_batches_train_what_one_learner_trains(pool, num_learners, options):
    group, one = (pool.group(ppo(number, lr=SCHEDULE)) for number in (num_learners, 0))
    for kind, made in (("episodes", episodes), ("batch", batch)):
        results = getattr(group, f"update_from_{kind}")(made(), **options)
        expected = getattr(one, f"update_from_{kind}")(made(), **options)
        assert_near(without_seconds(expected), without_seconds(results), 1e-9)
        assert all(isinstance(value, int | float) for value in results[MODULE].values())
    multi = MultiAgentBatch({MODULE: batch(seed=1)}, 23)
    group.update_from_batch(multi, **options)
    one.update_from_batch(multi, **options)
    assert_all_are(group, one)


def test_results_of_each_learner_and_weights_are_returned_as_asked(group):
    for update, made in ((group.update_from_episodes, episodes()), (group.update_from_batch, batch())):
        each = update(made, reduce_results=False, return_state=True)
        assert ["_rl_module_state_after_update" in part for part in each] == [True] + [False] * (len(group) - 1)
        assert_near(each[0]["_rl_module_state_after_update"], group.get_weights())
    assert [part["call_id"] for part in each] == [2] * len(group)
    assert {part[MODULE]["num_module_steps_trained"] for part in each} == {23}


def test_async_updates_return_results_of_earlier_calls_and_drain_the_rest(group, one):
    ready = []
    for seed in range(3):
        ready += group.update_from_episodes(episodes(seed), async_update=True, minibatch_size=8)
        ready += group.update_from_batch(batch(seed=seed), async_update=True, on_full="wait", return_state=True)
        one.update_from_episodes(episodes(seed), minibatch_size=8)
        one.update_from_batch(batch(seed=seed))
    ready += group.drain()
    assert [part["call_id"] for part in ready] == [1, 2, 3, 4, 5, 6]
    assert ["_rl_module_state_after_update" in part for part in ready] == [False, True] * 3
    assert_near(ready[-1]["_rl_module_state_after_update"], group.get_weights())
    assert group.drain() == []
    assert_all_are(group, one)


def test_an_async_update_trains_on_what_was_given_whatever_becomes_of_it(group, one):
    given, made = batch(), episodes()
    with group._queue.between_updates():
        group.update_from_batch(given, async_update=True)
        group.update_from_episodes(made, async_update=True)
        given["obs"][:] = np.nan
        for episode in made:
            episode.get_rewards()[:] = np.nan
    group.drain()
    one.update_from_batch(batch())
    one.update_from_episodes(episodes())
    assert_all_are(group, one)


def test_nothing_to_train_is_a_counted_no_op_on_all_learners(pool, group):
    before = group.get_weights()
    assert group.update_from_episodes([])[ALL]["num_updates_skipped"] == 1
    assert group.update_from_batch(batch(0))[ALL]["num_updates_skipped"] == 1
    stats = group.get_stats()
    assert (stats["num_updates_skipped"], stats["num_steps_trained"]) == (2, 0)
    assert_near(before, group.get_weights())
    nobody = pool.group(ppo(group.section.num_learners).multi_agent(policies_to_train=[]))
    assert nobody.update_from_episodes(episodes())[ALL]["num_updates_skipped"] == 1
    never = pool.group(ppo(group.section.num_learners).learners(never_skip_update=True))
    with pytest.raises(ValueError, match="never_skip_update=True does not allow"):
        never.update_from_episodes([])


def test_fewer_rows_than_learners_leave_empty_shards_and_no_learner_hangs(group, one):
    for rows in (1, 2):
        for which in (group, one):
            which.update_from_batch(batch(rows), minibatch_size=8, num_epochs=2, shuffle_batch_per_epoch=True)
            which.update_from_episodes(episodes(lengths=(rows,)))
    assert_all_are(group, one)


def test_modules_are_added_and_removed_on_every_learner(group, one):
    for which in (group, one):
        spec = which.add_module(
            module_id="more",
            module_spec=another_module(),
            config_overrides={"lr": 1e-3},
            new_should_module_be_updated=["more"],
        )
        assert list(spec.rl_module_specs) == [MODULE, "more"]
        made = MultiAgentBatch({MODULE: batch(), "more": batch(9, 1)}, 23)
        before = which.get_weights(MODULE)
        results = which.update_from_batch(made, minibatch_size=6)
        assert results["more"]["num_module_steps_trained"] == 6
        assert_near(before, which.get_weights(MODULE))
        which.update_from_episodes(episodes(module_id="more"))
    assert_all_are(group, one)
    assert group.foreach_learner(lambda learner: learner.config_of("more").lr) == [1e-3] * len(group)
    before = group.get_weights()
    with pytest.raises(ValueError, match="there is a module 'more' already"):
        group.add_module(module_id="more", module_spec=another_module())
    with pytest.raises(KeyError, match="no module 'x'"):
        group.remove_module("x")
    assert_near(before, group.get_weights())
    spec = group.remove_module("more", new_should_module_be_updated=[MODULE])
    assert list(spec.rl_module_specs) == [MODULE]
    one.remove_module("more", new_should_module_be_updated=[MODULE])
    for which in (group, one):
        which.update_from_episodes(episodes(2))
    assert_all_are(group, one)


def test_get_state_takes_components_and_set_state_restores_every_learner(group, one):
    one.update_from_episodes(episodes(), minibatch_size=8, shuffle_batch_per_epoch=True)
    group.set_state(one.get_state())
    assert_near(one.get_state(), group.get_state())
    assert list(group.get_state(f"learner/rl_module/{MODULE}")["learner"]["rl_module"]) == [MODULE]
    assert set(group.get_state(["learner/optimizer", "learner/random"])["learner"]) == {"optimizer", "random"}
    assert "optimizer" not in group.get_state(not_components="learner/optimizer")["learner"]
    whole, acting = (group.get_state(inference_only=only)["learner"]["rl_module"][MODULE] for only in (False, True))
    assert set(acting) < set(whole)
    with pytest.raises(KeyError, match="no component 'nothing'"):
        group.get_state("learner/nothing")
    for which in (group, one):  # random numbers and moments are those of the other, too
        which.update_from_episodes(episodes(1), minibatch_size=8, shuffle_batch_per_epoch=True)
    assert_all_are(group, one)


def test_what_does_not_fit_is_refused_in_the_call_and_changes_no_learner(group):
    without_logp = SampleBatch(obs=batch()["obs"], actions=batch()["actions"])
    before, state = group.foreach_learner(weights_of), group.get_state()
    state["learner"]["rl_module"][MODULE] = {"wrong": np.zeros(3)}
    refused = [
        (ValueError, "nothing was changed", lambda: group.set_state(state)),
        (ValueError, "the one key 'learner'", lambda: group.set_state({"learners": {}})),
        (TypeError, "position 0 is a str", lambda: group.update_from_episodes(["no episode"])),
        ((ValueError, KeyError, LearnerError), "action_logp", lambda: group.update_from_batch(without_logp)),
        (ValueError, "num_epochs=0", lambda: group.update_from_episodes(episodes(), num_epochs=0)),
        (KeyError, r"no modules \['x'\]", lambda: group.get_weights(["x"])),
    ]
    for error, words, call in refused:
        with pytest.raises(error, match=words):
            call()
        assert_near(before, group.foreach_learner(weights_of))
    group.update_from_batch(batch())


def test_weights_are_set_on_every_learner_and_got_as_own_copies(group, one):
    one.update_from_batch(batch(seed=3))
    group.set_weights(one.get_weights())
    assert_all_are(group, one)
    weights = group.get_weights(MODULE)
    for array in weights[MODULE].values():
        array[...] = 0.0
    assert_all_are(group, one)
    assert set(group.get_weights(inference_only=True)[MODULE]) < set(weights[MODULE])


def test_foreach_learner_returns_results_in_order_wherever_learners_are(group, num_learners):
    assert (group.is_local, group.is_remote, len(group)) == (not num_learners, bool(num_learners), num_learners or 1)
    if num_learners:
        with pytest.raises(RuntimeError, match="in other processes; use foreach_learner"):
            group.learner
    assert group.foreach_learner(lambda learner, a, b: (learner.reducer.rank, a + b), 1, 2) == [
        (rank, 3) for rank in range(len(group))
    ]
    with pytest.raises(ZeroDivisionError):
        group.foreach_learner(lambda learner: 1 // 0)
    assert group.update_from_batch(batch())[ALL]["num_updates_skipped"] == 0


def test_get_stats_counts_calls_and_steps(group):
    group.update_from_batch(batch())
    group.update_from_episodes(episodes(), async_update=True)
    group.drain()
    assert group.get_stats() == {
        "num_in_flight": 0, "num_waiting": 0, "last_call_id": 2, "num_calls": 2, "num_dropped": 0, "num_failed": 0,
        "num_steps_submitted": 49, "num_steps_trained": 49, "num_steps_dropped": 0, "num_restarts": 0,
        "num_updates_skipped": 0,
    }  # fmt: skip


def test_a_checkpoint_restores_any_number_of_learners_and_components(pool, group, one, tmp_path):
    options = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": True}
    for which in (group, one):
        which.update_from_episodes(episodes(), **options)
    path = group.save_to_path(tmp_path / "saved")
    assert group.last_checkpoint == path
    saved_by = group.section.num_learners
    for number in (0, 1, 2, 3) if saved_by % 2 else (0, 2):  # with `faults`: to any number
        if number and number == saved_by:
            continue  # that would be the same processes
        other = pool.group(ppo(number))
        other.restore_from_path(path)
        other.update_from_episodes(episodes(1), **options)
    one.update_from_episodes(episodes(1), **options)
    assert_all_are(other, one)
    group.update_from_batch(batch(seed=5))
    group.restore_from_path(path, component=f"learner/rl_module/{MODULE}")
    module = RLModule.from_checkpoint(f"{path}/learner/rl_module/{MODULE}").save_to_path(tmp_path / "module")
    group.restore_from_path(module, component="learner/rl_module")
    group.restore_from_path(path)
    group.update_from_episodes(episodes(1), **options)
    assert_all_are(group, one)


@pytest.mark.parametrize("num_learners", [0, pytest.param(2, marks=pytest.mark.faults)])
def test_from_checkpoint_builds_any_number_of_learners(cluster, num_learners, one, tmp_path):
    one.update_from_episodes(episodes())
    path = one.save_to_path(tmp_path / "saved")
    with LearnerGroup.from_checkpoint(path, section=LearnersSection(num_learners=num_learners)) as group:
        assert len(group) == (num_learners or 1)
        assert group.last_checkpoint == path
        for which in (group, one):
            which.update_from_batch(batch(), minibatch_size=8, shuffle_batch_per_epoch=True)
        assert_all_are(group, one)
    with pytest.raises(RuntimeError, match="shut down"):
        group.update_from_batch(batch())
    with pytest.raises(ValueError, match=r"resize\(2\)"):  # the learner in this process cannot become several
        one.resize(2)


# -- every algorithm ---

SIZES = (23, 1, 50, 2)
"""rows of an update: they do not divide by 2 or 3, and two learners of three get none of one row"""


def data(kind, number, action_space):
    rows = SIZES[number % len(SIZES)]
    if kind == "transitions":
        return transitions(rows, number, action_space)
    if kind == "batch":
        return batch(rows, number)
    return episodes(number, (rows,) if rows < 9 else (rows - 8, 3, 5))


DISCRETE = ", discrete actions"
"""added to the name of an algorithm that most tests give a Box"""


def action_space_of(name):
    return ACTIONS if name in ALGORITHM_CASES and ALGORITHM_CASES[name].in_a_box else THREE


def config_of(name, num_learners):
    algorithm = name.removesuffix(DISCRETE)
    training = ALGORITHM_CASES[algorithm].updates if action_space_of(name) is THREE else {}
    return small(get_config(algorithm), num_learners, action_space_of(name), **training)


def kinds_of(name):
    """Kinds of updates, in turn; `transitions`: samples of a replay buffer."""
    if name.removesuffix(DISCRETE) not in ON_POLICY:
        return ("transitions",)
    return ("episodes", "batch") if ALGORITHM_CASES[name].takes_batches else ("episodes",)


def passes_of(name):
    """Passes over the rows of an update, and the size of its minibatches where an algorithm takes them."""
    if kinds_of(name) == ("transitions",):
        return {"minibatch_size": 8}
    return {"num_epochs": 2} if ALGORITHM_CASES[name].is_of_whole_batches else {"minibatch_size": 8, "num_epochs": 2}


@pytest.mark.parametrize(
    ("name", "num_learners"),
    [
        *((name, 2) for name in ("ppo", "dqn")),
        *(pytest.param(name, 3, marks=pytest.mark.faults) for name in (*NAMES, f"sac{DISCRETE}")),
    ],
)
def test_parameters_after_20_updates_are_those_of_one_learner(pool, name, num_learners):
    group, one = (pool.group(config_of(name, number)) for number in (num_learners, 0))
    kinds = kinds_of(name)
    for number in range(20):
        kind = kinds[number % len(kinds)]
        options = passes_of(name)
        if options.get("minibatch_size"):
            options["shuffle_batch_per_epoch"] = bool(number // 2 % 2)
        update = "update_from_episodes" if kind == "episodes" else "update_from_batch"
        made = data(kind, number, action_space_of(name))
        results, expected = (getattr(which, update)(made, **options) for which in (group, one))
        assert_near(without_seconds(expected), without_seconds(results), 1e-9)
    assert_all_are(group, one)
    state, expected = (which.get_state(["learner/registered", "learner/optimizer"]) for which in (group, one))
    assert_near(expected, state, 1e-11)


@pytest.mark.parametrize("num_learners", [2, pytest.param(3, marks=pytest.mark.faults)])
def test_errors_for_the_priorities_come_in_the_order_of_the_sample(pool, num_learners):
    group, one = (pool.group(config_of("dqn", number)) for number in (num_learners, 0))
    for rows in SIZES:
        errors = []
        for which in (group, one):
            which.update_from_batch(transitions(rows, seed=rows))
            errors.append([float(e) for part in which.foreach_learner(row_errors, "default_policy") for e in part])
        assert len(errors[0]) == rows
        assert errors[0] == pytest.approx(errors[1], abs=1e-12)


# -- another number of learners ---

OPTIONS = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": True}


def rollout(seed, num_envs=4, steps=6):
    """A rollout whose environments mostly go on after it."""
    store, rng = RolloutStore(steps, num_envs, BOX, THREE), np.random.default_rng(seed)
    for t in range(steps):
        store.write_obs(t, rng.normal(size=(num_envs, 3)).astype(np.float32))
        ended = (rng.random(num_envs) < 0.2) & (t < steps - 1)
        store.write_step(t, rng.integers(3, size=num_envs), rng.normal(size=num_envs), ended, np.zeros(num_envs, bool))
    store.end(steps, rng.normal(size=(num_envs, 3)).astype(np.float32))
    return store


@pytest.mark.parametrize("num_envs", [4, 1])
@pytest.mark.parametrize(("first", "then"), [(2, 0), pytest.param(3, 2, marks=pytest.mark.faults)])
def test_running_returns_are_saved_and_go_to_any_number_of_learners(pool, tmp_path, first, then, num_envs):
    def made(num_learners):
        return pool.group(ppo(num_learners).environment(normalize_rewards=True, normalize_observations=True))

    def update(which, seed):
        which.update_from_episodes(rollout(seed, num_envs).episodes(), **OPTIONS)

    one, group = made(0), made(first)
    for seed in range(3):
        update(one, seed)
        update(group, seed)
    assert_all_are(group, one)
    path, other = group.save_to_path(tmp_path / "saved"), made(then)
    other.restore_from_path(path)
    for seed in range(3, 6):
        update(one, seed)
        update(other, seed)
    assert_all_are(other, one)
    states = [which.get_state("learner/connectors")["learner"]["connectors"][MODULE] for which in (one, other)]
    assert_near(*states, 1e-11)
    assert len(states[0]["rewards"]["returns"]) == num_envs
    assert np.all(states[0]["rewards"]["returns"] != 0.0)


@pytest.mark.faults
def test_resize_2_1_3_keeps_loss_curve_and_parameters_of_one_learner(pool):
    group, one = pool.group(ppo(2)), ppo().build_learner_group()
    for which in (group, one):
        which.add_module(module_id="more", module_spec=another_module())
    curves = ([], [])
    for number, learners in enumerate((2, 1, 3)):
        waiting = [] if number else group.update_from_episodes(episodes(9, module_id=MODULE), async_update=True)
        assert waiting == []
        group.resize(learners)  # what waits is trained first
        assert len(group) == learners
        if number == 0:
            one.update_from_episodes(episodes(9, module_id=MODULE))
            assert len(group.drain()) == 1
        for seed in range(4):
            for which, curve in zip((group, one), curves):
                results = which.update_from_episodes(episodes(seed, module_id=MODULE), **OPTIONS)
                curve.append(results[MODULE]["total_loss"])
        assert_all_are(group, one)
    assert curves[0] == pytest.approx(curves[1], abs=1e-12)
    assert_near(
        one.get_state(["learner/optimizer", "learner/random"]), group.get_state(["learner/optimizer", "learner/random"])
    )
    group.shutdown()


@pytest.mark.faults
def test_a_failed_resize_leaves_the_group_unchanged_or_says_it_is_lost(pool, monkeypatch):
    group, one = pool.group(ppo(2)), ppo().build_learner_group()
    backend, start, failing = group._backend, group._backend._start, [True]

    def failing_start(number, like=None):
        if failing.pop(0):
            raise RuntimeError("the build failed")
        start(number, like)

    monkeypatch.setattr(backend, "_start", failing_start)
    failing += [False]
    with pytest.raises(LearnerError, match=r"resize\(3\): the build failed\. The group continues with 2 learners"):
        group.resize(3)
    for which in (group, one):
        which.update_from_batch(batch())
    assert_all_are(group, one)
    failing += [True, True]
    with pytest.raises(LearnerError, match="and so did the start of 2 learners again"):
        group.resize(3)
    for call in (lambda: group.update_from_batch(batch()), group.get_weights):
        with pytest.raises(LearnerError, match="build the group again"):
            call()


@pytest.mark.faults
def test_resize_without_room_leaves_the_group_as_it_is(pool, monkeypatch):
    for module in ("processes", "ray_learners"):
        monkeypatch.setattr(f"lockstep.cluster.{module}.RESERVE_TIMEOUT_S", 2.0)
    config = ppo(1).learners(custom_resources_per_learner={"rare": 1}, learner_timeout_s=60.0)
    with pytest.raises(LearnerError, match="no room for 1 learners"):
        config.build_learner_group()
    group, one = pool.group(ppo(1).learners(learner_timeout_s=60.0)), ppo().build_learner_group()
    with pytest.raises(LearnerError, match=r"resize\(90\): .*no room for 90 learners.*continues with 1 learners"):
        group.resize(90)
    for which in (group, one):
        which.update_from_batch(batch())
    assert_all_are(group, one)


# -- asynchronous updates ---


def numbered(rows, first):
    """A batch whose observations begin with the numbers from `first`."""
    made = batch(rows)
    made["obs"][:, 0] = np.arange(first, first + rows)
    return made


@pytest.mark.parametrize("on_full", [pytest.param("wait", marks=pytest.mark.faults), "drop"])
def test_async_updates_train_or_drop_each_row_once_under_random_delays(pool, on_full):
    config = ppo(2, learner_class=Recorder).learners(max_requests_in_flight_per_learner=2)
    group, rng, first = pool.group(config), np.random.default_rng(1), 0
    rows_of, ready = {}, []
    for call_id in range(1, 26):
        rows = int(rng.integers(1, 9))
        rows_of[call_id] = set(range(first, first + rows))
        ready += group.update_from_batch(
            numbered(rows, first), async_update=True, on_full=on_full, reduce_results=False, return_state=True
        )
        assert group.get_stats()["num_in_flight"] <= 2
        first += rows
        time.sleep(rng.random() * 0.03)
    ready += group.drain()
    trained = [each[0]["call_id"] for each in ready]
    seen = group.foreach_learner(lambda learner: learner.seen)
    assert trained == sorted(trained)
    assert all({part["call_id"] for part in each} == {each[0]["call_id"]} for each in ready)  # all learners or none
    assert sorted(seen[0] + seen[1]) == sorted(row for call_id in trained for row in rows_of[call_id])
    stats = group.get_stats()
    assert stats["num_dropped"] == 25 - len(trained)
    assert (stats["num_steps_trained"], stats["num_steps_submitted"]) == (len(seen[0] + seen[1]), first)
    assert stats["num_steps_trained"] + stats["num_steps_dropped"] == first
    assert (stats["num_dropped"] > 0) == (on_full == "drop")
    assert_near(ready[-1][0]["_rl_module_state_after_update"], group.get_weights())
    assert_near(*group.foreach_learner(weights_of), 0.0)


def test_an_async_error_comes_with_the_next_call_and_learners_agree(pool, tmp_path):
    group = pool.group(faulty(2, tmp_path))
    one = as_configured(group)
    given = batch()
    given["advantages"][:] = np.nan
    group.update_from_batch(SampleBatch(obs=given["obs"]), async_update=True)
    with pytest.raises((KeyError, LearnerError), match="lacks"):
        group.drain()
    group.update_from_batch(batch(), async_update=True)
    one.update_from_batch(batch())
    assert len(group.drain()) == 1
    assert_all_are(group, one)


# -- data ---


def where_data_lie(learner):
    return learner.lying


class Looking(PPOLearner):
    """Notes whether the arrays that it gets are those of the object store."""

    def update_from_batch(self, batch, **options):
        self.lying = [not column.flags.writeable for column in batch.values()]
        return super().update_from_batch(batch, **options)

    def prepare_batch(self, trajectories, *, module_id):
        arrays = (trajectories.obs, trajectories.actions, trajectories.rewards, trajectories.dones)
        self.lying = [not array.flags.writeable for array in arrays]
        return super().prepare_batch(trajectories, module_id=module_id)


def test_learners_read_their_shards_in_the_object_store_without_a_copy(pool):
    group = pool.group(ppo(2, learner_class=Looking))
    for update, data in (("batch", batch(3000)), ("episodes", episodes()), ("episodes", rollout(0).episodes())):
        getattr(group, f"update_from_{update}")(data)
        lying = group.foreach_learner(where_data_lie)
        assert all(lying[0]), (update, lying)
        assert all(lying[1]), (update, lying)


def test_references_to_episodes_in_the_object_store_are_taken_for_episodes(pool):
    import ray

    group, one = pool.group(ppo(2)), ppo().build_learner_group()
    made = episodes()
    group.update_from_episodes([ray.put(made[:2]), ray.put(made[2:])])
    group.update_from_batch(ray.put(batch()), async_update=True)
    one.update_from_episodes(episodes())
    one.update_from_batch(batch())
    group.drain()
    assert_all_are(group, one)
    assert group.get_stats()["num_steps_trained"] == 26 + 23


# -- failures; more of them in test_cluster_learner_faults.py ---


def test_a_killed_learner_is_restarted_and_the_update_is_made_once_on_all(pool, tmp_path):
    group = pool.group(faulty(2, tmp_path))
    one = as_configured(group)
    group.add_module(module_id="more", module_spec=another_module())
    (tmp_path / "1").write_text("SIGKILL 3")
    victim = group._backend.process_ids()[1]
    options = {"minibatch_size": 4, "shuffle_batch_per_epoch": True}
    group.update_from_batch(MultiAgentBatch({MODULE: batch()}, 23), **options)
    one.update_from_batch(batch(), **options)
    assert victim not in group._backend.process_ids()
    assert group.get_stats()["num_restarts"] == 1
    assert group.foreach_learner(lambda learner: list(learner.module)) == [[MODULE, "more"]] * 2
    assert_near([one.get_weights()[MODULE]] * 2, [part[MODULE] for part in group.foreach_learner(weights_of)])


@pytest.mark.faults
def test_beyond_the_limit_a_learner_error_has_rank_and_last_checkpoint(pool, tmp_path):
    group = pool.group(faulty(2, tmp_path))
    one = as_configured(group)
    path = group.save_to_path(tmp_path / "saved")
    (tmp_path / "1").write_text("raise 2 again")
    with pytest.raises(LearnerError) as caught:
        group.update_from_batch(batch(), minibatch_size=4)
    said = str(caught.value)
    assert "learner 1 of 2 failed, and no learner was updated" in said
    assert "learner 1 is not started again: 1 restarts in the last 60 s, at most 1 are allowed" in said
    assert "ArithmeticError: a loss that raises" in said
    assert f"the last checkpoint is {path}" in said
    assert_near(one.get_weights(), group.get_weights())  # what is left can be read and saved
    assert group.save_to_path(tmp_path / "later") == group.last_checkpoint
    with pytest.raises(LearnerError, match="is not started again"):
        group.update_from_batch(batch())
    group.shutdown()


@pytest.mark.long
def test_shutdown_ends_the_processes_of_the_learners(pool):
    group = pool.group(ppo(1))
    ids = group._backend.process_ids()
    group.shutdown()
    assert gone(ids)
