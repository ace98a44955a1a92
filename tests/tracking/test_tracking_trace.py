"""`torch_param_hash`, `TraceLogger`, `RunningMeanStd`."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.tracking import MultiLogger, RunningMeanStd, TraceLogger, torch_param_hash


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(2, 3), nn.BatchNorm1d(3)
        self.register_buffer("secret", torch.zeros(2), persistent=False)
        self.register_parameter("empty", nn.Parameter(torch.zeros(0)))


def changed(change: Any) -> str:
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
        change(net)
    return torch_param_hash(net)


@torch.no_grad()
def rename(net: Net) -> None:
    net.second = net.first
    del net.first


def test_the_hash_covers_names_shapes_dtypes_values_and_buffers() -> None:
    plain = changed(lambda net: None)
    assert plain == changed(lambda net: None)
    others = {
        "name": changed(rename),
        "second name": changed(lambda net: setattr(net, "again", net.first)),
        "shape": changed(lambda net: setattr(net.first, "weight", nn.Parameter(torch.full((2, 3), 0.5)))),
        "dtype": changed(lambda net: net.first.bfloat16()),
        "value": changed(lambda net: net.first.bias[0].add_(1e-7)),
        "sign of zero": changed(lambda net: net.secret.mul_(-1)),
        "buffer": changed(lambda net: net.norm.running_mean.add_(1)),
        "buffer of another kind": changed(lambda net: net.norm.num_batches_tracked.add_(1)),
        "buffer that is not saved": changed(lambda net: net.secret.add_(1)),
        "order of values": changed(lambda net: net.first.weight.copy_(torch.arange(6.0).view(3, 2))),
    }
    assert len({plain, *others.values()}) == len(others) + 1
    assert plain == changed(lambda net: net.eval())
    assert plain == changed(lambda net: net.requires_grad_(False))
    assert torch_param_hash(copy.deepcopy(net := Net())) == torch_param_hash(net)


def test_a_trace_has_every_record_without_times_and_a_hash_per_update() -> None:
    net = nn.Linear(1, 1)
    one, two = TraceLogger(net), TraceLogger({"module": net})
    for trace, wait in ((one, 0.1), (two, 0.2)):
        trace.log_train_data({"n_collected_steps": 4, "collect_time": wait, "collect_speed": 1 / wait}, 4)
        trace.log_update_data({"loss": float("nan")}, 1)
        trace.save_data(1, 4, 1, lambda *where, wait=wait: f"place {wait}")
    assert one.lines == two.lines
    assert one.digest() == two.digest()
    assert one.first_difference(two) is None
    assert one.lines[0] == 'train 4 {"n_collected_steps": 4}'
    assert one.lines[1] == f'update 1 {{"hash/module": "{torch_param_hash(net)}", "loss": "NaN"}}'
    with torch.no_grad():
        net.weight += 1
    one.log_update_data({"loss": 0.0}, 2)
    assert one.first_difference(two) == "one trace has 4 lines, the other 3"
    two.log_update_data({"loss": 1.0}, 2)
    assert str(one.first_difference(two)).startswith("line 4:\n  update 2")
    assert one.digest() != two.digest()


def test_a_trace_continues_from_its_state_next_to_other_loggers() -> None:
    one = TraceLogger()
    one.log_info_data({"x": 1}, 1)
    two = TraceLogger()
    two.set_state(one.get_state())
    MultiLogger([two]).log_info_data({"x": 2}, 2)
    assert two.lines == ['info 1 {"x": 1}', 'info 2 {"x": 2}']


def test_running_mean_std_does_not_depend_on_the_division_of_rows() -> None:
    rows = np.random.default_rng(3).normal(5.0, 2.0, (100, 3))
    whole, parts = RunningMeanStd((3,)), RunningMeanStd((3,))
    assert np.array_equal(whole.norm(rows[0]), np.clip(rows[0] / np.sqrt(1 + 1e-8), -10, 10))
    whole.update(rows)
    for part in np.split(rows, [1, 40]):
        parts.update(part)
    for stats in (whole, parts):
        assert stats.count == 100
        assert stats.mean == pytest.approx(rows.mean(0))
        assert stats.var == pytest.approx(rows.var(0))
        assert stats.norm(rows) == pytest.approx((rows - rows.mean(0)) / rows.std(0))
    assert np.abs(whole.norm(rows * 1e3)).max() == 10.0
    assert np.abs(RunningMeanStd((3,), clip_max=None).norm(rows * 1e3)).max() > 10.0
    assert RunningMeanStd((3,), eps=3.0).norm(np.full(3, 4.0)).tolist() == [2.0, 2.0, 2.0]
    assert [whole.norm(rows.astype(kind)).dtype.name for kind in ("f8", "f4", "u1")] == [
        "float64",
        "float32",
        "float32",
    ]
    with pytest.raises(ValueError, match=r"rows of shape \[N, \*\(3,\)\]"):
        whole.update(np.zeros((2, 4)))


@pytest.mark.parametrize("shape", [None, (3,)])
def test_running_mean_std_merges_and_continues_from_its_state(shape) -> None:
    rows = np.random.default_rng(4).normal(5.0, 2.0, (100, 3))
    merged, other, empty = RunningMeanStd(shape), RunningMeanStd(shape), RunningMeanStd(shape)
    merged.merge(empty)
    merged.update(rows[:30])
    other.update(rows[30:])
    merged.merge(other)
    merged.merge(empty)
    empty.merge(other)
    restored = RunningMeanStd(shape)
    restored.set_state(merged.get_state())
    for stats in (merged, restored):
        assert stats.count == 100
        assert stats.mean == pytest.approx(rows.mean(0))
        assert stats.var == pytest.approx(rows.var(0))
    assert (other.count, empty.count) == (70, 70)
    restored.update(rows)
    assert (merged.count, restored.count) == (100, 200)  # a copy
    with pytest.raises(ValueError, match="shape"):
        merged.merge(filled(np.zeros((2, 4))))
    with pytest.raises(KeyError, match="squares"):
        restored.set_state({"count": 1, "mean": np.zeros(3)})


def filled(rows) -> RunningMeanStd:
    stats = RunningMeanStd()
    stats.update(rows)
    return stats


def test_running_mean_std_takes_the_shape_of_its_first_rows() -> None:
    assert filled([1.0, 3.0]).mean == 2.0
    assert filled(np.ones((2, 4, 5))).mean.shape == (4, 5)
    stats = RunningMeanStd()
    stats.update([])
    assert (stats.count, stats.mean, stats.norm(3.0)) == (0, 0.0, pytest.approx(3.0))
    stats.update(np.ones((2, 4)))
    stats.update([])
    assert stats.count == 2
    with pytest.raises(ValueError, match=r"rows of shape \[N, \*\(4,\)\]"):
        stats.update(np.ones((2, 3)))


@pytest.mark.parametrize("name, value", [("eps", 0), ("clip_max", "a"), ("clip_max", -1)])
def test_a_wrong_option_of_running_mean_std_is_refused(name, value) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed; it must be a"):
        RunningMeanStd(**{name: value})
