"""Rollouts of tensor environments: what is in the columns, what is counted, what is refused, exact resume."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import (
    A2CConfig,
    APPOConfig,
    DQNConfig,
    FlashSACConfig,
    IMPALAConfig,
    PPOConfig,
    REINFORCEConfig,
    SACConfig,
)
from lockstep.algorithms.ppo import PPOLearner
from lockstep.builder.tensor_collectors import HOST_RULES, TensorCollectorBuilder
from lockstep.connectors import ClipRewards, Connector, PreviousActions
from lockstep.envs import make_vector
from lockstep.envs.tensor import CartPole, TensorBoundary, make_tensor_env
from lockstep.modules import EpsilonGreedy, RecurrentActorCriticModule, RLModuleSpec
from lockstep.rollout import Collector, MalformedBufferError, TensorCollector
from lockstep.rollout.tensor_episodes import compact_columns
from lockstep.trainer import Callback, OnpolicyTrainer

T, B = 24, 8


def config_of(make: Any = PPOConfig, env: Any = "tensor/CartPole-v1") -> Any:
    config = make().environment(env).rl_module(model_config={"hiddens": (16,)}).debugging(seed=2)
    config.env_runners(num_envs_per_env_runner=B).evaluation(evaluation_interval=0)
    config.reporting(total_steps=10 * T * B, steps_per_epoch=T * B)
    return config


def ppo_config(env: Any = "tensor/CartPole-v1") -> Any:
    config = config_of(env=env).env_runners(rollout_fragment_length=T)
    return config.training(train_batch_size=T * B, minibatch_size=T * B // 4, num_epochs=2, lr=1e-3)


def collector_of(config: Any = None, limit: int = 10) -> TensorCollector:
    config = config or ppo_config()
    collector = config.build_collector(config.build_policy())
    collector.tensors.max_episode_length = limit
    collector.exploration_noise = True
    return collector


def test_columns_follow_one_another_and_ends_are_told_apart():
    collector = collector_of(limit=14)
    for _ in range(3):
        before = collector.tensors.get_observations().clone() if collector.is_begun else None
        collector.collect(n_step=T * B)
        rollout = collector.buffer
        if before is not None:
            assert torch.equal(rollout.obs[0], before)
        following = torch.cat([rollout.obs[1:], collector.tensors.get_observations().unsqueeze(0)])
        goes_on = ~rollout.cuts
        assert torch.equal(rollout.next_obs[goes_on], following[goes_on])
        assert not torch.isclose(rollout.next_obs, following)[rollout.cuts].all(-1).any()
        fell = (rollout.next_obs[..., 0].abs() > 2.4) | (rollout.next_obs[..., 2].abs() > 12 * 2 * np.pi / 360)
        assert torch.equal(rollout.terminateds, fell)
        assert rollout.cuts.sum() > rollout.terminateds.sum() > 0
        assert rollout.shape == (T, B)
        assert len(rollout) == T * B
        collector.buffer.clear()


def test_episodes_are_counted_across_collects():
    """Against a loop over the columns of both collects."""
    collector = collector_of()
    found, columns = [], []
    for _ in range(2):
        stats = collector.collect(n_step=T * B)
        found += list(zip(stats.returns.tolist(), stats.lens.tolist()))
        columns.append((collector.buffer.rewards.clone(), collector.buffer.cuts.clone()))
        collector.buffer.clear()
    rewards, cuts = (torch.cat(parts) for parts in zip(*columns))
    expected, sums, lengths = [], [0.0] * B, [0] * B
    for t in range(2 * T):
        for b in range(B):
            sums[b] += float(rewards[t, b])
            lengths[b] += 1
            if cuts[t, b]:
                expected.append((sums[b], lengths[b]))
                sums[b], lengths[b] = 0.0, 0
    assert found == expected
    assert collector.collect_episode == len(expected) > B
    assert collector.collect_step == 2 * T * B


def test_chosen_columns_come_first():
    values = torch.arange(12.0).view(2, 6)
    for chosen in ([0, 1, 0, 0, 1, 1], [0] * 6, [1] * 6, [1, 0, 0, 0, 0, 0]):
        mask = torch.tensor(chosen, dtype=torch.bool)
        front, number = compact_columns(values, mask)
        assert number == mask.sum()
        assert torch.equal(front[:, :number], values[:, mask])


def test_a_boundary_steps_as_the_tensors_do():
    boundary, tensors = make_vector("tensor/CartPole-v1", num_envs=B), make_tensor_env("tensor/CartPole-v1", B)
    assert isinstance(boundary, TensorBoundary)
    obs, wanted = boundary.reset(list(range(B))), tensors.reset(0)
    assert np.array_equal(obs, wanted.numpy())
    boundary.tensors.max_episode_length = tensors.max_episode_length = 12
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.integers(2, size=B)
        result = boundary.step(actions)
        obs, rewards, dones, extras = tensors.step(torch.from_numpy(actions))
        assert np.array_equal(result.obs, obs.numpy())
        assert np.array_equal(result.rewards, rewards.numpy())
        assert np.array_equal(result.truncateds, extras["time_outs"].numpy())
        assert np.array_equal(result.terminateds | result.truncateds, dones.numpy())
        assert not (result.terminateds & result.truncateds).any()
        if dones.any():
            rows, final = result.final_obs
            assert np.array_equal(rows, np.flatnonzero(dones.numpy()))
            assert np.array_equal(final, extras["final_obs"].numpy()[rows])
            ends += len(rows)
    assert ends > B
    state = boundary.get_state()
    after = [boundary.step(np.zeros(B, np.int64)).obs.copy() for _ in range(5)]
    boundary.set_state(state)
    assert all(np.array_equal(boundary.step(np.zeros(B, np.int64)).obs, one) for one in after)


class OwnLoss(PPOLearner):
    """Changes the loss, which a graph can hold."""

    def compute_loss_for_module(self, **parts: Any) -> Any:
        return 2.0 * super().compute_loss_for_module(**parts)


class OwnBatch(PPOLearner):
    """Reads the trajectories, which are arrays on the host."""

    def prepare_batch(self, trajectories: Any, *, module_id: str) -> Any:
        return super().prepare_batch(trajectories, module_id=module_id)


@pytest.mark.parametrize(
    "config",
    [
        ppo_config(),
        ppo_config().training(learner_class=OwnLoss),
        config_of(A2CConfig),
        config_of(IMPALAConfig),
        config_of(APPOConfig),
        ppo_config().environment(normalize_observations=True),
        ppo_config().environment(normalize_rewards=True),
        ppo_config().training(learner_connector=lambda *_: ClipRewards()),
        ppo_config().rl_module(model_config={"recurrent": "gru"}),
        ppo_config().environment(frame_stack=4),
        config_of(DQNConfig),
        config_of(DQNConfig).replay(prioritized=True),
        config_of(DQNConfig).environment(normalize_observations=True, normalize_rewards=True),
        config_of(FlashSACConfig, "tensor/Pendulum-v1"),
        config_of(DQNConfig).environment(frame_stack=4),
    ],
)
def test_steps_stay_on_the_device_without_a_warning(config):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(config.build_collector(), TensorCollector)
        assert isinstance(config.env_runners(allow_host=True).build_collector(), TensorCollector)


class ShortCartPole(CartPole):
    time_limit = 7


@pytest.mark.parametrize("env", [ShortCartPole, f"{__name__}:ShortCartPole"], ids=["class", "name"])
def test_a_class_of_tensor_environments_is_made_with_their_number(env):
    config = ppo_config(env).environment(env, env_config={"seed": 3})
    collector = config.build_collector()
    assert type(collector.tensors).__name__ == "ShortCartPole"
    assert collector.tensors.num_envs == B
    assert collector.tensors.max_episode_length == 7
    assert config.make_envs(2).num_envs == 2
    with pytest.raises(ValueError, match=r"max_episode_steps=5 is not allowed for .*ShortCartPole"):
        config.evaluation(max_episode_steps=5).build_trainer()


class OwnConnector(Connector):
    """Does not say that it consists of operations on tensors."""

    def __call__(self, data: Any) -> Any:
        return data


class OwnMemory(RecurrentActorCriticModule):
    """Computes in its own way, in which a memory is not reset within a sequence."""

    def forward_train(self, batch: Any) -> Any:
        return super().forward_train({name: column for name, column in batch.items() if name != "begins"})


class HalvedActions(Connector):
    """Halves actions of a Box."""

    def __call__(self, data: Any) -> Any:
        return 0.5 * data


class HalvedOnDevice(HalvedActions):
    on_device = True


class OneChoice(Connector):
    """Lets a policy of one choice act in a MultiDiscrete space with one part."""

    def input_space(self, action_space: Any) -> Any:
        return spaces.Discrete(int(action_space.nvec[0]))

    def __call__(self, data: Any) -> Any:
        return np.asarray(data)[..., None]


class OnePart(CartPole):
    """CartPole whose actions are a MultiDiscrete with one part."""

    single_action_space: Any = spaces.MultiDiscrete([2])

    def advance(self, state: Any, actions: Any, draws: Any) -> Any:
        return super().advance(state, actions[:, 0], draws)


class HostEpsilon(EpsilonGreedy):
    """Draws its numbers on the host, as an exploration of the user's does unless it says otherwise."""

    draws_on_device = False


