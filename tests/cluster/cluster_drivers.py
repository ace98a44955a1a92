"""Programs of their own for `test_cluster_learner_faults.py`: `python cluster_drivers.py node|store|updates ...`."""

import random
import sys
import tempfile
import threading
import time

import ray
from cluster_parts import assert_all_are, batch, ppo
from test_cluster_learner_faults import OPTIONS, tolerant

from lockstep.learner.many.reduction import LearnerError


def node(repeats):
    """Learners on nodes of their own, one of which is removed during an update; later there is no room for another."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # others must not find it
        soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
        head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": folder, "_system_config": soon}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            remove_nodes(cluster, repeats)
        finally:
            ray.shutdown()
            cluster.shutdown()


def remove_nodes(cluster, repeats):
    """The same on a cluster that has its first node."""
    nodes = [cluster.add_node(num_cpus=1, resources={"learner": 1}) for _ in range(3)]
    config = tolerant(ppo(2)).learners(custom_resources_per_learner={"learner": 1})
    group = config.resources(placement_strategy="STRICT_SPREAD").build_learner_group()
    one = ppo().build_learner_group()
    for number in range(repeats):
        place = ray.get(group._backend._processes._locations[random.randrange(2)])[1]
        victim = next(each for each in nodes if each.node_id == place)
        nodes.remove(victim)
        remover = threading.Timer(random.random() * 0.3, cluster.remove_node, (victim, False))
        remover.start()
        began = time.monotonic()
        for part in range(3):  # one of them meets it
            group.update_from_batch(batch(seed=part), **OPTIONS)
            time.sleep(random.random() * 0.2)
        remover.join()
        group.update_from_batch(batch(seed=number), **OPTIONS)
        print("recovered", time.monotonic() - began, flush=True)
        for part in (0, 1, 2, number):
            one.update_from_batch(batch(seed=part), **OPTIONS)
        assert_all_are(group, one)
        nodes.append(cluster.add_node(num_cpus=1, resources={"learner": 1}))
    for each in nodes[1:]:
        cluster.remove_node(each, False)
    try:
        group.update_from_batch(batch())
        print("no room: was updated")
    except LearnerError as error:
        print("no room: LearnerError", str(error).splitlines()[0], flush=True)
    group.shutdown()


def store(repeats):
    """An object store of 80 MB that does not spill, and batches of 136 MB: Ray puts the rest on the disk."""
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        _system_config={"automatic_object_spilling_enabled": False},
    )
    group, one = ppo(2).build_learner_group(), ppo().build_learner_group()
    large = batch(2_000_000)
    for number in range(repeats):
        for which in (group, one):
            which.update_from_batch(large)
            which.update_from_batch(batch(seed=number), **OPTIONS)
        assert_all_are(group, one)
        print("equal", flush=True)
    group.shutdown()
    ray.shutdown()


def updates(address):
    """Updates for ever, after the process ids."""
    where = (
        {"address": "local", "include_dashboard": False, "num_cpus": 2} if address == "own" else {"address": address}
    )
    ray.init(log_to_driver=False, **where)
    group = ppo(2).build_learner_group()
    print(*group._backend.process_ids(), flush=True)
    number = 0
    while True:
        group.update_from_batch(batch(seed=number), **OPTIONS)
        number += 1


if __name__ == "__main__":
    what, argument = sys.argv[1:]
    if what == "updates":
        updates(argument)
    else:
        {"node": node, "store": store}[what](int(argument))
