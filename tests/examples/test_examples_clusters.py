"""The scripts for Slurm and Kubernetes pass the checks of their own tools, and start runs that fit.

The commands of a cluster are replaced by stand-ins that write down what they are asked for.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.cli.commands import parse
from lockstep.trainer.ranks import config_on_ranks

yaml = pytest.importorskip("yaml")
BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2] / "examples"
SLURM = ROOT / "slurm/train.sh"
KUBERNETES = ROOT / "kubernetes/job.yaml"
RAYJOB = ROOT / "kubernetes/rayjob.yaml"
DOCKERFILE = ROOT / "kubernetes/Dockerfile"
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


def check_with(tool, path):
    """Check a file with a tool that `make setup-dev` installs."""
    if not (BIN / tool).exists():
        pytest.skip(f"{tool} is not installed: make setup-dev")
    return subprocess.run([BIN / tool, path], capture_output=True, text=True)


# -- Slurm ---


COUNT = r"[1-9]\d*"
SBATCH = {
    "account": r"\w+",
    "cpus-per-task": COUNT,
    "dependency": r"singleton|(after|afterany|afterok|afternotok|aftercorr|afterburstbuffer):\d+(:\d+)*",
    "gpus-per-node": rf"(\w+:)?{COUNT}",
    "job-name": r"[\w.-]+",
    "mem": rf"{COUNT}[KMGT]?",
    "nodes": rf"{COUNT}(-{COUNT})?",
    "ntasks-per-node": COUNT,
    "open-mode": "append|truncate",
    "output": r"([\w./-]|%[%\\AaJjNnstux])+",
    "partition": r"[\w,]+",
    "requeue": None,
    "signal": r"([RB]{1,2}:)?(\d+|[A-Z]+\d?)(@\d{1,5})?",
    "time": r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}",
}
"""Options of sbatch as its manual page has them, those of the script and its README: the form of the value, or None."""


def test_shellcheck_and_bash_accept_the_slurm_script():
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    done = check_with("shellcheck", SLURM)
    assert done.returncode == 0, done.stdout


def test_shellcheck_finds_an_unquoted_variable(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SLURM.read_text().replace('"$SLURM_CPUS_PER_TASK"', "$SLURM_CPUS_PER_TASK"))
    assert "SC2086" in check_with("shellcheck", script).stdout


def wrong_directives(script):
    """Yield the `#SBATCH` lines that sbatch refuses or does not read: it stops at the first command."""
    seen_command = False
    for line in script.splitlines():
        if match := re.match(r"#SBATCH\s+(.*)", line):
            option, has_value, value = match[1].removeprefix("--").partition("=")
            form = SBATCH.get(option, "an unknown option")
            is_right = not has_value if form is None else bool(has_value and re.fullmatch(form, value))
            if seen_command or not is_right:
                yield line
        seen_command = seen_command or bool(line.strip() and not line.startswith("#"))


def test_sbatch_knows_the_options_of_the_slurm_script():
    assert list(wrong_directives(SLURM.read_text())) == []
    assert len(directives(SLURM)) + 1 == SLURM.read_text().count("\n#SBATCH ")


@pytest.mark.parametrize(
    "line",
    [
        "--gpu-per-node=4",
        "--time=4h",
        "--mem=64GiB",
        "--signal=B:USR1@5min",
        "--requeue=yes",
        "--nodes",
        "--open-mode=a",
    ],
)
def test_a_wrong_option_of_sbatch_is_found(line):
    assert list(wrong_directives(f"#!/bin/bash\n#SBATCH {line}\nset -e\n")) == [f"#SBATCH {line}"]
    assert list(wrong_directives("#!/bin/bash\nset -e\n#SBATCH --nodes=2\n")) == ["#SBATCH --nodes=2"]


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


# -- Kubernetes ---


RAY_JOB = {
    *(
        "activeDeadlineSeconds",
        "backoffLimit",
        "clusterSelector",
        "deletionStrategy",
        "entrypoint",
        "entrypointNumCpus",
    ),
    *("entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "rayClusterSpec", "runtimeEnvYAML"),
    *("shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate", "suspend"),
    "ttlSecondsAfterFinished",
}
RAY_CLUSTER = {
    *("autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec"),
    *("headServiceAnnotations", "managedBy", "rayVersion", "suspend", "workerGroupSpecs"),
}
HEAD_GROUP = {"enableIngress", "headService", "rayStartParams", "serviceType", "template"}
WORKER_GROUP = {
    *("groupName", "idleTimeoutSeconds", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams", "replicas"),
    *("scaleStrategy", "suspend", "template"),
}
"""Fields of KubeRay's RayJob, `ray.io/v1`. Pod templates are Kubernetes' own."""


def check_kubernetes(resource):
    """Check a resource with the schema of the newest Kubernetes that the tool knows. Unknown fields are refused."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make setup-dev installs it")
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def check_ray_job(job):
    """Check the fields of a RayJob, and its pod templates with the schema of Kubernetes."""
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    cluster = job["spec"]["rayClusterSpec"]
    groups = cluster["workerGroupSpecs"]
    assert set(job["spec"]) <= RAY_JOB
    assert set(cluster) <= RAY_CLUSTER
    assert set(cluster["headGroupSpec"]) <= HEAD_GROUP
    for group in groups:
        assert set(group) <= WORKER_GROUP
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert len({group["groupName"] for group in groups}) == len(groups)
    for group in (cluster["headGroupSpec"], *groups):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        metadata = {"name": "pods"}
        check_kubernetes(
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": group["template"]}
        )


def test_kubernetes_knows_every_field_of_the_job():
    for resource in yaml.safe_load_all(KUBERNETES.read_text()):
        check_kubernetes(resource)


def test_kubernetes_refuses_a_wrong_field_and_a_wrong_value():
    _, job = yaml.safe_load_all(KUBERNETES.read_text())
    for change in ({"completion": 2}, {"completions": "two"}):
        changed = {**job, "spec": {**job["spec"], **change}}
        with pytest.raises(Exception, match=r"was unexpected|not of type"):
            check_kubernetes(changed)


def test_kuberay_knows_every_field_of_the_ray_job():
    job = yaml.safe_load(RAYJOB.read_text())
    check_ray_job(job)
    (volume,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    volume["persistentVolumeClaims"] = volume.pop("persistentVolumeClaim")
    with pytest.raises(Exception, match=r"was unexpected|not of type"):
        check_ray_job(job)


def test_the_ray_job_starts_the_run_that_its_groups_have_room_for():
    spec = yaml.safe_load(RAYJOB.read_text())["spec"]
    command = shlex.split(spec["entrypoint"])
    train = parse(command[1:])
    groups = {group["groupName"]: group for group in spec["rayClusterSpec"]["workerGroupSpecs"]}
    assert command[0] == "lockstep"
    assert (train.num_learners, train.num_env_runners) == (2, 4)
    for name, place, number in (("learners", "learner_place", 2), ("env-runners", "runner_place", 4)):
        places = json.loads(json.loads(groups[name]["rayStartParams"]["resources"]))
        assert places[place] * groups[name]["minReplicas"] >= number
    assert spec["rayClusterSpec"]["rayVersion"] in DOCKERFILE.read_text()


def test_hadolint_accepts_the_dockerfile():
    done = check_with("hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout


def test_hadolint_refuses_a_dockerfile_without_a_version(tmp_path):
    path = tmp_path / "Dockerfile"
    path.write_text(re.sub(r"^FROM .*", "FROM rayproject/ray", DOCKERFILE.read_text(), flags=re.MULTILINE))
    assert check_with("hadolint", path).returncode == 1


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
