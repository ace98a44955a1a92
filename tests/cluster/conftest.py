"""One Ray for all tests of this folder, and learners in processes that are started once."""

import os
import sys

import pytest

ray = pytest.importorskip("ray")


@pytest.fixture(scope="session")
def cluster():
    path = os.pathsep.join(filter(None, sys.path))
    ray.init(
        address="local",  # not one that somebody else has on this machine
        num_cpus=16,
        object_store_memory=200 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def pool(cluster):
    from cluster_parts import Pool

    made = Pool()
    yield made
    made.close()


MANY = pytest.mark.faults
"""Processes take seconds to start: the fast suite has 0 and 2 learners, 1 and 3 come with the tests that kill."""


@pytest.fixture(params=[0, pytest.param(1, marks=MANY), 2, pytest.param(3, marks=MANY)])
def num_learners(request):
    return request.param
