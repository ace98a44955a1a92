"""What holds for the update of every algorithm that learns from transitions: action spaces, products in bfloat16."""

import numpy as np
import pytest
from algorithm_tools import MODULE, transitions
from gymnasium import spaces
from space_envs import BOX, SpaceEnv

from lockstep import get_config

ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "box_2d": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "box_0d": spaces.Box(-1.0, 1.0, (), np.float32),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_binary_2d": spaces.MultiBinary((2, 2)),
}
VALUES_OF_CHOICES = ("dqn", "c51", "qrdqn")
IN_A_BOX = ("td3", "td3_bc")
ANY = ("bc", "marwil")


def learner_of(algorithm, space, mixed=False, **training):
    config = get_config(algorithm).rl_module(model_config={"hiddens": (32, 32)}).debugging(seed=3)
    config.framework(mixed_precision=mixed).training(**training)
    return config.build_learner(spaces=(BOX, space))


@pytest.mark.parametrize("space", ["box", "box_2d", "box_0d"])
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_boxes_of_any_shape_are_collected_and_learned_from(algorithm, space):
    config = get_config(algorithm).environment(lambda: SpaceEnv(BOX, ACTIONS[space]))
    config.replay(learning_starts=8).training(train_batch_size=8).reporting(total_steps=32)
    config.env_runners(num_envs_per_env_runner=2).evaluation(evaluation_episodes=1)
    info = config.rl_module(model_config={"hiddens": (8,)}).build_trainer().run()
    assert info.gradient_step > 0


@pytest.mark.parametrize(
    "algorithm, space",
    [(kind, space) for kind in ANY for space in ACTIONS]
    + [(kind, space) for kind in ("cql", "iql", "td3_bc") for space in ("box", "box_2d", "box_0d")],
)
def test_recorded_actions_of_every_space_are_learned_from(algorithm, space):
    config = get_config(algorithm).environment(observation_space=BOX, action_space=ACTIONS[space])
    config.offline_data(input_=transitions(ACTIONS[space], rows=64)).reporting(total_steps=2)
    trainer = config.rl_module(model_config={"hiddens": (8,)}).build_trainer()
    assert trainer.run().gradient_step == 2


def test_an_action_out_of_range_of_a_table_of_choices_is_refused():
    batch = transitions(ACTIONS["multi_discrete_2d"], rows=64)
    batch["actions"] = batch["actions"].reshape(64, -1)
    batch["actions"][5, 1] = 3
    with pytest.raises(ValueError, match=r"column 'actions' has .* at row 5; allowed are whole numbers"):
        learner_of("bc", ACTIONS["multi_discrete_2d"]).update_from_batch(batch)


@pytest.mark.parametrize(
    "algorithm, space",
    [(kind, "discrete") for kind in (*VALUES_OF_CHOICES, *ANY, "sac", "cql", "iql")]
    + [(kind, "box") for kind in (*IN_A_BOX, *ANY, "sac", "cql", "iql")],
)
def test_mixed_precision_changes_what_is_learned_by_the_precision_of_bfloat16(algorithm, space):
    results = [
        learner_of(algorithm, ACTIONS[space], mixed).update_from_batch(transitions(ACTIONS[space], rows=64))[MODULE]
        for mixed in (False, True)
    ]
    for name, exact in results[0].items():
        if name.endswith("loss"):
            assert results[1][name] == pytest.approx(exact, rel=0.03, abs=0.03), name
    assert results[1]["total_loss"] != results[0]["total_loss"]


def test_marwil_goes_on_after_a_batch_that_is_not_finite():
    learner = learner_of("marwil", ACTIONS["discrete"], nan_policy="skip")
    bad = transitions(ACTIONS["discrete"], rows=64)
    bad["rewards"][0] = np.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        learner.update_from_batch(bad)
    assert np.isfinite(learner.update_from_batch(transitions(ACTIONS["discrete"], rows=64))[MODULE]["total_loss"])