class ExploresOnHost(DQNConfig):
    def exploration(self, module: Any) -> Any:
        return HostEpsilon(0.1, 2)


def shifted(_: Any, __: Any) -> Any:
    """Return a connector that changes observations before their statistics."""
    return OwnConnector()


def with_statistics(config: Any) -> Any:
    return config.environment(normalize_observations=True).env_runners(env_to_module_connector=shifted)


NEEDS_HOST = {
    "this algorithm": lambda: config_of(REINFORCEConfig),
    "training(learner_class=...)": lambda: ppo_config().training(learner_class=OwnBatch),
    "env_runners(vectorize_mode=...)": lambda: ppo_config().env_runners(vectorize_mode="sync"),
    "rl_module(model_config={'recurrent': ...})": lambda: config_of(DQNConfig).rl_module(
        model_config={"recurrent": "lstm"}
    ),
    "rl_module(rl_module_spec=...)": lambda: ppo_config().rl_module(
        model_config={"recurrent": "lstm"}, rl_module_spec=RLModuleSpec(OwnMemory)
    ),
    "environment(normalize_observations=...)": lambda: with_statistics(ppo_config()),
    "env_runners(exploration=...)": lambda: config_of(ExploresOnHost),
    "replay(learning_starts=...)": lambda: config_of(DQNConfig, OnePart).env_runners(
        module_to_env_connector=lambda *_: OneChoice()
    ),
    "env_runners(module_to_env_connector=...)": lambda: config_of(SACConfig, "tensor/Pendulum-v1").env_runners(
        module_to_env_connector=lambda *_: HalvedActions()
    ),
    "replay(ignore_obs_next=True)": lambda: config_of(DQNConfig).replay(ignore_obs_next=True),
    "replay(storage=...)": lambda: config_of(DQNConfig).replay(storage="memmap"),
    "env_runners(env_to_module_connector=...)": lambda: ppo_config().env_runners(
        env_to_module_connector=lambda _, actions: PreviousActions(actions)
    ),
    "training(learner_connector=...)": lambda: ppo_config().training(learner_connector=lambda *_: OwnConnector()),
    "training(intrinsic_reward=...)": lambda: ppo_config().training(intrinsic_reward="rnd"),
    "env_runners(batch_mode='complete_episodes')": lambda: ppo_config().env_runners(
        batch_mode="complete_episodes", rollout_fragment_length=None
    ),
    "callbacks(...)": lambda: ppo_config().callbacks(WatchesEpisodes),
}
"""A configuration with each feature that needs the host."""
NEEDS_PROCESSES = {
    "learners(num_learners=...)": lambda config: config.learners(num_learners=2),
    "env_runners(num_env_runners=...)": lambda config: config.env_runners(num_env_runners=2),
}
"""Function that adds each feature that needs other processes."""


