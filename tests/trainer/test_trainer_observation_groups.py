"""Observation groups: policy and critic see different entries of Dict observations (contract/robots.md, section 1)."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_games import game_config
from algorithm_cases import ALGORITHM_CASES, NAMES, takes
from gymnasium import spaces
from parts import fast_if, one_in
from test_trainer_central_critic import HiddenGame, shared_config
from trainer_tools import learned

from lockstep import Policy, PPOConfig, RLModule, RLModuleSpec, get_config
from lockstep.connectors import PreviousActions
from lockstep.data import SingleAgentEpisode, write_rows
from lockstep.data.groups import central_groups, with_state_space
from lockstep.data.trees import map_tree, named_leaves
from lockstep.export import load_export
from lockstep.policy.offline_data import offline_source
from lockstep.trainer import restore_trainer, save_trainer

WITH_CRITIC = [name for name in ALGORITHM_CASES if "critic" in get_config(name).learner_class.observed_by]
ONLINE = [name for name in WITH_CRITIC if not get_config(name).is_offline]
OFFLINE = [name for name in WITH_CRITIC if get_config(name).is_offline]
WITHOUT_CRITIC = [name for name in NAMES if name not in WITH_CRITIC]
GROUPS = {"policy": ["proprio", "sensors/left"], "critic": ["heights", "proprio"]}
IN_POLICY = {"recurrent": "gru", "memory_in": "policy"}
IN_CRITIC = {"recurrent": "gru", "memory_in": "critic"}
IN_BOTH = {"recurrent": "lstm"}
ATTENTION = {"attention": {"size": 4, "num_heads": 2, "memory": 4, "hidden_size": 4}}
MEMORIES = (IN_BOTH, IN_POLICY, IN_CRITIC)


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


class ChoosingRobot(Robot):
    """`Robot` with three actions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3)


def robot_config(algorithm: str, groups: Any = GROUPS, env: Any = None, **model: Any) -> Any:
    if groups is GROUPS and algorithm in WITHOUT_CRITIC:
        groups = {"policy": GROUPS["policy"]}
    if env is None:
        env = Robot if takes(algorithm, "box") else ChoosingRobot
    config = get_config(algorithm).environment(env).rl_module(observation_groups=groups)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,), **model}).debugging(seed=3)
    config.evaluation(evaluation_interval=0)
    if config.is_offline:
        return config
    config.env_runners(num_envs_per_env_runner=2).reporting(total_steps=96, steps_per_epoch=32)
    if config.is_off_policy:
        config.training(train_batch_size=8).replay(learning_starts=16, update_per_step=0.25)
    else:
        config.training(**ALGORITHM_CASES[algorithm].small).training(train_batch_size=32)
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


def seen_rows(number: int, seed: int = 0) -> dict[str, Any]:
    """Return observations with the entries of the policy alone."""
    obs = rows(number, seed=seed)
    return {"proprio": obs["proprio"], "sensors": {"left": obs["sensors"]["left"]}}


def as_tensors(obs: dict[str, Any]) -> dict[str, Any]:
    return {k: as_tensors(v) if isinstance(v, dict) else torch.from_numpy(v) for k, v in obs.items()}


# -- what each part sees ---


def critic_values(module: Any, obs: dict[str, Any]) -> torch.Tensor:
    batch = {"obs": as_tensors(obs), "actions": torch.zeros(4, 2)}
    critics = getattr(module, "critics", None)
    return module.compute_values(batch) if critics is None else critics(batch["obs"], batch["actions"])


def changed_in(name: str, obs: dict[str, Any]) -> dict[str, Any]:
    """Return observations with other numbers in one entry."""
    other = rows(4, seed=1)
    if name in other["sensors"]:
        return {**obs, "sensors": {**obs["sensors"], name: other["sensors"][name]}}
    return {**obs, name: other[name]}


SEEN = (("proprio", True, True), ("heights", False, True), ("left", True, False), ("right", False, False))
"""each entry of `Robot`, whether the policy sees it, whether the critic does"""


