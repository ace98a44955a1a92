"""RLlib's V-trace on random traces, as the table that `tests/ops/test_ops_vtrace.py` compares ours with.

.bench/rllib/bin/python benchmarks/peers/vtrace_rllib.py > tests/ops/vtrace_rllib.json
"""

import json

import numpy as np
import torch
from ray.rllib.algorithms.impala.torch.vtrace_torch_v2 import vtrace_torch


def main() -> None:
    """Print four cases `[T, B]`: terminated rows, and two limits of the importance weights."""
    cases = []
    for seed, (rho, pg_rho) in enumerate([(1.0, 1.0), (1.0, None), (2.0, 0.5), (None, 1.5)]):
        rng = np.random.default_rng(seed)
        shape = (7, 3)
        terminateds = rng.random(shape) < 0.2
        columns = {name: rng.normal(size=shape) for name in ("target_logp", "behaviour_logp", "rewards", "values")}
        bootstrap = rng.normal(size=shape[1])
        tensors = {name: torch.from_numpy(value) for name, value in columns.items()}
        vs, advantages = vtrace_torch(
            target_action_log_probs=tensors["target_logp"],
            behaviour_action_log_probs=tensors["behaviour_logp"],
            discounts=torch.from_numpy(0.9 * (1.0 - terminateds)),
            rewards=tensors["rewards"],
            values=tensors["values"],
            bootstrap_values=torch.from_numpy(bootstrap),
            clip_rho_threshold=rho,
            clip_pg_rho_threshold=pg_rho,
        )
        cases.append(
            {
                "clip_rho": rho,
                "clip_pg_rho": pg_rho,
                "gamma": 0.9,
                **{name: value.tolist() for name, value in columns.items()},
                "terminateds": terminateds.tolist(),
                "bootstrap": bootstrap.tolist(),
                "vs": vs.tolist(),
                "pg_advantages": advantages.tolist(),
            }
        )
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
