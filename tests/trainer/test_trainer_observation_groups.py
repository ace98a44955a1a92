"""Observation groups: policy and critic see different entries of Dict observations (contract/robots.md, section 1)."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_games import game_config
from algorithm_cases import ALGORITHM_CASES
from gymnasium import spaces
from parts import one_in
from test_trainer_central_critic import HiddenGame, shared_config
from trainer_tools import learned

from lockstep import Policy, PPOConfig, RLModule, RLModuleSpec, get_config
from lockstep.connectors import PreviousActions
from lockstep.data import SingleAgentEpisode
from lockstep.data.groups import central_groups, with_state_space
from lockstep.export import load_export
from lockstep.trainer import restore_trainer, save_trainer

WITH_CRITIC = [name for name in ALGORITHM_CASES if "critic" in get_config(name).learner_class.observed_by]
ONLINE = [name for name in WITH_CRITIC if not get_config(name).is_offline]
GROUPS = {"policy": ["proprio", "sensors/left"], "critic": ["heights", "proprio"]}


class Robot(gym.Env[Any, Any]):
    """Random observations with nested entries; episodes end after 7 steps."""

    state_attributes = ("t",)

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "proprio": spaces.Box(-1.0, 1.0, (3,)),
                "heights": spaces.Box(-1.0, 1.0, (4,)),
                "sensors": spaces.Dict({"left": spaces.Box(-1.0, 1.0, (2,)), "right": spaces.Box(-1.0, 1.0, (2,))}),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._observe(), float(np.sum(action)), self.t == 7, False, {}

    def _observe(self) -> Any:
        def draw(size: int) -> np.ndarray:
            return self.np_random.uniform(-1.0, 1.0, size).astype(np.float32)

        return {"proprio": draw(3), "heights": draw(4), "sensors": {"left": draw(2), "right": draw(2)}}


def robot_config(algorithm: str, groups: Any = GROUPS, env: Any = Robot, **model: Any) -> Any:
    config = get_config(algorithm).environment(env).rl_module(observation_groups=groups)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,), **model}).debugging(seed=3)
    config.evaluation(evaluation_interval=0)
    if config.is_offline:
        return config
    config.env_runners(num_envs_per_env_runner=2).reporting(total_steps=96, steps_per_epoch=32)
    if config.is_off_policy:
        config.training(train_batch_size=8).replay(learning_starts=16, update_per_step=0.25)
    else:
        config.training(train_batch_size=32)
    return config


def rows(number: int, *names: str, seed: int = 0) -> dict[str, Any]:
    """Return observations of `Robot` with these entries."""
    space = Robot().observation_space
    rng = np.random.default_rng(seed)
    drawn = {
        name: rng.uniform(-1, 1, (number, *space[name].shape)).astype(np.float32) for name in ("proprio", "heights")
    }
    drawn["sensors"] = {side: rng.uniform(-1, 1, (number, 2)).astype(np.float32) for side in ("left", "right")}
    return {name: drawn[name] for name in names or drawn}


def as_tensors(obs: dict[str, Any]) -> dict[str, Any]:
    return {k: as_tensors(v) if isinstance(v, dict) else torch.from_numpy(v) for k, v in obs.items()}


# -- what each part sees ---


def critic_values(module: Any, obs: dict[str, Any]) -> torch.Tensor:
    batch = {"obs": as_tensors(obs), "actions": torch.zeros(4, 2)}
    critics = getattr(module, "critics", None)
    return module.compute_values(batch) if critics is None else critics(batch["obs"], batch["actions"])


@pytest.mark.parametrize("algorithm", WITH_CRITIC)
def test_policy_and_critic_see_the_entries_of_their_groups_alone(algorithm):
    module = robot_config(algorithm).build_learner().module["default_policy"]
    obs = rows(4)
    out = module.forward_inference({"obs": as_tensors(obs)})["action_dist_inputs"]
    values = critic_values(module, obs)

    def changed(name: str) -> dict[str, Any]:
        other = rows(4, seed=1)
        if name in other["sensors"]:
            return {**obs, "sensors": {**obs["sensors"], name: other["sensors"][name]}}
        return {**obs, name: other[name]}

    for name, by_policy, by_critic in (
        ("proprio", True, True),
        ("heights", False, True),
        ("left", True, False),
        ("right", False, False),
    ):
        new = module.forward_inference({"obs": as_tensors(changed(name))})["action_dist_inputs"]
        assert bool((new != out).any()) is by_policy, name
        assert bool((critic_values(module, changed(name)) != values).any()) is by_critic, name


def test_a_group_keeps_its_order_and_a_part_without_a_group_sees_all():
    learner = robot_config("ppo", {"critic": ["heights", "proprio"]}).build_learner()
    module = learner.module["default_policy"]
    assert list(module.value_encoder.space.spaces) == ["heights", "proprio"]
    assert module.encoder.space == Robot().observation_space
    assert module.view_of("policy").is_identity


def test_a_group_of_one_entry_is_acted_on_by_numpy():
    policy = robot_config("ppo", {"policy": ["proprio"], "critic": ["proprio", "heights"]}).build_policy()
    part = policy.acting["default_policy"]
    assert type(part._actor).__name__ == "NumpyActor"
    obs = rows(5)
    expected = part.module.forward_inference({"obs": as_tensors(obs)})["action_dist_inputs"][:, :2]
    np.testing.assert_allclose(policy.compute_actions(obs), expected.detach().numpy().clip(-1, 1), atol=1e-6)


@pytest.mark.long
def test_a_critic_that_sees_the_load_explains_the_returns_and_one_that_does_not_cannot():
    explained = {}
    for name, critic in (("sees", ["proprio", "load"]), ("blind", ["proprio"])):
        config = PPOConfig().environment("lockstep/PrivilegedProbe-v0").env_runners(num_envs_per_env_runner=8)
        config.rl_module(observation_groups={"policy": ["proprio"], "critic": critic}).debugging(seed=1)
        config.training(train_batch_size=512, minibatch_size=128, num_epochs=8, lr=3e-3)
        config.evaluation(evaluation_interval=0).reporting(total_steps=8192, steps_per_epoch=8192)
        trainer = config.build_trainer()
        trainer.run()
        policy = trainer.policy
        explained[name] = policy.last_results["default_policy"]["vf_explained_var"]
        proprio = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
        loads = [{"proprio": proprio, "load": np.full((3, 1), load, np.float32)} for load in (-1.0, 0.0, 1.0)]
        actions = [policy.compute_actions(obs) for obs in loads]
        assert np.array_equal(actions[0], actions[1])
        assert np.array_equal(actions[0], actions[2])
    assert explained["sees"] > 0.95
    assert explained["blind"] < 0.7


# -- acting, files, export ---


IN_POLICY = {"recurrent": "gru", "memory_in": "policy"}
IN_CRITIC = {"recurrent": "gru", "memory_in": "critic"}
MODELS = (
    ("ppo", {}),
    ("ppo", {"recurrent": "lstm"}),
    ("ppo", IN_POLICY),
    ("ppo", IN_CRITIC),
    *((name, memory_in) for name in ONLINE if get_config(name).is_off_policy for memory_in in (IN_POLICY, IN_CRITIC)),
)


@pytest.mark.parametrize(("algorithm", "model"), one_in(2, MODELS), ids=str)
def test_acting_and_exports_need_the_entries_of_the_policy_only(algorithm, model, tmp_path):
    config = robot_config(algorithm, **model).environment(normalize_observations=True)
    trainer = config.build_trainer()
    trainer.run()
    policy = trainer.policy
    seen = {"proprio": rows(4)["proprio"], "sensors": {"left": rows(4)["sensors"]["left"]}}
    results = [policy.compute_actions(obs) for obs in (seen, rows(4))]
    actions = [result[0] if policy.is_stateful else result for result in results]
    assert np.array_equal(*actions)
    if policy.is_stateful:
        policy.compute_actions(seen, state=results[0][1])

    policy.export(tmp_path / "export")
    exported = load_export(tmp_path / "export")
    assert [entry["name"] for entry in exported.card["observation"]] == ["obs/proprio", "obs/sensors/left"]
    loaded = Policy.from_checkpoint(policy.save_to_path(tmp_path / "policy"))
    again = loaded.compute_actions(seen)
    assert np.array_equal(again[0] if policy.is_stateful else again, actions[0])


def previous(observation_space: Any, action_space: Any) -> Any:
    return PreviousActions(action_space)


def test_an_entry_that_a_connector_adds_asks_acting_for_no_others(tmp_path):
    config = robot_config("ppo", {"policy": ["proprio", "previous_actions"], "critic": ["heights"]})
    trainer = config.env_runners(env_to_module_connector=previous).build_trainer()
    trainer.run()
    policy = trainer.policy
    seen = rows(4, "proprio")
    first = policy.compute_actions(seen)
    second = policy.compute_actions(seen)
    assert not np.array_equal(first, second)  # the actions before are others
    policy.reset()
    assert np.array_equal(policy.compute_actions(rows(4)), first)
    policy.export(tmp_path / "export")
    assert [entry["name"] for entry in load_export(tmp_path / "export").card["observation"]] == ["obs/proprio"]


def test_a_missing_entry_of_the_policy_is_refused_by_name():
    policy = robot_config("sac").build_policy()
    with pytest.raises(ValueError, match=r"expected a Dict of \['proprio', 'sensors'\]"):
        policy.compute_actions(rows(2, "heights"))
    with pytest.raises(ValueError, match="obs has the keys"):
        policy.compute_actions({**rows(2), "unknown": np.zeros((2, 1))})


def test_an_action_mask_always_reaches_the_policy():
    space = spaces.Dict(
        {"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Box(-1.0, 1.0, (2,)), "action_mask": spaces.MultiBinary(3)}
    )
    for algorithm in ("ppo", "sac", "dqn"):
        config = get_config(algorithm).rl_module(observation_groups={"policy": ["a"]})
        policy = config.environment(observation_space=space, action_space=spaces.Discrete(3)).build_policy()
        for allowed in range(3):
            obs = {"a": np.zeros((5, 2), np.float32), "action_mask": np.eye(3, dtype=np.int8)[[allowed] * 5]}
            assert (policy.compute_actions(obs, explore=True) == allowed).all()


@pytest.mark.parametrize("algorithm", one_in(3, ONLINE))
@pytest.mark.parametrize(
    "options", [{}, {"normalize_observations": True}, {"frame_stack": 2}, IN_POLICY, IN_CRITIC], ids=str
)
def test_a_run_goes_on_bit_by_bit(algorithm, options, tmp_path):
    model = options if "recurrent" in options else {}
    environment = {} if model else options

    def build() -> Any:
        return robot_config(algorithm, **model).environment(**environment).build_trainer()

    straight = build()
    straight.run()
    first = build()
    next(first)
    path = save_trainer(first, tmp_path / "checkpoint")
    again = build()
    restore_trainer(again, path)
    again.run()
    assert learned(again) == learned(straight)


@pytest.mark.parametrize("memory_in", ["policy", "critic"])
def test_env_runners_on_ray_send_the_state_of_the_part_with_a_memory(memory_in):
    config = robot_config("sac", recurrent="gru", memory_in=memory_in).env_runners(num_env_runners=1)
    trainer = config.build_trainer()
    trainer.run()
    state = trainer.buffer.sample(2)["state_in"]
    assert list(state) == [{"policy": "h", "critic": "qf_h"}[memory_in]]
    stored = trainer.buffer.to_batch()["state_in"]
    assert any(np.any(leaf) for leaf in stored.values())


@pytest.mark.parametrize("options", [{"n_step": 3}, {"prioritized": True}], ids=str)
def test_replay_keeps_all_entries(options):
    trainer = robot_config("sac").replay(**options).build_trainer()
    trainer.run()
    batch = trainer.buffer.to_batch() if hasattr(trainer, "buffer") else trainer.train_collector.buffer.to_batch()
    assert set(batch["obs"]) == {"proprio", "heights", "sensors"}


def test_each_entry_is_normalised_by_its_own_statistics():
    trainer = robot_config("ppo").environment(normalize_observations=True).build_trainer()
    trainer.run()
    (normalize,) = trainer.policy.connectors.obs.connectors
    shapes = [moments.shape for moments in normalize.moments]
    assert shapes == [(4,), (3,), (2,), (2,)]
    assert [moments.count for moments in normalize.moments] == [96] * 4
    means = np.concatenate([moments.mean for moments in normalize.moments])
    assert len(set(means)) == 11


@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
def test_goals_in_hindsight_are_learned_by_parts_that_see_them(algorithm):
    groups = {"policy": ["observation", "desired_goal"]}
    if algorithm == "sac":
        groups["critic"] = ["desired_goal", "observation"]
    config = get_config(algorithm).environment("lockstep/BitFlipping-v0", env_config={"num_bits": 3})
    config.rl_module(observation_groups=groups, model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    config.env_runners(num_envs_per_env_runner=2).replay(her=True, learning_starts=32, update_per_step=0.25)
    config.training(train_batch_size=16).reporting(total_steps=128).evaluation(evaluation_interval=0)
    trainer = config.build_trainer()
    trainer.run()
    assert trainer.gradient_step > 0
    assert set(trainer.buffer.to_batch()["obs"]) == {"observation", "achieved_goal", "desired_goal"}
    seen = {name: np.zeros((4, 3), np.int8) for name in ("observation", "desired_goal")}
    assert trainer.policy.compute_actions(seen).shape == (4,)


@pytest.mark.parametrize("algorithm", [name for name in WITH_CRITIC if get_config(name).is_offline])
def test_recorded_data_are_learned_from_by_groups(algorithm):
    recorder = robot_config("sac").replay(learning_starts=10**6).build_trainer()
    recorder.run()
    config = robot_config(algorithm).offline_data(input_=recorder.buffer.to_batch()).training(train_batch_size=16)
    trainer = config.environment(Robot).reporting(total_steps=8, steps_per_epoch=4).build_trainer()
    before = {name: tensor.clone() for name, tensor in trainer.policy.module.state_dict().items()}
    trainer.run()
    after = trainer.policy.module.state_dict()
    assert all(not torch.equal(tensor, before[name]) for name, tensor in after.items() if name.endswith("weight"))
    seen = {"proprio": rows(4)["proprio"], "sensors": {"left": rows(4)["sensors"]["left"]}}
    assert trainer.policy.compute_actions(seen).shape == (4, 2)


def test_an_intrinsic_reward_sees_its_group():
    config = robot_config("ppo", {**GROUPS, "intrinsic": ["heights"]}).training(intrinsic_reward="rnd")
    learner = config.build_learner()
    novelty = learner.novelty_of("default_policy")
    assert novelty.network.target.space == Robot().observation_space["heights"]
    config.build_trainer().run()


# -- bad input ---

REFUSED = {
    "an unknown key": ("ppo", {"policy": ["wheels"]}, "names 'wheels', which is not in the observation space"),
    "an empty group": ("ppo", {"policy": []}, r"observation_groups\['policy'\] is empty"),
    "an unknown part": ("ppo", {"actor": ["proprio"]}, "has a group for 'actor'; parts are policy, critic"),
    "a text": ("ppo", {"policy": "proprio"}, "must be a list of keys"),
    "twice": ("ppo", {"policy": ["proprio", "proprio"]}, "names an entry twice"),
    "no critic": ("dqn", {"critic": ["proprio"]}, "has a group for 'critic', which dqn"),
    "no teacher": ("ppo", {"teacher": ["proprio"]}, "has a group for 'teacher', which ppo"),
    "no intrinsic reward": ("sac", {"intrinsic": ["proprio"]}, "has a group for 'intrinsic', which sac"),
}


@pytest.mark.parametrize(("algorithm", "groups", "words"), REFUSED.values(), ids=REFUSED)
def test_groups_that_do_not_fit_are_refused_when_the_configuration_is_built(algorithm, groups, words):
    with pytest.raises((TypeError, ValueError), match=words):
        robot_config(algorithm, groups).build_learner()


def test_groups_of_other_observations_than_a_dict_are_refused():
    with pytest.raises(ValueError, match="needs observations that are a Dict"):
        robot_config("ppo", {"policy": ["x"]}, "Pendulum-v1").build_learner()


@pytest.mark.parametrize(
    ("algorithm", "model", "words"),
    [("ppo", {"vf_share_layers": True}, "vf_share_layers=True"), ("sac", {"q_share_layers": True}, "q_share_layers")],
)
def test_shared_layers_need_equal_groups(algorithm, model, words):
    with pytest.raises(ValueError, match=words):
        robot_config(algorithm, **model).build_learner()


class AsksForHeights(RLModule):
    """Reads an entry that acting does not have."""

    def setup(self) -> None:
        self.layer = torch.nn.Linear(7, 4)

    def _forward(self, batch: Any) -> dict[str, Any]:
        obs = batch["obs"]
        out = self.layer(torch.cat([obs["proprio"], obs["heights"]], -1))
        return {"action_dist_inputs": out, "vf_preds": out.sum(-1)}


def test_a_network_that_asks_for_a_critics_entry_when_acting_is_refused():
    config = robot_config("ppo").rl_module(rl_module_spec=RLModuleSpec(module_class=AsksForHeights))
    with pytest.raises(ValueError, match="AsksForHeights asks for 'heights' when acting"):
        config.build_learner()


# -- what version 0.2 had: a second column for centralised critics ---


class ReadsCriticObs(RLModule):
    """A network of a user, written for version 0.2."""

    def setup(self) -> None:
        size = int(np.prod(self.observation_space.shape))
        self.policy = torch.nn.Linear(size, 2)
        self.value = torch.nn.Linear(size + int(np.prod(self.critic_space.shape)), 1)

    def _forward(self, batch: Any) -> dict[str, Any]:
        return {"action_dist_inputs": self.policy(batch["obs"])}

    def compute_values(self, batch: Any) -> Any:
        return self.value(torch.cat([batch["obs"], batch["critic_obs"]], -1)).squeeze(-1)

    def forward_train(self, batch: Any) -> dict[str, Any]:
        return {**self._forward(batch), "vf_preds": self.compute_values(batch)}


def test_networks_that_read_critic_obs_still_learn_and_warn(tmp_path):
    config = shared_config(HiddenGame, steps=64, centralized_critic="state")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=ReadsCriticObs))
    with pytest.warns(DeprecationWarning, match="expects the central state as batch"):
        trainer = config.build_trainer()
    before = trainer.policy.acting["main"].module.value.weight.clone()
    trainer.run()
    assert not torch.equal(trainer.policy.acting["main"].module.value.weight, before)
    obs = {"x": np.ones(2, np.float32)}
    actions = trainer.policy.compute_actions(obs)
    loaded = Policy.from_checkpoint(trainer.policy.save_to_path(tmp_path / "policy"))
    assert loaded.compute_actions(obs) == actions


def test_rows_that_were_recorded_with_critic_obs_still_teach_and_warn():
    own = spaces.Box(-1.0, 1.0, (2,))
    space = with_state_space(own, spaces.Box(-1.0, 1.0, (3,)))
    config = PPOConfig().rl_module(observation_groups=central_groups(own)).training(train_batch_size=8)
    learner = config.build_learner(spaces=(space, spaces.Discrete(2)))
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(5, 2)).astype(np.float32)
    states = rng.normal(size=(5, 3)).astype(np.float32)
    make = partial(SingleAgentEpisode, actions=[0, 1, 0, 1], rewards=[1.0, 0.0, 2.0, 1.0], terminated=True)
    old = make(observations=list(obs), infos=[{"critic_obs": state} for state in states])
    new = make(observations=[{"obs": row, "state": state} for row, state in zip(obs, states)])
    before = learner.get_state()
    learner.update_from_episodes([new])
    expected = learner.module["default_policy"].get_state()
    learner.set_state(before)
    with pytest.warns(DeprecationWarning, match="as in version 0.2"):
        learner.update_from_episodes([old])
    for name, value in learner.module["default_policy"].get_state().items():
        assert np.array_equal(value, expected[name]), name


def test_algorithms_with_replay_have_central_critics_too():
    config = game_config(HiddenGame, multi_agent={"centralized_critic": "state"}, algorithm=get_config("sac").__class__)
    config.replay(learning_starts=8, update_per_step=0.5).training(train_batch_size=8)
    trainer = config.build_trainer()
    trainer.run()
    assert trainer.policy.acting["first"].module.observation_groups == {"policy": ("obs",), "critic": ("state", "obs")}


# -- several agents: the state is for the critic alone ---


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, {"policy": ("obs",), "critic": ("state", "obs")}),
        ({"critic": ["state"]}, {"policy": ("obs",), "critic": ("state",)}),
        ({"policy": ["obs"]}, {"policy": ("obs",), "critic": ("state", "obs")}),
    ],
    ids=["no groups", "critic", "policy"],
)
def test_configured_groups_leave_the_state_to_the_critic(groups, expected):
    config = game_config(HiddenGame, multi_agent={"centralized_critic": True})
    policy = config.rl_module(observation_groups=groups).build_policy()
    assert policy.acting["first"].module.observation_groups == expected
    assert set(policy.compute_actions(HiddenGame().reset(seed=0)[0])) == {"x", "y"}


def test_a_policy_whose_group_has_the_state_is_given_it():
    config = game_config(HiddenGame, multi_agent={"centralized_critic": True})
    policy = config.rl_module(observation_groups={"policy": ["obs", "state"]}).build_policy()
    own = HiddenGame().reset(seed=0)[0]
    with pytest.raises(ValueError, match=r"expected a Dict of \['obs', 'state'\]"):
        policy.compute_actions(own)
    size = policy.observation_space["first"]["state"].shape
    whole = {agent: {"obs": obs, "state": np.zeros(size, np.float32)} for agent, obs in own.items()}
    assert set(policy.compute_actions(whole)) == {"x", "y"}


@pytest.mark.parametrize("module_class", [None, ReadsCriticObs])
def test_an_intrinsic_reward_of_agents_does_not_see_the_state(module_class):
    config = shared_config(HiddenGame, steps=64, centralized_critic="state").training(intrinsic_reward="rnd")
    trainer = config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class)).build_trainer()
    trainer.run()
    novelty = trainer.policy.learner_group.learner.novelty_of("main")
    assert novelty.network.target.space == HiddenGame().observation_space("x")


def test_a_critic_space_of_one_agent_builds_an_old_network():
    own = spaces.Box(-1.0, 1.0, (2,))
    spec = RLModuleSpec(module_class=ReadsCriticObs, critic_space=spaces.Box(-1.0, 1.0, (3,)))
    config = PPOConfig().rl_module(rl_module_spec=spec).training(train_batch_size=8)
    with pytest.warns(DeprecationWarning, match="critic_obs"):
        learner = config.build_learner(spaces=(own, spaces.Discrete(2)))
    episode = SingleAgentEpisode(
        observations=list(np.zeros((5, 2), np.float32)),
        infos=[{"critic_obs": state} for state in np.eye(5, 3, dtype=np.float32)],
        actions=[0, 1, 0, 1],
        rewards=[1.0, 0.0, 2.0, 1.0],
        terminated=True,
    )
    learner.update_from_episodes([episode])
