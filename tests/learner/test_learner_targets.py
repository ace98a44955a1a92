"""A target network follows its module, whichever optimizers hold the parameters and in whichever order."""

import pytest
import torch
from torch import nn

from lockstep.learner.optimizers import OptimizerSet, fused_adam
from lockstep.learner.targets import TargetNetwork


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2))


def moved(module):
    with torch.no_grad():
        for param in module.parameters():
            param.add_(torch.randn_like(param))


def follow_and_compare(target, module, optimizers, tau):
    before = {name: value.clone() for name, value in target.views().items()}
    target.after_gradient_step(optimizers, 1, tau)
    for name, param in module.named_parameters():
        expected = param.detach() if tau == 1.0 else before[name] + tau * (param.detach() - before[name])
        torch.testing.assert_close(target.module.get_parameter(name), expected, msg=name)


@pytest.mark.parametrize("tau", [1.0, 0.1])
@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1, 2, 3, 4, 5]],  # one optimizer
        [[0, 1, 2, 3], [4, 5]],  # two, one after the other
        [[4, 5], [0, 1, 2, 3]],  # registered in another order than the module's
        [[0, 2, 4], [1, 3, 5]],  # each holds every other parameter
        [[5, 4, 3, 2, 1, 0]],  # backwards
        [[0, 1, 4]],  # some have none
        [],  # nobody learns
    ],
)
def test_target_network_follows_parameters_wherever_they_lie(groups, tau):
    module, optimizers = network(), OptimizerSet()
    params = list(module.parameters())
    target = TargetNetwork(module)
    for number, group in enumerate(groups):
        optimizers.register("m", f"o{number}", fused_adam(1e-8), [params[i] for i in group], 1e-3)
    for _ in range(2):
        moved(module)
        follow_and_compare(target, module, optimizers, tau)


def test_target_network_follows_parameters_that_move_to_another_optimizer():
    module, optimizers = network(), OptimizerSet()
    target = TargetNetwork(module)
    optimizers.register("m", "all", fused_adam(1e-8), list(module.parameters()), 1e-3)
    moved(module)
    follow_and_compare(target, module, optimizers, 0.5)
    optimizers.remove("other", {id(module[2].bias)})
    moved(module)
    follow_and_compare(target, module, optimizers, 0.5)
    optimizers.remove("m", set())
    optimizers.register("m", "new", fused_adam(1e-8), list(module.parameters()), 1e-3)
    moved(module)
    follow_and_compare(target, module, optimizers, 0.5)


def test_target_network_follows_each_nth_time_only():
    module, optimizers = network(), OptimizerSet()
    target = TargetNetwork(module)
    optimizers.register("m", "all", fused_adam(1e-8), list(module.parameters()), 1e-3)
    moved(module)
    before = target.flat.clone()
    target.after_gradient_step(optimizers, 2, 1.0)
    assert torch.equal(target.flat, before)
    target.after_gradient_step(optimizers, 2, 1.0)
    assert torch.equal(target.module[0].weight, module[0].weight)
