"""Ranks without Ray, in real processes: one process' parameters, restarts, faults, and the scripts that start them."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import rank_runs
import tensor_rank_runs
import torch
from ranked_run import SETTINGS, WORDS
from torch.distributed import TCPStore

import lockstep
from lockstep import PPOConfig, RolloutStore, policy_within_training_step
from lockstep.cli import main
from lockstep.cluster.rank_collector import RankCollector
from lockstep.cluster.torchrun import RankInfo, join_ranks
from lockstep.envs import make_tensor_env
from lockstep.learner.many.reduction import LearnerError
from lockstep.runs.run import resume
from lockstep.state.checkpoint import read_checkpoint
from lockstep.trainer.ranks import config_on_ranks

MANY = [pytest.mark.faults, pytest.mark.timeout(900)]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(**more):
    paths = [str(Path(lockstep.__file__).parents[1]), str(Path(__file__).parent), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **more}


def start_ranks(*words, number=2):
    """Start processes as a launcher does that knows nothing of torch."""
    place = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen([sys.executable, *words], env=environment(RANK=str(rank), **place), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
        for rank in range(number)
    ]  # fmt: skip


def outputs(processes):
    found = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(found)
    return found


def torchrun(*options):
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "lockstep"]


def checkpoints(root):
    (run,) = root.glob("ppo_*")
    return {int(path.name[5:]): path for path in run.glob("checkpoints/step_*") if (path / "manifest.json").exists()}


def weights(root, step=768):
    return read_checkpoint(checkpoints(root)[step])["learner/rl_module/default_policy"]["weights"]


def check_same(one, other, atol=0.0):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(np.asarray(other[name]), np.asarray(value), rtol=0, atol=atol, err_msg=name)


def keep_until(root, target, step):
    """Copy the run in `root` as it was at a step."""
    shutil.copytree(root, target)
    for later, path in checkpoints(target).items():
        if later > step:
            shutil.rmtree(path)
    next(target.glob("*/summary.json")).unlink()
    return next(target.glob("ppo_*"))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The run in one process."""
    root = tmp_path_factory.mktemp("one")
    options = {"total_steps": 768, "num_envs": 4, "recipe": False, "settings": SETTINGS}
    lockstep.train("ppo", "CartPole-v1", root=root, **options)
    return root


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The same run by torchrun, in two ranks."""
    root = tmp_path_factory.mktemp("two")
    command = [*torchrun("--standalone", "--nproc-per-node=2"), *WORDS, "--root", str(root)]
    subprocess.run(command, env=environment(), check=True, timeout=200)
    return root


class TestRuns:
    pytestmark = MANY

    def test_two_ranks_have_the_parameters_and_the_environments_of_one_process(self, one, two):
        assert checkpoints(one).keys() == checkpoints(two).keys() == {256, 512, 768}
        check_same(weights(one), weights(two), 1e-12)
        states = [read_checkpoint(checkpoints(root)[512])["trainer"]["state"]["train_collector"] for root in (one, two)]
        assert states[0].keys() == states[1].keys()
        for name, value in states[0].items():
            if name != "counters":
                np.testing.assert_equal(states[1][name], value, err_msg=name)

    def test_a_run_of_ranks_goes_on_in_one_process_and_one_of_it_on_ranks(self, one, two, tmp_path):
        resume(keep_until(two, tmp_path / "home", 256))
        check_same(weights(one), weights(tmp_path / "home"), 1e-12)
        path = keep_until(one, tmp_path / "out", 256)
        outputs(start_ranks("-m", "lockstep", "resume", str(path)))
        check_same(weights(two), weights(tmp_path / "out"), 1e-12)

    def test_ranks_that_start_again_after_a_death_end_with_the_same_bits(self, two, tmp_path):
        command = [*torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=1"), *WORDS, "--root", str(tmp_path)]
        agent = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            while not list(tmp_path.glob("*/checkpoints/step_*256/manifest.json")):
                assert agent.poll() is None, agent.stdout.read()
                time.sleep(0.02)
            children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
            last = max(children, key=lambda child: b"\0RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes())
            os.kill(int(last), signal.SIGKILL)
            text = agent.communicate(timeout=200)[0]
        finally:
            agent.kill()
        assert agent.returncode == 0, text
        assert text.count("PPO on CartPole-v1") == 2, text
        assert "the run's config.json" in text
        check_same(weights(two), weights(tmp_path))
        check_restart(tmp_path, text, f"rank 1 (process {last} on ")

    def test_a_signal_to_one_rank_ends_all_after_the_same_update(self, tmp_path):
        words = [*WORDS, "--total-steps", "1_000_000", "--root", str(tmp_path)]
        ranks = start_ranks("-m", "lockstep", *words)
        try:
            while not list(tmp_path.glob("*/checkpoints/step_*256/manifest.json")):
                assert all(rank.poll() is None for rank in ranks), [rank.stdout.read() for rank in ranks]
                time.sleep(0.01)
            ranks[1].send_signal(signal.SIGTERM)
            found = [rank.communicate(timeout=60)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0, 143], found
        assert "ended         interrupted" in found[0], found
        assert max(checkpoints(tmp_path)) % 256 in (0, 128)

    def test_kinds_of_data_are_shared_out_as_in_one_process(self, tmp_path):
        """Prioritised replay, statistics of observations, memory, several agents, offline data."""
        outputs(start_ranks(rank_runs.__file__, str(tmp_path)))
        for kind in rank_runs.MAKE:
            check_same(rank_runs.run(kind), np.load(tmp_path / f"{kind}.npz"), 1e-12)

    def test_tensor_environments_are_shared_out_as_in_one_process(self, tmp_path):
        """Rollouts with statistics of observations and fewer rows than ranks, replay of one step and of several.

        In float32 too, where sums in another order differ by rounding alone.
        """
        outputs(start_ranks(tensor_rank_runs.__file__, str(tmp_path)))
        for kind in tensor_rank_runs.MAKE:
            tolerance = tensor_rank_runs.TOLERANCE["float32" if "float32" in kind else "float64"]
            check_same(tensor_rank_runs.run(kind), np.load(tmp_path / f"{kind}.npz"), tolerance)

    def test_ranks_and_learners_on_ray_have_the_same_bits(self, two, tmp_path, request):
        request.getfixturevalue("cluster")
        there = {
            "learners.num_learners": 2,
            "env_runners.num_env_runners": 2,
            "env_runners.num_cpus_per_env_runner": 0.2,
        }
        options = {"total_steps": 768, "num_envs": 4, "recipe": False, "settings": {**SETTINGS, **there}}
        lockstep.train("ppo", "CartPole-v1", root=tmp_path, **options)
        check_same(weights(two), weights(tmp_path))

    def test_the_slurm_script_restarts_four_ranks_on_two_nodes_after_a_kill(self, two, tmp_path):
        """The script as a job has it, with two agents of torchrun. One rank is killed in the middle of the run."""
        script = Path(__file__).parents[2] / "examples/slurm/train.sh"
        tools = tmp_path / "bin"
        root = tmp_path / "runs"
        tools.mkdir()
        stand_ins = {
            "scontrol": "echo 127.0.0.1",
            "srun": 'shift; SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@" && wait $!',
            "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
        }
        for name, text in stand_ins.items():
            (tools / name).write_text(f"#!/bin/bash\n{text}\n")
            (tools / name).chmod(0o755)
        job = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NAME": f"four-ranks-{os.getpid()}",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_PER_TASK": "2",
        }
        words = [*WORDS[3:], "--device", "cpu", "--root", str(root)]
        started = subprocess.Popen(
            ["bash", str(script), *words], env=environment(**job), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            while not list(root.glob("*/checkpoints/step_*256/manifest.json")):
                assert started.poll() is None, started.stdout.read()
                time.sleep(0.02)
            victim = next(root.glob("*/ranks/2.json"))
            killed = int(json.loads(victim.read_text())["process"].split()[1])
            os.kill(killed, signal.SIGKILL)
            text = started.communicate(timeout=300)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        assert started.returncode == 0, text
        check_same(weights(two), weights(root), 1e-12)
        check_restart(root, text, f"rank 2 (process {killed} on ")


def check_restart(root, text, victim):
    """Check that the summary counts one restart, and that Lockstep has named the rank that died."""
    summary = json.loads(next(root.glob("*/summary.json")).read_text())
    (restart,) = summary["restarts"]
    assert summary["num_restarts"] == 1
    assert restart["step"] in checkpoints(root)
    assert restart["reason"].startswith(victim), restart
    assert re.search(rf"restarted 1 time, now at step {restart['step']}: {re.escape(victim)}", text), text
    assert not list(root.glob("*/ranks"))


def place(rank, port=0, world_size=2):
    return RankInfo(rank, world_size, host="127.0.0.1", port=port or free_port())


def together(port, work_together=lambda reducer: reducer.gather(reducer.rank)):
    """What each of two ranks returns, which meet over a store that is there."""
    found = []

    def work(rank):
        reducer = join_ranks(
            RankInfo(rank, 2, host="127.0.0.1", port=port, is_served=True), timeout_s=20.0, meeting_timeout_s=20.0
        )
        found.append(work_together(reducer))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    return found


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (0, ["rank 0 of 3", r"\[1, 2\]", "within 0.5 s", "learners.learner_timeout_s"]),
        (1, ["rank 1 of 3", "rank 0 did not come", "within 0.5 s", "learners.learner_timeout_s"]),
    ],
)
def test_a_rank_that_never_comes_is_named(rank, words):
    with pytest.raises(LearnerError) as raised:
        join_ranks(place(rank, world_size=3), timeout_s=0.5, meeting_timeout_s=1.0)
    for word in words:
        assert re.search(word, str(raised.value)), raised.value


def test_a_port_in_use_is_named():
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            LearnerError, match=f"cannot listen at 127.0.0.1:{port} .*choose another: torchrun --master-port"
        ):
            join_ranks(place(0, port), timeout_s=1.0, meeting_timeout_s=1.0)


def test_ranks_meet_again_over_a_store_that_dead_ranks_have_left():
    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for name in ("round", "dead/1"):
        store.set(name, "dead")
    for _ in range(2):
        assert together(port) == [[0, 1], [0, 1]]


def test_each_rank_has_the_steps_and_state_of_one_collector():
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=4)

    def collect(reducer):
        policy = config.build_policy()
        if reducer is None:
            collector = config.build_collector(policy)
        else:
            build = config.copy().env_runners(num_envs_per_env_runner=2).build_env_runner
            spaces = policy.observation_space, policy.action_space
            collector = RankCollector(policy, partial(build, spaces), reducer, config.env_runners)
        collector.buffer = store = RolloutStore(50, 4, policy.observation_space, policy.action_space)
        with policy_within_training_step(policy):
            stats = collector.collect(n_step=200)
        steps = [np.array(part) for part in (store.obs[:51], store.actions[:50], store.terminateds[:50], stats.returns)]
        store.clear()
        state = collector.get_state()
        return steps, {name: state[name] for name in ("env", "obs", "lengths", "returns", "streams", "num_resets")}

    port, alone = free_port(), collect(None)
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for found in together(port, collect):
        np.testing.assert_equal(found, alone)
    assert store.port == port


@pytest.mark.parametrize(
    "kind", ["sac", "sac, correlated noise", "sac, a class, normalised", tensor_rank_runs.REPEATED, "sac, stacks"]
)
def test_ranks_have_the_rows_and_state_of_one_tensor_collector(kind):
    """The state is taken on by a collector of all of them, and by ranks."""

    def collect(reducer):
        config = tensor_rank_runs.MAKE[kind]()
        policy = config.build_policy(reducer=reducer)
        collectors = [config.build_collector(policy) for _ in range(2)]
        with policy_within_training_step(policy):
            for k in range(6):
                stats = collectors[0].collect(n_step=4, random=k < 2)
        state, rows = collectors[0].get_state(), collectors[0].buffer.get_state()
        collectors[1].set_state(state)
        collectors[1].buffer.set_state(rows)
        with policy_within_training_step(policy):
            assert collectors[1].collect(n_step=4).n_collected_steps == stats.n_collected_steps == 4
        later = collectors[1].buffer.get_state()["columns"]
        exploring = state.get("exploring", {})
        assert ("correlated" in kind or kind == tensor_rank_runs.REPEATED) == bool(exploring)
        # Whether rows that running statistics do not have yet are given to the ranks once.
        again = collectors[1].buffer.get_state().get("new_rows", {})
        return state["env"], state["lengths"], exploring, rows["columns"], later, again

    alone, port = collect(None), free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for found in together(port, collect):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-6)
    assert store.port == port


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.replay(prioritized=True), "replay.prioritized=True .*tensor environments on 2 ranks"),
        (lambda c: c.replay(ignore_obs_next=True), "2 ranks where sac with these options copies steps to the host"),
        (lambda c: c.env_runners(vectorize_mode="sync"), r"copies the steps of .*vectorize_mode=\.\.\."),
        (
            lambda c: c.environment(make_tensor_env("tensor/Pendulum-v1", 4)),
            "a finished Pendulum .*give an id, or a class",
        ),
    ],
)
def test_tensor_environments_that_ranks_would_draw_otherwise_are_refused(change, words):
    def build(reducer):
        config = change(tensor_rank_runs.MAKE["sac"]())
        with pytest.raises(ValueError, match=words):
            config.build_collector(config.build_policy(reducer=reducer))
        return True

    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    assert together(port, build) == [True, True]
    assert store.port == port


@pytest.mark.long
def test_the_comparison_for_several_gpus_is_rehearsed_on_the_processor():
    script = Path(lockstep.__file__).parents[1] / "benchmarks/gpu/ranks.py"

    def output(*words):
        words = [sys.executable, str(script), *words]
        return subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=280, check=False)

    done = output("--ranks", "2", "--device", "cpu", "--num-envs", "8", "--updates", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 ranks, ppo: [\d,]+ steps/s, float64 .* from one rank$", done.stdout, re.MULTILINE)
    assert re.search(r"^2 ranks, sac: ", done.stdout, re.MULTILINE)
    if torch.cuda.device_count() < 2:
        refused = output()
        assert refused.returncode == 2
        assert "this needs at least 2 GPUs" in refused.stdout


VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_process_without_all_variables_is_alone(name):
    assert RankInfo.of_process({**VARIABLES, name: ""}) == RankInfo()
    assert RankInfo.of_process(VARIABLES) == RankInfo(1, 2, host="here", port=29500)
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert RankInfo.of_process({**VARIABLES, **local}) == RankInfo(1, 2, 1, 2, host="here", port=29500)


@pytest.mark.parametrize(("name", "value"), [("RANK", "2"), ("WORLD_SIZE", "two"), ("MASTER_PORT", "x")])
def test_variables_that_name_no_rank_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}.* do not name a rank"):
        RankInfo.of_process({**VARIABLES, name: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.learners(num_learners=3), r"num_learners=3 .*2 ranks.*start 3 ranks"),
        (lambda c: c.env_runners(num_env_runners=2), r"num_env_runners=2 .*leave it out"),
        (lambda c: c.evaluation(evaluation_num_env_runners=1), r"evaluation_num_env_runners=1 .*leave it out"),
        (lambda c: c.env_runners(num_envs_per_env_runner=3), r"3 environments cannot.*2 ranks; give num_envs=4"),
    ],
)
def test_configurations_that_do_not_go_on_ranks_are_refused(monkeypatch, change, words):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    config = PPOConfig().environment("CartPole-v1")
    assert config_on_ranks(config.copy().learners(num_learners=2)).learners.num_learners == 0
    with pytest.raises(ValueError, match=words):
        change(config).build_trainer()


@pytest.mark.parametrize("words", [["list"], [*WORDS, "--jobs", "2"]])
def test_commands_that_are_for_one_process_are_refused_on_ranks(monkeypatch, capsys, words):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    assert "error: rank 1: " in capsys.readouterr().err