class WatchesEpisodes(Callback):
    def on_episode_end(self, episode: Any, env_index: int) -> None:
        pass


def test_each_rule_of_what_needs_the_host_is_tried():
    assert {rule.feature for rule in HOST_RULES} == {*NEEDS_HOST, *NEEDS_PROCESSES}


@pytest.mark.parametrize("feature", NEEDS_HOST)
def test_what_the_device_cannot_do_is_refused_by_name(feature):
    """Unless it is allowed, with a warning that has the same words."""
    (rule,) = (rule for rule in HOST_RULES if rule.feature == feature)
    words = re.escape(f"{feature}: {rule.reason}")
    with pytest.raises(ValueError, match=f"copies the steps of .*{words}.*allow_host=True"):
        NEEDS_HOST[feature]().build_collector()
    with pytest.warns(UserWarning, match=f"copies the steps of .*{words}.*allow_host=True"):
        collector = NEEDS_HOST[feature]().env_runners(allow_host=True).build_collector()
    assert type(collector) is Collector


@pytest.mark.parametrize("feature", NEEDS_PROCESSES)
def test_other_processes_are_refused_by_name_before_they_are_started(feature):
    (rule,) = (rule for rule in HOST_RULES if rule.feature == feature)
    words = re.escape(f"{feature}: {rule.reason}")
    config = ppo_config()
    policy = config.build_policy()  # in this process; the collector asks for the number of the others
    NEEDS_PROCESSES[feature](config)
    with pytest.raises(ValueError, match=f"copies the steps of .*{words}.*allow_host=True"):
        config.build_collector(policy)
    with pytest.warns(UserWarning, match=f"copies the steps of .*{words}.*allow_host=True"):
        assert not TensorCollectorBuilder(config.env_runners(allow_host=True), policy).decide()


