"""Gradient steps on a device, a stand-in (`host_waits.py`): the host waits for none, and the numbers are the CPU's."""

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, FAST, NAMES
from distributed_parts import Case, actions_of, rows_of
from host_waits import DEVICE, HostWaitError, StandInDevice
from learner_parts import BOX, MODULE, parameters
from parts import fast_if

from lockstep import get_config
from lockstep.algorithms.ppo import PPOLearner

SIZE = 2
FOUR, SIXTEEN = 4 * SIZE, 16 * SIZE
"""rows that make so many minibatches"""
MOMENTUM = {"momentum": 0.9}
VARIANTS = {
    "each tensor clipped": {"grad_clip": 0.05, "grad_clip_by": "norm"},
    "each element clipped": {"grad_clip": 0.01, "grad_clip_by": "value"},
    "advantages as they are": {"normalize_advantages": None, "vf_clip_param": 0.3, "dual_clip": 2.0},
    "KL penalty": {"kl_coeff": 0.5, "kl_target": 1e-3},
    "rmsprop": {"optimizer": "rmsprop", "optimizer_kwargs": MOMENTUM},
    "adamw": {"optimizer": "adamw", "optimizer_kwargs": {"weight_decay": 0.1}},
    "sgd": {"optimizer": "sgd", "optimizer_kwargs": MOMENTUM},
    "adamax": {"optimizer": torch.optim.Adamax},
    "bad gradients set to zero": {"nan_policy": "zero"},
}
"""options of PPO that take other ways through a gradient step"""
FAST_VARIANTS = ("each tensor clipped", "KL penalty", "adamax", "bad gradients set to zero")


def learner_on(device, algorithm="ppo", learner_class=None, **training):
    if learner_class is not None:
        training["learner_class"] = learner_class
    config = get_config(algorithm).training(lr=1e-2, **training).debugging(seed=5)
    config.rl_module(model_config={"hiddens": (4,), "critic_hiddens": (4,)})
    config.framework(device=device.type, dtype="float64", fused_losses=False)
    return config.build_learner(spaces=(BOX, actions_of(Case(algorithm))))


def rows(algorithm, number, seed=0):
    rng = np.random.default_rng(seed)
    batch = rows_of(Case(algorithm), rng, number)
    batch |= {name: rng.normal(size=number) for name in ALGORITHM_CASES[algorithm].columns}
    return batch


def update(learner, batch, minibatch_size=SIZE, **options):
    return learner.update_from_batch(batch, minibatch_size=minibatch_size, shuffle_batch_per_epoch=True, **options)


def waits_of(device, learner, batch, **options):
    """The waits of one update."""
    device.waits.clear()
    update(learner, batch, **options)
    return list(device.waits)


