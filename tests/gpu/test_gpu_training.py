"""Each algorithm trains on a CUDA device as it does on the CPU: numbers, bits of a seed, resume, compiled updates."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_cases import where
from cells import configured
from trained_weights import difference, steps, weights

from lockstep import ALGORITHMS
from lockstep.modules.layers import MANY_ROWS, BatchedMLP
from lockstep.ops.graphs import CapturedFunction

pytestmark = pytest.mark.cuda

CELL = {
    "observations": "Box",
    "mask": "no mask",
    "memory": "no memory",
    "replay": "uniform",
    "n_step": "1 step",
    "normalized": "nothing",
    "learners": "1 learner",
    "compile": "eager",
}
BOXES = where(lambda case: case.in_a_box)
NAMES = [config.algorithm for config in ALGORITHMS if not config.needs_teacher]
PLAIN = [
    pytest.param({"algorithm": name, "actions": "Box" if name in BOXES else "Discrete"}, id=name) for name in NAMES
]
OTHERS = [
    {"algorithm": "ppo", "actions": "Box"},
    {"algorithm": "ppo", "actions": "Discrete", "memory": "lstm"},
    {"algorithm": "ppo", "actions": "Discrete", "memory": "attention"},
    {"algorithm": "ppo", "actions": "Discrete", "mask": "mask", "normalized": "both"},
    {"algorithm": "ppo", "actions": "MultiDiscrete", "observations": "Dict"},
    {"algorithm": "ppo", "actions": "Discrete", "observations": "image"},
    {"algorithm": "sac", "actions": "Discrete"},
    {"algorithm": "sac", "actions": "Box", "replay": "prioritized", "n_step": "3 steps"},
    {"algorithm": "sac", "actions": "Box", "memory": "lstm"},
    {"algorithm": "dqn", "actions": "Discrete", "memory": "gru"},
    {"algorithm": "dqn", "actions": "Discrete", "replay": "prioritized", "n_step": "3 steps", "mask": "mask"},
    {"algorithm": "impala", "actions": "Discrete", "memory": "lstm"},
]


def config_of(cell: dict[str, str], device: str, dtype: str = "float64", **framework: Any) -> Any:
    config = configured({**CELL, **cell})
    return config.framework(device=device, dtype=dtype, **framework)


@pytest.mark.parametrize("cell", [*PLAIN, *OTHERS])
def test_the_device_computes_what_the_cpu_computes(cell):
    """In float64, after three epochs of collecting and learning."""
    on_cpu = steps(config_of(cell, "cpu").build_trainer(), 3)
    on_gpu = steps(config_of(cell, "cuda").build_trainer(), 3)
    assert next(on_gpu.policy.learner_group.learner.module.parameters()).device.type == "cuda"
    assert difference(on_cpu, on_gpu) < 1e-7


@pytest.mark.parametrize("cell", PLAIN)
def test_a_seed_gives_the_same_bits_and_so_does_a_resumed_run(cell, tmp_path):
    one, other = (
        steps(config_of(cell, "cuda", "float32").build_trainer(), 4),
        steps(config_of(cell, "cuda", "float32").build_trainer(), 2),
    )
    other.save_to_path(tmp_path / "half")
    again = config_of(cell, "cuda", "float32").build_trainer()
    again.restore_from_path(tmp_path / "half")
    next(again), next(again)
    assert difference(one, again) == 0.0


@pytest.mark.filterwarnings("error:compile=True")
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3"])
def test_a_compiled_update_is_the_eager_one(name):
    cell = {"algorithm": name, "actions": "Box" if name in BOXES else "Discrete"}
    eager, compiled = (
        steps(config_of(cell, "cuda").build_trainer(), 2),
        steps(config_of(cell, "cuda", compile=True).build_trainer(), 2),
    )
    assert difference(eager, compiled) < 1e-7


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_bfloat16_trains(name):
    cell = {"algorithm": name, "actions": "Box" if name in BOXES else "Discrete"}
    trainer = steps(config_of(cell, "cuda", "float32", mixed_precision=True).build_trainer(), 4)
    assert all(np.isfinite(value).all() for value in weights(trainer).values())


@pytest.mark.parametrize("frozen", [False, True])
def test_networks_that_run_one_by_one_are_those_that_run_together(frozen):
    """Outputs and gradients of several critics, of more rows than a batched product is good for there."""
    on_cpu = BatchedMLP(3, 5, (16, 16), 1).double()
    inputs, found = torch.randn(2 * MANY_ROWS["cuda"], 5, dtype=torch.float64), []
    for device, networks in (("cpu", on_cpu), ("cuda", copy.deepcopy(on_cpu).to("cuda"))):
        rows = inputs.to(device).detach().requires_grad_()
        outputs = networks(rows, frozen=frozen)
        outputs.square().sum().backward()
        found.append([outputs, rows.grad, *(weight.grad for weight in networks.parameters() if not frozen)])
    for one, other in zip(*found):
        assert torch.allclose(one, other.cpu(), rtol=1e-9, atol=1e-9)


def test_a_graph_that_is_garbage_does_not_break_the_next_capture():
    def captured(function):
        made = CapturedFunction(function, torch.device("cuda"))
        for _ in range(4):
            made()
        return made

    columns = torch.zeros(8, device="cuda")
    old = captured(lambda: columns + 1)
    old.itself = old  # only the garbage collector finds it
    del old
    new = captured(lambda: (gc.collect(), columns + 2)[1])
    assert new.is_graph
    assert float(new().sum()) == 16.0


def test_a_policy_moves_to_the_device_and_acts_the_same():
    trainer = steps(config_of({"algorithm": "ppo", "actions": "Discrete"}, "cpu", "float32").build_trainer(), 3)
    obs = np.random.default_rng(0).normal(size=(64, *trainer.policy.observation_space.shape)).astype(np.float32)
    before = trainer.policy.compute_actions(obs, explore=False)
    trainer.policy.to("cuda")
    after = trainer.policy.compute_actions(obs, explore=False)
    assert np.array_equal(
        np.asarray(before[0] if isinstance(before, tuple) else before),
        np.asarray(after[0] if isinstance(after, tuple) else after),
    )
    next(trainer)


def test_a_checkpoint_of_the_device_is_restored_on_the_cpu(tmp_path):
    trainer = steps(config_of({"algorithm": "sac", "actions": "Box"}, "cuda", "float32").build_trainer(), 3)
    trainer.save_to_path(tmp_path / "there")
    here = config_of({"algorithm": "sac", "actions": "Box"}, "cpu", "float32").build_trainer()
    here.restore_from_path(tmp_path / "there")
    assert difference(trainer, here) == 0.0
    next(here)
