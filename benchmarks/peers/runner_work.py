"""What both sides of ``runner_speed.py`` share: the work, and the loop that answers requests."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

NUM_RUNNERS = 2
NUM_ENVS = 8
STEPS_PER_ENV = 128
BATCH = NUM_RUNNERS * NUM_ENVS * STEPS_PER_ENV
MINIBATCH = 256
NUM_EPOCHS = 4
HIDDENS = {"64x64": (64, 64), "0.1 MB": (160, 160), "1 MB": (510, 510), "10 MB": (1610, 1610), "100 MB": (5110, 5110)}
"""two tanh layers whose weights, as float32, are about as large"""


def worker_options(description: str) -> argparse.Namespace:
    """``--work``; called before torch is imported, so that one thread holds for every library."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", choices=HIDDENS, required=True)
    options = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return options


def serve(entries: dict[str, Callable[[], Any]], **facts: Any) -> None:
    """Says which entries there are, then answers each ``{"entry", "times"}`` with the seconds of each call."""
    print(json.dumps({"entries": list(entries), **facts}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        seconds = []
        for _ in range(request["times"]):
            began = time.perf_counter()
            entries[request["entry"]]()
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds}), flush=True)
