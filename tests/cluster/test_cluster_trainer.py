"""The same trainer and the same command over learners and env runners in other processes."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_games import CountingGame, DictGame, game_config
from algorithm_cases import ALGORITHM_CASES, FAST, OFF_POLICY, OFFLINE

import lockstep
from lockstep import Policy, PPOConfig, SampleBatch, get_config, load_policy
from lockstep.data.rollout import EpisodeStore
from lockstep.runs.run import prepare_resume, prepare_run

ray = pytest.importorskip("ray")


def config_of(num_learners=0, num_env_runners=0, num_envs=4, total_steps=256, **sections):
    config = (
        PPOConfig()
        .environment("CartPole-v1", normalize_observations=True)
        .framework(dtype="float64")
        .rl_module(model_config={"hiddens": (8,)})
        .training(train_batch_size=64, minibatch_size=32, num_epochs=2)
        .learners(num_learners=num_learners, num_cpus_per_learner=0)
        .env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=num_envs, num_cpus_per_env_runner=0.25)
        .evaluation(evaluation_duration=2, evaluation_num_envs=2)
        .reporting(total_steps=total_steps, steps_per_epoch=128)
        .debugging(seed=3)
    )
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return run(config_of(), tmp_path_factory.mktemp("here"))


def run(config, root):
    return prepare_run(config, root).finish()


def returns_of(result):
    return [(e.train_collect_stat.returns.tolist(), e.test_collect_stat.returns.tolist()) for e in result.history]


def placed():
    """The placement groups that hold something: those of other tests' groups are among them."""
    return {name for name, group in ray.util.placement_group_table().items() if group["state"] != "REMOVED"}


def assert_near(policy, other, atol):
    for name, array in other.module.get_state().items():
        np.testing.assert_allclose(policy.module.get_state()[name], array, rtol=0, atol=atol, err_msg=name)


@pytest.mark.long
def test_a_run_over_two_env_runners_is_the_run_in_this_process(cluster, here, tmp_path):
    there = run(config_of(0, 2, 2), tmp_path)
    assert returns_of(there) == returns_of(here)
    assert_near(there.policy, here.policy, 0.0)
    lag = there.history[-1].training_stat.metrics["diff_num_grad_updates_vs_sampler_policy"]
    assert lag.max == 0.0


def grouped_config(algorithm, num_env_runners=0, num_learners=0):
    """A configuration whose critic sees an entry that the policy does not."""
    made = get_config(algorithm).environment("lockstep/PrivilegedProbe-v0", normalize_observations=True)
    made.rl_module(observation_groups={"policy": ["proprio"], "critic": ["proprio", "load"]})
    made.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)}).framework(dtype="float64")
    made.env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=4 // max(1, num_env_runners))
    made.env_runners(num_cpus_per_env_runner=0.5).learners(num_learners=num_learners, num_cpus_per_learner=0)
    made.training(train_batch_size=16 if made.is_off_policy else 64)
    if made.is_off_policy:
        made.replay(learning_starts=32, update_per_step=0.25)
    return made.debugging(seed=2).reporting(total_steps=192, steps_per_epoch=64).evaluation(evaluation_interval=0)


def assert_has_groups(policy):
    assert policy.acting["default_policy"].module.observation_groups["critic"] == ("proprio", "load")
    obs = {"proprio": np.zeros((3, 2), np.float32)}
    assert policy.compute_actions(obs).shape == (3, 1)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_groups_over_two_env_runners_and_learners_are_those_of_one(algorithm, cluster, tmp_path):
    here = run(grouped_config(algorithm), tmp_path / "here").policy
    assert_near(run(grouped_config(algorithm, num_learners=2), tmp_path / "learners").policy, here, 1e-12)
    if algorithm == "ppo":
        assert_near(run(grouped_config(algorithm, num_env_runners=2), tmp_path / "runners").policy, here, 1e-12)
    assert_has_groups(run(grouped_config(algorithm, 2, 2), tmp_path / "both").policy)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_groups_of_asynchronous_env_runners_are_those_of_one_process(algorithm, cluster, tmp_path):
    """Without a lag weights are equal; with one the groups reach the env runners all the same."""
    here, there, late = (
        run(grouped_config(algorithm, number).training(max_lag=max_lag), tmp_path / f"{number} {max_lag}").policy
        for number, max_lag in ((0, 0), (2, 0), (2, 2))
    )
    assert_near(there, here, 1e-12)
    assert_has_groups(there)
    assert_has_groups(late)


