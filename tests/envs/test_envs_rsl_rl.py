"""rsl_rl's own package next to Lockstep, on one small robot: rollouts, metrics, training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rsl_robot import LIMIT, NUM_ENVS, OBS_GROUPS, make_robot, make_runner

import lockstep
from lockstep import DistillationConfig, Policy, PPOConfig
from lockstep.envs import RslRlEnv
from lockstep.envs.tensor.step_log import MAX_PENDING, StepLog
from lockstep.ops.device_returns import tensor_gae
from lockstep.rollout import Collector, TensorCollector

T = 60
"""vector steps of a rollout: several episodes, and some that have not ended"""


def config_of(env: Any, num_steps: int = T) -> PPOConfig:
    config = PPOConfig().environment(env).debugging(seed=1).evaluation(evaluation_interval=0)
    config.env_runners(num_envs_per_env_runner=env.num_envs, rollout_fragment_length=num_steps)
    config.training(train_batch_size=num_steps * env.num_envs, minibatch_size=num_steps * env.num_envs // 4)
    config.framework(compile=False).rl_module(model_config={"hiddens": (32, 32)})
    return config.reporting(total_steps=10**6, steps_per_epoch=num_steps * env.num_envs)


NESTED_GROUPS = {"actor": ["proprio", "task/goal"], "critic": ["proprio", "task/goal", "wind"]}


def lockstep_rollout(actions: torch.Tensor, groups: Any = OBS_GROUPS, **robot: Any) -> tuple[Any, int]:
    """Return the rollout of these actions `[T, B, 1]`, and the seed of its environments."""
    collector = config_of(RslRlEnv(make_robot(**robot), obs_groups=groups)).build_collector()
    assert type(collector) is TensorCollector
    recorded = iter(actions)
    collector.stepper._act = lambda part, obs, explores=False: next(recorded)
    seed = collector.stepper.streams.seed("env_reset/0")
    collector.collect(n_step=T * NUM_ENVS)
    return collector.buffer, seed


def rsl_rl_storage(actions: torch.Tensor, seed: int, gamma: float) -> tuple[Any, Any]:
    """Return the runner and its storage after one iteration with these actions, which learns nothing."""
    robot = make_robot()
    robot.seed(seed)
    robot.reset()
    runner = make_runner(robot, T, gamma=gamma)
    recorded, act = iter(actions), runner.alg.act

    def act_as_recorded(obs: Any) -> torch.Tensor:
        act(obs)
        runner.alg.transition.actions = next(recorded)
        return runner.alg.transition.actions

    runner.alg.act = act_as_recorded
    runner.alg.update = dict  # no losses
    runner.learn(1)
    return runner, runner.alg.storage


@pytest.fixture(scope="module")
def actions() -> torch.Tensor:
    """Some push a cart off its track."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(T, NUM_ENVS, 1, generator=generator) + torch.linspace(-1.0, 1.0, NUM_ENVS).unsqueeze(1)


def test_one_list_of_actions_gives_rsl_rls_storage_and_an_equal_rollout(actions):
    """Rewards, ends, time-outs, groups of observations, and the returns that are learned from."""
    gamma = 0.9
    rollout, seed = lockstep_rollout(actions)
    runner, storage = rsl_rl_storage(actions, seed, gamma)
    assert set(storage.observations.keys()) == set(rollout.obs) == {"proprio", "goal", "wind"}
    for group, column in rollout.obs.items():
        assert torch.equal(storage.observations[group], column), group
    assert torch.equal(storage.actions, rollout.actions)
    assert torch.equal(storage.dones.squeeze(-1).bool(), rollout.cuts)
    time_outs = rollout.cuts & ~rollout.terminateds
    assert time_outs.sum() > NUM_ENVS
    assert rollout.terminateds.sum() > 5
    # rsl_rl adds the value of what was acted on to the rewards of time-outs.
    values = storage.values.squeeze(-1)
    assert torch.equal(storage.rewards.squeeze(-1), rollout.rewards + gamma * (values * time_outs))

    next_values = torch.stack([runner.alg.critic(obs).squeeze(-1) for obs in as_tensor_dicts(rollout.next_obs)])
    advantages, targets = tensor_gae(
        rollout.rewards, values, next_values.detach(), rollout.terminateds, rollout.cuts, gamma=gamma, lambda_=0.95
    )
    assert torch.allclose(targets, storage.returns.squeeze(-1), atol=1e-5)
    normalised = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    assert torch.allclose(normalised, storage.advantages.squeeze(-1), atol=1e-4)