@pytest.mark.parametrize(
    "runners", [{}, {"allow_host": True}, {"num_env_runners": 2}], ids=["device", "host", "env runners"]
)
@pytest.mark.parametrize("env", ["tensor/CartPole-v1", CartPole, CartPole(1)], ids=["id", "class", "object"])
def test_tensor_environments_of_several_agents_are_refused(env, runners):
    config = ppo_config(env).multi_agent(policies=["a", "b"], policy_mapping_fn=lambda agent, episode: "a")
    policy = config.build_policy()
    with pytest.raises(ValueError, match=r"tensor environments have one agent|is no environment of several agents"):
        config.env_runners(**runners).build_collector(policy)


def test_connectors_of_actions_in_torch_run_on_the_device():
    config = ppo_config("tensor/Pendulum-v1").environment(rescale_actions=True)
    config.env_runners(module_to_env_connector=lambda *_: HalvedOnDevice())
    collector = config.build_collector()
    taken: list[torch.Tensor] = []
    step = collector.tensors.step
    collector.tensors.step = lambda actions: taken.append(actions.clone()) or step(actions)
    collector.collect(n_step=T * B)
    stored = collector.buffer.actions
    torch.testing.assert_close(torch.stack(taken), (0.5 * stored).clip(-1.0, 1.0) * 2.0)


def test_all_reasons_are_named_at_once():
    config = ppo_config().callbacks(WatchesEpisodes).training(intrinsic_reward="rnd")
    with pytest.raises(ValueError, match=r"'tensor/CartPole-v1' .*intrinsic_reward.*callbacks"):
        config.build_collector()


def test_a_run_through_the_host_trains():
    with pytest.warns(UserWarning, match="intrinsic_reward"):
        trainer = ppo_config().training(intrinsic_reward="rnd").env_runners(allow_host=True).build_trainer()
    next(trainer)
    assert trainer.gradient_step > 0


