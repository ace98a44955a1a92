"""The options that name connectors: what they may give, what is refused, and that learners and JSON keep to them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from picture_env import PictureEnv, see

from lockstep import BCConfig, Collector, DQNConfig, PPOConfig, RolloutStore, SACConfig
from lockstep.connectors import (
    ClipObs,
    ClipRewards,
    Connector,
    FrameStack,
    Grayscale,
    NormalizeObs,
    ObsPipeline,
    PreviousActions,
    Resize,
    ScaleRewards,
)
from lockstep.envs import make_vector
from lockstep.trainer import restore_trainer, save_trainer

BOX, THREE = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)


class Widened(Connector):
    """Says nothing of what it does to the shape."""

    def __call__(self, data):
        return np.repeat(data, 2, -1)


class Counting(Connector):
    """Has statistics that nobody can join."""

    def __call__(self, data):
        return data

    def update(self, data):
        self.number = len(data)


class Torques(Connector):
    """Plays a Box by the actions 0, 1 and 2."""

    def input_space(self, action_space):
        self.low, self.high = action_space.low, action_space.high
        return THREE

    def __call__(self, data):
        return self.low + (self.high - self.low) * (np.asarray(data)[..., None] / 2.0).astype(np.float32)


def config_of(config=None, *, env="CartPole-v1", **runners):
    config = config or PPOConfig()
    config.environment(env).env_runners(num_envs_per_env_runner=2, **runners).rl_module(model_config={"hiddens": (8,)})
    return config.debugging(seed=1)


def training(**options):
    return PPOConfig().training(train_batch_size=32, minibatch_size=16, **options)


def giving(*connectors):
    return lambda observation_space, action_space: list(connectors)


REFUSED = [
    ({"env_to_module_connector": lambda o, a: None}, TypeError, "env_to_module_connector returned None; f.*Connector"),
    ({"env_to_module_connector": giving("x")}, TypeError, "env_to_module_connector returned 'x'"),
    ({"env_to_module_connector": 3}, TypeError, "env_to_module_connector=3 is not allowed; it must be a function"),
    ({"module_to_env_connector": giving(3)}, TypeError, "module_to_env_connector returned 3"),
    ({"module_to_env_connector": giving(FrameStack())}, ValueError, "module_to_env_connector: FrameStack has a memory"),
    (
        {"module_to_env_connector": giving(Counting())},
        ValueError,
        "Counting has statistics, which only connectors of o",
    ),
    (
        {"env_to_module_connector": giving(Widened())},
        ValueError,
        r"Widened gives \[\('obs', \(2, 8\), 'float32'\)\] for two rows",
    ),
    (
        {"env_to_module_connector": giving(NormalizeObs(), FrameStack(2))},
        ValueError,
        "NormalizeObs has statistics and stands before FrameStack.*put it behind that one",
    ),
    ({"env_to_module_connector": giving(Grayscale())}, ValueError, "Grayscale needs images with three channels"),
    ({"env_to_module_connector": giving(Resize(8, 8))}, ValueError, "Resize needs images"),
]


@pytest.mark.parametrize(("runners", "error", "words"), REFUSED)
def test_a_misplaced_connector_is_refused_when_building_a_policy(runners, error, words):
    with pytest.raises(error, match=words):
        config_of(**runners).build_policy()


def test_statistics_that_cannot_be_joined_are_refused_over_learners():
    config = config_of(env_to_module_connector=giving(Counting()))
    config.build_policy()
    with pytest.raises(ValueError, match=r"learners.num_learners=2: Counting has statistics but no update_joined"):
        config.learners(num_learners=2).build_policy()


@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (NormalizeObs(), "training.learner_connector: NormalizeObs has statistics"),
        (FrameStack(), "training.learner_connector: FrameStack has a memory"),
    ],
)
def test_learner_connectors_have_neither_statistics_nor_a_memory(connector, words):
    with pytest.raises(ValueError, match=words):
        config_of(training(learner_connector=giving(connector))).build_policy()


@pytest.mark.parametrize(
    "environment", [{"frame_stack": 2}, {"normalize_observations": True}, {"rescale_actions": True}]
)
def test_an_option_that_needs_default_connectors_is_refused_without_them(environment):
    config = config_of(add_default_connectors=False).environment(**environment)
    with pytest.raises(ValueError, match=f"environment.{next(iter(environment))}=.*add_default_connectors=False"):
        config.validate()


def test_data_that_are_there_already_are_not_followed():
    config = config_of(BCConfig(), env_to_module_connector=giving(FrameStack(2)))
    with pytest.raises(ValueError, match="bc learns from data that are there already, and FrameStack has a memory"):
        config.build_policy()


def test_the_connector_order_is_kept_and_nothing_recorded_after_memory():
    config = config_of(env_to_module_connector=giving(ClipObs(-1.0, 1.0)))
    config.environment(frame_stack=2, normalize_observations=True)
    connectors = config.build_policy().connectors
    assert [type(each).__name__ for each in connectors.recorded.connectors] == ["ClipObs", "FrameStack"]
    assert [type(each).__name__ for each in connectors.obs.connectors] == ["NormalizeObs"]
    assert connectors.acting_names == ("ClipObs", "FrameStack", "NormalizeObs")


def test_defaults_are_left_out_where_that_is_asked():
    policy = config_of(env="Pendulum-v1", add_default_connectors=False).build_policy()
    assert policy.connectors.actions is None
    assert policy.to_env(np.array([[9.0]], np.float32)).tolist() == [[9.0]]
    clipped = config_of(env="Pendulum-v1").build_policy()
    assert clipped.to_env(np.array([[9.0]], np.float32)).tolist() == [[2.0]]


def test_a_box_is_played_by_discrete_actions():
    config = config_of(
        DQNConfig().training(train_batch_size=8), env="Pendulum-v1", module_to_env_connector=giving(Torques())
    )
    config.replay(learning_starts=20, capacity=200).reporting(total_steps=60).evaluation(evaluation_interval=0)
    trainer = config.build_trainer()
    assert trainer.policy.module.action_space == THREE
    trainer.run()
    actions = trainer.buffer.column("actions")[:60]
    assert set(np.asarray(actions).reshape(-1).tolist()) == {0, 1, 2}  # drawn at first, and by epsilon
    assert trainer.policy.to_env(np.array([0, 1, 2])).tolist() == [[-2.0], [0.0], [2.0]]
    assert trainer.policy.compute_actions(np.zeros((5, 3), np.float32)).shape == (5, 1)


def test_options_go_through_json_by_name():
    config = config_of(env=PictureEnv, env_to_module_connector=see)
    assert PPOConfig().update_from_dict(config.to_dict()).env_runners.env_to_module_connector is see
    with pytest.raises(ValueError, match=r"env_runners.env_to_module_connector=.*cannot be written to JSON"):
        config.env_runners(env_to_module_connector=giving()).to_dict()


# -- learner connectors ---


class Rewarded(Connector):
    """Rewards 1 everywhere."""

    def __call__(self, data):
        return {**data, "rewards": torch.ones_like(data["rewards"])}


class Shorter(Connector):
    """Drops rows."""

    def __call__(self, data):
        return {name: column[1:] for name, column in data.items()}


def collected(policy, steps=64):
    env = make_vector(policy.config.environment.env, num_envs=2)
    store = RolloutStore(steps, 2, policy.stored_observation_space, env.action_space)
    Collector(policy, env, store, exploration_noise=True, seed=1).collect(n_step=steps)
    return store.trajectories()


def test_rewards_that_a_learner_connector_changes_reach_the_advantages():
    """CartPole rewards 1 in each step: half of it, doubled, is nothing new; and constants count as rewards."""
    targets = []
    for connectors in (
        None,
        giving(ScaleRewards(0.5), ScaleRewards(2.0)),
        giving(Rewarded()),
        giving(ScaleRewards(3.0)),
    ):
        policy = config_of(training(learner_connector=connectors)).build_policy()
        columns = policy.learner_group.learner.prepare_batch(collected(policy), module_id="default_policy")
        targets.append(columns["value_targets"].numpy())
    np.testing.assert_array_equal(targets[0], targets[1])
    np.testing.assert_array_equal(targets[0], targets[2])
    assert (targets[3] > targets[0] + 1.0).all()


def test_off_policy_rewards_are_changed_before_the_loss():
    seen = []

    class Noting(Connector):
        def __call__(self, data):
            seen.append(data["rewards"].clone())
            return data

    config = config_of(
        SACConfig().training(train_batch_size=8, learner_connector=giving(ClipRewards(-0.5, 0.5), Noting())),
        env="Pendulum-v1",
    )
    config.replay(learning_starts=20, capacity=200).reporting(total_steps=40).evaluation(evaluation_interval=0)
    config.build_trainer().run()
    assert all((each == -0.5).any() for each in seen)
    assert all((each >= -0.5).all() for each in seen)


def test_a_learner_connector_keeps_the_rows():
    policy = config_of(training(learner_connector=giving(Shorter()))).build_policy()
    with pytest.raises(
        ValueError, match="learner_connector: Shorter must return a dict of columns, each of the 64 rows"
    ):
        policy.learner_group.learner.prepare_batch(collected(policy), module_id="default_policy")


def test_rewards_are_clipped_and_scaled():
    rewards = {"rewards": torch.tensor([-3.0, 0.25, 2.0])}
    assert ClipRewards()(rewards)["rewards"].tolist() == [-1.0, 0.25, 1.0]
    assert ClipRewards(sign=True)(rewards)["rewards"].tolist() == [-1.0, 1.0, 1.0]
    assert ScaleRewards(2.0)(rewards)["rewards"].tolist() == [-6.0, 0.5, 4.0]
    for wrong in (lambda: ClipRewards(1.0, 1.0), lambda: ScaleRewards(float("nan")), lambda: ClipObs(2.0, 1.0)):
        with pytest.raises(ValueError, match=r"low < high|finite number"):
            wrong()


# -- observations ---


def test_images_become_grey_and_small():
    for shape, axis in (((16, 16, 3), -1), ((3, 16, 16), 0)):
        space = spaces.Box(0, 255, shape, np.uint8)
        pipeline = ObsPipeline([Grayscale(), Resize(8, 4)], space)
        assert pipeline.observation_space == spaces.Box(0, 255, (8, 4), np.uint8)
        colours = np.zeros((2, *shape), np.uint8)
        np.moveaxis(colours, axis if axis == -1 else 1, -1)[...] = (200, 100, 50)
        assert (pipeline(colours) == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)).all()
    image = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    blocks = image.reshape(1, 8, 2, 8, 2).mean((2, 4))
    np.testing.assert_array_equal(
        ObsPipeline([Resize(8, 8)], spaces.Box(0, 255, (16, 16), np.uint8))(image), np.rint(blocks)
    )
    thirds = ObsPipeline([Resize(8, 12)], spaces.Box(0, 255, (16, 16, 1), np.uint8))
    assert thirds(np.full((3, 16, 16, 1), 77, np.uint8)).tolist() == np.full((3, 8, 12, 1), 77).tolist()


def test_observations_are_clipped_in_numpy_and_torch():
    pipeline = ObsPipeline([ClipObs(-0.5, 2.0)], BOX)
    assert pipeline.observation_space == spaces.Box(-0.5, 1.0, (4,), np.float32)
    data = np.array([[-3.0, -0.5, 0.0, 3.0]], np.float32)
    assert pipeline(data).tolist() == pipeline(torch.from_numpy(data)).tolist() == [[-0.5, -0.5, 0.0, 2.0]]


def test_what_was_done_stands_beside_a_mask_and_any_action_is_made_flat():
    masked = spaces.Dict({"observations": BOX, "action_mask": spaces.MultiBinary(3)})
    space = PreviousActions(THREE).output_space(masked)
    assert list(space) == [*masked, "previous_actions"]
    actions = spaces.Dict({"a": THREE, "b": spaces.Box(-1.0, 1.0, (2,), np.float32)})
    pipeline = ObsPipeline([PreviousActions(actions)], BOX)
    assert pipeline.observation_space["previous_actions"].shape == (5,)
    obs = np.zeros((1, 4), np.float32)
    assert not pipeline(obs)["previous_actions"].any()
    pipeline.after_step({"a": np.array([1]), "b": np.array([[0.5, -0.5]], np.float32)}, None)
    assert pipeline(obs)["previous_actions"].tolist() == [[0.0, 1.0, 0.0, 0.5, -0.5]]
    with pytest.raises(ValueError, match="adds the key 'previous_actions', which"):
        PreviousActions(THREE).output_space(space)


# -- statistics off-policy ---


@pytest.mark.parametrize("storage", [{}, {"n_step": 3}])
def test_off_policy_statistics_count_each_row_once_and_normalise_samples(storage):
    config = config_of(SACConfig().training(train_batch_size=8), env="Pendulum-v1")
    config.environment(normalize_observations=True, normalize_rewards=True).evaluation(evaluation_interval=0)
    config.replay(learning_starts=20, capacity=200, **storage).reporting(total_steps=60)
    trainer = config.build_trainer()
    trainer.run()
    policy, buffer = trainer.policy, trainer.buffer
    rows = np.concatenate(buffer.ring.by_buffer())
    obs = buffer.column("obs").astype(np.float64)
    (moments,) = policy.connectors.obs.connectors[0].moments
    assert moments.count == len(obs) == 60
    np.testing.assert_allclose(moments.mean, obs.mean(0))
    np.testing.assert_allclose(moments.var, obs.var(0))
    returns, reference = 0.0, []
    for row, reward in zip(rows, buffer.column("rewards"), strict=True):
        returns = 0.99 * returns + float(reward)
        reference.append(returns)
        returns *= buffer.ring.flags[row] == 0 and row not in buffer.ring.newest
    assert policy.connectors.rewards.moments.count == 60
    np.testing.assert_allclose(policy.connectors.rewards.moments.var, np.var(reference))
    batch = buffer[rows[:8]]
    needed = policy.learning_columns(batch)
    np.testing.assert_array_equal(needed["obs"], policy.connectors.obs(batch["obs"]))
    np.testing.assert_array_equal(needed["rewards"], policy.connectors.rewards.scale(batch["rewards"]))
    np.testing.assert_array_equal(buffer[rows[:8]]["obs"], batch["obs"])  # what is stored stays raw


def test_statistics_of_replay_go_on_after_a_resume(tmp_path):
    def trainer():
        config = config_of(DQNConfig().training(train_batch_size=8), env=PictureEnv, env_to_module_connector=see)
        config.environment(normalize_rewards=True).evaluation(evaluation_interval=0)
        config.replay(learning_starts=20, capacity=50, update_per_step=0.2).reporting(total_steps=80)
        return config.build_trainer()

    whole, half, rest = trainer(), trainer(), trainer()
    whole.run()
    for _ in range(5):
        next(half)
    save_trainer(half, tmp_path / "checkpoint")
    restore_trainer(rest, tmp_path / "checkpoint")
    assert 20 < rest.env_step < 80
    rest.run()
    assert whole.policy.connectors.rewards.moments.count == 80
    for left, right in zip(whole.policy.state_dict().items(), rest.policy.state_dict().items(), strict=True):
        assert left[0] == right[0]
        np.testing.assert_array_equal(left[1].numpy(), right[1].numpy())
