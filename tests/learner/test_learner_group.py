"""`LearnerGroup` of one learner in process: updates, results, modules, state, checkpoints."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from learner_parts import (
    ALL,
    BOX,
    MODULE,
    assert_same,
    differs,
    episodes,
    parameters,
    ppo_batch,
    ppo_config,
    spec,
    value_batches,
    value_learner,
)

from lockstep import LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.modules import DefaultActorCriticModule, MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec


def ppo_group(seed=0, **learners):
    return ppo_config().debugging(seed=seed).learners(**learners).build_learner_group()


def test_local_group_is_one_learner_and_starts_no_ray():
    import sys

    loaded = "ray" in sys.modules  # by other tests of this process
    with ppo_group() as group:
        assert isinstance(group, LearnerGroup)
        assert (group.is_local, group.is_remote, len(group)) == (True, False, 1)
        assert isinstance(group.learner, Learner)
    assert loaded or "ray" not in sys.modules


def test_updates_of_the_group_are_those_of_its_learner():
    group, learner = ppo_group(), ppo_config().build_learner()
    options = {"minibatch_size": 4, "num_epochs": 2, "shuffle_batch_per_epoch": True}
    for results in (
        group.update_from_batch(ppo_batch(), **options),
        learner.update_from_batch(ppo_batch(), **options),
        group.update_from_episodes(episodes(), **options),
        learner.update_from_episodes(episodes(), **options),
    ):
        assert results[ALL]["num_passes"] == 2
    assert_same(parameters(group.learner), parameters(learner))


def test_return_state_carries_the_weights_after_the_update():
    group = ppo_group()
    results = group.update_from_batch(ppo_batch(), return_state=True)
    weights = results["_rl_module_state_after_update"]
    assert weights.keys() == {MODULE}
    for name, array in group.get_weights()[MODULE].items():
        np.testing.assert_array_equal(weights[MODULE][name], array)
    assert "_rl_module_state_after_update" not in group.update_from_batch(ppo_batch())


def test_nothing_to_train_is_a_counted_no_op():
    for group, data in ((ppo_group(), []), (LearnerGroup(value_learner(policies_to_train=[])), episodes())):
        before = parameters(group.learner)
        for number in (1, 2):
            results = group.update_from_episodes(data)
            assert (results[ALL]["num_updates_skipped"], results[ALL]["num_minibatches"]) == (1, 0)
            assert group.get_stats()["num_updates_skipped"] == number
        assert_same(parameters(group.learner), before)
        assert group.learner.weights_seq_no == 0


# -- state ---


def test_weights_are_arrays_by_module_and_name_and_can_be_set():
    group, other = ppo_group(), ppo_group(seed=1)
    weights = group.get_weights()
    assert {type(array) for array in weights[MODULE].values()} == {np.ndarray}
    assert weights[MODULE].keys() == group.learner.module[MODULE].state_dict().keys()
    other.set_weights(weights)
    assert_same(parameters(other.learner), parameters(group.learner))
    weights[MODULE]["policy_head.bias"][:] = 7.0
    assert differs(parameters(other.learner), parameters(group.learner)) == []


def test_weights_of_some_modules_only():
    group = LearnerGroup(value_learner(modules=("a", "b")))
    before = parameters(group.learner)
    other = LearnerGroup(value_learner(modules=("a", "b"), seed=1))
    assert group.get_weights(["b"]).keys() == group.get_weights("b").keys() == {"b"}
    group.set_weights(other.get_weights(["b"]))
    assert {name.split(".")[1] for name in differs(before, parameters(group.learner))} == {"b"}


def test_foreach_learner_gives_one_result_for_each_in_order():
    group = ppo_group()
    assert group.foreach_learner(lambda learner, extra: (learner is group.learner, extra), "x") == [(True, "x")]


def test_state_is_below_learner_and_components_are_chosen_by_path():
    group, other = ppo_group(), ppo_group(seed=1)
    group.update_from_batch(ppo_batch())
    state = group.get_state()
    assert state.keys() == {"learner"}
    other.set_state(state)
    assert_same(parameters(other.learner), parameters(group.learner))
    assert group.get_state("learner").keys() == {"learner"}
    assert group.get_state(f"learner/rl_module/{MODULE}")["learner"].keys() == {"rl_module"}
    without = group.get_state(not_components=["learner/rl_module", "learner/optimizer"])["learner"]
    assert not {"rl_module", "optimizer"} & without.keys()
    assert without.keys() == state["learner"].keys() - {"rl_module", "optimizer"}


# -- checkpoints ---


def test_group_checkpoint_has_the_layout_of_the_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = ppo_group()
    group.update_from_batch(ppo_batch())
    folder = tmp_path / "run" / "checkpoint"
    group.save_to_path("run/checkpoint")
    module = folder / "learner" / "rl_module" / MODULE
    for path in (folder / "manifest.json", folder / "learner" / "state.json", module / "weights.safetensors",
                 module / "spec.json"):  # fmt: skip
        assert path.is_file(), path
    assert list((folder / "learner" / "optimizer").glob("*.safetensors"))
    assert not list(folder.rglob("*.pkl"))


def test_group_is_restored_whole_or_one_component_of_it(tmp_path):
    group, whole, part = ppo_group(), ppo_group(seed=1), ppo_group(seed=1)
    group.update_from_batch(ppo_batch())
    path = group.save_to_path(tmp_path / "checkpoint")
    whole.restore_from_path(path)
    part.restore_from_path(path, component=f"learner/rl_module/{MODULE}")
    for other in (whole, part):
        assert_same(parameters(other.learner), parameters(group.learner))
    assert (whole.learner.weights_seq_no, part.learner.weights_seq_no) == (1, 0)
    group.update_from_batch(ppo_batch(seed=1))
    whole.update_from_batch(ppo_batch(seed=1))
    assert_same(parameters(whole.learner), parameters(group.learner))
    with pytest.raises(KeyError, match="no component 'rl_module/other'"):
        part.restore_from_path(path, component="learner/rl_module/other")


def test_module_folder_of_a_group_checkpoint_is_a_module_by_itself(tmp_path):
    group = ppo_group()
    group.update_from_batch(ppo_batch())
    path = group.save_to_path(tmp_path / "checkpoint")
    module = RLModule.from_checkpoint(f"{path}/learner/rl_module/{MODULE}")
    for name, array in group.get_weights()[MODULE].items():
        np.testing.assert_allclose(module.get_state()[name], array, atol=1e-7, err_msg=name)


def test_a_modules_own_folder_is_restored_into_a_group(tmp_path):
    source, component = ppo_group(seed=1), f"learner/rl_module/{MODULE}"
    wanted = parameters(source.learner)
    whole = source.save_to_path(tmp_path / "group")
    alone = source.learner.module[MODULE].save_to_path(tmp_path / "module")
    several = source.learner.module.save_to_path(tmp_path / "modules")
    for folder in (f"{whole}/learner/rl_module/{MODULE}", f"{whole}/learner/rl_module", alone, several):
        for name in ("learner/rl_module", component):
            group = ppo_group()
            group.restore_from_path(folder, component=name)
            assert_same(parameters(group.learner), wanted)
            learner = ppo_group().learner
            learner.restore_from_path(folder, component=name.removeprefix("learner/"))
            assert_same(parameters(learner), wanted)
    group.update_from_batch(ppo_batch())
    assert differs(parameters(group.learner), wanted)


def test_a_module_folder_that_does_not_fit_is_refused_unchanged(tmp_path):
    group = ppo_group()
    before = parameters(group.learner)
    alone = group.learner.module[MODULE].save_to_path(tmp_path / "module")
    several = MultiRLModule({"p0": ppo_group(seed=1).learner.module[MODULE]}).save_to_path(tmp_path / "modules")
    small = RLModuleSpec(DefaultActorCriticModule, BOX, spaces.Discrete(2)).build().save_to_path(tmp_path / "small")
    for path, component, error, message in (
        (alone, None, ValueError, "checkpoint of modules, without a learner's state"),
        (alone, "learner/optimizer", ValueError, "checkpoint of modules, without a learner's state"),
        (alone, "learner/rl_module/p9", ValueError, "'p9' is unknown"),
        (several, "learner/rl_module", ValueError, "'p0' is unknown"),
        (several, f"learner/rl_module/{MODULE}", KeyError, "rl_module/p0"),
        (small, "learner/rl_module", ValueError, "has shape"),
    ):
        with pytest.raises(error, match=message):
            group.restore_from_path(path, component=component)
    assert_same(parameters(group.learner), before)


def test_save_to_path_without_a_path_takes_a_new_temporary_folder():
    group = ppo_config().build_learner_group()
    saved = [group.save_to_path(), group.learner.save_to_path(), group.learner.module[MODULE].save_to_path()]
    try:
        assert len(set(saved)) == 3
        assert_same(parameters(LearnerGroup.from_checkpoint(saved[0]).learner), parameters(group.learner))
        assert_same(parameters(Learner.from_checkpoint(saved[1])), parameters(group.learner))
        one = RLModule.from_checkpoint(saved[2])
        assert_same(dict(one.named_parameters()), dict(group.learner.module[MODULE].named_parameters()))
    finally:
        for path in saved:
            shutil.rmtree(Path(path).parent)


# -- results ---


def test_results_are_one_dict_or_a_list_of_one_per_learner():
    group = ppo_group()
    reduced = group.update_from_episodes(episodes())
    (single,) = group.update_from_episodes(episodes(), reduce_results=False)
    assert reduced.keys() == single.keys() == {ALL, MODULE, "call_id"}
    assert (reduced["call_id"], single["call_id"]) == (1, 2)
    batch = group.update_from_batch(ppo_batch(), minibatch_size=8, shuffle_batch_per_epoch=True)
    values = [value for results in (reduced, batch) for part in (ALL, MODULE) for value in results[part].values()]
    assert {type(value) for value in values} <= {int, float}  # plain numbers


def test_update_takes_timesteps_for_schedules():
    group = ppo_config(lr=[[0, 1e-2], [100, 0.0]]).build_learner_group()
    for update in (group.update_from_batch, group.update_from_episodes):
        given = ppo_batch() if update == group.update_from_batch else episodes()
        results = update(given, timesteps={"num_env_steps_sampled_lifetime": 50})
        assert results[MODULE]["default_optimizer_learning_rate"] == pytest.approx(5e-3)


def test_stats_tell_calls_queue_drops_restarts_and_skips():
    group = ppo_group()
    group.update_from_batch(ppo_batch(24))
    group.update_from_episodes([])
    assert group.get_stats() == {
        "num_in_flight": 0, "num_waiting": 0, "last_call_id": 2, "num_calls": 2, "num_dropped": 0, "num_failed": 0,
        "num_steps_submitted": 24, "num_steps_trained": 24, "num_steps_dropped": 0, "num_restarts": 0,
        "num_updates_skipped": 1,
    }  # fmt: skip


# -- modules ---


def test_add_module_on_the_group_returns_the_spec_and_the_module_learns():
    group = LearnerGroup(value_learner(modules=("a",)))
    made = group.add_module(
        module_id="b", module_spec=spec(), config_overrides={"lr": 0.5}, new_should_module_be_updated=["b"]
    )
    assert isinstance(made, MultiRLModuleSpec)
    assert set(made.rl_module_specs) == {"a", "b"}
    before = parameters(group.learner)
    results = group.update_from_batch(value_batches("a", "b"))
    assert results["b"]["default_optimizer_learning_rate"] == 0.5
    assert {name.split(".")[1] for name in differs(before, parameters(group.learner))} == {"b"}


def test_remove_module_on_the_group_returns_the_new_spec_of_the_others():
    group = LearnerGroup(value_learner(modules=("a", "b")))
    made = group.remove_module("b", new_should_module_be_updated=["a"])
    assert set(made.rl_module_specs) == set(group.get_weights()) == {"a"}
    with pytest.raises(KeyError, match="there are rows for"):
        group.update_from_batch(value_batches("a", "b"))


# -- state ---


def test_inference_only_weights_are_those_that_acting_needs():
    group = ppo_group()
    whole, acting = group.get_weights()[MODULE], group.get_weights(inference_only=True)[MODULE]
    assert set(acting) < set(whole)
    assert any(name.startswith("value") for name in set(whole) - set(acting))
    assert not any(name.startswith("value") for name in acting)
    assert group.get_state(inference_only=True)["learner"]["rl_module"][MODULE].keys() == acting.keys()


def test_not_components_leaves_out_one_module_or_everything():
    group = LearnerGroup(value_learner(modules=("a", "b")))
    state = group.get_state(not_components="learner/rl_module/a")["learner"]
    assert state["rl_module"].keys() == {"b"}
    assert "optimizer" in state
    assert group.get_state(not_components="learner") == {}