def test_a_run_is_resumed_bit_for_bit(tmp_path):
    def weights(trainer: Any) -> bytes:
        found = trainer.policy.learner_group.get_weights()["default_policy"]
        return b"".join(value.tobytes() for value in found.values())

    def config() -> Any:
        return ppo_config().environment(normalize_observations=True, normalize_rewards=True)

    whole, half, again = (config().build_trainer() for _ in range(3))
    for _ in range(4):
        next(whole)
    for _ in range(2):
        next(half)
    half.save_to_path(tmp_path / "half")
    again.restore_from_path(tmp_path / "half")
    for _ in range(2):
        next(again)
    assert weights(again) == weights(whole) != weights(half)
    mine, its = (
        trainer.policy.learner_group.learner.connectors["default_policy"].rewards for trainer in (again, whole)
    )
    assert mine.moments.count == its.moments.count == 4 * T * B
    assert mine.get_state()["returns"].tolist() == its.get_state()["returns"].tolist()
    assert again.env_episode == whole.env_episode
    assert (
        again.train_collector.get_state()["returns"].tolist() == whole.train_collector.get_state()["returns"].tolist()
    )


def test_an_update_that_begins_before_the_host_waits_is_the_same(monkeypatch):
    """Bit for bit, schedules included; and it is not made a second time."""
    found = []
    for ahead in (True, False):
        monkeypatch.setattr(OnpolicyTrainer, "learns_ahead", ahead)
        config = ppo_config().training(lr=[[0, 1e-2], [4 * T * B, 1e-3], [10**6, 1e-3]])
        trainer = config.build_trainer()
        for _ in range(3):
            _, stats, _ = next(trainer)
        weights = trainer.policy.learner_group.get_weights()["default_policy"]
        found.append(
            [trainer.gradient_step, stats.training_stat.metrics["policy_loss"].mean, *map(np.sum, weights.values())]
        )
    assert found[0] == found[1]
    assert found[0][0] == 3 * 8


@pytest.mark.long
def test_cart_pole_is_learned():
    config = ppo_config().env_runners(num_envs_per_env_runner=64, rollout_fragment_length=32)
    config.training(train_batch_size=2048, minibatch_size=256, num_epochs=6, lr=2e-3, lambda_=0.95)
    config.reporting(total_steps=61_440, steps_per_epoch=10_240)
    returns = [stats.train_collect_stat.returns_stat.mean for _, stats, _ in config.build_trainer()]
    assert returns[-1] > 100 > 3 * returns[0], returns


class Broken(CartPole):
    """Has a reward that is no number from the tenth step on."""

    steps = 0

    def advance(self, state: Any, actions: Any, draws: Any) -> Any:
        self.steps += 1
        state, rewards, dones = super().advance(state, actions, draws)
        return state, rewards if self.steps < 10 else rewards * float("nan"), dones


def test_numbers_that_are_not_finite_are_refused():
    collector = collector_of(ppo_config(Broken(B)), limit=500)
    words = r"environment 0 gave a value that is not finite in column 'rewards' at step 9 .*: .*nan"
    with pytest.raises(MalformedBufferError, match=words):
        collector.collect(n_step=T * B)
    assert collector.buffer.size == 0


class Silent(CartPole):
    """Does not tell its last observations, as environments in rsl_rl's form do not."""

    gives_final_obs = False

    def step(self, actions: Any) -> Any:
        obs, rewards, dones, extras = super().step(actions)
        return obs, rewards, dones, {"time_outs": extras["time_outs"]}