@pytest.mark.faults
def test_noise_that_goes_on_is_that_of_this_process_over_two_env_runners(cluster, tmp_path):
    def options(num_env_runners):
        where = {"num_env_runners": num_env_runners, "num_envs_per_env_runner": 4 // max(1, num_env_runners)}
        return {**where, "exploration": "gsde", "exploration_config": {"sample_freq": 5}}

    here, there = (
        run(config_of(environment={"env": "Pendulum-v1"}, env_runners=options(n)), tmp_path / str(n)) for n in (0, 2)
    )
    # products of matrices of other heights may differ in the last bit
    for returns, expected in zip(sum(returns_of(there), ()), sum(returns_of(here), ()), strict=True):
        assert returns == pytest.approx(expected, rel=1e-9)
    assert_near(there.policy, here.policy, 1e-12)


@pytest.mark.faults
def test_parallel_evaluation_in_two_env_runners_equals_this_process(cluster, here, tmp_path):
    options = {"evaluation_num_env_runners": 2, "evaluation_parallel_to_training": True}
    there = run(config_of().evaluation(**options), tmp_path)
    assert returns_of(there) == returns_of(here)
    assert_near(there.policy, here.policy, 0.0)
    assert there.info.best_score == here.info.best_score
    assert (there.path / "best" / "policy" / "manifest.json").read_bytes()


SETTINGS = {
    "rl_module.model_config.hiddens": (8,),
    "framework.dtype": "float64",
    "training.train_batch_size": 64,
    "learners.num_cpus_per_learner": 0,
    "env_runners.num_cpus_per_env_runner": 0.25,
    "evaluation.evaluation_duration": 2,
    "reporting.steps_per_epoch": 128,
}


def trained(root, num_env_runners, num_learners=0, algorithm="ppo"):
    where = {"env_runners.num_env_runners": num_env_runners, "learners.num_learners": num_learners}
    own = {"training.minibatch_size": 32} if algorithm == "ppo" else {"replay.learning_starts": 64}
    settings = {**SETTINGS, **own, **where}
    return lockstep.train(algorithm, "CartPole-v1", total_steps=256, seed=3, num_envs=4, root=root, settings=settings)


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.faults)])
@pytest.mark.long
def test_the_number_of_env_runners_changes_no_bit_at_equal_environments(cluster, tmp_path, algorithm):
    alone, one, two = (trained(tmp_path / str(n), n, algorithm=algorithm) for n in (0, 1, 2))
    assert [r.policy.config.num_envs_per_env_runner for r in (alone, one, two)] == [4, 4, 2]
    assert returns_of(alone) == returns_of(one) == returns_of(two)
    assert alone.info.gradient_step > 0
    assert_near(one.policy, alone.policy, 0.0)
    assert_near(two.policy, alone.policy, 0.0)


@pytest.mark.faults
def test_two_learners_and_two_env_runners_are_the_same_run(cluster, tmp_path):
    alone, there = trained(tmp_path / "alone", 0), trained(tmp_path / "there", 2, 2)
    assert returns_of(there) == returns_of(alone)
    assert_near(there.policy, alone.policy, 1e-12)


@pytest.mark.faults
def test_a_run_over_learners_and_env_runners_is_equal_and_resumes_exactly(cluster, here, tmp_path):
    before = placed()
    there = run(config_of(1, 2, 2), tmp_path / "whole")
    assert returns_of(there) == returns_of(here)
    assert_near(there.policy, here.policy, 1e-12)
    half = run(config_of(1, 2, 2, total_steps=128), tmp_path / "half")
    second_half = prepare_resume(half.path, total_steps=256).build()
    assert second_half.trainer.train_collector.episodes_cut == 0
    resumed = second_half.finish()
    assert_near(resumed.policy, there.policy, 0.0)
    assert load_policy(resumed.path).learner_group.is_local
    assert placed() == before


COMMAND = ["--num-learners", "1", "--num-env-runners", "1", "--num-envs", "2", "--no-check", "--no-recipe"]
SMALL = ["--set", "training.train_batch_size=64", "--set", "training.minibatch_size=32", "--total-steps", "1e7"]


@pytest.mark.faults
def test_ctrl_c_ends_a_run_on_a_cluster_in_order_and_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "lockstep.cli", "train", "ppo", "CartPole-v1", *COMMAND, *SMALL]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if "evaluation return" in line:
            break
    children = descendants(process.pid)
    assert children
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(60) == 130, rest
    assert "interrupted; go on with: lockstep resume" in rest
    until = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in children if alive(pid)]


def descendants(pid):
    found, todo = [], [pid]
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
        except OSError:
            continue
    while todo:
        for child in parents.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def run_game(num_learners=0, num_env_runners=0, env=CountingGame, **multi_agent):
    config = game_config(env, num_envs=4 // max(1, num_env_runners)).framework(dtype="float64")
    config.learners(num_learners=num_learners, num_cpus_per_learner=0).training(train_batch_size=32)
    config.env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.25)
    config.multi_agent(policy_mapping_fn={"a": "first", "b": "first" if env is DictGame else "others", "c": "others"})
    config.multi_agent(**multi_agent)
    trainer = config.build_trainer()
    try:
        stats = [(e.train_collect_stat, e.test_collect_stat) for e in trainer.run().history]
        trainer.policy.use_local_learner()
    finally:
        trainer.close()
    history = [(train.agent_returns, test.agent_returns) for train, test in stats]
    return history, trainer.policy.learner_group.get_weights(), trainer.policy


