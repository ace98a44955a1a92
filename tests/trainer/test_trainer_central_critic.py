"""A critic that sees the state or all agents (MAPPO), one that does not (IPPO), and agents' numbers in observations."""

import numpy as np
import pytest
import torch
from agent_games import CountingGame, Game, TellingDictGame, TurnGame, game_config
from gymnasium import spaces
from parts import one_in
from trainer_tools import learned

from lockstep import (
    A2CConfig,
    APPOConfig,
    DQNConfig,
    IMPALAConfig,
    IQLConfig,
    MultiAgentCollector,
    Policy,
    PPOConfig,
    SACConfig,
)
from lockstep.connectors import FlattenObs, FrameStack, NormalizeObs, PreviousActions
from lockstep.data import MultiAgentBatch, SingleAgentEpisode
from lockstep.data.groups import split_state, with_state
from lockstep.data.trajectories import trajectories_from_episodes
from lockstep.data.trees import map_tree
from lockstep.envs.multi_agent import make_adapter
from lockstep.export import load_export
from lockstep.trainer import restore_trainer, save_trainer


class HiddenGame(Game):
    """One step: both get 1 where a hidden bit is set, whatever they do; only the state shows the bit."""

    possible_agents, y_sees = ("x", "y"), False

    def reset(self, seed=None, options=None):
        self.bit, self.agents, self.t = int(np.random.default_rng(seed).integers(2)), ["x", "y"], 0
        self.length = self.options.get("length", 1)
        return self._obs(), {agent: {"own": 1} for agent in self.agents}

    def _obs(self):
        seen = {"x": 0, "y": 1 + self.bit * self.y_sees}
        return {agent: np.array([self.t, seen[agent]], np.float32) for agent in "xy"}

    def state(self):
        return np.array([self.bit, self.t, 7.0])

    def step(self, actions):
        self.t += 1
        over = self.t == self.length
        if over:
            self.agents = []
        ends, no = (dict.fromkeys("xy", value) for value in (over, False))
        if self.options.get("truncates"):
            ends, no = no, ends
        return self._obs(), {agent: float(self.bit) for agent in "xy"}, ends, no, {agent: {} for agent in "xy"}


class HiddenGameThatYSees(HiddenGame):
    """As `HiddenGame`, and the observation of `y` shows the bit."""

    y_sees = True


class CopyGame(Game):
    """One step: x is to take 0 and y 1; both see the same."""

    possible_agents = ("x", "y")
    shown = np.zeros(2, np.float32)

    def reset(self, seed=None, options=None):
        self.agents = ["x", "y"]
        return dict.fromkeys("xy", self.shown), {agent: {} for agent in "xy"}

    def step(self, actions):
        self.agents = []
        rewards = {agent: float(action == "xy".index(agent)) for agent, action in actions.items()}
        ends, no, infos = (dict.fromkeys("xy", value) for value in (True, False, {}))
        return dict.fromkeys("xy", self.shown), rewards, ends, no, infos


def main(agent, episode):
    return "main"


def shared_config(env, algorithm=PPOConfig, steps=64, **multi_agent):
    config = game_config(env, algorithm, num_envs=8)
    config.multi_agent(policies=["main"], policy_mapping_fn=main, **multi_agent)
    return config.reporting(total_steps=steps, steps_per_epoch=steps).evaluation(evaluation_interval=0)


@pytest.mark.parametrize(
    "central, y_sees, seen_of, values",
    [
        ("state", False, lambda bit: [bit, 0, 7], [0.0, 1.0]),
        ("observations", True, lambda bit: [0, 0, 0, 1 + bit], [0.0, 1.0]),
        ("observations", False, lambda bit: [0, 0, 0, 1], [0.5, 0.5]),
        (False, True, lambda bit: [0], [0.5, 0.5]),
    ],
)
@pytest.mark.long
def test_a_critic_that_sees_the_bit_is_exact_and_a_blind_one_the_mean(central, y_sees, seen_of, values):
    env = HiddenGameThatYSees if y_sees else HiddenGame
    config = shared_config(env, steps=64 * 20, centralized_critic=central)
    config.training(train_batch_size=64, minibatch_size=64, num_epochs=10, lr=[[0, 3e-2], [1280, 1e-3]])
    trainer = config.build_trainer()
    trainer.run()
    module, obs = trainer.policy.acting["main"].module, torch.zeros(1, 2)
    found = [
        module.compute_values({"obs": with_state(obs, torch.tensor([seen_of(bit)]).float()) if central else obs}).item()
        for bit in (0, 1)
    ]
    assert found == pytest.approx(values, abs=0.05 if values == [0.0, 1.0] else 0.2)
    assert set(trainer.policy.compute_actions({"x": np.zeros(2, np.float32)})) == {"x"}  # no state is needed
    assert trainer.policy.acting["main"].observations.space.shape == (2,)