@pytest.mark.parametrize("algorithm", WITH_CRITIC)
def test_policy_and_critic_see_the_entries_of_their_groups_alone(algorithm):
    module = robot_config(algorithm).build_learner().module["default_policy"]
    obs = rows(4)
    out = module.forward_inference({"obs": as_tensors(obs)})["action_dist_inputs"]
    values = critic_values(module, obs)

    for name, by_policy, by_critic in SEEN:
        changed = changed_in(name, obs)
        new = module.forward_inference({"obs": as_tensors(changed)})["action_dist_inputs"]
        assert bool((new != out).any()) is by_policy, name
        assert bool((critic_values(module, changed) != values).any()) is by_critic, name


@pytest.mark.parametrize("model", [*MEMORIES, ATTENTION], ids=str)
@pytest.mark.parametrize("algorithm", WITH_CRITIC)
def test_a_memory_changes_nothing_of_what_each_part_sees(algorithm, model):
    module = robot_config(algorithm, **model).build_learner().module["default_policy"]

    def outputs(obs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        first_steps = map_tree(lambda leaf: leaf.unsqueeze(1), as_tensors(obs))
        batch = {"obs": first_steps, "actions": torch.zeros(4, 1, 2)}
        trained = module.forward_train(batch)
        values = trained["q_values" if "q_values" in trained else "vf_preds"]
        return module.forward_inference(batch)["action_dist_inputs"], values

    obs = rows(4)
    out, values = outputs(obs)
    for name, by_policy, by_critic in SEEN:
        new, new_values = outputs(changed_in(name, obs))
        assert bool((new != out).any()) is by_policy, name
        assert bool((new_values != values).any()) is by_critic, name


@pytest.mark.parametrize("algorithm", WITHOUT_CRITIC)
def test_without_a_critic_a_policy_sees_its_group_alone(algorithm):
    """When acting, and in what it learns from."""
    module = robot_config(algorithm).build_learner().module["default_policy"]
    obs = rows(4)
    out = module.forward_inference({"obs": as_tensors(obs)})["action_dist_inputs"]
    trained = module.forward_train({"obs": as_tensors(obs)})
    for name, is_seen, _ in SEEN:
        changed = {"obs": as_tensors(changed_in(name, obs))}
        new = module.forward_inference(changed)["action_dist_inputs"]
        assert bool((new != out).any()) is is_seen, name
        for key, value in module.forward_train(changed).items():
            if not is_seen:
                assert torch.equal(value, trained[key]), (name, key)


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


OFF_POLICY = [name for name in ONLINE if get_config(name).is_off_policy]
ON_POLICY = [name for name in ONLINE if name not in OFF_POLICY]
EXPORTED = (
    ("ppo", {}),
    *((name, memory) for name in OFF_POLICY for memory in MEMORIES),
    *(("ppo", memory) for memory in MEMORIES),
    *((name, ATTENTION) for name in ("ppo", "sac")),
)
ONLY_ACTING = (
    *((name, {}) for name in WITHOUT_CRITIC if not get_config(name).is_offline),
    *((name, memory) for name in ON_POLICY if name != "ppo" for memory in MEMORIES),
)
"""models whose networks are exported as others are"""


def acted(policy: Any, observations: list[Any]) -> np.ndarray:
    """Return the actions `[T, B, ...]` of one episode in each row, from its beginning."""
    policy.reset()
    actions = []
    state = None
    for obs in observations:
        result = policy.compute_actions(obs, state) if policy.is_stateful else policy.compute_actions(obs)
        if policy.is_stateful:
            result, state = result
        actions.append(result)
    return np.array(actions)


def assert_acts_without_others(policy: Any, folder: Any, *, exports: bool) -> None:
    """Assert that a policy, loaded and exported too, acts equally with and without the entries of other parts."""
    seen = [seen_rows(4, seed) for seed in range(3)]
    actions = acted(policy, seen)
    assert np.array_equal(acted(policy, [rows(4, seed=seed) for seed in range(3)]), actions)
    loaded = Policy.from_checkpoint(policy.save_to_path(folder / "policy"))
    assert np.array_equal(acted(loaded, seen), actions)
    if exports:
        policy.export(folder / "export")
        exported = load_export(folder / "export")
        assert [entry["name"] for entry in exported.card["observation"]] == ["obs/proprio", "obs/sensors/left"]
        found = np.array([exported.compute_actions(obs) for obs in seen])
        np.testing.assert_allclose(found, actions, atol=1e-5)


@pytest.mark.parametrize(("algorithm", "model"), [*one_in(9, EXPORTED), *one_in(3, ONLY_ACTING)], ids=str)
def test_acting_and_exports_need_the_entries_of_the_policy_only(algorithm, model, tmp_path):
    config = robot_config(algorithm, **model).environment(normalize_observations=True)
    trainer = config.build_trainer()
    trainer.run()
    assert trainer.policy.is_stateful is bool(model)
    assert_acts_without_others(trainer.policy, tmp_path, exports=(algorithm, model) in EXPORTED)


@pytest.mark.parametrize("exports", fast_if(lambda exports: not exports, [False, True]))
@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_stacks_of_frames_need_the_entries_of_the_policy_only(algorithm, normalises, exports, tmp_path):
    config = robot_config(algorithm).environment(frame_stack=2, normalize_observations=normalises)
    trainer = config.build_trainer()
    trainer.run()
    policy = trainer.policy
    assert policy.acting["default_policy"].module.observation_space["heights"].shape == (2, 4)
    first, second = acted(policy, [seen_rows(4)] * 2)
    assert np.array_equal(first, second)  # a stack begins with copies of its first frame
    moved = acted(policy, [seen_rows(4, seed=1), seen_rows(4)])[1]
    assert not np.array_equal(moved, first)
    assert_acts_without_others(policy, tmp_path, exports=exports)


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


@pytest.mark.long
@pytest.mark.parametrize("memory_in", ["policy", "critic"])
def test_env_runners_on_ray_send_the_state_of_the_part_with_a_memory(memory_in):
    config = robot_config("sac", recurrent="gru", memory_in=memory_in).env_runners(num_env_runners=1)
    trainer = config.build_trainer()
    trainer.run()
    state = trainer.buffer.sample(2)["state_in"]
    assert list(state) == [{"policy": "h", "critic": "qf_h"}[memory_in]]
    stored = trainer.buffer.to_batch()["state_in"]
    assert any(np.any(leaf) for leaf in stored.values())


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_environments_in_processes_teach_groups_what_those_here_do(algorithm):
    found = []
    for mode in ("sync", "async"):
        trainer = robot_config(algorithm).env_runners(vectorize_mode=mode).build_trainer()
        trainer.run()
        found.append(learned(trainer))
    assert found[0] == found[1]


class TellingRobot(Robot):
    """`Robot` whose entries all tell the step and a number of the episode, each in its own way."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.t = 0
        self.episode = float(self.np_random.uniform(0.1, 0.9))
        return self._observe(), {}

    def _observe(self) -> Any:
        return told(np.array(self.t), np.array(self.episode))


def told(t: np.ndarray, episode: np.ndarray) -> dict[str, Any]:
    """Return the observations `[...]` of `TellingRobot` at these steps `[...]` of episodes with these numbers."""
    t = (t / 10).astype(np.float32)
    episode = episode.astype(np.float32)
    return {
        "proprio": np.stack([t, episode, -t], -1),
        "heights": np.stack([episode, -episode, t, t / 2], -1),
        "sensors": {"left": np.stack([t / 4, episode / 2], -1), "right": np.stack([-t / 4, -episode / 2], -1)},
    }


def assert_equal_entries(found: Any, expected: Any) -> None:
    entries = dict(named_leaves("obs", found))
    others = dict(named_leaves("obs", expected))
    assert entries.keys() == others.keys()
    for name, entry in entries.items():
        assert np.array_equal(entry, others[name]), name


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_replay_keeps_and_returns_all_entries_as_recorded(n_step, prioritized):
    """Both in the whole buffer and in samples, whose next observations are n steps later, or the episode's last."""
    config = robot_config("sac", env=TellingRobot).replay(n_step=n_step, prioritized=prioritized)
    trainer = config.reporting(total_steps=112, steps_per_epoch=56).build_trainer()  # 16 whole episodes
    trainer.run()
    whole = trainer.buffer.to_batch()
    sample = trainer.buffer.sample(64)
    assert len(whole) == 112
    assert ("weights" in sample) is prioritized
    for batch, num_steps in ((whole, 1), (sample, n_step)):
        t = np.round(batch["obs"]["proprio"][:, 0] * 10)
        episodes = batch["obs"]["proprio"][:, 1]
        assert set(t) == set(range(7))
        assert_equal_entries(batch["obs"], told(t, episodes))
        assert_equal_entries(batch["new_obs"], told(np.minimum(t + num_steps, 7), episodes))


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


@pytest.fixture(scope="module")
def recorded() -> Any:
    """A buffer of transitions of `Robot`."""
    recorder = robot_config("sac").replay(learning_starts=10**6).build_trainer()
    recorder.run()
    return recorder.buffer


def offline_config(algorithm: str, data: Any, **model: Any) -> Any:
    config = robot_config(algorithm, **model).offline_data(input_=data).training(train_batch_size=16)
    return config.reporting(total_steps=8, steps_per_epoch=4)


@pytest.mark.parametrize("model", [{}, *MEMORIES, ATTENTION], ids=str)
@pytest.mark.parametrize("algorithm", one_in(2, OFFLINE))
def test_recorded_data_are_learned_from_by_groups(algorithm, model, recorded, tmp_path):
    """With a memory from sequences. Each network learns, and acting needs the policy's entries only."""
    trainer = offline_config(algorithm, recorded.to_batch(), max_seq_len=4, **model).build_trainer()
    before = {name: tensor.clone() for name, tensor in trainer.policy.module.state_dict().items()}
    trainer.run()
    policy = trainer.policy
    assert ("seq_lens" in policy.last_batch) is policy.is_stateful is bool(model)
    after = policy.module.state_dict()
    assert all(not torch.equal(tensor, before[name]) for name, tensor in after.items() if "weight" in name)
    assert policy.acting["default_policy"].module.observation_groups["critic"] == ("heights", "proprio")
    assert_acts_without_others(policy, tmp_path, exports=False)


WRITERS = {
    "npz": lambda buffer, path: buffer.export(path.with_suffix(".npz")),
    "parquet": lambda buffer, path: buffer.export(path.with_suffix(".parquet")),
    "rows": lambda buffer, path: write_rows(path, buffer.to_batch()),
    "buffer": lambda buffer, path: buffer.save(path),
}


@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_recorded_files_have_all_entries_and_groups_learn_from_them(writer, normalises, recorded, tmp_path):
    if writer == "parquet":
        pytest.importorskip("pyarrow")
    path = WRITERS[writer](recorded, tmp_path / "data")
    config = offline_config("iql", str(path)).environment(normalize_observations=normalises)
    trainer = config.build_trainer()
    source = offline_source(config.build_offline_data(), trainer.policy)
    batch = source[source.indices()]
    for column in ("obs", "new_obs"):
        assert_equal_entries(batch[column], recorded.to_batch()[column])
    trainer.run()
    if writer in ("npz", "parquet"):  # others have random numbers of their own
        in_memory = offline_config("iql", recorded.to_batch()).environment(normalize_observations=normalises)
        other = in_memory.build_trainer()
        other.run()
        assert learned(trainer) == learned(other)
    if normalises:
        (normalize,) = trainer.policy.connectors.obs.connectors
        assert [moments.shape for moments in normalize.moments] == [(4,), (3,), (2,), (2,)]
        assert len({moments.count for moments in normalize.moments}) == 1
    assert_acts_without_others(trainer.policy, tmp_path, exports=False)


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "impala"])
def test_an_intrinsic_reward_sees_its_group(algorithm):
    config = robot_config(algorithm, {**GROUPS, "intrinsic": ["heights"]}).training(intrinsic_reward="rnd")
    trainer = config.build_trainer()
    novelty = trainer.policy.learner_group.learner.novelty_of("default_policy")
    assert novelty.network.target.space == Robot().observation_space["heights"]
    before = novelty.network.head.weight.clone()
    trainer.run()
    assert novelty.moments.count > 0
    assert not torch.equal(novelty.network.head.weight, before)
    obs = rows(4)
    errors = novelty.errors_of(as_tensors(obs))
    for name in ("proprio", "heights", "left", "right"):
        is_seen = name == "heights"
        assert torch.equal(novelty.errors_of(as_tensors(changed_in(name, obs))), errors) is not is_seen, name


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
