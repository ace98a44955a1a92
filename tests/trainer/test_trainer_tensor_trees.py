"""Runs on the device whose observations are trees of tensors: bits of the flat form, resume, masks, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY, takes
from host_waits import NoWaits
from parts import fast_if
from tensor_trees import FlipBits, MaskedSteps, PendulumWithMore, TreeCartPole, TreePendulum, flat_of
from trained_weights import difference, steps

from lockstep import get_config
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trees import leaves, map_tree
from lockstep.envs.tensor import CartPole, Pendulum
from lockstep.replay import TensorReplay
from lockstep.rollout import TensorCollector
from lockstep.rollout.errors import MalformedBufferError

T, B = 16, 6
FORMS = {"ppo": (CartPole, TreeCartPole), "dqn": (CartPole, TreeCartPole), "sac": (Pendulum, TreePendulum)}
"""the environment with one tensor, and with a tree"""
NORMALISED = {"normalize_observations": True, "normalize_rewards": True}
OF_ENVIRONMENT = (*NORMALISED, "frame_stack")
BY_PRIORITY = {"prioritized": True, "beta": [[0, 0.4], [100 * B, 1.0]]}


def config_of(name: str, env: Any, *, model: Any = None, **options: Any) -> Any:
    """Return a configuration; `options` are those of the environment for PPO, and of the replay buffer for others."""
    config = get_config(name).environment(env(B, max_episode_length=9))
    config.rl_module(model_config={"hiddens": (16,), **(model or {})})
    config.debugging(seed=3).evaluation(evaluation_interval=0)
    config.env_runners(num_envs_per_env_runner=B).framework(compile=False)
    if name == "ppo":
        config.environment(**options).env_runners(rollout_fragment_length=T)
        config.training(train_batch_size=T * B, minibatch_size=T * B // 3, num_epochs=2)
        return config.reporting(total_steps=10**6, steps_per_epoch=T * B)
    section = {option: options.pop(option) for option in OF_ENVIRONMENT if option in options}
    config.environment(**section).env_runners(rollout_fragment_length=5)
    config.training(train_batch_size=16, **ALGORITHM_CASES[name].on_device)
    config.replay(**{"capacity": 20 * B, "learning_starts": 10 * B, "update_per_step": 2.5 / (5 * B), **options})
    return config.reporting(total_steps=10**6, steps_per_epoch=5 * B)


CASES = {
    "ppo": ("ppo", {}),
    "ppo, normalised": ("ppo", NORMALISED),
    "sac": ("sac", {}),
    "sac, by priority": ("sac", BY_PRIORITY),
    "sac, normalised": ("sac", NORMALISED),
    "dqn, rewards of three steps": ("dqn", {"n_step": 3}),
    "dqn, by priority": ("dqn", {"n_step": 3, **BY_PRIORITY}),
}
EACH_CASE = pytest.mark.parametrize("case", fast_if(lambda case: case != "sac", CASES))


def trainers_of(case: str, *forms: int) -> list[Any]:
    name, options = CASES[case]
    return [config_of(name, FORMS[name][form], **options).build_trainer() for form in forms]


@EACH_CASE
def test_a_tree_is_learned_from_bit_for_bit_as_its_flat_form(case):
    """Weights, buffer and statistics, over a ring that has begun anew."""
    flat, tree = trainers_of(case, 0, 1)
    assert type(tree.train_collector) is TensorCollector
    for trainer in (flat, tree):
        steps(trainer, 8)
    assert difference(flat, tree) == 0.0
    assert flat.env_episode == tree.env_episode > B
    if isinstance(tree.buffer, TensorReplay):
        for name in ("obs", "new_obs"):
            assert torch.equal(flat_of(tree.buffer.columns[name]), flat.buffer.columns[name])
        assert flat.buffer.row_bytes == tree.buffer.row_bytes
    else:
        assert torch.equal(flat_of(tree.buffer.next_obs), flat.buffer.next_obs)
        assert flat.buffer.num_bytes == tree.buffer.num_bytes
    if "normalised" in case:
        pipelines = [trainer.policy.learner_group.learner.connectors["default_policy"].obs for trainer in (flat, tree)]
        (one,), others = (pipeline.connectors[0].moments for pipeline in pipelines)
        number = 8 * (T if case.startswith("ppo") else 5) * B
        assert [each.count for each in others] == [one.count] * len(others) == [number] * len(others)
        assert np.array_equal(one.mean, np.concatenate([each.mean for each in others]))
        assert np.array_equal(one.var, np.concatenate([each.var for each in others]))


@EACH_CASE
def test_a_resumed_run_with_trees_has_the_bits_of_one_that_never_stopped(case, tmp_path):
    whole, half, again = trainers_of(case, 1, 1, 1)
    steps(whole, 8)
    steps(half, 5).save_to_path(tmp_path / "half")
    again.restore_from_path(tmp_path / "half")
    assert difference(half, again) == 0.0
    steps(again, 3)
    assert difference(whole, again) == 0.0
    if isinstance(whole.buffer, TensorReplay):
        assert all(map(torch.equal, leaves(whole.buffer.columns), leaves(again.buffer.columns)))


OTHERS = [name for name in OFF_POLICY if takes(name, "box") and name not in ("sac", "td3")]
STACKED = {"frame_stack": 2, "normalize_observations": True}
EACH_GROUP_CASE = pytest.mark.parametrize(
    ("name", "options"),
    fast_if(
        lambda name, options: name not in OTHERS,
        [
            ("ppo", {}),
            ("ppo", {"normalize_observations": True}),
            *(("ppo", {"model": {"recurrent": "gru", "memory_in": part}}) for part in ("both", "policy", "critic")),
            ("ppo", STACKED),
            ("sac", {}),
            ("sac", {"n_step": 3, **BY_PRIORITY}),
            ("sac", STACKED),
            ("td3", {}),
            *((name, {"normalize_observations": True}) for name in OTHERS),
        ],
    ),
)
ALL_OF_PENDULUM = ["direction", "speed"]


@EACH_GROUP_CASE
def test_an_entry_that_no_group_has_changes_no_bit_on_tensors(name, options):
    """It is stored with the others."""
    form = TreePendulum if "frame_stack" in options else Pendulum  # stacks of a flat form have another order
    flat = steps(config_of(name, form, **options).build_trainer(), 8)
    config = config_of(name, PendulumWithMore, **options)
    config.rl_module(observation_groups={"policy": ALL_OF_PENDULUM, "critic": ALL_OF_PENDULUM})
    tree = steps(config.build_trainer(), 8)
    assert type(tree.train_collector) is TensorCollector
    assert difference(flat, tree) == 0.0
    stored = tree.buffer.obs if name == "ppo" else tree.buffer.columns["obs"]
    assert set(stored) == {"a number", *ALL_OF_PENDULUM}


@EACH_GROUP_CASE
def test_groups_on_tensors_select_what_they_select_on_the_host(name, options):
    """The networks' outputs for stored observations, of which acting has the policy's entries only."""
    config = config_of(name, PendulumWithMore, **options)
    config.rl_module(observation_groups={"policy": ["direction"], "critic": ["speed", "direction"]})
    trainer = steps(config.build_trainer(), 5)
    policy = trainer.policy
    part = policy.acting["default_policy"]
    stored = trainer.buffer.obs if name == "ppo" else trainer.buffer.columns["obs"]
    rows = map_tree(lambda leaf: leaf.flatten(0, 1)[:20], stored)

    network_obs = policy.learner_group.learner.connectors["default_policy"].obs(rows)
    seen = {name: leaf for name, leaf in network_obs.items() if name != "a number"}
    view = part.module.view_of("critic")(network_obs)
    assert list(view) == ["speed", "direction"]
    assert all(torch.equal(view[name], seen[name]) for name in view)
    if not (policy.is_stateful or "frame_stack" in options):  # their outputs depend on earlier steps too
        expected = part.module.forward_inference({"obs": network_obs})["action_dist_inputs"]
        found = part.module.forward_inference({"obs": part.observations({"direction": rows["direction"]})})
        assert torch.equal(found["action_dist_inputs"], expected)

    raw = map_tree(lambda leaf: leaf.numpy(), rows)
    if "frame_stack" in options:
        raw = map_tree(lambda leaf: leaf[:, -1], raw)
    actions = []
    for obs in ({"direction": raw["direction"]}, raw):
        policy.reset()
        results = [policy.compute_actions(obs) for _ in range(2)]
        actions.append([result[0] for result in results] if policy.is_stateful else results)
    assert np.array_equal(*actions)


def test_goals_in_hindsight_reach_the_policys_group_on_tensors():
    """Replay keeps and relabels the goals reached, which the policy does not see."""
    config = config_of("dqn", FlipBits, her=True)
    config.rl_module(observation_groups={"policy": ["observation", "desired_goal"]})
    trainer = steps(config.build_trainer(), 5)
    assert type(trainer.train_collector) is TensorCollector
    assert set(trainer.buffer.columns["obs"]) == {"achieved_goal", "desired_goal", "observation"}
    sampled = trainer.policy.learner_group.learner.device_update.sampled
    reached = (sampled["new_obs"]["achieved_goal"] == sampled["new_obs"]["desired_goal"]).all(-1)
    assert torch.equal(sampled["rewards"], reached.float() - 1.0)
    obs = {name: np.eye(6, dtype=np.float32) for name in ("observation", "desired_goal", "achieved_goal")}
    seen = {name: obs[name] for name in ("observation", "desired_goal")}
    assert np.array_equal(trainer.policy.compute_actions(seen), trainer.policy.compute_actions(obs))


@pytest.mark.parametrize("name", FORMS)
def test_a_policy_of_the_device_acts_on_dicts_of_the_host(name):
    # Made from the class, so that evaluation has environments of its own.
    config = config_of(name, FORMS[name][1]).environment(FORMS[name][1])
    trainer = steps(config.evaluation(evaluation_interval=1, evaluation_duration=2).build_trainer(), 3)
    assert np.isfinite(trainer.history[-1].test_collect_stat.returns_stat.mean)
    env = FORMS[name][1](1)
    obs = map_tree(lambda leaf: leaf.numpy()[0], env.reset(seed=1))
    action = trainer.policy.compute_single_action(obs)
    assert env.single_action_space.contains(np.asarray(action, env.single_action_space.dtype))


@pytest.mark.parametrize("groups", [None, {"policy": ["step"]}], ids=str)
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_mask_on_the_device_is_respected(name, groups):
    """By the policy, by exploration and by random actions; and entries are of several kinds.

    A group that does not name the mask has it all the same.
    """
    config = config_of(name, MaskedSteps).rl_module(observation_groups=groups)
    if name == "dqn":
        config.training(epsilon=0.5)
    trainer = steps(config.build_trainer(), 5)
    assert type(trainer.train_collector) is TensorCollector
    buffer = trainer.buffer
    rewards = buffer.rewards if name == "ppo" else buffer.columns["rewards"]
    obs = buffer.obs if name == "ppo" else buffer.columns["obs"]
    assert [leaf.dtype for leaf in obs["step"]] == [torch.float32, torch.uint8, torch.int64]
    assert set(rewards.unique().tolist()) == {0.0, 1.0}  # -10 for a forbidden action


def test_random_actions_are_all_allowed_choices_equally_often():
    trainer = config_of("dqn", MaskedSteps, learning_starts=10**5, capacity=10**4).build_trainer()
    steps(trainer, 60)
    columns = trainer.buffer.columns
    step = columns["obs"]["step"][2][: trainer.buffer.size]
    actions = columns["actions"][: trainer.buffer.size]
    shares = [float(((actions - step) % 3 == offset).float().mean()) for offset in range(3)]
    assert shares[0] == 0.0
    assert shares[1:] == pytest.approx([0.5, 0.5], abs=0.04)


@pytest.mark.parametrize("name", FORMS)
def test_a_number_that_is_not_finite_names_its_entry(name):
    trainer = config_of(name, FORMS[name][1]).build_trainer()
    next(trainer)
    trainer.collector.tensors._state["physics"][2].fill_(float("nan"))
    entry = "direction" if name == "sac" else "cart"
    with pytest.raises(MalformedBufferError, match=rf"environment 2 .* in column 'obs/{entry}' at step 1 "):
        next(trainer)


@pytest.mark.parametrize("name", FORMS)
def test_a_collect_of_trees_waits_for_nothing_and_keeps_its_addresses(name):
    collector = steps(config_of(name, FORMS[name][1]).build_trainer(), 2).collector
    stepper = collector.stepper
    captured = stepper.captured(explores=True)

    def addresses() -> list[int]:
        buffer = stepper.buffer
        columns = (buffer.obs, buffer.next_obs) if isinstance(buffer, TensorRollout) else buffer.columns
        return [leaf.data_ptr() for leaf in leaves((stepper._obs, columns))]

    assert list(stepper.buffer.obs if name == "ppo" else stepper.buffer.columns["obs"]) == list(
        stepper.observation_space.spaces
    )
    before = addresses()
    with NoWaits():
        captured.function()
    collector.reset()
    assert stepper.captured(explores=True) is captured
    assert addresses() == before


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_a_compiled_update_from_trees_equals_the_flat_one(name):
    found = []
    for form in FORMS[name]:
        config = config_of(name, form).framework(compile=True)
        found.append(steps(config.build_trainer(), 5))
    assert difference(*found) <= 1e-6


@pytest.mark.long
def test_cart_pole_is_learned_from_a_tree():
    config = get_config("ppo").environment(TreeCartPole(64), normalize_observations=True).debugging(seed=1)
    config.env_runners(num_envs_per_env_runner=64, rollout_fragment_length=32).rl_module(
        model_config={"hiddens": (32,)}
    )
    config.training(train_batch_size=2048, minibatch_size=256, num_epochs=6, lr=2e-3, lambda_=0.95)
    config.reporting(total_steps=61_440, steps_per_epoch=10_240).evaluation(evaluation_interval=0)
    returns = [stats.train_collect_stat.returns_stat.mean for _, stats, _ in config.build_trainer()]
    assert returns[-1] > 100 > 3 * returns[0], returns
