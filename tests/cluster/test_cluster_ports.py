"""A run on this machine alone opens no port on another interface than loopback."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil  # Ray brings it along
import pytest

from lockstep.learner.many.reduction import is_loopback, serve_store

RUN = """
import psutil
from lockstep import PPOConfig

config = PPOConfig().environment("CartPole-v1").learners(num_learners=2).env_runners(num_env_runners=1)
trainer = config.training(train_batch_size=64, minibatch_size=32, num_epochs=1).build_trainer()
try:
    next(iter(trainer))
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        for each in process.net_connections():
            if each.status == psutil.CONN_LISTEN:
                print("listens", process.name(), each.laddr.ip, each.laddr.port)
finally:
    trainer.close()
"""


def is_on_loopback(address: str) -> bool:
    return is_loopback(address.removeprefix("::ffff:")) or address == "::1"


@pytest.mark.faults
def test_ray_and_learners_listen_on_loopback_alone() -> None:
    pytest.importorskip("ray")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    listening = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("listens")]
    assert len(listening) > 5, "Ray's services, runners and learners"
    assert [each for each in listening if not is_on_loopback(each[1])] == []


def addresses(port: int) -> set[str]:
    connections = psutil.Process().net_connections()
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN and each.laddr.port == port}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_store_listens_where_it_is_told(host: str) -> None:
    store = serve_store(host, 0, 1, wait_for_workers=False)
    found = addresses(store.port)
    assert found
    assert all(map(is_on_loopback, found))
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_a_port_in_use_is_named() -> None:
    store = serve_store("127.0.0.1", 0, 1, wait_for_workers=False)
    with pytest.raises(RuntimeError, match=f"cannot listen at 127.0.0.1:{store.port}"):
        serve_store("127.0.0.1", store.port, 1, wait_for_workers=False)