def test_an_episode_without_a_last_observation_ends_at_the_last_action():
    """In a rollout, and behind the boundary of arrays."""
    collector = collector_of(ppo_config(Silent(B)), limit=6)
    collector.collect(n_step=T * B)
    rollout = collector.buffer
    assert rollout.cuts.any()
    assert torch.equal(rollout.next_obs[rollout.cuts], rollout.obs[rollout.cuts])
    assert torch.equal(rollout.next_obs[:-1][~rollout.cuts[:-1]], rollout.obs[1:][~rollout.cuts[:-1]])
    silent = Silent(B, max_episode_length=6)
    boundary, ends = make_vector(silent), 0
    before = boundary.reset([0] * B).copy()
    for _ in range(20):
        result = boundary.step(np.zeros(B, np.int64))
        if result.final_obs is not None:
            rows, final = result.final_obs
            assert np.array_equal(final, before[rows])
            ends += len(rows)
        before = result.obs.copy()
    assert ends > B


def test_parameters_that_lie_elsewhere_are_acted_with():
    """A graph would read the memory where they were."""
    collector = collector_of()
    first = collector.stepper.captured(collector.explores)
    assert collector.stepper.captured(collector.explores) is first
    parameter = next(collector.policy.module.parameters())
    parameter.data = parameter.data.clone()
    assert collector.stepper.captured(collector.explores) is not first


def test_the_same_function_takes_the_steps_of_all_collects():
    """A graph of it is captured once, whatever happens between two collects that leaves the parameters in place."""
    collector = collector_of(config_of(DQNConfig).env_runners(rollout_fragment_length=4))
    collector.collect(n_step=4 * B, random=True)
    first = collector.stepper.captured(explores=True)
    for number in range(10):
        collector.collect(n_step=4 * B)
        if number == 3:
            collector.reset()
        if number == 6:
            collector.set_state(collector.get_state())
        assert collector.stepper.captured(explores=True) is first


def test_an_update_is_launched_before_the_host_reads_what_was_collected():
    collector, seen = collector_of(), []

    def launch() -> None:
        seen.append((len(collector.buffer), len(collector.stepper.ended_episodes()[0])))

    stats = collector.collect(n_step=T * B, then=launch)
    assert seen == [(T * B, 0)]
    assert len(stats.returns) > 0


class Breaks(CartPole):
    """Raises in one step."""

    steps = 0

    def advance(self, state: Any, actions: Any, draws: Any) -> Any:
        self.steps += 1
        if self.steps == T + 10:
            raise RuntimeError("a broken step")
        return super().advance(state, actions, draws)


def test_after_a_failed_collect_the_next_one_starts_new_episodes():
    collector = collector_of(ppo_config(Breaks(B)), limit=500)
    collector.collect(n_step=T * B)
    collector.buffer.clear()
    with pytest.raises(RuntimeError, match="a broken step"):
        collector.collect(n_step=T * B)
    assert collector.buffer.size == 0
    assert not collector.is_begun
    stats = collector.collect(n_step=T * B)
    assert stats.lens.max() <= T


def test_bad_requests_are_refused_by_name():
    collector = collector_of()
    with pytest.raises(ValueError, match=f"collects {T * B} steps each time"):
        collector.collect(n_step=T * B * 2)
    with pytest.raises(ValueError, match="n_episode=3"):
        collector.collect(n_episode=3)
    with pytest.raises(ValueError, match="a buffer of its own"):
        collector.buffer = None
    collector.collect(n_step=T * B)
    with pytest.raises(ValueError, match="between an update and the next collect"):
        collector.get_state()
    collector.close()
    with pytest.raises(RuntimeError, match="closed"):
        collector.collect(n_step=T * B)


def test_environments_on_another_device_are_refused():
    config, env = ppo_config(), make_tensor_env("tensor/CartPole-v1", B)
    env.device = torch.device("meta")
    with pytest.raises(ValueError, match=r"network is on cpu, and the environments are on meta"):
        TensorCollector(config.build_policy(), TensorBoundary(env), T)


def test_a_space_that_does_not_fit_is_refused():
    class Wide(CartPole):
        single_observation_space = spaces.Box(-1.0, 1.0, (5,), np.float32)

    with pytest.raises(ValueError, match="observation space"):
        TensorCollector(ppo_config().build_policy(), TensorBoundary(Wide(B)), T)