@pytest.mark.faults
@pytest.mark.parametrize(
    ("num_learners", "num_env_runners", "env", "critic"),
    [(0, 2, DictGame, False), (2, 0, CountingGame, False), (2, 2, CountingGame, True), (0, 4, CountingGame, False)],
)
def test_a_multi_agent_run_over_learners_and_runners_equals_a_local_one(
    cluster, num_learners, num_env_runners, env, critic
):
    options = {"centralized_critic": critic, "agent_id_in_obs": critic}
    (one, weights, policy), (two, others, home) = (
        run_game(env=env, **options),
        run_game(num_learners, num_env_runners, env, **options),
    )
    assert one == two
    for module_id, own in weights.items():
        for name, array in own.items():
            np.testing.assert_allclose(others[module_id][name], array, rtol=0, atol=1e-12, err_msg=name)
    seen = {agent: np.array([1.0, 1 + i], np.float32) for i, agent in enumerate("ab")}
    assert home.compute_actions(seen) == policy.compute_actions(seen)


@pytest.mark.faults
def test_a_killed_multi_agent_runner_loses_only_its_unfinished_episodes(cluster):
    config = game_config(partial(CountingGame, 1000, 1000)).env_runners(num_env_runners=2, num_cpus_per_env_runner=0.25)
    collector = config.build_collector(config.build_policy())
    try:
        collector.buffer = EpisodeStore()
        collector.collect(n_step=8)
        collector.buffer.clear()
        os.kill(collector.group.process_ids()[1], signal.SIGKILL)
        assert collector.collect(n_step=8).n_collected_steps == 8
        assert {b: piece.env_t_started for piece, b in collector.buffer.pieces} == {0: 2, 1: 2, 2: 0, 3: 0}
    finally:
        collector.close()


ONE_OF_DATA = next(name for name in OFFLINE if name in FAST)


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=() if name == ONE_OF_DATA else pytest.mark.faults) for name in (*OFF_POLICY, *OFFLINE)],
)
@pytest.mark.long
def test_a_run_of_samples_with_two_learners_is_the_run_with_one(algorithm, cluster):
    box = ALGORITHM_CASES[algorithm].in_a_box
    env, rows, rng = "Pendulum-v1" if box else "CartPole-v1", 60, np.random.default_rng(0)

    def run_of(num_learners):
        config = get_config(algorithm).environment(env, normalize_observations=get_config(algorithm).is_offline)
        config.framework(dtype="float64").rl_module(model_config={"hiddens": (8,)}).training(train_batch_size=16)
        config.learners(num_learners=num_learners, num_cpus_per_learner=0).debugging(seed=3)
        config.evaluation(evaluation_duration=1).reporting(total_steps=64, steps_per_epoch=32)
        if config.is_offline:
            config.offline_data(input_=data)
        else:
            config.replay(capacity=200, learning_starts=16, update_per_step=0.5)
            config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=4)
        trainer = config.build_trainer()
        history = [epoch.test_collect_stat.returns.tolist() for epoch in trainer]
        trainer.policy.use_local_learner()
        return history, trainer.policy

    obs = rng.normal(2.0, 3.0, (rows + 1, 3 if box else 4)).astype(np.float32)
    actions = rng.uniform(-2, 2, (rows, 1)).astype(np.float32) if box else rng.integers(0, 2, rows)
    data = SampleBatch(obs=obs[:-1], new_obs=obs[1:], actions=actions, rewards=rng.random(rows, np.float32))
    data.update(terminateds=np.arange(rows) % 10 == 9, truncateds=np.zeros(rows, bool))
    (one, policy), (two, other) = run_of(0), run_of(2)
    assert one == two
    assert_near(other, policy, 1e-12)


@pytest.mark.long
def test_a_policy_of_remote_learners_needs_config_and_group_only(cluster):
    spaces = gym.make("Pendulum-v1").observation_space, gym.make("Pendulum-v1").action_space
    config = PPOConfig().environment("Pendulum-v1", normalize_observations=True)
    source = config.copy().debugging(seed=5).build_policy()
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    source.connectors.update(obs * 3, None)
    config.learners(num_learners=1, num_cpus_per_learner=0)
    with config.build_learner_group(spaces=spaces) as group:
        policy = Policy(config, group)
        assert (policy.compute_actions(obs) != source.compute_actions(obs)).any()
        policy.load_state_dict(source.state_dict())
        np.testing.assert_array_equal(policy.compute_actions(obs), source.compute_actions(obs))
        assert all(torch.equal(value, source.state_dict()[name]) for name, value in policy.state_dict().items())
        with pytest.raises(RuntimeError, match="use_local_learner"):
            policy.to("cpu")