def assert_near(learner, other, tolerance=1e-12):
    there = {name: value.cpu() for name, value in parameters(other).items()}
    for name, value in parameters(learner).items():
        np.testing.assert_allclose(there[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("algorithm", fast_if(FAST.__contains__, NAMES))
def test_waits_do_not_grow_with_minibatches_and_parameters_equal_the_cpus(algorithm):
    on_host = learner_on(torch.device("cpu"), algorithm)
    with StandInDevice() as device:
        learner = learner_on(DEVICE, algorithm)
        waits = []
        for number in (FOUR, SIXTEEN):  # the first one looks for gradients that are missing, too
            waits.append(waits_of(device, learner, rows(algorithm, number)))
            update(on_host, rows(algorithm, number))
        waits.append(waits_of(device, learner, rows(algorithm, FOUR)))
        update(on_host, rows(algorithm, FOUR))
        assert waits[1] == waits[2]
        assert len(waits[0]) <= len(waits[2]) + 1
        assert_near(on_host, learner)


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_clip_fraction_on_a_device_is_that_of_the_cpu(algorithm):
    on_host = learner_on(torch.device("cpu"), algorithm, clip_param=0.2)
    with StandInDevice():
        results = [
            update(learner, rows(algorithm, SIXTEEN))
            for learner in (on_host, learner_on(DEVICE, algorithm, clip_param=0.2))
        ]
    expected, found = (result[MODULE]["clip_fraction"] for result in results)
    assert 0.0 < found == expected < 1.0


@pytest.mark.parametrize("name", fast_if(FAST_VARIANTS.__contains__, VARIANTS))
def test_no_option_waits_for_the_device_and_bad_gradients_are_left_out(name):
    on_host = learner_on(torch.device("cpu"), **VARIANTS[name])
    bad = rows("ppo", FOUR)
    bad["advantages"][:3] = np.nan
    with StandInDevice() as device:
        learner = learner_on(DEVICE, **VARIANTS[name])
        waits = [waits_of(device, learner, rows("ppo", number)) for number in (FOUR, SIXTEEN, FOUR)]
        assert waits[1] == waits[2]
        for number in (FOUR, SIXTEEN, FOUR):
            update(on_host, rows("ppo", number))
        for each in (on_host, learner):
            with pytest.warns(RuntimeWarning, match="not finite"):
                update(each, bad)
            assert each.first_bad_tensor == on_host.first_bad_tensor
            update(each, rows("ppo", FOUR, seed=1))
        if name != "adamax":  # its count of steps is on the host, and counts those that are left out
            assert_near(on_host, learner)


@pytest.mark.parametrize("name", fast_if("adamw".__eq__, ["rmsprop", "sgd", "adamw", "each tensor clipped"]))
def test_frozen_parameters_stay_as_they_are_without_a_wait(name):
    on_host = learner_on(torch.device("cpu"), **VARIANTS[name])
    with StandInDevice() as device:
        learner, waits, frozen = learner_on(DEVICE, **VARIANTS[name]), [], {}
        for each in (on_host, learner):
            update(each, rows("ppo", FOUR))  # there are moments that would move them
            frozen[each] = next(each.module.parameters()).requires_grad_(False)
        before = frozen[learner].detach().clone()
        for number in (FOUR, SIXTEEN, FOUR):
            waits.append(waits_of(device, learner, rows("ppo", number)))
            update(on_host, rows("ppo", number))
        assert waits[1] == waits[2]
        assert torch.equal(frozen[learner], before)
        assert_near(on_host, learner)


def test_kl_stop_waits_once_for_each_pass():
    with StandInDevice() as device:
        learner = learner_on(DEVICE, target_kl=1e9)
        update(learner, rows("ppo", FOUR))
        counts = [
            len(waits_of(device, learner, rows("ppo", number), num_epochs=passes))
            for number, passes in ((FOUR, 3), (SIXTEEN, 3), (FOUR, 5))
        ]
    assert counts[0] == counts[1]
    assert counts[2] == counts[0] + 2 * 2  # the numbers of the rows, and the KL


class ReadingLearner(PPOLearner):
    """Reads its loss on the host."""

    def compute_loss_for_module(self, **parts):
        loss = super().compute_loss_for_module(**parts)
        self.largest = max(getattr(self, "largest", 0.0), loss.item())
        return loss


def test_a_loss_that_is_read_in_each_step_is_found():
    with StandInDevice() as device:
        learner = learner_on(DEVICE, learner_class=ReadingLearner)
        update(learner, rows("ppo", FOUR))
        few, many = (waits_of(device, learner, rows("ppo", number)) for number in (FOUR, SIXTEEN))
        assert len(many) - len(few) == 16 - 4
        device.forbids = True
        with pytest.raises(HostWaitError, match="waits for the device"):
            update(learner, rows("ppo", FOUR))


READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.cpu().numpy(),
    "copy_": lambda x: torch.zeros(4).copy_(x),
    "equal": lambda x: torch.equal(x, x + 1),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask": lambda x: x[x > 0],
    "set by a mask": lambda x: x.index_put_((x > -9,), x.clone()),
    "unique": lambda x: x.unique(),
    "to the device": lambda x: torch.ones(4).to(DEVICE),
    "made of numbers": lambda x: torch.tensor([1.0, 2.0], device=DEVICE),
    "an index of the host's": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("name", READS)
def test_stand_in_device_sees_what_waits(name):
    with StandInDevice() as device:
        x = torch.arange(4.0, device=DEVICE) - 1.5
        assert device.waits == []
        READS[name](x)
        assert len(device.waits) == 1
        device.forbids = True
        with pytest.raises(HostWaitError):
            READS[name](x)


def test_stand_in_device_computes_without_waits_and_is_told_from_the_host():
    with StandInDevice() as device:
        x = (torch.arange(4.0, device=DEVICE) * 2).requires_grad_()
        loss = torch.where(x > 2, x, 0.0).square().mean()
        loss.backward()
        x.data[x.data > 2] = 0.0
        assert device.waits == []
        assert x.device == DEVICE
        with pytest.raises(RuntimeError, match="one device"):
            x + torch.ones(4)
        with pytest.raises(RuntimeError, match="numpy"):
            x.detach().numpy()
        assert x.grad.tolist() == [0.0, 0.0, 2.0, 3.0]
        assert x.tolist() == [0.0, 2.0, 0.0, 0.0]