def as_tensor_dicts(columns: dict[str, torch.Tensor]) -> list[Any]:
    tensor_dict = pytest.importorskip("tensordict").TensorDict
    return [tensor_dict({name: column[t] for name, column in columns.items()}, [NUM_ENVS]) for t in range(T)]


def test_an_environment_may_return_the_same_tensors_in_each_step(actions):
    rollout, _ = lockstep_rollout(actions)
    other, _ = lockstep_rollout(actions, reuses=True)
    for column in ("obs", "next_obs"):
        for group, numbers in getattr(rollout, column).items():
            assert torch.equal(getattr(other, column)[group], numbers)
    assert torch.equal(rollout.next_obs["proprio"][rollout.cuts], rollout.obs["proprio"][rollout.cuts])


def test_an_observation_set_within_a_set_is_a_nested_entry(actions):
    """The rollout has the numbers of the flat form, and a policy of the nested entry acts on it alone."""
    flat, _ = lockstep_rollout(actions)
    env = RslRlEnv(make_robot(nested=True), obs_groups=NESTED_GROUPS)
    goal = env.single_observation_space["task"]["goal"]
    assert goal.shape == (1,)
    nested, _ = lockstep_rollout(actions, NESTED_GROUPS, nested=True)
    for column in ("obs", "next_obs"):
        found, expected = getattr(nested, column), getattr(flat, column)
        assert set(found) == {"proprio", "task", "wind"}
        assert torch.equal(found["task"]["goal"], expected["goal"])
        assert all(torch.equal(found[name], expected[name]) for name in ("proprio", "wind"))
    assert torch.equal(nested.rewards, flat.rewards)

    trainer = config_of(env, 24).build_trainer()
    assert type(trainer.train_collector) is TensorCollector
    next(trainer)
    policy = trainer.policy
    assert groups_of(policy) == {"policy": ("proprio", "task/goal"), "critic": ("proprio", "task/goal", "wind")}
    rng = np.random.default_rng(0)
    obs = {"proprio": rng.normal(size=(5, 2)).astype(np.float32)}
    goals = [{"task": {"goal": rng.normal(size=(5, 1)).astype(np.float32)}} for _ in range(2)]
    found = [policy.compute_actions({**obs, **entry}) for entry in goals]
    assert not np.array_equal(*found)
    winds = {"wind": np.ones((5, 1), np.float32)}
    assert np.array_equal(policy.compute_actions({**obs, **goals[0], **winds}), found[0])


def watch_log(robot: Any) -> tuple[list[torch.Tensor], list[float]]:
    """Return lists that get the distances and the numbers of falls that each step of the robot logs."""
    distances, falls, step = [], [], robot.step

    def watch(actions: torch.Tensor) -> Any:
        found = step(actions)
        distances.append(found[3]["log"]["/distance"].clone())
        falls.append(float(found[3]["log"]["Robot/falls"]))
        return found

    robot.step = watch
    return distances, falls


@pytest.mark.parametrize("on_host", [False, True])
def test_values_that_the_environment_logs_are_metrics_of_the_collect(on_host):
    """Averaged over all numbers of the collect, on the device and through the host."""
    robot = make_robot()
    env = RslRlEnv(robot, obs_groups=OBS_GROUPS)
    config = config_of(env, 24)
    collector = Collector(config.build_policy(), env, seed=0) if on_host else config.build_collector()
    assert type(collector) is (Collector if on_host else TensorCollector)
    distances, falls = watch_log(robot)
    for _ in range(2):
        distances.clear(), falls.clear()
        metrics = collector.collect(n_step=24 * NUM_ENVS).metrics
        collector.reset_buffer()
        assert metrics["distance"] == pytest.approx(float(torch.cat(distances).double().mean()), rel=1e-6)
        assert metrics["Robot/falls"] == pytest.approx(np.mean(falls))
        assert metrics["steps"] == 2.0
    assert len(distances) == 24


