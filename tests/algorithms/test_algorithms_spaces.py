"""Every space trains: in environments that refuse wrong actions, from transitions, in bfloat16."""

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY, OFFLINE, ON_POLICY, WITH_ATOMS, class_of, takes
from algorithm_tools import MODULE, transitions
from gymnasium import spaces
from parts import fast_if, one_in
from space_envs import BOX, SpaceEnv

from lockstep import (
    DQNConfig,
    PPOConfig,
    RolloutStore,
    SACConfig,
    get_config,
    policy_within_training_step,
)

IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)
OBSERVATIONS = {
    "box": BOX,
    "box_of_doubles": spaces.Box(-5.0, 5.0, (2, 2), np.float64),
    "discrete": spaces.Discrete(5, start=2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(6),
    "dict": spaces.Dict(pose=BOX, gear=spaces.Discrete(4), camera=IMAGE),
    "tuple": spaces.Tuple([BOX, spaces.Dict(lights=spaces.MultiBinary(2)), spaces.MultiDiscrete([2, 2])]),
    "image": IMAGE,
    "masked": spaces.Dict(observations=BOX, action_mask=spaces.MultiBinary(3)),
    "masked_obs": spaces.Dict(obs=BOX, action_mask=spaces.Box(0, 1, (3,), np.int8)),
    "masked_several": spaces.Dict(pose=BOX, action_mask=spaces.MultiBinary(3), gear=spaces.Discrete(4)),
}
ACTIONS = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "multi_binary": spaces.MultiBinary(4),
    "box": spaces.Box(-0.1, 0.2, (2,), np.float32),
    "box_2d": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
}

OF_ROLLOUTS = [class_of(name) for name in ON_POLICY if "MultiBinary" in ALGORITHM_CASES[name].actions]


def train(config, observation_space=BOX, action_space=None, updates=2, num_steps=20):
    """The policy before any update's weights, the policy after them, and the last results."""

    def make():
        return SpaceEnv(observation_space, action_space)

    config = config.environment(make, **({"rescale_actions": True} if action_space is ACTIONS["box"] else {}))
    config = config.env_runners(num_envs_per_env_runner=2).training(lr=0.01, train_batch_size=64)
    config = config.rl_module(model_config={"hiddens": (8,), "image_hiddens": (8,), "conv_filters": ((4, 4, 2),)})
    policy = config.build_policy()
    collector = config.build_collector(policy)
    shape = num_steps, 2, collector.observation_space, policy.action_space
    collector.buffer = RolloutStore(*shape)
    before = {name: tensor.detach().clone() for name, tensor in policy.module.named_parameters()}
    with policy_within_training_step(policy):
        for _ in range(updates):
            collector.collect(n_step=2 * num_steps)
            policy.update(0, collector.buffer, 8, 2)
            collector.buffer.clear()
    collector.close()
    return policy, before, policy.last_results


@pytest.mark.parametrize("config", one_in(3, OF_ROLLOUTS))
@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_every_observation_space_trains_two_updates(config, space):
    policy, before, results = train(config(), space)
    assert results["__all_modules__"]["num_env_steps_trained_lifetime"] == 160  # 2 updates, 2 passes, 40 steps
    assert all(np.isfinite(value) for value in results["default_policy"].values())
    for name, tensor in policy.module.named_parameters():
        assert tensor.isfinite().all()
        assert not torch.equal(tensor, before[name]), f"{name} has not moved"
    action = policy.compute_single_action(SpaceEnv(space).reset(seed=1)[0])
    assert policy.action_space.contains(action)


@pytest.mark.parametrize("config", one_in(3, OF_ROLLOUTS))
@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS)
def test_every_action_space_trains_and_the_environment_gets_its_actions(config, space):
    policy, before, results = train(config(), BOX, space)
    assert all(np.isfinite(value) for value in results["default_policy"].values())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in policy.module.named_parameters())
    assert space.contains(policy.compute_single_action(np.zeros(3, np.float32)))


@pytest.mark.parametrize("name", ["masked", "masked_obs", "masked_several"])
@pytest.mark.parametrize(
    ("config", "model"),
    fast_if(
        lambda config, _: config in (PPOConfig, SACConfig),
        [
            (PPOConfig, {"recurrent": "gru", "recurrent_size": 4}),
            (DQNConfig, {}),
            (class_of(WITH_ATOMS), {}),
            (SACConfig, {}),
        ],
    ),
)
def test_a_mask_is_kept_to_wherever_it_lies(config, model, name):
    """In warm-up, exploring, learning and evaluation: the environment raises for a forbidden action."""
    config = config().environment(lambda: SpaceEnv(OBSERVATIONS[name])).evaluation(evaluation_duration=5)
    config.env_runners(num_envs_per_env_runner=2).rl_module(model_config={"hiddens": (4,), **model})
    if config.is_off_policy:
        config.replay(learning_starts=20).training(train_batch_size=8)
    else:
        config.training(train_batch_size=40, minibatch_size=20)
    trainer = config.reporting(total_steps=120, steps_per_epoch=60).build_trainer()
    assert trainer.run().gradient_step > 0
    trainer.train_collector.collect(n_step=40, random=True)


# -- updates from transitions ---

LEARNED = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "box_2d": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "box_0d": spaces.Box(-1.0, 1.0, (), np.float32),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_binary_2d": spaces.MultiBinary((2, 2)),
}
ANY = [name for name in OFFLINE if "MultiBinary" in ALGORITHM_CASES[name].actions]


def learner_of(algorithm, space, mixed=False, **training):
    config = get_config(algorithm).rl_module(model_config={"hiddens": (32, 32)}).debugging(seed=3)
    config.framework(mixed_precision=mixed).training(**training)
    return config.build_learner(spaces=(BOX, space))


@pytest.mark.parametrize(
    "algorithm, space",
    [(kind, space) for kind in ANY for space in LEARNED]
    + [(kind, space) for kind in OFFLINE if kind not in ANY for space in ("box", "box_2d", "box_0d")],
)
def test_recorded_actions_of_every_space_are_learned_from(algorithm, space):
    config = get_config(algorithm).environment(observation_space=BOX, action_space=LEARNED[space])
    config.offline_data(input_=transitions(LEARNED[space], rows=64)).reporting(total_steps=2)
    trainer = config.rl_module(model_config={"hiddens": (8,)}).build_trainer()
    assert trainer.run().gradient_step == 2


@pytest.mark.parametrize(
    "algorithm, space",
    one_in(
        4, [(kind, space) for space in ("discrete", "box") for kind in (*OFF_POLICY, *OFFLINE) if takes(kind, space)]
    ),
)
def test_mixed_precision_changes_learning_by_the_precision_of_bfloat16(algorithm, space):
    results = [
        learner_of(algorithm, LEARNED[space], mixed).update_from_batch(transitions(LEARNED[space], rows=64))[MODULE]
        for mixed in (False, True)
    ]
    for name, exact in results[0].items():
        if name.endswith("loss"):
            assert results[1][name] == pytest.approx(exact, rel=0.03, abs=0.03), name
    assert results[1]["total_loss"] != results[0]["total_loss"]
