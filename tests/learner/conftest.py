"""What tests of learners share."""

import pytest

from lockstep.learner.compile import update as compiled


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    """Three processes, started once, whose learners find each other."""
    from distributed_parts import Processes

    started = Processes(tmp_path_factory.mktemp("stores"))
    yield started
    started.close()


@pytest.fixture
def traced(monkeypatch):
    """Learners with `compile=True` run the graph that would be compiled; gives the list of these graphs."""
    graphs = []

    def compile_graph(graph, *_):
        graphs.append(graph)
        return lambda: lambda inputs: graph(*inputs)

    monkeypatch.setattr(compiled, "compile_graph", compile_graph)
    return graphs
