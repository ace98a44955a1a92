"""PPO over two machines: a learner and an env runner on each.

pip install 'ray>=2.40'
python examples/two_nodes.py                       # both simulated here, as processes
python examples/two_nodes.py --ray-address auto    # real ones: after `ray start --head` on the first of them and
                                                   # `ray start --address=FIRST:6379` on the second
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import lockstep


def node_of(worker: object) -> str:
    """Where a learner or an env runner is; it runs there."""
    return str(ray.get_runtime_context().get_node_id())


def main(ray_address: str, total_steps: int = 20_480, root: str | Path = "runs") -> lockstep.TrainResult:
    """Trains, and prints on how many machines."""
    config = (
        lockstep.PPOConfig()
        .environment("CartPole-v1")
        .resources(ray_address=ray_address, placement_strategy="SPREAD", num_cpus_for_main_process=0)
        .learners(num_learners=2)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4)
        .training(train_batch_size=1024, minibatch_size=256)
        .reporting(total_steps=total_steps, steps_per_epoch=4096)
    )
    with config.build_learner_group() as learners, config.build_env_runner_group() as runners:
        for name, group in (("learners", learners.foreach_learner), ("env runners", runners.foreach_env_runner)):
            nodes = group(node_of)
            print(f"{len(nodes)} {name} on {len(set(nodes))} machines")
    result = lockstep.train(config, root=root)
    print(f"best mean return {result.info.best_score:.1f}; the run is in {result.path}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray-address", help="of a running cluster; without it two machines are simulated")
    parser.add_argument("--total-steps", type=int, default=20_480)
    parser.add_argument("--root", default="runs")
    options = parser.parse_args()
    if options.ray_address:
        main(options.ray_address, options.total_steps, options.root)
    else:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        cluster.add_node(num_cpus=2)
        try:
            main(cluster.address, options.total_steps, options.root)
        finally:
            ray.shutdown()
            cluster.shutdown()