def test_the_state_is_stored_with_each_observation_and_bootstrapped():
    adapter = make_adapter(HiddenGame(length=3, truncates=True), main, critic="state")
    adapter.begin(seed=1)
    while not adapter.episode.is_done:
        adapter.step(dict.fromkeys(adapter.to_act, 0))
    pieces = list(adapter.episode.agent_episodes.values())
    found = trajectories_from_episodes(pieces)
    states = found.obs["state"]
    assert states[:, 0, 1].tolist() == [0.0, 1.0, 2.0] * 2
    assert found.bootstrap_obs["state"][:, 1].tolist() == [3.0, 3.0]
    assert pieces[0].get_infos(0)["own"] == 1  # the environment's own infos stay
    for count in (2, 3):
        shards = [shard for shard in found.shards(count) if shard is not None]
        rows = np.concatenate([s.obs["state"].reshape(-1, 3)[s.rows()] for s in shards])
        assert np.array_equal(rows, states.reshape(-1, 3))
        for shard in shards:
            assert len(shard.bootstrap_index) == len(shard.bootstrap_obs["state"])


class Seen(TurnGame):
    """Tells what an agent would see."""

    def observe(self, agent):
        return np.array([self.t, 10 + "ab".index(agent)], np.float32)


def test_joined_observations_have_zeros_for_absent_agents():
    adapter = make_adapter(CountingGame(shortest=3, longest=3), main, critic="observations")
    assert adapter.spaces()[0]["a"]["state"] == spaces.Box(-np.inf, np.inf, (6,), np.float32)
    adapter.begin(seed=0)
    for _ in range(3):
        adapter.step(dict.fromkeys(adapter.to_act, 0))
    observations = adapter.episode.agent_episodes["a"].get_observations()
    found = observations["state"].tolist()  # b ends at time 2, c comes at time 1
    assert found == [[0, 1, 0, 2, 0, 0], [1, 1, 1, 2, 1, 3], [2, 1, 2, 2, 2, 3], [3, 1, 0, 0, 3, 3]]


def test_frames_of_others_are_known_after_a_resume_mid_episode():
    adapters = [make_adapter(TellingDictGame(), main, critic="observations") for _ in range(2)]
    adapters[0].begin(seed=0)
    adapters[1].set_state(adapters[0].get_state())
    shown = []
    for adapter in adapters:
        adapter.step(dict.fromkeys(adapter.to_act, 0))
        shown.append(adapter.episode.agent_episodes["a"].get_observations(-1)["state"].tolist())
    assert shown[0] == shown[1]
    assert any(shown[0][2:4])  # of b, which was not asked now


def test_a_cut_episode_is_bootstrapped_with_the_critics_final_state():
    config = shared_config(HiddenGame, centralized_critic="state").training(gamma=1.0, lambda_=1.0)
    policy = config.build_policy()
    learner = policy.learner_group.learner
    adapter = make_adapter(HiddenGame(length=3, truncates=True), main, critic="state")
    adapter.begin(seed=1)
    while not adapter.episode.is_done:
        adapter.step(dict.fromkeys(adapter.to_act, 0))
    found = trajectories_from_episodes([adapter.episode.agent_episodes["x"]])
    last = {"obs": torch.tensor([[3.0, 0.0]]), "state": torch.tensor([[float(adapter.env.bit), 3.0, 7.0]])}
    with torch.no_grad():
        expected = learner.module["main"].compute_values({"obs": last}).item()
    assert learner.evaluate("main", found).next_values[-1, 0] == pytest.approx(expected, abs=1e-6)


def test_in_turns_who_waits_is_observed_too():
    adapter = make_adapter(Seen(shortest=3, longest=3), main, critic="observations")
    adapter.begin(seed=0)
    adapter.step({"a": 0})
    assert adapter.episode.agent_episodes["b"].get_observations(0)["state"].tolist() == [1.0, 10.0, 1.0, 1.0]


