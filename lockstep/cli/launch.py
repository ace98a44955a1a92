"""`lockstep launch`: a Slurm script or a Kubernetes job that trains on several machines, with torchrun on each."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from lockstep.cli.arguments import Count, MaybePath
from lockstep.cli.terminal import say, shown_path
from lockstep.cli.train import Train
from lockstep.options.checks import check_whole
from lockstep.trainer.ranks import config_on_ranks

SLURM = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={ranks}
#SBATCH --requeue
{gpus}# All nodes need the folder of the runs. A requeued job goes on from the newest checkpoint.
set -euo pipefail
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun bash -c 'exec torchrun {torchrun} --rdzv-backend=c10d \\
  --rdzv-endpoint="$0" --rdzv-id="$SLURM_JOB_ID" --rdzv-conf="is_host=$((SLURM_NODEID == 0))" "$@"' \\
  "$host:$((20000 + SLURM_JOB_ID % 20000))" -m lockstep train {train}
"""
KUBERNETES = """\
# All pods need the volume of the runs. A job of the same name goes on from the newest checkpoint.
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{job-name: {name}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  template:
    spec:
      subdomain: {name}
      restartPolicy: OnFailure
      containers:
        - name: ranks
          image: {image}
          workingDir: /lockstep
          command: [sh, -c, {torchrun}]
          args: {words}
          resources: {{requests: {resources}, limits: {resources}}}
          volumeMounts: [{{name: runs, mountPath: /lockstep}}, {{name: memory, mountPath: /dev/shm}}]
      volumes:
        - {{name: runs, persistentVolumeClaim: {{claimName: lockstep-runs}}}}
        - {{name: memory, emptyDir: {{medium: Memory}}}}
"""


@dataclass
class Launch:
    """Print a script that trains on several machines: `lockstep launch slurm ppo CartPole-v1 --nodes 2`."""

    system: Positional[Literal["slurm", "kubernetes"]]
    """slurm: a script for sbatch; kubernetes: a job for kubectl apply."""
    train: Train
    nodes: Count = 1
    """Machines, with torchrun on each."""
    ranks_per_node: Count = 1
    """Processes on each machine, each with one learner and a share of the environments."""
    max_restarts: Count = 3
    """How often all ranks start again after one died, each time from the newest checkpoint."""
    image: str = "lockstep:latest"
    """Of Kubernetes: the container's image."""
    output: Annotated[MaybePath, arg(aliases=["-o"])] = None
    """A file instead of the terminal."""

    def run(self) -> int:
        """Print the script, or write it; return the exit code."""
        nodes, ranks = check_whole("--nodes", self.nodes, 1), check_whole("--ranks-per-node", self.ranks_per_node, 1)
        config = self.train.settings().config  # what is wrong is said here, not on the machines
        config_on_ranks(config, nodes * ranks)
        text = launch_script(
            self.system,
            list(words_of(self.train)),
            nodes=nodes,
            ranks=ranks,
            max_restarts=check_whole("--max-restarts", self.max_restarts, 0),
            image=self.image,
            has_gpus=config.framework.device.startswith("cuda"),
        )
        if self.output is None:
            sys.stdout.write(text)
        else:
            self.output.write_text(text)
            start = "sbatch" if self.system == "slurm" else "kubectl apply -f"
            say(f"start it with: {start} {shown_path(self.output)}")
        return 0


def words_of(command: Any) -> Iterator[str]:
    """Yield the words of the command line that say what this command's fields do."""
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            yield str(value)
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        option = f"--{'from' if field.name == 'init_from' else field.name.replace('_', '-')}"
        if value == default:
            continue
        if isinstance(value, bool):
            yield option if value else option.replace("--", "--no-", 1)
            continue
        for each in value if isinstance(value, tuple) else (value,):
            yield from (option, str(each))


def launch_script(
    system: str, train: Sequence[str], *, nodes: int, ranks: int, max_restarts: int, image: str, has_gpus: bool
) -> str:
    """Return the script for "slurm" or the manifest for "kubernetes" that starts `lockstep train` with these words.

    `ranks`: on each node.
    """
    name = re.sub("[^a-z0-9]+", "-", "-".join(train[:2]).lower()).strip("-")
    torchrun = f"--nnodes={nodes} --nproc-per-node={ranks} --max-restarts={max_restarts}"
    if system == "slurm":
        gpus = f"#SBATCH --gpus-per-node={ranks}\n" if has_gpus else ""
        words = {"torchrun": torchrun, "train": shlex.join(train)}
        return SLURM.format(name=name, nodes=nodes, ranks=ranks, gpus=gpus, **words)
    torchrun += f" --rdzv-backend=c10d --rdzv-endpoint={name}-0.{name}:29400 --rdzv-id={name}"
    torchrun += ' --rdzv-conf="is_host=$((JOB_COMPLETION_INDEX == 0))"'
    resources = {"cpu": str(ranks), **({"nvidia.com/gpu": str(ranks)} if has_gpus else {})}
    return KUBERNETES.format(
        name=name,
        nodes=nodes,
        image=json.dumps(image),
        torchrun=json.dumps(f'exec torchrun {torchrun} "$@"'),
        words=json.dumps(["torchrun", "-m", "lockstep", "train", *train]),
        resources=json.dumps(resources),
    )
