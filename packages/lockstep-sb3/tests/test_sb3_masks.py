"""`MaskablePPO`: no forbidden action is ever taken, and the loss is that of the masked distribution."""

from __future__ import annotations

import importlib

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_tasks import Copy, Picture

from lockstep.data import DEFAULT_MODULE_ID
from lockstep.envs import EnvironmentStepError
from lockstep_sb3 import PPO, MaskablePPO
from lockstep_sb3.common.callbacks import BaseCallback
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.envs import (
    InvalidActionEnvDiscrete,
    InvalidActionEnvMultiBinary,
    InvalidActionEnvMultiDiscrete,
)
from lockstep_sb3.common.evaluation import evaluate_policy as evaluate_without_masks
from lockstep_sb3.common.maskable.callbacks import MaskableEvalCallback
from lockstep_sb3.common.maskable.evaluation import evaluate_policy
from lockstep_sb3.common.maskable.policies import MaskableActorCriticPolicy
from lockstep_sb3.common.maskable.utils import get_action_masks, is_masking_supported
from lockstep_sb3.common.monitor import Monitor
from lockstep_sb3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from lockstep_sb3.common.wrappers import ActionMasker, TimeFeatureWrapper

SMALL = {"net_arch": [16]}


class Strict(gym.Wrapper):
    """Wrapper that raises an error if an action is not allowed, and counts all actions."""

    taken = 0

    def step(self, action):
        mask = self.env.get_wrapper_attr("action_masks")()
        sizes = np.atleast_1d(getattr(self.action_space, "nvec", getattr(self.action_space, "n", 0)))
        if isinstance(self.action_space, spaces.MultiBinary):
            sizes = np.full(self.action_space.n, 2)
        entries = np.cumsum([0, *sizes[:-1]]) + np.asarray(action, int)
        if not np.all(np.asarray(mask)[entries]):
            raise ValueError(f"{action} is forbidden by {mask}")
        Strict.taken += 1
        return self.env.step(action)