@pytest.mark.parametrize("algorithm", one_in(3, [PPOConfig, A2CConfig, IMPALAConfig, APPOConfig]))
def test_each_actor_critic_learns_with_it_and_a_run_goes_on_bit_by_bit(algorithm, folder):
    def build():
        config = shared_config(HiddenGame, algorithm, steps=96, centralized_critic=True, agent_id_in_obs=True)
        return config.reporting(steps_per_epoch=32).build_trainer()

    straight, first, again = build(), build(), build()
    straight.run()
    next(first)
    path = save_trainer(first, folder / "checkpoint")
    restore_trainer(again, path)
    again.run()
    assert learned(again) == learned(straight)
    policy = Policy.from_checkpoint(path)  # no environment is asked
    obs = {agent: np.zeros(2, np.float32) for agent in "xy"}
    assert policy.compute_actions(obs) == first.policy.compute_actions(obs)


class HiddenDictGame(HiddenGame):
    """As `HiddenGame`, with observations in a Dict."""

    def observation_space(self, agent):
        return spaces.Dict({"time": spaces.Box(0.0, 100.0, (1,)), "seen": spaces.Discrete(3)})

    def _obs(self):
        return {agent: {"time": obs[:1], "seen": int(obs[1])} for agent, obs in super()._obs().items()}


def flat(observation_space, action_space):
    assert observation_space == HiddenDictGame().observation_space("x")  # the agent's, without the state
    return FlattenObs()


def previous(observation_space, action_space):
    return PreviousActions(action_space)


def previous_flat(observation_space, action_space):
    return [PreviousActions(action_space), FlattenObs()]


def stacked_normalized(observation_space, action_space):
    return [FrameStack(2), NormalizeObs()]


@pytest.mark.parametrize(
    ("env", "connectors"),
    [
        (HiddenDictGame, flat),
        (HiddenGame, previous),
        (HiddenDictGame, previous),
        (HiddenGame, previous_flat),
        (HiddenGame, stacked_normalized),
    ],
)
def test_connectors_transform_own_observations_and_leave_the_state_alone(env, connectors, folder):
    def config(centralized_critic):
        made = shared_config(env, steps=128, centralized_critic=centralized_critic)
        return made.reporting(steps_per_epoch=64).env_runners(env_to_module_connector=connectors)

    whole, trainer, resumed = (config("state").build_trainer() for _ in range(3))
    whole.run()
    next(trainer)
    restore_trainer(resumed, save_trainer(trainer, folder / "checkpoint"))
    resumed.run()
    assert learned(resumed) == learned(whole)

    policy = whole.policy
    module = policy.acting["main"].module
    own, state = split_state(module.observation_space)
    assert own == config(False).build_policy().acting["main"].module.observation_space
    assert state == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert "state" not in module.observation_groups["policy"]
    assert "state" in module.observation_groups["critic"]

    obs = env().reset(seed=0)[0]
    actions = policy.compute_actions(obs)
    assert set(actions) == {"x", "y"}
    assert Policy.from_checkpoint(policy.save_to_path(folder / "policy")).compute_actions(obs) == actions
    policy.export(folder / "export")
    exported = load_export(folder / "export" / "main")
    assert not [entry for entry in exported.card["observation"] if "state" in entry["name"]]


def test_modules_of_their_own_and_new_ones_have_a_central_critic_too():
    config = game_config(HiddenGame, multi_agent={"centralized_critic": True})
    trainer = config.build_trainer()
    trainer.add_module("new")
    trainer.add_module("copy", init_from="first")
    trainer.add_module("frozen", init_from="first", frozen=True)
    trainer.set_policy_mapping_fn(lambda agent, episode: "new" if agent == "x" else "copy")
    trainer.run()
    modules = {mid: part.module for mid, part in trainer.policy.acting.items()}
    state_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert modules["new"].observation_space["state"] == modules["first"].observation_space["state"] == state_space
    assert modules["frozen"].value_encoder is None


