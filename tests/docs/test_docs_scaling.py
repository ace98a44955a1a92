"""docs/scaling.md: the manifest fits what it asks for, and its example runs on two nodes."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli.commands import parse

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/kubernetes"


def test_the_kuberay_job_is_a_command_whose_workers_fit_into_its_pods():
    job = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[0] == "lockstep"
    config = parse(words[1:]).settings().config
    config.validate()
    assert config.ray_address == "auto"
    groups = {group["groupName"]: group for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    for name, number, cpus, place in (
        ("learners", config.num_learners, config.num_cpus_per_learner, config.custom_resources_per_learner),
        (
            "env-runners",
            config.num_env_runners,
            config.num_cpus_per_env_runner,
            config.custom_resources_per_env_runner,
        ),
    ):
        group = groups[name]
        there = json.loads(json.loads(group["rayStartParams"]["resources"]))
        (container,) = group["template"]["spec"]["containers"]
        for resource, wanted in place.items():
            assert group["replicas"] * (there[resource] // wanted) >= number
            assert int(container["resources"]["limits"]["cpu"]) >= cpus * there[resource] // wanted


def test_the_image_has_the_versions_that_are_tested():
    constraints = (ROOT / "requirements/constraints.txt").read_text()
    (ray,) = re.findall(r"^ray==(.*)$", constraints, re.MULTILINE)
    text = (FOLDER / "rayjob.yaml").read_text()
    assert re.findall(r'rayVersion: "(.*)"', text) == [ray]
    docker = (FOLDER / "Dockerfile").read_text()
    assert f"rayproject/ray:{ray}-py311" in docker
    (torch,) = re.findall(r"torch==([\d.]+)", (ROOT / "Makefile").read_text())
    assert f"torch=={torch}" in docker


@pytest.mark.faults
def test_the_example_runs_on_two_simulated_nodes(tmp_path):
    pytest.importorskip("ray")
    command = [sys.executable, str(ROOT / "examples/two_nodes.py"), "--total-steps", "4096", "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "2 learners on 2 machines" in done.stdout
    assert "2 env runners on 2 machines" in done.stdout
    assert len(list(tmp_path.glob("ppo_*/summary.json"))) == 1
