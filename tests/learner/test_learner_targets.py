"""A target network follows its module, whichever optimizers hold the parameters and in whichever order."""

import pytest
import torch
from algorithm_cases import OFF_POLICY, OFFLINE
from torch import nn

from lockstep import get_config
from lockstep.config.rules import OF_OFFLINE, OF_REPLAY
from lockstep.learner.config import TrainingSection
from lockstep.learner.learner import Learner
from lockstep.learner.optimizers import OptimizerSet, configured_optimizer
from lockstep.learner.targets import TargetNetwork


def network_and_target(groups=(range(6),)):
    """A network, optimizers of those groups of its six parameters, and its target network."""
    torch.manual_seed(0)
    module, optimizers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)), OptimizerSet()
    params, target = list(module.parameters()), TargetNetwork(module)
    for number, group in enumerate(groups):
        optimizers.register(
            "m", f"o{number}", configured_optimizer(TrainingSection()), [params[i] for i in group], 1e-3
        )
    return module, optimizers, target


def moved(module):
    with torch.no_grad():
        for param in module.parameters():
            param.add_(torch.randn_like(param))


def assert_follows(target, module, optimizers, tau):
    """The network moves, and the target goes `tau` of the way."""
    moved(module)
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
    module, optimizers, target = network_and_target(groups)
    for _ in range(2):
        assert_follows(target, module, optimizers, tau)


def test_target_network_follows_parameters_that_move_to_another_optimizer():
    module, optimizers, target = network_and_target()
    assert_follows(target, module, optimizers, 0.5)
    optimizers.remove("other", {id(module[2].bias)})
    assert_follows(target, module, optimizers, 0.5)
    optimizers.remove("m", set())
    optimizers.register("m", "new", configured_optimizer(TrainingSection()), list(module.parameters()), 1e-3)
    assert_follows(target, module, optimizers, 0.5)


def test_target_network_follows_each_nth_time_only():
    module, optimizers, target = network_and_target()
    moved(module)
    before = target.flat.clone()
    target.after_gradient_step(optimizers, 2, 1.0)
    assert torch.equal(target.flat, before)
    target.after_gradient_step(optimizers, 2, 1.0)
    assert torch.equal(target.module[0].weight, module[0].weight)


class Normalized(nn.Module):
    """A fixed encoder, a normalisation with buffers, a head that learns."""

    def __init__(self):
        super().__init__()
        self.encoder, self.norm, self.head = nn.Linear(3, 5).requires_grad_(False), nn.BatchNorm1d(5), nn.Linear(5, 2)


def test_parameters_that_do_not_learn_are_the_modules_own():
    module = Normalized()
    target = TargetNetwork(module)
    module.load_state_dict(Normalized().state_dict())
    assert torch.equal(target.module.encoder.weight, module.encoder.weight)
    assert not torch.equal(target.module.head.weight, module.head.weight)


def test_buffers_follow_and_are_part_of_the_state():
    module, optimizers = Normalized(), OptimizerSet()
    target = TargetNetwork(module)
    module.norm.running_mean.fill_(7.0)
    assert not target.module.norm.running_mean.any()
    target.after_gradient_step(optimizers, 2, 0.1)
    assert not target.module.norm.running_mean.any()
    target.after_gradient_step(optimizers, 2, 0.1)
    assert torch.equal(target.module.norm.running_mean, module.norm.running_mean)
    other = TargetNetwork(Normalized())
    other.set_state(target.get_state())
    for name, buffer in target.module.named_buffers():
        assert torch.equal(other.module.get_buffer(name), buffer)


def test_a_state_with_other_buffers_is_refused_and_changes_nothing():
    target = TargetNetwork(Normalized())
    state, before = target.get_state(), target.flat.clone()
    state = {**state, "flat": state["flat"] + 1.0, "buffers": {"norm.running_mean": torch.zeros(5)}}
    with pytest.raises(ValueError, match=r"the target network has the buffers .*running_var.*, the state"):
        target.set_state(state)
    assert torch.equal(target.flat, before)


@pytest.mark.parametrize("name", [*OFF_POLICY, *OFFLINE])
def test_a_learner_says_whether_it_updates_target_networks_after_a_step(name):
    learner_class = get_config(name).learner_class
    overrides = learner_class.after_gradient_step is not Learner.after_gradient_step
    assert learner_class.updates_targets_after_step is overrides
    config = get_config(name).framework(compile=True)
    rules = OF_OFFLINE if config.is_offline else OF_REPLAY
    rule = next(rule for rule in rules if rule.option == "framework.compile")
    assert bool(rule.when(config)) is not overrides