KINDS = {
    "discrete": lambda: InvalidActionEnvDiscrete(dim=6, n_invalid_actions=4),
    "multi_discrete": lambda: InvalidActionEnvMultiDiscrete(dims=[2, 3], n_invalid_actions=2),
    "multi_binary": lambda: InvalidActionEnvMultiBinary(dims=3, n_invalid_actions=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_forbidden_action_is_taken_in_training_or_evaluation(kind):
    Strict.taken = 0
    venv = DummyVecEnv([lambda: Monitor(Strict(KINDS[kind]()))] * 4)
    model = MaskablePPO("MlpPolicy", venv, n_steps=256, n_epochs=1, batch_size=256, seed=1, policy_kwargs=SMALL)
    model.learn(3_000)
    for deterministic in (True, False):
        evaluate_policy(model, venv, n_eval_episodes=4, deterministic=deterministic)
    assert Strict.taken >= 3_500
    with pytest.raises(EnvironmentStepError, match="is forbidden by"):
        evaluate_without_masks(model, venv, n_eval_episodes=4, deterministic=False)
    assert model.action_space == KINDS[kind]().action_space


@pytest.mark.parametrize("kind", KINDS)
def test_predict_takes_allowed_actions_only(kind):
    env = KINDS[kind]()
    model = MaskablePPO("MlpPolicy", env, n_steps=32, seed=1, policy_kwargs=SMALL)
    strict = Strict(env)
    obs, _ = strict.reset(seed=0)
    for step in range(400):
        masks = env.action_masks()
        action, state = model.predict(obs, action_masks=masks, deterministic=step % 2 == 0)
        assert state is None
        assert env.action_space.contains(action)
        obs, *_ = strict.step(action)
    batch = np.stack([env.observation_space.sample() for _ in range(3)])
    masks = np.stack([env.action_masks()] * 3)
    actions, _ = model.predict(batch, action_masks=masks)
    assert actions.shape == (3, *env.action_space.shape)
    with pytest.raises(ValueError, match="action_masks"):
        model.predict(batch, action_masks=masks[:, :-1])


def test_masked_logits_have_the_probability_of_allowed_actions_alone():
    env = InvalidActionEnvDiscrete(dim=4)
    model = MaskablePPO("MlpPolicy", env, seed=1)
    mask = torch.tensor([[1, 0, 1, 1]], dtype=torch.int8)
    batch = {"obs": {"obs": torch.tensor([2]), "action_mask": torch.ones_like(mask)}}
    module = model.lockstep.module
    module = module[DEFAULT_MODULE_ID] if hasattr(module, "keys") else module
    logits = module.forward_train(batch)["action_dist_inputs"]
    batch["obs"]["action_mask"] = mask
    masked = module.action_dist_cls.from_inputs(module.forward_train(batch)["action_dist_inputs"])
    expected = torch.softmax(logits[0, [0, 2, 3]], 0)
    found = torch.stack([masked.log_prob(torch.tensor([action]))[0] for action in (0, 2, 3)]).exp()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(masked.entropy()[0], -(expected * expected.log()).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_of_a_model_takes_masks_in_each_of_its_methods(kind):
    env = KINDS[kind]()
    model = MaskablePPO("MlpPolicy", env, n_steps=32, seed=1, policy_kwargs=SMALL)
    policy = model.policy
    obs, _ = env.reset(seed=1)
    for _ in range(20):
        masks = np.array(env.action_masks())
        tensors, _ = policy.obs_to_tensor(obs)
        actions, values, log_probs = policy(tensors, action_masks=masks)
        expected = policy.get_distribution(tensors, action_masks=masks).log_prob(actions)
        torch.testing.assert_close(log_probs, expected)
        found = policy.evaluate_actions(tensors, actions, action_masks=masks)
        torch.testing.assert_close(found[:2], (values, log_probs))
        assert log_probs.item() > -10.0
        action, _ = policy.predict(obs, action_masks=masks)
        obs, *_ = Strict(env).step(action)


class Maze(gym.Env):
    """Environment that rewards one of 200 actions. The mask `valid()` leaves it and one other."""

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1.0, (1,))
        self.action_space = spaces.Discrete(200)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(1, np.float32), float(action == 17), False, self.steps == 10, {}

    def valid(self):
        return np.isin(np.arange(200), [3, 17])


def test_masks_make_a_large_action_space_quick_to_learn():
    options = {"n_steps": 64, "n_epochs": 4, "learning_rate": 1e-2, "seed": 1, "policy_kwargs": SMALL}
    env = ActionMasker(Maze(), lambda env: env.unwrapped.valid())
    masked = MaskablePPO(MaskableActorCriticPolicy, env, **options).learn(512)
    mean, _ = evaluate_policy(masked, env, n_eval_episodes=5)
    assert mean == 10.0
    plain = PPO("MlpPolicy", Maze(), **options).learn(512)
    assert evaluate_without_masks(plain, Maze(), n_eval_episodes=5, deterministic=False)[0] < 2.0


def test_without_use_masking_all_actions_are_taken():
    model = MaskablePPO("MlpPolicy", Maze(), n_steps=64, n_epochs=1, seed=1, policy_kwargs=SMALL)
    for call in (lambda: model.learn(64), lambda: evaluate_policy(model, Maze())):
        with pytest.raises(ValueError, match="action_masks"):
            call()
    model.learn(64, use_masking=False)
    assert evaluate_policy(model, Maze(), n_eval_episodes=1, use_masking=False)[0] < 10.0
    assert model.num_timesteps == 64


def test_masks_are_read_from_each_kind_of_environment():
    single = ActionMasker(Maze(), "valid")
    assert is_masking_supported(single)
    assert not is_masking_supported(Maze())
    np.testing.assert_array_equal(get_action_masks(single), Maze().valid())
    assert get_action_masks(Monitor(single)).sum() == 2
    venv = make_vec_env(lambda: ActionMasker(Maze(), "valid"), n_envs=3)
    assert is_masking_supported(venv)
    assert not is_masking_supported(make_vec_env(Maze))
    assert get_action_masks(VecNormalize(venv)).shape == (3, 200)
    with pytest.raises(ValueError, match="no method 'wings'"):
        ActionMasker(Maze(), "wings")


def make_strict():
    return Strict(InvalidActionEnvDiscrete(dim=5, n_invalid_actions=3, ep_length=10))


def test_masks_come_from_other_processes_and_through_wrappers():
    venv = VecNormalize(SubprocVecEnv([make_strict] * 2), norm_obs=False)
    try:
        model = MaskablePPO("MlpPolicy", venv, n_steps=32, n_epochs=1, policy_kwargs=SMALL).learn(200)
        assert len(evaluate_policy(model, venv, n_eval_episodes=2, return_episode_rewards=True)[0]) == 2
    finally:
        venv.close()


class Seen(BaseCallback):
    """Callback that keeps observations and last observations of episodes."""

    def _on_training_start(self):
        self.shapes = set()

    def _on_step(self):
        self.shapes.add(np.shape(self.locals["new_obs"]))
        self.shapes |= {np.shape(info["terminal_observation"]) for info in self.locals["infos"] if len(info) > 2}
        return True


def test_callbacks_see_the_observations_of_the_environment():
    env = ActionMasker(Maze(), "valid")
    seen = Seen()
    evaluate = MaskableEvalCallback(ActionMasker(Maze(), "valid"), eval_freq=32, n_eval_episodes=2, verbose=0)
    MaskablePPO("MlpPolicy", env, n_steps=32, n_epochs=1, policy_kwargs=SMALL).learn(64, callback=[seen, evaluate])
    assert seen.shapes == {(1, 1), (1,)}
    assert len(evaluate.evaluations_results) == 2


def test_a_saved_model_acts_with_masks_as_before(tmp_path):
    env = InvalidActionEnvMultiBinary(dims=3, n_invalid_actions=1)
    model = MaskablePPO("MlpPolicy", env, n_steps=32, policy_kwargs=SMALL).learn(32)
    model.save(tmp_path / "model")
    loaded = MaskablePPO.load(tmp_path / "model", env=env)
    batch = np.stack([env.observation_space.sample() for _ in range(20)])
    masks = np.tile([1, 0, 1, 1, 1, 1], (20, 1))
    actions = [each.predict(batch, action_masks=masks, deterministic=True)[0] for each in (model, loaded)]
    np.testing.assert_array_equal(*actions)
    assert not actions[0][:, 0].any()
    assert loaded.learn(32).num_timesteps == 32


def test_dicts_and_images_take_masks_too():
    class Named(Copy):
        """`Copy` with its observation in a dict of one entry."""

        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict(wanted=self.observation_space)

        def _draw(self):
            return {"wanted": super()._draw()}

    for policy, env_class in (("MultiInputPolicy", Named), ("CnnPolicy", Picture)):
        env = ActionMasker(env_class(), lambda _: [False, True])
        model = MaskablePPO(policy, env, n_steps=16, n_epochs=1).learn(16)
        obs, _ = env.reset()
        assert model.predict(obs, action_masks=[False, True])[0] == 1
        assert model.predict(obs, action_masks=[True, False])[0] == 0


def test_actions_without_choices_are_refused():
    class Real(Copy):
        """`Copy` with real actions."""

        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (1,))

    with pytest.raises(ValueError, match="cannot be masked"):
        MaskablePPO("MlpPolicy", Real())
    with pytest.raises(ValueError, match="2 entries"):
        MaskablePPO("MlpPolicy", ActionMasker(Copy(), lambda _: [True] * 3), n_steps=16).learn(16)


def test_remaining_time_is_appended_to_observations():
    env = TimeFeatureWrapper(Copy(), max_steps=10)
    obs, _ = env.reset(seed=1)
    assert obs[1] == 1.0
    for _ in range(4):
        obs, *_ = env.step(0)
    assert obs[1] == pytest.approx(0.6)
    assert env.observation_space.shape == (2,)
    assert env.observation_space.contains(obs)
    assert TimeFeatureWrapper(gym.make("CartPole-v1"), max_steps=10)._max_steps == 500
    assert TimeFeatureWrapper(Copy(), test_mode=True).reset()[0][1] == 1.0
    with pytest.raises(ValueError, match="TimeFeatureWrapper"):
        TimeFeatureWrapper(Picture())


def test_modules_have_the_paths_of_sb3_contrib():
    for path in ("ppo_mask", "ppo_mask.ppo_mask"):
        assert importlib.import_module(f"lockstep_sb3.{path}").MaskablePPO is MaskablePPO
    assert importlib.import_module("lockstep_sb3.ppo_mask.policies").MlpPolicy is MaskableActorCriticPolicy
    masker = importlib.import_module("lockstep_sb3.common.wrappers.action_masker")
    assert masker.ActionMasker is ActionMasker
