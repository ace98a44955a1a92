"""DQN step for step beside the same algorithm written out in plain torch: autograd, `torch.optim.Adam`, deep copies."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lockstep import DQNConfig, SampleBatch

MODULE = "default_policy"
BOX, TWO = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
GAMMA, CLIP, LR, ROWS = 0.97, 0.5, 3e-3, 16


def batches(number, seed=0, weights=False):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        ends = rng.random((2, ROWS)) < 0.2
        columns = {
            "obs": rng.normal(size=(ROWS, 4)).astype(np.float32),
            "new_obs": rng.normal(size=(ROWS, 4)).astype(np.float32),
            "actions": rng.integers(0, 2, ROWS),
            "rewards": rng.normal(size=ROWS, scale=2.0).astype(np.float32),
            "terminateds": ends[0],
            "truncateds": ends[1] & ~ends[0],
        }
        if weights:
            columns |= {"weights": rng.random(ROWS), "discounts": GAMMA ** rng.integers(1, 4, ROWS)}
        yield SampleBatch(columns)


def layers_like(module):
    """The default network as plain layers with the same numbers."""
    linears = [layer for layer in (*module.encoder.mlp, module.policy_head) if isinstance(layer, nn.Linear)]
    made = []
    for linear in linears:
        own = nn.Linear(linear.in_features, linear.out_features, dtype=torch.float64)
        own.load_state_dict(linear.state_dict())
        made += [own, nn.ReLU()]
    return nn.Sequential(*made[:-1])


def plain_losses(net, given, *, double, interval, tau):
    """What the textbook does with these batches; the network learns in place."""
    target, optimizer, losses = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=LR, eps=1e-8), []
    for step, batch in enumerate(given, start=1):
        tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in batch.items()}
        obs, new_obs, rewards = (tensors[name].double() for name in ("obs", "new_obs", "rewards"))
        with torch.no_grad():
            chosen = (net if double else target)(new_obs).argmax(1)
            following = target(new_obs)[torch.arange(ROWS), chosen]
            following = torch.where(tensors["terminateds"], 0.0, following)
            wanted = rewards + tensors.get("discounts", GAMMA) * following
        taken = net(obs)[torch.arange(ROWS), tensors["actions"]]
        each = nn.functional.smooth_l1_loss(taken, wanted, reduction="none")
        loss = (each * tensors.get("weights", 1.0)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
        if step % interval == 0:
            with torch.no_grad():
                for own, other in zip(target.parameters(), net.parameters()):
                    own.mul_(1.0 - tau).add_(tau * other)
    return losses


@pytest.mark.parametrize("weights", [False, True], ids=["plain", "weights and n steps"])
@pytest.mark.parametrize("double, interval, tau", [(True, 5, 1.0), (False, 3, 1.0), (True, 1, 0.05)])
def test_losses_and_parameters_of_100_steps_are_those_of_plain_torch(double, interval, tau, weights):
    config = DQNConfig().framework(dtype="float64")
    config.training(gamma=GAMMA, lr=LR, grad_clip=CLIP, double_q=double, target_update_interval=interval, tau=tau)
    config.rl_module(model_config={"hiddens": (16, 16), "activation": "relu", "policy_gain": 1.0})
    learner = config.build_learner(spaces=(BOX, TWO))
    net = layers_like(learner.module[MODULE])
    expected = plain_losses(net, batches(100, weights=weights), double=double, interval=interval, tau=tau)
    found = [learner.update_from_batch(batch)[MODULE]["qf_loss"] for batch in batches(100, weights=weights)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for own, other in zip(learner.module[MODULE].parameters(), net.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)
