"""What tests of learners share."""

import pytest


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    """Three processes, started once, whose learners find each other."""
    from distributed_parts import Processes

    started = Processes(tmp_path_factory.mktemp("stores"))
    yield started
    started.close()