def test_agents_who_share_a_module_tell_themselves_apart_by_their_number(folder):
    config = shared_config(CopyGame, steps=64 * 30, agent_id_in_obs=True)
    trainer = config.training(train_batch_size=64, minibatch_size=64, num_epochs=8, lr=1e-2).build_trainer()
    trainer.run()
    obs = {agent: np.zeros(2, np.float32) for agent in "xy"}
    assert trainer.policy.compute_actions(obs) == {"x": 0, "y": 1}
    assert trainer.policy.acting["main"].observation_space.shape == (4,)
    assert Policy.from_checkpoint(trainer.policy.save_to_path(folder / "p")).compute_actions(obs) == {"x": 0, "y": 1}
    with pytest.raises(KeyError, match="agent 'z' has no number"):
        trainer.policy.compute_actions({"z": obs["x"]})


@pytest.mark.parametrize(
    "space, observation",
    [
        (spaces.Dict({"observation": spaces.Box(0, 1, (2,)), "action_mask": spaces.MultiBinary(3)}), None),
        (spaces.Discrete(4), 2),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), None),
        (spaces.Box(-1.0, 1.0, (3,), np.float64), None),
    ],
)
def test_numbers_are_added_to_observations_of_any_space(space, observation):
    from lockstep.data.values import ObservationForm
    from lockstep.envs.multi_agent import with_agent_id, with_agent_id_space

    value = ObservationForm.of(space).copy(space.sample() if observation is None else observation)
    longer = with_agent_id(value, 1, 3)
    assert with_agent_id_space(space, 3).contains(longer)


@pytest.mark.parametrize(
    "algorithm, model_config, words",
    [
        (DQNConfig, {}, "centralized_critic=True is not allowed for dqn"),
        (PPOConfig, {"vf_share_layers": True}, "centralized_critic=True needs a network of its own"),
    ],
)
def test_a_missing_central_critic_is_refused_when_building_the_config(algorithm, model_config, words):
    config = shared_config(HiddenGame, algorithm, centralized_critic=True).rl_module(model_config=model_config)
    with pytest.raises(ValueError, match=words):
        config.validate()


@pytest.mark.parametrize("option", [{"centralized_critic": True}, {"agent_id_in_obs": True}])
def test_options_of_several_agents_are_refused_for_one(option):
    config = PPOConfig().environment("CartPole-v1").multi_agent(**option)
    with pytest.raises(ValueError, match="needs several agents"):
        config.build_trainer()


def test_a_state_that_the_environment_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"centralized_critic='state' is not allowed: .* has no state\(\)"):
        shared_config(CopyGame, centralized_critic="state").build_trainer()
    with pytest.raises(ValueError, match="centralized_critic='all'"):
        shared_config(CopyGame, centralized_critic="all").validate()


class HiddenGameWithoutState(HiddenGame):
    @property
    def state(self):
        raise AttributeError("state")


def hidden_game(has_state=True):
    return HiddenGame() if has_state else HiddenGameWithoutState()


@pytest.mark.parametrize(
    ("central", "words"),
    [(True, "central state of this environment is .* the policy was made for"), ("state", r"has no state\(\)")],
)
def test_an_evaluation_environment_with_another_state_is_refused_by_name(central, words):
    config = shared_config(hidden_game, centralized_critic=central).evaluation(evaluation_interval=1)
    config.evaluation(evaluation_config={"environment.env_config": {"has_state": False}})
    with pytest.raises(ValueError, match=words):
        config.build_trainer()


class MaskedGame(HiddenGame):
    """As `HiddenGame`, with an action mask that allows one of two actions, another one in each step."""

    def observation_space(self, agent):
        return spaces.Dict({"seen": spaces.Box(0.0, 100.0, (2,)), "action_mask": spaces.MultiBinary(2)})

    def _obs(self):
        self.allowed = self.t % 2
        mask = np.eye(2, dtype=np.int8)[self.allowed]
        return {agent: {"seen": obs, "action_mask": mask} for agent, obs in super()._obs().items()}

    def step(self, actions):
        assert set(actions.values()) == {self.allowed}
        return super().step(actions)


def masked_game():
    return MaskedGame(length=3)


