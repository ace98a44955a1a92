"""Explorations, V-trace, stacks of frames and connectors of train columns in CUDA graphs: the bits of single launches,
exact resume."""

from __future__ import annotations

from typing import Any

import pytest
from trained_weights import difference, steps

from lockstep import get_config
from lockstep.connectors import ClipRewards
from lockstep.rollout import TensorCollector

pytestmark = pytest.mark.cuda

B, T = 64, 8


def clipped_rewards(*_: Any) -> ClipRewards:
    """Return a connector of train columns, for a configuration that a checkpoint holds."""
    return ClipRewards()


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "td3, correlated noise": ("td3", {"env_runners.exploration": "ou"}),
    "sac, correlated noise": ("sac", {"env_runners.exploration": "ou"}),
    "sac, gSDE": ("sac", {"env_runners.exploration": "gsde"}),
    "ppo, gSDE": ("ppo", {"env_runners.exploration": "gsde"}),
    "dqn, noisy weights": ("dqn", {"env_runners.exploration": "noisy"}),
    "sac, clipped rewards": ("sac", {"training.learner_connector": clipped_rewards}),
    "ppo, clipped rewards": ("ppo", {"training.learner_connector": clipped_rewards}),
    "ppo, stacks of frames": ("ppo", {"environment.frame_stack": 3}),
    "sac, stacks of frames": ("sac", {"environment.frame_stack": 3}),
    "impala": ("impala", {}),
    "appo": ("appo", {"training.use_kl_loss": True}),
}
"""Algorithm and options by the name of a case."""


def trainer_of(case: str, device: str = "cuda") -> Any:
    name, options = CASES[case]
    config = get_config(name).environment("tensor/CartPole-v1" if name == "dqn" else "tensor/Pendulum-v1")
    config.env_runners(num_envs_per_env_runner=B, rollout_fragment_length=T).debugging(seed=3)
    config.reporting(total_steps=10**7, steps_per_epoch=T * B).evaluation(evaluation_interval=0)
    config.framework(device=device).rl_module(model_config={"hiddens": (16,)})
    if config.is_off_policy:
        config.training(train_batch_size=64)
        config.replay(capacity=100 * T * B, learning_starts=T * B, update_per_step=4 / (T * B))
    else:
        config.training(train_batch_size=T * B, minibatch_size=T * B // 2, num_epochs=2)
    for path, value in options.items():
        config.set_path(path, value)
    trainer = config.build_trainer()
    assert isinstance(trainer.train_collector, TensorCollector)
    return trainer


@pytest.mark.parametrize("case", CASES)
def test_a_graph_does_what_single_launches_do(case, monkeypatch):
    """Bit for bit, over eight iterations of which the last ones are graphs."""
    graphed = steps(trainer_of(case), 8)
    assert graphed.train_collector.stepper.captured(True).is_graph
    monkeypatch.setattr("lockstep.ops.graphs.EAGER_CALLS", 10**9)
    eager = steps(trainer_of(case), 8)
    assert not eager.train_collector.stepper.captured(True).is_graph
    assert difference(graphed, eager) == 0.0


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_same_bits(case, tmp_path):
    whole = steps(trainer_of(case), 9)
    steps(trainer_of(case), 5).save_to_path(tmp_path / "half")
    again = trainer_of(case)
    again.restore_from_path(tmp_path / "half")
    assert difference(whole, steps(again, 4)) == 0.0
