"""Policies with a memory in CUDA graphs: the bits of single launches, exact resume, and what the processor computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trained_weights import difference, steps, weights

from lockstep import get_config
from lockstep.rollout import TensorCollector

pytestmark = pytest.mark.cuda

B, T = 64, 8
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo, lstm": ("ppo", {"recurrent": "lstm"}),
    "ppo, gru of the critic": ("ppo", {"recurrent": "gru", "memory_in": "critic"}),
    "ppo, shared lstm": ("ppo", {"recurrent": "lstm", "memory_in": "shared", "recurrent_layers": 2}),
    "ppo, attention": ("ppo", {"attention": {"memory": 4, "size": 8, "num_heads": 2}}),
    "a2c, gru": ("a2c", {"recurrent": "gru"}),
    "impala, lstm": ("impala", {"recurrent": "lstm"}),
    "appo, gru": ("appo", {"recurrent": "gru"}),
}
"""Algorithm and options of the network by the name of a case."""


def trainer_of(case: str, device: str = "cuda", dtype: str = "float32") -> Any:
    name, model = CASES[case]
    config = get_config(name).environment("tensor/CartPole-v1", normalize_observations=True)
    config.env_runners(num_envs_per_env_runner=B, rollout_fragment_length=T).debugging(seed=3)
    config.reporting(total_steps=10**7, steps_per_epoch=T * B).evaluation(evaluation_interval=0)
    config.framework(device=device, dtype=dtype, compile=False)
    config.rl_module(model_config={"hiddens": (16,), "max_seq_len": 4, **model})
    config.training(train_batch_size=T * B, minibatch_size=B // 2, num_epochs=2)
    trainer = config.build_trainer()
    assert isinstance(trainer.train_collector, TensorCollector)
    return trainer


@pytest.mark.parametrize("case", CASES)
def test_a_graph_with_memory_does_what_single_launches_do(case, monkeypatch):
    """Bit for bit, over eight iterations of which the last ones are graphs."""
    graphed = steps(trainer_of(case), 8)
    assert graphed.train_collector.stepper.captured(True).is_graph
    assert graphed.policy.learner_group.learner.device_update._captured.is_graph
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(trainer_of(case), 8)
    assert not eager.train_collector.stepper.captured(True).is_graph
    assert difference(graphed, eager) == 0.0


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_with_memory_has_the_same_bits(case, tmp_path):
    whole = steps(trainer_of(case), 9)
    steps(trainer_of(case), 5).save_to_path(tmp_path / "half")
    again = trainer_of(case)
    again.restore_from_path(tmp_path / "half")
    assert difference(whole, steps(again, 4)) == 0.0


@pytest.mark.parametrize("case", CASES)
def test_an_update_with_memory_is_that_of_the_processor(case):
    """From one rollout of the device, in float64, on the whole of it."""
    of_device = trainer_of(case, dtype="float64")
    of_host = trainer_of(case, device="cpu", dtype="float64")
    rollout = of_device.train_collector.buffer
    copy = of_host.train_collector.buffer
    for trainer in (of_device, of_host):
        trainer.policy.learner_group.set_weights(of_device.policy.learner_group.get_weights())
    of_device.train_collector.collect(n_step=T * B)
    for name in ("obs", "next_obs", "actions", "rewards", "terminateds", "cuts", "starts"):
        getattr(copy, name).copy_(getattr(rollout, name).cpu())
    for name, leaf in rollout.state_in.items():
        copy.state_in[name].copy_(leaf.cpu())
    copy.count(T)
    for trainer in (of_device, of_host):
        trainer.policy.learner_group.learner.update_from_episodes(trainer.train_collector.buffer, num_epochs=2)
    found, expected = weights(of_device), weights(of_host)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-9)
