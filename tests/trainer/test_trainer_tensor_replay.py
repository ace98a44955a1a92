"""Off-policy runs whose environments, replay buffer and updates are on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parts import fast_if
from tensor_trees import FlipBits
from trained_weights import steps, weights

from lockstep import get_config
from lockstep.cli import main
from lockstep.envs.tensor import CartPole
from lockstep.options.schedules import ConfiguredValueWarning
from lockstep.policy import tensor_updates
from lockstep.policy.tensor_updates import launch_update
from lockstep.replay import ReplayBuffer, TensorReplay
from lockstep.rollout import Collector, TensorCollector
from lockstep.rollout.errors import MalformedBufferError
from lockstep.trainer import OffpolicyTrainer

B = 8
ENVS = {"sac": "tensor/Pendulum-v1", "td3": "tensor/Pendulum-v1", "dqn": "tensor/CartPole-v1"}


def config_of(name: str = "sac", **replay: Any) -> Any:
    config = get_config(name).environment(ENVS[name])
    config.env_runners(num_envs_per_env_runner=B, rollout_fragment_length=5).training(train_batch_size=16)
    config.replay(**{"capacity": 100 * B, "learning_starts": 10 * B, "update_per_step": 2.5 / (5 * B), **replay})
    config.rl_module(model_config={"hiddens": (16,)}).debugging(seed=3)
    return config.reporting(total_steps=10**6, steps_per_epoch=5 * B).evaluation(evaluation_interval=0)


BY_PRIORITY = {"prioritized": True, "beta": [[0, 0.4], [100 * B, 1.0]]}


@pytest.mark.parametrize("replay", fast_if(bool, [{}, BY_PRIORITY]), ids=["uniform", "by priority"])
@pytest.mark.parametrize("name", ENVS)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(name, replay, tmp_path):
    """In a ring that has begun anew when the run stops."""
    options = {"capacity": 20 * B, **replay}
    one = steps(config_of(name, **options).build_trainer(), 10)
    other = steps(config_of(name, **options).build_trainer(), 5)
    assert isinstance(one.buffer, TensorReplay)
    other.save_to_path(tmp_path / "half")
    again = config_of(name, **options).build_trainer()
    again.restore_from_path(tmp_path / "half")
    steps(again, 5)
    assert one.gradient_step == again.gradient_step == 20  # 2.5 in each of 8 epochs that learn
    if replay:
        mine, its = one.buffer.priorities, again.buffer.priorities
        assert all(torch.equal(level, other) for level, other in zip(mine.tree.levels, its.tree.levels))
        assert len(mine.tree.values.unique()) > 20
        assert torch.equal(mine.largest, its.largest)
        assert mine.beta.get_state() == its.beta.get_state() == {"timestep": 50 * B, "value": 0.7}
    for key, value in weights(one).items():
        assert np.array_equal(value, weights(again)[key]), key
    for key, column in one.buffer.columns.items():
        assert torch.equal(column, again.buffer.columns[key]), key


def test_random_steps_come_first_and_fill_the_bounds():
    trainer = steps(config_of(learning_starts=50 * B).build_trainer(), 10)
    actions = trainer.buffer.columns["actions"][:50]
    assert trainer.gradient_step == 0
    assert actions.abs().max() <= 1.0
    assert torch.histc(actions, 4, -1.0, 1.0).min() > 50 * B / 4 * 0.7
    steps(trainer, 1)
    assert trainer.gradient_step > 0


def test_an_action_is_clipped_to_its_bounds_and_learned_within_one():
    trainer = config_of().build_trainer()
    sent, step = [], trainer.collector.tensors.step

    def watch(actions: torch.Tensor) -> Any:
        sent.append(actions.clone())
        return step(actions)

    trainer.collector.tensors.step = watch
    steps(trainer, 2)
    assert torch.allclose(torch.stack(sent), 2.0 * trainer.buffer.columns["actions"][:10])
    assert torch.stack(sent).abs().max() > 1.5


@pytest.mark.parametrize(
    ("epsilon", "share"), fast_if(lambda epsilon, _: epsilon == 0.5, [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5)])
)
def test_values_are_explored_by_epsilon(epsilon, share):
    """Half of the random actions are the best one all the same."""
    config = config_of("dqn", learning_starts=0, update_per_step=1e-9, capacity=4000 * B).training(epsilon=epsilon)
    trainer = steps(config.build_trainer(), 100)
    columns = {name: column[:500].flatten(0, 1) for name, column in trainer.buffer.columns.items()}
    best = trainer.policy.module.forward_train({"obs": columns["obs"]})["q_values"].argmax(-1)
    assert float((columns["actions"] != best).float().mean()) == pytest.approx(share, abs=0.03)


def test_noise_on_actions_follows_its_schedule():
    config = config_of("td3", learning_starts=0, update_per_step=1e-9)
    trainer = config.training(exploration_noise=[[0, 0.3], [99, 0.3], [100, 0.0], [10**6, 0.0]]).build_trainer()
    steps(trainer, 6)
    columns = trainer.buffer.columns
    actions = trainer.policy.module.compute_actions({"obs": columns["obs"][:30].flatten(0, 1)}).detach()
    noise = (columns["actions"][:30].flatten(0, 1) - actions).reshape(30, B)
    assert 0.2 < float(noise[:15].std()) < 0.4  # up to step 120 in whole collects of 40
    assert float(noise[15:].abs().max()) < 1e-6


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.replay(ignore_obs_next=True),
        lambda config: config.replay(storage="memmap"),
        lambda config: config.rl_module(model_config={"hiddens": (16,), "recurrent": "lstm"}),
    ],
    ids=["ignore_obs_next", "memmap", "memory"],
)
def test_what_the_device_cannot_do_goes_through_the_host_if_allowed(change):
    config = change(config_of())
    with pytest.raises(ValueError, match="allow_host=True"):
        config.build_trainer()
    with pytest.warns(UserWarning, match="copies the steps"):
        trainer = config.env_runners(allow_host=True).build_trainer()
    assert type(trainer.collector) is Collector
    assert isinstance(trainer.buffer, ReplayBuffer)


def test_observations_that_are_not_finite_end_the_run_and_change_nothing():
    """The next collect begins new episodes and goes on filling the buffer."""
    trainer = steps(config_of().build_trainer(), 3)
    trainer.collector.tensors._state["physics"][2].fill_(float("nan"))
    with pytest.raises(MalformedBufferError, match=r"environment 2 .* not finite in column 'obs' at step 1"):
        next(trainer)
    assert len(trainer.buffer) == 15 * B
    trainer.collector.collect(n_step=5 * B, random=True)
    assert len(trainer.buffer) == 20 * B
    assert all(column[:20].double().isfinite().all() for column in trainer.buffer.columns.values())


def statistics(trainer: Any) -> Any:
    """Return the running statistics on the host, and the moments of the rows that they do not have yet."""
    new_rows = trainer.buffer.new_rows.get_state(trainer.buffer.share)
    return trainer.policy.learner_group.learner.connectors["default_policy"].get_state(), new_rows


def normalised(name: str = "sac", **replay: Any) -> Any:
    env = ENVS[name] if name == "sac" else CartPole(B, max_episode_length=9)
    return config_of(name, **replay).environment(env, normalize_observations=True, normalize_rewards=True)


@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_a_normalised_run_is_resumed_bit_for_bit(name, tmp_path):
    """Also where some rows are not in the statistics yet, because no gradient step was due since."""
    seldom = {"update_per_step": 1 / (15 * B), "learning_starts": 5 * B, "capacity": 20 * B}
    one = steps(normalised(name, **seldom).build_trainer(), 12)
    other = steps(normalised(name, **seldom).build_trainer(), 6)
    assert 0 < statistics(other)[1]["returns"]["count"] < 30 * B
    other.save_to_path(tmp_path / "half")
    again = normalised(name, **seldom).build_trainer()
    again.restore_from_path(tmp_path / "half")
    np.testing.assert_equal(statistics(again), statistics(other))
    steps(again, 6)
    np.testing.assert_equal(statistics(again), statistics(one))
    for key, value in weights(one).items():
        assert np.array_equal(value, weights(again)[key]), key


def test_statistics_do_not_keep_rows_that_were_refused():
    """The update that was launched ahead had added them; the next one continues from the statistics before."""
    trainer = steps(normalised().build_trainer(), 3)
    before = statistics(trainer)
    trainer.collector.tensors._state["physics"][2].fill_(float("nan"))
    with pytest.raises(MalformedBufferError, match="not finite"):
        next(trainer)
    after = statistics(trainer)
    np.testing.assert_equal(after, before)
    trainer.policy.learner_group.learner.set_state({"rl_module": other_weights(trainer)})
    with trainer.policy.within_training_step():
        for _ in range(2):
            trainer.collector.collect(n_step=5 * B, random=True)
            launch_update(trainer.policy, 16, trainer.buffer, 3)
            trainer.policy.update(16, trainer.buffer, repeat=3)
    connectors, _ = statistics(trainer)
    assert connectors["rewards"]["moments"]["count"] == 25 * B
    assert np.isfinite(connectors["obs"]["0_NormalizeObs"]["leaves"][0]["squares"]).all()


def other_weights(trainer: Any) -> Any:
    """Return finite weights, in the place of weights that learned from NaN."""
    return trainer.policy.config.build_policy().learner_group.learner.get_state("rl_module")["rl_module"]


def test_a_normalised_policy_acts_alike_on_the_host():
    """Evaluation, exports and `compute_actions` take the statistics of the device."""
    trainer = steps(normalised("dqn").build_trainer(), 6)
    part = trainer.policy.acting["default_policy"]
    obs = trainer.buffer.columns["obs"][:20].flatten(0, 1)
    np.testing.assert_array_equal(part.connectors.obs(obs).numpy(), part.connectors.obs(obs.numpy()))
    moments = part.connectors.obs.connectors[0].moments[0]
    np.testing.assert_allclose(moments.mean, trainer.buffer.columns["obs"][:30].double().mean((0, 1)), atol=1e-12)


def with_goals(**replay: Any) -> Any:
    config = config_of("dqn", her=True, **replay).environment(FlipBits(B))
    return config.rl_module(model_config={"hiddens": (32,), "activation": "relu"})


def test_goals_are_relabelled_in_a_run_on_the_device(tmp_path):
    """Rewards and ends of samples are those of their goals; a resumed run continues with equal bits."""
    options = {"her_future_k": 3.0, "n_step": 1, "capacity": 20 * B}
    one, other = (steps(with_goals(**options).build_trainer(), number) for number in (8, 5))
    assert isinstance(one.buffer, TensorReplay)
    assert one.buffer.section_options()["her"] is True
    sampled = one.policy.learner_group.learner.device_update.sampled
    reached = (sampled["new_obs"]["achieved_goal"] == sampled["new_obs"]["desired_goal"]).all(-1)
    assert torch.equal(sampled["terminateds"].bool(), reached)
    assert torch.equal(sampled["rewards"], reached.float() - 1.0)
    other.save_to_path(tmp_path / "half")
    again = with_goals(**options).build_trainer()
    again.restore_from_path(tmp_path / "half")
    steps(again, 3)
    for key, value in weights(one).items():
        assert np.array_equal(value, weights(again)[key]), key


@pytest.mark.long
def test_goals_are_learned_with_hindsight():
    """The best mean return is about -2.5; with random actions it is -5.9."""
    config = with_goals(learning_starts=40 * B, capacity=2_000 * B, update_per_step=0.5)
    config.training(train_batch_size=64, lr=3e-3, epsilon=[[0, 0.5], [4_000, 0.1]], gamma=0.9)
    trainer = steps(config.framework(compile=False).build_trainer(), 200)
    assert np.mean([each.train_collect_stat.returns_stat.mean for each in trainer.history[-20:]]) > -3.3


def test_tensor_environments_without_goals_are_refused_with_hindsight():
    with pytest.raises(ValueError, match="Pendulum has no compute_reward"):
        config_of(her=True).build_trainer()


def test_no_return_goes_beyond_a_reset_in_the_middle_of_an_episode():
    trainer = config_of("dqn", n_step=3).training(gamma=0.5).build_trainer()
    next(trainer)
    trainer.collector.reset(reset_buffer=False)
    next(trainer)
    buffer = trainer.buffer
    newest_before = torch.arange(4 * B, 5 * B)
    rows = buffer.rows(newest_before)
    is_running = ~buffer.columns["terminateds"][4]
    assert is_running.any()
    assert set(rows["rewards"].tolist()) == {1.0}
    assert set(rows["discounts"].tolist()) == {0.5}
    assert torch.equal(rows["new_obs"], buffer.columns["new_obs"][4])


class BreaksOnce(CartPole):
    """Raises in its 13th step."""

    steps = 0

    def advance(self, state: Any, actions: Any, draws: Any) -> Any:
        self.steps += 1
        if self.steps == 13:
            raise RuntimeError("a broken step")
        return super().advance(state, actions, draws)


@pytest.mark.parametrize("capacity", [100 * B, 8 * B], ids=["part of the ring", "full ring"])
def test_a_run_that_failed_in_a_collect_continues_from_its_last_checkpoint(capacity, tmp_path):
    """The two whole steps of the collect that failed are in no sample, and not in the checkpoint."""
    config = config_of("dqn", capacity=capacity).environment(BreaksOnce(B))
    trainer = steps(config.build_trainer(), 2)
    with pytest.raises(RuntimeError, match="a broken step"):
        next(trainer)
    kept = min(10 * B, capacity)
    assert (len(trainer.buffer), int(trainer.buffer.written)) == (kept, 10)
    trainer.save_to_path(tmp_path / "failed")
    again = config_of("dqn", capacity=capacity).build_trainer()
    with pytest.warns(RuntimeWarning, match="8 running episodes end there"):
        again.restore_from_path(tmp_path / "failed")
    for name, column in trainer.buffer.columns.items():
        size = trainer.buffer.size
        assert torch.equal(again.buffer.columns[name][:size], column[:size]), name
    next(again)
    assert len(again.buffer) == min(15 * B, capacity)


def test_environments_without_a_state_begin_anew_and_the_replay_stays(monkeypatch, tmp_path):
    monkeypatch.setattr("lockstep.envs.tensor.classic_control.Pendulum.get_state", lambda self: None)
    steps(config_of().build_trainer(), 5).save_to_path(tmp_path / "half")
    again = config_of().build_trainer()
    again.restore_from_path(tmp_path / "half")
    next(again)
    assert len(again.buffer) == 30 * B


def test_a_trainer_made_by_hand_takes_the_same_parts():
    config = config_of()
    policy = config.build_policy()
    collector = config.build_collector(policy)
    options: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 5 * B, "batch_size": 16, "step_per_collect": 5 * B}
    trainer = OffpolicyTrainer(policy, train_collector=collector, **options)
    trainer.run()
    assert trainer.gradient_step == 10 * B
    assert len(trainer.buffer) == 10 * B
    start = ReplayBuffer(10)
    zeros = {name: np.zeros((1, size), np.float32) for name, size in (("obs", 3), ("new_obs", 3), ("actions", 1))}
    start.add({**zeros, "rewards": np.zeros(1), "terminateds": np.zeros(1, bool), "truncateds": np.zeros(1, bool)})
    with pytest.raises(ValueError, match="replay begins empty"):
        OffpolicyTrainer(policy, train_collector=collector, buffer=start, **options)
    with pytest.raises(ValueError, match="buffer of its own"):
        collector.buffer = start


class UpdatesAfterwards(OffpolicyTrainer):
    """One whose update is its own, and so begins when the collect was read."""

    def policy_update_fn(self, collect_stats: Any) -> Any:
        return super().policy_update_fn(collect_stats)


def test_an_update_that_is_launched_ahead_is_the_one_that_is_not():
    """Bit for bit, schedules too."""
    found = []
    for kind in (OffpolicyTrainer, UpdatesAfterwards):
        config = config_of().training(lr=[[0, 1e-2], [20 * 5 * B, 0.0]])
        policy = config.build_policy()
        options: dict[str, Any] = {"max_epoch": 10, "step_per_epoch": 5 * B, "step_per_collect": 5 * B}
        trainer = kind(policy, train_collector=config.build_collector(policy), batch_size=16, **options)
        assert trainer.learns_ahead == (kind is OffpolicyTrainer)
        trainer.run()
        found.append(weights(trainer))
    assert all(np.array_equal(value, found[1][name]) for name, value in found[0].items())


def test_an_update_needs_rows_and_their_number():
    config = config_of()
    policy = config.build_policy()
    collector = config.build_collector(policy)
    assert isinstance(collector, TensorCollector)
    with policy.within_training_step():
        with pytest.raises(ValueError, match="is empty"):
            policy.update(16, collector.buffer)
        collector.collect(n_step=5 * B)
        with pytest.raises(ValueError, match="sample_size"):
            policy.update(0, collector.buffer)
        stats = policy.update(16, collector.buffer, repeat=70)
    assert stats.gradient_steps == 70
    assert stats.metrics["critic_loss"].count == 70
    assert len(policy.learner_group.learner.device_update.sampled["obs"]) == 16 * 6  # 64, and 6


def test_samples_of_large_observations_are_drawn_one_after_the_other(monkeypatch):
    monkeypatch.setattr(tensor_updates, "MAX_BYTES_PER_DRAW", 2 * 16 * 33 + 5)
    trainer = steps(config_of(update_per_step=5 / (5 * B)).build_trainer(), 3)
    assert trainer.gradient_step == 5
    assert len(trainer.policy.learner_group.learner.device_update.sampled["obs"]) == 16  # 2, 2, and 1


def test_a_checkpoint_of_the_host_is_refused():
    trainer = steps(config_of().build_trainer(), 3)
    with pytest.warns(UserWarning, match="ignore_obs_next"):
        host = config_of(ignore_obs_next=True).env_runners(allow_host=True).build_trainer()
    steps(host, 3)
    with pytest.raises(ValueError, match="is of another buffer"):
        trainer.buffer.set_state(host.buffer.checkpoint_state())


def test_options_of_priorities_that_changed_are_told_of(tmp_path):
    steps(config_of(**BY_PRIORITY).build_trainer(), 3).save_to_path(tmp_path / "half")
    again = config_of(**BY_PRIORITY, alpha=0.3).build_trainer()
    with pytest.warns(ConfiguredValueWarning, match=r"replay.alpha=0.3 \(was 0.6\)"):
        again.restore_from_path(tmp_path / "half")


@pytest.mark.long
@pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "by priority"])
def test_sac_learns_pendulum(prioritized):
    """From -1,200 to above -300 within 20,000 steps."""
    config = config_of(capacity=20_000, learning_starts=640, update_per_step=4 / 16, prioritized=prioritized)
    config.env_runners(num_envs_per_env_runner=16, rollout_fragment_length=1).training(train_batch_size=128, lr=1e-3)
    config.rl_module(model_config={"hiddens": (64, 64)}).reporting(total_steps=20_000, steps_per_epoch=3_200)
    returns = [-1200.0]
    for stats in config.build_trainer():
        returns.append(stats.train_collect_stat.returns_stat.mean)
        if returns[-1] > -300.0:
            break
    assert returns[-1] > -300.0, returns


@pytest.mark.parametrize("name", fast_if("sac".__eq__, ["ppo", "sac"]))
def test_the_plan_of_a_run_on_the_device_is_told(name, tmp_path, monkeypatch, capsys):
    """By the command, before it trains."""
    monkeypatch.chdir(tmp_path)
    options = ["--total-steps", "256", "--set", "evaluation.evaluation_interval=0"]
    if name == "sac":
        options += ["--set", "replay.learning_starts=64", "--set", "replay.update_per_step=0.1"]
    assert main(["train", name, "tensor/Pendulum-v1", "--num-envs", "8", *options]) == 0
    assert "gradient steps" in capsys.readouterr().out