def test_what_the_environment_logs_is_in_the_statistics_of_an_epoch():
    robot = make_robot()
    trainer = config_of(RslRlEnv(robot, obs_groups=OBS_GROUPS), 24).build_trainer()
    distances, _ = watch_log(robot)
    _, stats, _ = next(trainer)
    assert stats.train_collect_stat.metrics["distance"] == pytest.approx(float(torch.cat(distances).mean()), rel=1e-6)


def test_a_tensor_that_steps_write_to_again_is_logged_as_it_was():
    log, reused = StepLog(), torch.zeros(2)
    for step in range(3):
        log.add({"reused": reused.fill_(float(step))})
    assert log.take() == {"reused": (1.0, 6)}


def test_a_step_log_weighs_each_number_and_is_bounded():
    log = StepLog()
    for step in range(3 * MAX_PENDING):
        log.add({"rows": torch.full((2 + step % 2,), float(step % 2)), "number": step, "empty": torch.zeros(0)})
        assert len(log._pending) < MAX_PENDING
    found = log.take()
    assert found == {
        "rows": (pytest.approx(0.6), 3 * MAX_PENDING * 5 // 2),
        "number": (pytest.approx((3 * MAX_PENDING - 1) / 2), 3 * MAX_PENDING),
    }
    assert log.take() == {}
    log.add({"name": "walks"})
    with pytest.raises(TypeError, match=r"extras\['log'\]\['name'\] is 'walks'"):
        log.take()


ALL = ["proprio", "goal", "wind"]


def trained_by_rsl_rl(seed: int, iterations: int) -> float:
    robot = make_robot(num_envs=64, seed=seed)
    options = {"schedule": "fixed", "entropy_coef": 0.0, "learning_rate": 1e-3}
    make_runner(robot, LIMIT, seed=seed, obs_groups={"actor": ALL, "critic": ALL}, **options).learn(iterations)
    return float(np.mean(robot.returns[-256:]))


def trained_by_lockstep(seed: int, iterations: int) -> float:
    robot = make_robot(num_envs=64, seed=seed)
    config = config_of(RslRlEnv(robot, obs_groups={"actor": ALL, "critic": ALL}), LIMIT).debugging(seed=seed)
    config.training(lr=1e-3, num_epochs=5, gamma=0.99, lambda_=0.95, clip_param=0.2, entropy_coeff=0.0, grad_clip=1.0)
    config.training(vf_loss_coeff=1.0, vf_clip_param=0.2, normalize_advantages="batch")
    trainer = config.build_trainer()
    for _ in range(iterations):
        next(trainer)
    return float(np.mean(robot.returns[-256:]))


@pytest.mark.long
def test_both_libraries_learn_the_robot_equally_well():
    """The ranges of three seeds overlap, and each seed is better than a policy that has not learned."""
    ranges = []
    for train in (trained_by_rsl_rl, trained_by_lockstep):
        returns = [train(seed, 40) for seed in range(3)]
        print(train.__name__, returns)
        assert min(returns) > train(0, 1) + 2.0
        ranges.append((min(returns), max(returns)))
    (low, high), (other_low, other_high) = ranges
    assert low <= other_high
    assert other_low <= high


# -- groups of rsl_rl's configuration as observation groups ---


def groups_of(trained: Any) -> Any:
    return trained.acting["default_policy"].module.observation_groups


def test_the_groups_of_the_runner_reach_the_networks():
    policy = config_of(RslRlEnv(make_robot(), obs_groups=OBS_GROUPS), 4).build_policy()
    module = policy.acting["default_policy"].module
    assert module.observation_groups == {"policy": ("proprio", "goal"), "critic": ("proprio", "goal", "wind")}
    assert list(module.encoder.space.spaces) == ["proprio", "goal"]
    assert list(module.value_encoder.space.spaces) == ["proprio", "goal", "wind"]


def test_parts_that_the_algorithm_lacks_are_left_out():
    groups = {**OBS_GROUPS, "teacher": ["wind"], "rnd_state": ["wind"]}
    env = RslRlEnv(make_robot(), obs_groups=groups)
    assert set(groups_of(config_of(env, 4).build_policy())) == {"policy", "critic"}
    config = config_of(env, 4).training(intrinsic_reward="rnd")
    assert groups_of(config.build_policy())["intrinsic"] == ("wind",)


def test_configured_groups_win_over_those_of_the_environment_and_say_so():
    config = config_of(RslRlEnv(make_robot(), obs_groups=OBS_GROUPS), 4)
    with pytest.warns(UserWarning, match=r"\{'policy': \('goal',\)\} is used, and the environment's .* are not"):
        policy = config.rl_module(observation_groups={"policy": ["goal"]}).build_policy()
    assert groups_of(policy) == {"policy": ("goal",)}


def test_a_policy_is_loaded_without_the_environment_that_brought_its_groups(tmp_path):
    trainer = config_of(RslRlEnv(make_robot(), obs_groups=OBS_GROUPS), 4).build_trainer()
    next(trainer)
    policy = trainer.policy
    loaded = Policy.from_checkpoint(policy.save_to_path(tmp_path / "policy"))
    assert groups_of(loaded) == groups_of(policy)
    obs = {"proprio": np.ones((3, 2), np.float32), "goal": np.ones((3, 1), np.float32)}
    assert np.array_equal(loaded.compute_actions(obs), policy.compute_actions(obs))


def test_a_student_of_the_robot_learns_from_a_teacher_that_feels_the_wind():
    """In rsl_rl's own words: the groups "student" and "teacher" of a TensorDict of observation sets."""
    teacher = config_of(RslRlEnv(make_robot(), obs_groups={"actor": ALL, "critic": ALL}), 24).build_trainer()
    next(teacher)
    env = RslRlEnv(make_robot(), obs_groups={"student": ["proprio", "goal"], "teacher": ALL})
    config = DistillationConfig().environment(env).debugging(seed=1).evaluation(evaluation_interval=0)
    config.env_runners(num_envs_per_env_runner=env.num_envs, allow_host=True)
    config.training(teacher=teacher.policy, loss="mse", lr=1e-2, train_batch_size=24 * NUM_ENVS)
    config.rl_module(model_config={"hiddens": (32, 32)}).reporting(total_steps=10**6, steps_per_epoch=24 * NUM_ENVS)
    with pytest.warns(UserWarning, match="host"):
        trainer = config.build_trainer()
    assert groups_of(trainer.policy) == {"policy": ("proprio", "goal"), "teacher": ("proprio", "goal", "wind")}
    losses = []
    for _ in range(20):
        next(trainer)
        losses.append(trainer.policy.last_results["default_policy"]["policy_loss"])
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.long
def test_a_run_is_resumed_with_the_groups_of_its_environment(tmp_path):
    """Only the environment has the groups, and the files of the run name them."""
    config = config_of(RslRlEnv(make_robot(), obs_groups=OBS_GROUPS), 4)
    config.reporting(total_steps=128, steps_per_epoch=64)
    result = lockstep.train(config, root=tmp_path)
    config.environment(RslRlEnv(make_robot(), obs_groups=OBS_GROUPS))
    longer = lockstep.resume(result.path, config=config, total_steps=256)
    assert longer.info.train_step == 256
    assert groups_of(longer.policy) == groups_of(result.policy) == {"policy": ("proprio", "goal"), "critic": tuple(ALL)}

    config.environment(RslRlEnv(make_robot(), obs_groups={"actor": ["proprio"], "critic": ALL}))
    with pytest.raises(ValueError, match=r"observation_groups.policy.* cannot be changed in a resumed run"):
        lockstep.resume(result.path, config=config, total_steps=512)


def test_evaluation_in_the_robots_of_training_is_refused():
    """Also with two adapters around the same robots."""
    robot = make_robot()
    config = config_of(RslRlEnv(robot, obs_groups=OBS_GROUPS), 4).evaluation(evaluation_interval=1)
    refused = "test_collector has the environments of train_collector"
    with pytest.raises(ValueError, match=refused):
        config.build_trainer()
    with pytest.raises(ValueError, match=refused):
        config.evaluation(evaluation_config={"environment.env": RslRlEnv(robot)}).build_trainer()
    config.evaluation(evaluation_config={"environment.env": RslRlEnv(make_robot())})
    assert config.build_trainer().test_collector is not None
