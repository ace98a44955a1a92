"""The scripts for Slurm and Kubernetes: run with stand-ins for the cluster's commands, they start runs that fit."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.cli.commands import parse
from lockstep.trainer.ranks import config_on_ranks

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2] / "examples"
SLURM = ROOT / "slurm/train.sh"
KUBERNETES = ROOT / "kubernetes/job.yaml"
NODES, GPUS = 2, 4
JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NAME": "my-run",
    "SLURM_JOB_NODELIST": "gpu[1-2]",
    "SLURM_JOB_NUM_NODES": str(NODES),
    "SLURM_CPUS_PER_TASK": "16",
    "SLURM_GPUS_ON_NODE": str(GPUS),
}
TORCHRUN = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["STARTED"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""
STAND_INS = {
    "torchrun": TORCHRUN,
    # More names than a pipe holds: a reader that stops after the first one would end it by a signal.
    "scontrol": '#!/bin/bash\necho "scontrol $*" >> "$ASKED"; if [ "$1" = show ]; then seq -f gpu%.0f 20000; fi\n',
    "scancel": '#!/bin/bash\necho "scancel $*" >> "$ASKED"; kill -TERM "$(cat "$STEP")"\n',
    # A step of two tasks; $STEP_SLEEPS: one that trains until it is signalled.
    "srun": """#!/bin/bash
echo "srun $1" >> "$ASKED"; shift
SLURM_NODEID=0 "$@"; SLURM_NODEID=1 "$@"
if [ -n "${STEP_SLEEPS:-}" ]; then echo $$ > "$STEP.new"; mv "$STEP.new" "$STEP"; exec sleep 60; fi
""",
}


@pytest.fixture
def cluster(tmp_path):
    """Environment variables of a machine whose Slurm and torchrun only write down what they are asked for."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in STAND_INS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    files = {name: str(tmp_path / name.lower()) for name in ("STARTED", "ASKED", "STEP")}
    return {**os.environ, **files, "PATH": f"{tools}:{os.environ['PATH']}"}


def started(variables):
    """Return torchrun's options and the command of Lockstep on each machine."""
    found = []
    for line in Path(variables["STARTED"]).read_text().splitlines():
        words = json.loads(line)
        at = words.index("-m")
        assert words[at : at + 2] == ["-m", "lockstep"]
        options = dict(word.lstrip("-").split("=", 1) for word in words[:at])
        found.append((options, words[at + 2 :]))
    return found


def check_run(command, ranks):
    """Check that Lockstep takes the words, and that the run can be split over the ranks."""
    assert parse(command).device == "cuda"
    train = parse([*command, "--device", "cpu"])  # the tests' machine has no GPU
    config_on_ranks(train.settings().config, ranks)
    return train


def directives(script):
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script.read_text(), re.MULTILINE))


def test_bash_accepts_the_slurm_script():
    subprocess.run(["bash", "-n", str(SLURM)], check=True)


def test_the_slurm_script_asks_for_what_its_ranks_need():
    asked = directives(SLURM)
    assert {"job-name", "mem", "time", "output"} <= asked.keys()
    assert (asked["ntasks-per-node"], asked["gpus-per-node"], asked["nodes"]) == ("1", str(GPUS), str(NODES))
    assert (asked["dependency"], asked["signal"]) == ("singleton", "B:USR1@300")
    assert "\n#SBATCH --requeue\n" in SLURM.read_text()


@pytest.mark.parametrize(("without", "ranks"), [("", GPUS), ("SLURM_GPUS_ON_NODE", 2)], ids=["gpus", "cpus"])
def test_the_slurm_script_starts_one_rank_for_each_gpu_or_cpu(cluster, without, ranks):
    job = {name: value for name, value in JOB.items() if name != without}
    if without:
        job["SLURM_CPUS_PER_TASK"] = str(ranks)
    subprocess.run(["bash", str(SLURM), "--seed", "7", "--set", "training.lr=1e-3"], env=cluster | job, check=True)
    asked = Path(cluster["ASKED"]).read_text().splitlines()
    assert asked == ["scontrol show hostnames gpu[1-2]", f"srun --cpus-per-task={job['SLURM_CPUS_PER_TASK']}"]
    hosts = []
    for options, command in started(cluster):
        hosts.append(options["rdzv-conf"])
        assert options["rdzv-endpoint"] == "gpu1:14711"
        assert (options["nnodes"], options["nproc-per-node"], options["rdzv-id"]) == ("2", str(ranks), "my-run")
        train = check_run(command, NODES * ranks)
        assert (train.seed, train.set) == (7, ("training.lr=1e-3",))
    assert hosts == ["is_host=1", "is_host=0"]


def test_the_slurm_script_goes_back_into_the_queue_before_the_time_limit(cluster):
    job = subprocess.Popen(["bash", str(SLURM)], env={**cluster, **JOB, "STEP_SLEEPS": "1"})
    try:
        while not Path(cluster["STEP"]).exists():
            assert job.poll() is None
            time.sleep(0.01)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=60) == 0
    finally:
        job.kill()
    asked = Path(cluster["ASKED"]).read_text().splitlines()
    assert asked[-2:] == ["scancel --signal=TERM 4711", "scontrol requeue 4711"]


def test_the_kubernetes_job_starts_one_rank_for_each_gpu(cluster):
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert [(part["apiVersion"], part["kind"]) for part in (service, job)] == [("v1", "Service"), ("batch/v1", "Job")]
    name = job["metadata"]["name"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["metadata"]["name"] == service["spec"]["selector"]["job-name"] == pod["subdomain"] == name
    nodes = job["spec"]["completions"]
    assert (job["spec"]["completionMode"], job["spec"]["parallelism"]) == ("Indexed", nodes)
    limits = container["resources"]["limits"]
    assert limits == container["resources"]["requests"]
    assert limits.keys() == {"cpu", "memory", "nvidia.com/gpu"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}

    program = [*container["command"], *container["args"]]
    for index in range(nodes):
        subprocess.run(program, env=cluster | {"JOB_COMPLETION_INDEX": str(index)}, check=True)
    gpus = int(limits["nvidia.com/gpu"])
    hosts = []
    for options, command in started(cluster):
        hosts.append(options["rdzv-conf"])
        assert options["rdzv-endpoint"] == f"{name}-0.{name}:29400"
        assert (options["nnodes"], options["nproc-per-node"], options["rdzv-id"]) == (str(nodes), str(gpus), name)
        check_run(command, nodes * gpus)
    assert hosts == ["is_host=true", "is_host=false"]


@pytest.mark.parametrize("folder", ["slurm", "kubernetes"])
def test_each_folder_has_a_readme_that_names_its_files(folder):
    text = (ROOT / folder / "README.md").read_text()
    for path in (ROOT / folder).iterdir():
        assert path.name == "README.md" or f"]({path.name})" in text


def test_the_readme_renames_every_place_of_the_kubernetes_job():
    text = KUBERNETES.read_text().replace("ppo-cartpole-seed0", "my-run")
    assert "cartpole-" not in text
    assert "sed 's/ppo-cartpole-seed0/my-run/g' job.yaml" in (ROOT / "kubernetes/README.md").read_text()
