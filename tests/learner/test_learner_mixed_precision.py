"""`framework(mixed_precision=True)`: networks compute in bfloat16, everything else in float32."""

import numpy as np
import pytest
import torch
from learner_parts import MODULE, assert_near, parameters, ppo_batch, ppo_config

STEPS = {"minibatch_size": 8, "num_epochs": 3, "shuffle_batch_per_epoch": True}


def build(mixed, **model):
    config = ppo_config().framework(dtype="float32", mixed_precision=mixed).debugging(seed=3)
    return config.rl_module(model_config=model).build_learner()


@pytest.mark.parametrize("model", [{}, {"share_value_network": True}, {"recurrent": "lstm"}], ids=str)
def test_mixed_precision_agrees_with_float32_to_the_precision_of_bfloat16(model):
    whole, mixed = build(False, **model), build(True, **model)
    batch = ppo_batch()
    if "recurrent" in model:
        batch["seq_lens"] = np.array([6, 6, 6, 6])
        batch["state_in"] = {
            k: np.zeros((4, *v.shape), np.float32) for k, v in mixed.module[MODULE].get_initial_state().items()
        }
    results = [learner.update_from_batch(batch)[MODULE] for learner in (whole, mixed)]
    assert results[1]["total_loss"] == pytest.approx(results[0]["total_loss"], rel=0.02)
    assert results[1]["total_loss"] != results[0]["total_loss"]  # it was computed in another precision
    assert {own.dtype for own in parameters(mixed).values()} == {torch.float32}
    assert_near(mixed, whole, 1e-3)


def test_the_loss_reads_float32_whatever_the_networks_compute_in():
    learner = build(True)
    batch = {MODULE: {"obs": torch.zeros(5, 3)}}
    assert {value.dtype for value in learner.forward_train(batch)[MODULE].values()} == {torch.float32}


def test_mixed_precision_of_float64_is_refused():
    with pytest.raises(ValueError, match=r"mixed_precision=True needs framework.dtype=.float32., not .float64."):
        ppo_config().framework(mixed_precision=True).build_learner()