@pytest.mark.parametrize("central", ["state", "observations"])
@pytest.mark.parametrize("algorithm", [PPOConfig, SACConfig])
def test_an_action_mask_reaches_the_policy_next_to_a_central_state(algorithm, central, folder):
    config = shared_config(masked_game, algorithm, steps=96, centralized_critic=central)
    if algorithm is SACConfig:
        config.replay(learning_starts=32, update_per_step=0.1).training(train_batch_size=8)
    trainer = config.build_trainer()
    trainer.run()
    policy = trainer.policy
    module = policy.acting["main"].module
    assert module.observation_groups == {"policy": ("seen",), "critic": ("state", "seen")}
    size = 3 if central == "state" else 2 * 2  # without the masks of both agents
    assert module.observation_space["state"].shape == (size,)
    loaded = Policy.from_checkpoint(policy.save_to_path(folder / "policy"))
    for allowed in (0, 1):
        mask = np.eye(2, dtype=np.int8)[allowed]
        obs = {agent: {"seen": np.zeros(2, np.float32), "action_mask": mask} for agent in "xy"}
        assert policy.compute_actions(obs, explore=True) == dict.fromkeys("xy", allowed)
        assert loaded.compute_actions(obs) == dict.fromkeys("xy", allowed)


def test_recorded_rows_of_agents_with_a_central_state_are_learned_from_offline():
    config = shared_config(HiddenGame, SACConfig, steps=64, centralized_critic="state")
    recorder = config.replay(learning_starts=10**6).build_trainer()
    recorder.run()
    rows = recorder.train_collector.buffer.buffers["main"].to_batch()
    assert set(rows["obs"]) == set(rows["new_obs"]) == {"obs", "state"}
    assert set(rows["obs"]["state"][:, 0]) == {0.0, 1.0}

    offline = IQLConfig().multi_agent(policies=["main"], policy_mapping_fn=main, centralized_critic="state")
    offline.environment(HiddenGame).rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    group = offline.build_learner_group()
    module = group.learner.module["main"]
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for _ in range(3):
        group.update_from_batch(MultiAgentBatch({"main": rows}, env_steps=len(rows)))
    for name, tensor in module.state_dict().items():
        assert not torch.equal(tensor, before[name]) or name.endswith("bias"), name
    values = [
        module.compute_values({"obs": with_state(torch.zeros(1, 2), torch.tensor([[bit, 0.0, 7.0]]))}).item()
        for bit in (0.0, 1.0)
    ]
    assert values[0] != values[1]


def mirrored_with_state(obs, actions):
    """The mirror of an agent's observation, of the central state and of two choices."""
    return {"obs": obs["obs"].flip(-1), "state": -obs["state"]}, 1 - actions


@pytest.mark.parametrize("is_symmetric", [False, True])
def test_a_symmetry_mirrors_the_central_state_too(is_symmetric):
    config = shared_config(HiddenGame, centralized_critic="state").training(symmetry=mirrored_with_state)
    trainer = config.rl_module(model_config={"symmetric": is_symmetric}).build_trainer()
    trainer.run()
    policy = trainer.policy
    obs = {"obs": np.random.default_rng(0).random((4, 2), np.float32), "state": np.ones((4, 3), np.float32)}
    mirrored = {"obs": obs["obs"][:, ::-1].copy(), "state": -obs["state"]}
    if is_symmetric:
        part = policy.acting["main"]
        logits = [
            part.module.forward_inference({"obs": part.observations(map_tree(torch.from_numpy, rows))})
            for rows in (obs, mirrored)
        ]
        first, second = (output["action_dist_inputs"] for output in logits)
        torch.testing.assert_close(first, second.flip(-1), rtol=0, atol=1e-6)
        assert set(policy.compute_actions({"x": obs["obs"][0]})) == {"x"}
    else:
        columns = policy.learner_group.learner.connectors["main"].images({"obs": obs, "actions": np.zeros(4, np.int64)})
        np.testing.assert_array_equal(columns["mirrored_obs"]["state"], mirrored["state"])


def test_episodes_without_what_the_critic_sees_are_refused():
    config = shared_config(HiddenGame, centralized_critic=True)
    policy = config.build_policy()
    collector = MultiAgentCollector(policy, HiddenGame)
    assert len(collector.collect(n_episode=2).returns) == 2
    episode = SingleAgentEpisode(
        observations=[np.zeros(2, np.float32)] * 2, actions=[0], rewards=[0.0], module_id="main"
    )
    with pytest.raises(ValueError, match=r"the policy sees \['obs'\]"):
        policy.learner_group.update_from_episodes([episode])
