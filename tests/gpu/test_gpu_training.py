"""Each algorithm trains on a CUDA device as it does on the CPU: numbers, bits of a seed, resume, compiled updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cells import configured

from lockstep import ALGORITHMS

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
BOXES = ("sac", "tqc", "crossq", "td3", "td3_bc", "cql", "iql")
NAMES = [config.algorithm for config in ALGORITHMS]
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


def trained(config: Any, epochs: int = 3) -> Any:
    trainer = config.build_trainer()
    for _ in range(epochs):
        next(trainer)
    return trainer


def weights(trainer: Any) -> dict[str, np.ndarray]:
    found = trainer.policy.learner_group.get_weights()
    return {f"{module}/{name}": value for module, part in found.items() for name, value in part.items()}


def largest_difference(one: Any, other: Any) -> float:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    return max(float(np.abs(left[name] - right[name]).max(initial=0.0)) for name in left)


@pytest.mark.parametrize("cell", [*PLAIN, *OTHERS])
def test_the_device_computes_what_the_cpu_computes(cell):
    """In float64, after three epochs of collecting and learning."""
    on_cpu = trained(config_of(cell, "cpu"))
    on_gpu = trained(config_of(cell, "cuda"))
    assert next(on_gpu.policy.learner_group.learner.module.parameters()).device.type == "cuda"
    assert largest_difference(on_cpu, on_gpu) < 1e-7


@pytest.mark.parametrize("cell", PLAIN)
def test_a_seed_gives_the_same_bits_and_so_does_a_resumed_run(cell, tmp_path):
    one, other = trained(config_of(cell, "cuda", "float32"), 4), trained(config_of(cell, "cuda", "float32"), 2)
    other.save_to_path(tmp_path / "half")
    again = config_of(cell, "cuda", "float32").build_trainer()
    again.restore_from_path(tmp_path / "half")
    next(again), next(again)
    assert largest_difference(one, again) == 0.0


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3"])
def test_a_compiled_update_is_the_eager_one(name):
    cell = {"algorithm": name, "actions": "Box" if name in BOXES else "Discrete"}
    eager, compiled = trained(config_of(cell, "cuda"), 2), trained(config_of(cell, "cuda", compile=True), 2)
    assert largest_difference(eager, compiled) < 1e-7


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_bfloat16_trains(name):
    cell = {"algorithm": name, "actions": "Box" if name in BOXES else "Discrete"}
    trainer = trained(config_of(cell, "cuda", "float32", mixed_precision=True), 4)
    assert all(np.isfinite(value).all() for value in weights(trainer).values())


def test_a_policy_moves_to_the_device_and_acts_the_same():
    trainer = trained(config_of({"algorithm": "ppo", "actions": "Discrete"}, "cpu", "float32"))
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
    trainer = trained(config_of({"algorithm": "sac", "actions": "Box"}, "cuda", "float32"))
    trainer.save_to_path(tmp_path / "there")
    here = config_of({"algorithm": "sac", "actions": "Box"}, "cpu", "float32").build_trainer()
    here.restore_from_path(tmp_path / "there")
    assert largest_difference(trainer, here) == 0.0
    next(here)
