"""Modules come and go while a trainer runs: learners, acting, collectors, replay buffers, checkpoints, resume."""

import operator

import numpy as np
import pytest
import torch
from agent_games import BitGame, CountingGame, TurnGame, game_config, to_module
from parts import fast_if
from trainer_tools import learned

from lockstep import DQNConfig, Policy, PPOConfig, RLModuleSpec, SACConfig
from lockstep.trainer import Callback, restore_trainer, save_trainer


class FourSteps(CountingGame):
    """Every episode ends with a collect of 16 steps in two environments."""

    def length_of(self, seed):
        return 4


def others_are_new(agent, episode):
    return "first" if agent in "ax" else "new"


def ids(trainer):
    """Module ids of everything that has some."""
    group, learner = trainer.policy.learner_group, None
    learner = group.learner
    assert list(trainer.policy.acting) == list(learner.module) == list(trainer.policy.observation_space)
    return list(learner.module)


def weights(trainer, module_id):
    return trainer.policy.learner_group.get_weights(module_id)[module_id]


def same(left, right):
    return all(np.array_equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("algorithm", [PPOConfig, DQNConfig])
def test_an_added_module_acts_and_learns_and_a_removed_one_is_gone(algorithm):
    trainer = game_config(FourSteps, algorithm).build_trainer()
    next(trainer)
    trainer.add_module("new", init_from="others")
    assert same(weights(trainer, "new"), weights(trainer, "others"))
    trainer.set_policy_mapping_fn(others_are_new)
    trainer.remove_module("others")
    assert ids(trainer) == ["first", "new"]
    before = weights(trainer, "new")
    stats = next(trainer).training_stat
    assert {name.partition("/")[0] for name in stats.metrics} == {"first", "new"}
    assert not same(weights(trainer, "new"), before)
    if algorithm is DQNConfig:
        assert set(trainer.buffer.buffers) == {"first", "new"}


def test_a_new_module_begins_as_the_same_one_in_the_configuration_would():
    trainer = game_config().build_trainer()
    trainer.add_module("new", config_overrides={"lr": 1e-2})
    config = game_config(multi_agent={"policies": ["first", "others", "new"]})
    config.rl_module(algorithm_config_overrides_per_module={"new": {"lr": 1e-2}})
    other = config.build_trainer()
    assert same(weights(trainer, "new"), weights(other, "new"))
    for each in (trainer, other):
        each.set_policy_mapping_fn(others_are_new)
        next(each)
    assert same(weights(trainer, "new"), weights(other, "new"))


@pytest.mark.parametrize("algorithm", [PPOConfig, DQNConfig])
def test_a_frozen_module_acts_and_never_learns_and_has_no_optimizer(algorithm):
    trainer = game_config(FourSteps, algorithm).build_trainer()
    learner = trainer.policy.learner_group.learner
    trainer.add_module("new", init_from="others", frozen=True)
    trainer.set_policy_mapping_fn(others_are_new)
    before = weights(trainer, "new")
    assert "value_head.weight" not in before
    stats = next(trainer)
    assert stats.train_collect_stat.agent_modules[0] == ("first", "new", "new")
    assert same(weights(trainer, "new"), before)
    assert not learner.optimizers.of_module("new")
    assert not any(p.requires_grad for p in learner.module["new"].parameters())
    assert not any(name.startswith("new/") for name in stats.training_stat.metrics)
    if algorithm is DQNConfig:
        assert set(trainer.buffer.buffers) == {"first", "others"}
    with pytest.raises(ValueError, match=r"policies_to_train=.* names .'new'."):
        trainer.set_policies_to_train(["new"])


def test_a_frozen_module_of_the_configuration_is_not_trained():
    spec = RLModuleSpec(inference_only=True)
    trainer = game_config(multi_agent={"policies": {"first": None, "others": spec}}).build_trainer()
    before = weights(trainer, "others")
    trainer.run()
    assert same(weights(trainer, "others"), before)


def test_who_learns_may_change_between_two_epochs():
    trainer = game_config().build_trainer()
    trainer.set_policies_to_train(["first"])
    before = weights(trainer, "others")
    next(trainer)
    assert same(weights(trainer, "others"), before)
    trainer.set_policies_to_train(None)
    next(trainer)
    assert not same(weights(trainer, "others"), before)


def test_policies_to_train_and_the_mapping_may_be_schedules():
    config = game_config(BitGame, num_envs=4)
    config.multi_agent(
        policies_to_train=[[0, ["first"]], [33, ["first", "others"]]],
        policy_mapping_fn=[[0, to_module], [32, to_others]],
    )
    trainer = config.build_trainer()
    before = weights(trainer, "others")
    assert set(next(trainer).train_collect_stat.agent_modules) == {("first", "others")}
    assert same(weights(trainer, "others"), before)
    assert set(next(trainer).train_collect_stat.agent_modules) == {("others", "others")}
    assert not same(weights(trainer, "others"), before)


def to_others(agent, episode):
    return "others"


def test_an_episode_keeps_the_mapping_that_it_began_with():
    trainer = game_config(CountingGame, env_runners={"num_envs_per_env_runner": 1}).build_trainer()
    trainer.train_collector.collect(n_step=1)
    episode = trainer.train_collector.stepper.adapters[0].episode
    before = episode.agent_module_ids
    trainer.add_module("new")
    trainer.set_policy_mapping_fn(others_are_new)
    assert trainer.train_collector.stepper.adapters[0].episode.agent_module_ids == before
    stats = trainer.train_collector.collect(n_step=30)
    assert stats.agent_modules[0] == ("first", "others", "others")
    assert set(stats.agent_modules[1:]) == {("first", "new", "new")}


def test_episodes_under_way_of_a_removed_module_are_left():
    trainer = game_config(TurnGame).build_trainer()
    trainer.train_collector.collect(n_step=2)
    trainer.buffer.clear()
    assert trainer.train_collector.get_state()["lengths"].any()
    trainer.add_module("new")
    trainer.set_policy_mapping_fn(others_are_new)
    trainer.remove_module("others")
    assert not trainer.train_collector.get_state()["lengths"].any()
    assert set(trainer.train_collector.collect(n_step=16).agent_modules) == {("first", "new")}


class Adds(Callback):
    """Adds a module in the first update, within a training step."""

    seen = None

    def on_run_start(self, event):
        self.trainer = event.trainer

    def on_update_end(self, event):
        if "new" not in self.trainer.policy.acting:
            self.trainer.add_module("new", init_from="others", frozen=True)
            self.trainer.set_policy_mapping_fn(others_are_new)
            assert "new" not in self.trainer.policy.acting


def test_a_callback_asks_for_a_module_and_gets_it_after_the_training_step():
    trainer = game_config(FourSteps).build_trainer(callbacks=[Adds()])
    stats = next(trainer).train_collect_stat
    assert [modules[1] for modules in stats.agent_modules] == ["others"] * 4 + ["new"] * 4
    assert ids(trainer) == ["first", "others", "new"]


def changed(trainer):
    trainer.add_module("old", init_from="others", frozen=True)
    trainer.add_module("new", init_from="others", config_overrides={"lr": 1e-2})
    trainer.set_policy_mapping_fn(others_are_new)
    trainer.remove_module("others")


@pytest.mark.parametrize("algorithm", fast_if(lambda config: config is DQNConfig, [PPOConfig, DQNConfig]))
def test_a_run_with_other_modules_than_it_began_with_goes_on_bit_by_bit(algorithm, folder):
    def build():
        return game_config(FourSteps, algorithm, reporting={"total_steps": 96}).build_trainer()

    straight, first, again = build(), build(), build()
    for trainer in (straight, first):
        next(trainer)
        changed(trainer)
        next(trainer)
    path = save_trainer(first, folder / "checkpoint")
    straight.run() if straight._phase.name != "RUNNING" else [*iterate(straight)]
    restore_trainer(again, path)
    again.set_policy_mapping_fn(others_are_new)
    assert ids(again) == ["first", "old", "new"]
    [*iterate(again)]
    assert learned(again) == learned(straight)
    policy = Policy.from_checkpoint(path)
    assert list(policy.acting) == ["first", "old", "new"]
    assert not policy.learner_group.learner.optimizers.of_module("old")


def iterate(trainer):
    while True:
        try:
            yield trainer.__next__()
        except StopIteration:
            return


def test_what_others_hold_stays_the_same_object_while_modules_come_and_go(folder):
    """A trainer, its collectors and callbacks hold the policy, its dict of acting parts and the learner group."""
    trainer = game_config(FourSteps).build_trainer()
    next(trainer)
    policy, learner = trainer.policy, trainer.policy.learner_group.learner
    part, entry = policy.acting["first"], learner.optimizers.of_module("first")[0]
    held = (policy.acting, policy.learner_group, learner, part, part.module, part.connectors, entry.optimizer)
    moments = entry.flat.data, *entry.adam_state()
    values = [tensor.clone() for tensor in moments]
    path = save_trainer(trainer, folder / "checkpoint")

    changed(trainer)
    trainer.set_policies_to_train(["new"])
    restore_trainer(trainer, path)
    assert trainer.policy is policy
    assert ids(trainer) == ["first", "others"]
    now = policy.acting["first"]
    present = (policy.acting, policy.learner_group, policy.learner_group.learner, now, now.module, now.connectors)
    assert all(map(operator.is_, held, (*present, learner.optimizers.of_module("first")[0].optimizer)))
    assert all(map(torch.equal, values, (entry.flat.data, *entry.adam_state())))
    trainer.set_policy_mapping_fn(to_module)
    next(trainer)


@pytest.mark.parametrize("order", [["others", "first"], ["new", "first"], ["new"], ["others"]])
def test_a_checkpoint_brings_its_modules_in_their_order(order, folder):
    one, two = game_config().build_policy(), game_config().build_policy()
    present = ["first", "others"]
    for module_id in [mid for mid in order if mid in present]:
        one.add_module("spare", init_from=module_id)
        one.remove_module(module_id)
        one.add_module(module_id, init_from="spare")
        one.remove_module("spare")
    for module_id in order:
        if module_id not in one.acting:
            one.add_module(module_id)
    for module_id in [mid for mid in present if mid not in order]:
        one.remove_module(module_id)
    wanted = list(one.acting)
    two.restore_from_path(one.save_to_path(folder / "policy"))
    assert list(two.acting) == list(two.learner_group.learner.module) == wanted
    assert all(same(two.learner_group.get_weights()[mid], one.learner_group.get_weights()[mid]) for mid in wanted)


def test_weights_of_a_new_module_may_come_from_a_checkpoint(folder):
    source = game_config(debugging={"seed": 9}).build_policy()
    whole = source.save_to_path(folder / "policy")
    single = source.acting["others"].module.save_to_path(folder / "module")
    trainer = game_config().build_trainer()
    trainer.remove_module("others")
    trainer.add_module("others", init_from=whole)
    trainer.add_module("new", init_from=single)
    for module_id in ("others", "new"):
        assert same(weights(trainer, module_id), source.learner_group.get_weights("others")["others"])


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: t.add_module("first"), "there is a module 'first' already"),
        (lambda t: t.add_module("a/b"), "module id 'a/b'"),
        (lambda t: t.add_module("new", init_from="nobody"), "init_from='nobody' is neither a module"),
        (lambda t: t.add_module("new", config_overrides={"speed": 1}), "speed"),
        (lambda t: t.add_module("new", {"speed": 1}), "has ..speed.."),
        (lambda t: t.remove_module("nobody"), "no module 'nobody'"),
        (lambda t: t.set_policies_to_train(["nobody"]), "nobody"),
        (lambda t: t.set_policy_mapping_fn("first"), "policy_mapping_fn='first' is not allowed"),
        (lambda t: t.set_policy_mapping_fn([[5, to_module], [9, to_module]]), "must rise from 0"),
    ],
)
def test_changes_that_cannot_be_are_refused_and_nothing_is_changed(change, words):
    trainer = game_config().build_trainer()
    with pytest.raises((ValueError, TypeError, KeyError), match=words):
        change(trainer)
    assert ids(trainer) == ["first", "others"]
    next(trainer)


@pytest.mark.parametrize("algorithm", [SACConfig, PPOConfig])
def test_a_policy_of_one_agent_refuses_other_modules(algorithm):
    env = "Pendulum-v1"
    trainer = algorithm().environment(env).rl_module(model_config={"hiddens": (4,)}).build_trainer()
    with pytest.raises(ValueError, match="of one agent"):
        trainer.add_module("new")
