"""V-trace beside RLlib's numbers, made once by benchmarks/peers/vtrace_rllib.py."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep.ops import vtrace

CASES = json.loads((Path(__file__).parent / "vtrace_rllib.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"rho {case['clip_rho']}, pg_rho {case['clip_pg_rho']}")
def test_vtrace_equals_rllibs(case):
    values = np.array(case["values"])
    terminateds = np.array(case["terminateds"])
    vs, advantages = vtrace(
        np.array(case["target_logp"]) - np.array(case["behaviour_logp"]),
        case["rewards"],
        values,
        np.vstack([values[1:], case["bootstrap"]]),
        terminateds,
        np.zeros_like(terminateds),
        gamma=case["gamma"],
        clip_rho=case["clip_rho"],
        clip_pg_rho=case["clip_pg_rho"],
    )
    np.testing.assert_allclose(vs, case["vs"], atol=1e-12)
    np.testing.assert_allclose(advantages, case["pg_advantages"], atol=1e-12)
