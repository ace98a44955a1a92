"""Named optimizers of a learner. All parameters of one optimizer lie in one flat tensor, and so do their gradients."""

from __future__ import annotations

import inspect
import itertools
import math
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.learner.config import GradClipBy, NanPolicy, TrainingSection
from lockstep.options.checks import is_number, suggestion
from lockstep.options.schedules import ConfiguredValueWarning, Schedule, ScheduleLike

ALL_MODULES = "__all_modules__"
DEFAULT_OPTIMIZER = "default_optimizer"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
"""Optimizer classes by the names of `training(optimizer=)`."""
SET_ELSEWHERE = {
    "params": "the learner gives it its parameters",
    "lr": "set training(lr=...), which may be a schedule, too",
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), "the learner chooses how a step is computed"),
    "maximize": "losses are minimized; change the sign of yours",
}
"""Optimizer settings that are not allowed in `optimizer_kwargs`, each with the reason."""
ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}
"""Names of the tensors in the state of plain Adam."""
MIN_AVG = 1e-30
MIN_AVG_SQ = 1e-36
"""Limits of Adam's first and second moment. Moments below them are set to 0.

The moments of a weight without gradient (behind a relu that is off for every row) shrink until they are denormal
numbers, with which some processors compute a hundred times as slowly. Next to Adam's epsilon such moments change
nothing."""
FLUSH_EVERY = 128
"""Number of Adam steps between two searches for such moments. In between, 1e-30 * 0.9^128 is not denormal yet."""
for _method in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
    # PyTorch wraps these methods so that its compiler does not trace them. The wrapper loads torch._dynamo at the first
    # call, which takes a second of each start. It then keeps the excluded version of the method in the method's
    # attribute `__dynamo_disable`, and calls that one from then on. Nothing here traces these methods, so the attribute
    # is set to the method itself: the wrapper finds it, calls it, and loads nothing. A version of torch without the
    # wrapper has no `__wrapped__`, and nothing is changed.
    _unwrapped = getattr(getattr(torch.optim.Optimizer, _method), "__wrapped__", None)
    if _unwrapped is not None:
        _unwrapped.__dict__.setdefault("__dynamo_disable", _unwrapped)
KERNEL_IS_KNOWN = hasattr(torch, "_fused_adam_") and "_optimizer_step_pre_hooks" in inspect.get_annotations(
    torch.optim.Optimizer
)
"""Whether this version of torch has the private names that a direct call of Adam's kernel needs. Without them a step
is `Optimizer.step`, with the same numbers."""
_gradient_of = operator.attrgetter("grad")
_is_trainable = operator.attrgetter("requires_grad")
ClipFunction = Callable[[Sequence[Tensor], float, GradClipBy, Tensor], None]


# -- clipping ---


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm (0-d) of all elements of all tensors."""
    if len(tensors) == 1:
        return torch.linalg.vector_norm(tensors[0])
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))


def clip_gradients_(tensors: Sequence[Tensor], limit: float, by: GradClipBy, norm: Tensor) -> None:
    """Clip gradients in place.

    Args:
        tensors: Gradients.
        limit: Largest absolute value or norm after clipping.
        by: Limit each element ("value"), the norm of each tensor ("norm"), or the norm of all tensors together
            ("global_norm"). A tensor of norm n is scaled by `min(1, limit / n)`, so that its direction stays.
        norm: Global norm of `tensors`, 0-d. Only `by="global_norm"` uses it.
    """
    if by == "value":
        for tensor in tensors:
            tensor.clamp_(-limit, limit)
    elif by == "norm":
        for tensor in tensors:
            tensor.mul_((limit / (torch.linalg.vector_norm(tensor) + 1e-6)).clamp(max=1.0))
    else:
        # `fmax` ignores a NaN, so a norm that is NaN gives the scale 1. Finite tensors then stay finite, and the bad
        # one can be named.
        bound = norm.new_full((), limit)
        scale = bound / torch.fmax(norm + 1e-6, bound)
        for tensor in tensors:
            tensor.mul_(scale)


# -- flat parameters ---


class FlatParameters:
    """One contiguous tensor that holds all parameters of an optimizer, and another one for their gradients.

    Each of `params` becomes a view of `data`, and its `.grad` a view of `grad`. Clipping, the optimizer's step, the
    all-reduce and the publishing of weights are then one operation each. `params` stay the same objects, so modules
    notice nothing.

    Raises `ValueError` for an empty list, a repeated parameter, or mixed dtypes or devices.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = list(params)
        if not self.params:
            raise ValueError("an optimizer needs at least one parameter; give those that learn, or register none")
        if len({id(p) for p in self.params}) != len(self.params):
            raise ValueError("a parameter is given twice to one optimizer; give each once")
        kinds = {(p.dtype, p.device) for p in self.params}
        if len(kinds) != 1:
            raise ValueError(f"parameters of one optimizer must share dtype and device, not {sorted(map(str, kinds))}")
        dtype, device = kinds.pop()
        self.sizes = [p.numel() for p in self.params]
        self.shapes = [p.shape for p in self.params]
        self.data = torch.empty(sum(self.sizes), dtype=dtype, device=device)
        self.grad = torch.zeros_like(self.data)
        self.parameter = nn.Parameter(self.data)
        """`data` as one parameter, for an optimizer that steps all of it at once."""
        self.parameter.grad = self.grad
        self._addresses = [view.data_ptr() for view in self.unflatten(self.data)]
        self.bind({})

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Return views of `flat` in the shapes of the parameters."""
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes)]

    def are_views(self, gradients: Collection[Tensor]) -> bool:
        """Return whether `gradients` are exactly the views of `grad`, in the order of the parameters."""
        return len(gradients) == len(self.params) and all(map(operator.is_, gradients, self.grad_views))

    def gradients_from(self, gradients: Mapping[nn.Parameter, Tensor]) -> Sequence[Tensor]:
        """Return the gradients of the parameters, in order.

        The result always holds the gradients in the dict. What matters to the caller is whether the list is the object
        `grad_views`: the caller can then operate on the flat tensor `grad` instead, once for all parameters.

        It is `grad_views` if the dict holds exactly the views of `grad`. On a device it is so even if the dict holds
        gradients of other optimizers as well: there one operation on the flat tensor saves a launch for each parameter.
        """
        if self.are_views(gradients.values()):
            return self.grad_views
        own_gradients = [gradients[param] for param in self.params]
        on_device = self.data.device.type != "cpu"
        return self.grad_views if on_device and self.are_views(own_gradients) else own_gradients

    def zero_grad(self) -> None:
        """Set all gradients to zero, in one operation.

        If other code has set `.grad` or `.grad.data` of a parameter (as `module.double()` does), its `.grad` becomes a
        view of the flat gradient again.
        """
        self.grad.zero_()
        try:
            if list(map(Tensor.data_ptr, map(_gradient_of, self._learning))) == self._grad_addresses:
                return
        except TypeError:  # a `.grad` is None
            pass
        self._put_gradients()

    def is_bound(self) -> bool:
        """Return whether all parameters still lie in the flat tensor."""
        return list(map(Tensor.data_ptr, self.params)) == self._addresses

    def bind(self, names: Mapping[int, str]) -> None:
        """Make parameters with memory of their own (after `p.data = ...`) views of `data` again, with their values.

        `names` are the names of parameters in messages, by `id(parameter)`. Raises `ValueError` naming a parameter that
        has another shape, dtype or device now; nothing is changed then.
        """
        for param in self.params:
            self.check_fits(param, param, names)
        # Copy all values before any is written: two parameters that were swapped lie in each other's views.
        moved = [
            (param, view, param.detach().clone())
            for param, view in zip(self.params, self.unflatten(self.data))
            if param.data_ptr() != view.data_ptr() or not param.is_contiguous()
        ]
        for param, view, value in moved:
            view.copy_(value)
            param.data = view
        self._put_gradients()

    def check_fits(self, param: nn.Parameter, replaced: nn.Parameter, names: Mapping[int, str]) -> None:
        """Check that `param` can take the place of `replaced`, one of `params`; `ValueError` naming it otherwise."""
        shape = next(shape for p, shape in zip(self.params, self.shapes) if p is replaced)
        if param.shape != shape or param.dtype != self.data.dtype or param.device != self.data.device:
            raise ValueError(
                f"{names.get(id(param), 'a parameter')} was {tuple(shape)} {self.data.dtype} on {self.data.device} "
                f"when its optimizer was made, and is {tuple(param.shape)} {param.dtype} on {param.device}: the "
                "optimizer cannot continue. Give it back its shape, dtype and device, or build the learner again "
                "(framework(dtype=) sets the dtype)"
            )

    def update_frozen(self) -> bool:
        """Read again which parameters are frozen (`requires_grad_(False)`); return whether that has changed."""
        trainable = list(map(_is_trainable, self.params))
        if trainable == self._trainable:
            return False
        self._put_gradients()
        return True

    def _put_gradients(self) -> None:
        """Make each gradient a view of `grad`. A frozen parameter has no gradient, so that optimizers skip it."""
        self._trainable = list(map(_is_trainable, self.params))
        self.grad_views = self.unflatten(self.grad)
        self.grad_by_param = dict(zip(self.params, self.grad_views))
        self._learning = [param for param in self.params if param.requires_grad]
        self.frozen: Tensor | None = None
        """Mask `[n]` bool of the elements of frozen parameters; None if there are no such parameters."""
        if not all(self._trainable):
            parts = [torch.full((size,), not learns) for size, learns in zip(self.sizes, self._trainable)]
            self.frozen = torch.cat(parts).to(self.data.device)
        for param, view in self.grad_by_param.items():
            param.grad = view if param.requires_grad else None
        self._grad_addresses = [self.grad_by_param[param].data_ptr() for param in self._learning]
        self.parameter.grad = self.grad


# -- one optimizer ---


@dataclass(slots=True)
class RegisteredOptimizer:
    """Optimizer of a learner, with its flat parameters and its learning-rate schedule."""

    module_id: str
    name: str
    optimizer: torch.optim.Optimizer
    flat: FlatParameters
    schedule: Schedule | None
    """Schedule of the learning rate. None leaves the rates to the optimizer: a user's own optimizer may have a
    different rate for each parameter group."""
    steps_flat: bool
    """Whether the optimizer holds the flat tensor as one parameter. A user's own optimizer holds single parameters."""
    bad_gradient: Tensor | None = None
    """Flat gradient that was not finite since the last report. On the CPU it is the first such gradient, or None; on a
    device the last one, or zeros."""
    suspended: Tensor | None = None
    """Flag that suspends the optimizer, 0-d float32: while it is 1, steps change nothing. None if steps are never
    suspended.

    A CUDA graph has no branches. So after an early stop it still computes the remaining steps, but they are
    suspended."""
    rate: Tensor | None = None
    """Learning rate of steps in a CUDA graph, 0-d float32 on the device: a graph would repeat a plain number. None
    takes the learning rate of the optimizer."""
    has_loss: bool = True
    """Whether the present gradient step has a loss for this optimizer. Otherwise the learner does not call `step`."""
    updates_at_zero_rate: int = 0
    """Number of updates that trained nothing because the learning rate was 0 and does not rise again."""
    key: str = field(init=False)
    """Name in checkpoints: `module_id.name`."""
    bad_steps: Tensor = field(init=False)
    """Number of gradients that were not finite since the last report, 0-d."""
    on_host: bool = field(init=False)
    """Whether its parameters are in the memory of the CPU."""

    def __post_init__(self) -> None:
        self.key = f"{self.module_id}.{self.name}"
        self.bad_steps = self.flat.data.new_zeros(())
        self.on_host = self.flat.data.device.type == "cpu"

    @property
    def is_plain_adam(self) -> bool:
        """Whether it is Adam over the flat tensor without special options. Only such a step is compiled as a whole."""
        group = self.optimizer.param_groups[0]
        return (
            self.steps_flat
            and type(self.optimizer) is torch.optim.Adam
            and not (group["weight_decay"] or group["amsgrad"] or group["maximize"])
        )

    @property
    def steps_directly(self) -> bool:
        """Whether a step is a direct call of fused Adam's kernel, without `Optimizer.step` around it.

        Hooks of the optimizer need `Optimizer.step`, and so do torch's learning-rate schedulers, which replace the
        method `step` of the object. With either of them it is False.
        """
        if not (KERNEL_IS_KNOWN and self.is_plain_adam):
            return False
        optimizer = self.optimizer
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return not hooks and "step" not in vars(optimizer)

    def step(self, nan_policy: NanPolicy) -> None:
        """Take one step on the flat gradient. A gradient that is not finite is counted.

        With `nan_policy="zero"` the elements of the gradient that are not finite are set to 0, and the step is taken.
        With another policy such a gradient changes nothing.

        There are four cases in which parameters do not change:

        1. The optimizer has no loss (`has_loss`): the learner does not call this method.
        2. The gradient is not finite. On the CPU the host reads that and returns. On a device the host must not wait
           for the number, so the step is computed, with a flag `skip` on the device that is 1: then it changes nothing.
        3. Steps are suspended (`suspended`), after an early stop in a CUDA graph: this flag has the same effect.
        4. Some parameters are frozen: the step changes the others, and the frozen elements get their old values again.
        """
        flat = self.flat
        skip = None
        if not flat.is_bound():  # the forward pass may move parameters: `LSTM.flatten_parameters` does on CUDA
            flat.bind({})

        # The sum is finite only if all elements are: one pass, and one number for the host to read.
        if not self.on_host:
            skip = self._check_on_device(nan_policy)
        elif not math.isfinite(float(flat.grad.sum())):
            self.bad_steps.add_(1)
            self.keep_bad_gradient()
            if nan_policy != "zero":
                return
            flat.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

        if self.suspended is not None:
            skip = self.suspended if skip is None else torch.maximum(skip, self.suspended)
        if self.steps_flat and flat.frozen is not None:
            with self._restoring(flat.frozen):
                self._take_step(skip)
        else:
            self._take_step(skip)

    def _take_step(self, skip: Tensor | None) -> None:
        """Take one step of the optimizer, unless `skip`, a 0-d tensor that the host does not read, is 1.

        With None the step is always taken. Otherwise there are three ways to respect `skip`:

        1. Plain Adam: its kernel is called directly, with the argument `found_inf`.
        2. Another fused optimizer: it reads its attribute `found_inf`.
        3. Any other optimizer takes the step, and then gets its old values again if `skip` is 1.
        """
        optimizer = self.optimizer
        flat = self.flat
        if self.steps_directly:
            exp_avg, exp_avg_sq, step = self.adam_state()
            group = optimizer.param_groups[0]
            beta1, beta2 = group["betas"]
            step.add_(1.0)
            torch._fused_adam_(
                [flat.data],
                [flat.grad],
                [exp_avg],
                [exp_avg_sq],
                [],
                [step],
                lr=group["lr"] if self.rate is None else self.rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=0.0,
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                found_inf=skip,  # if it is 1, the kernel changes nothing
            )
            if skip is not None:
                step.sub_(skip)
            elif self.on_host and float(step) % FLUSH_EVERY == 0:
                exp_avg.masked_fill_(exp_avg.abs() < MIN_AVG, 0.0)
                exp_avg_sq.masked_fill_(exp_avg_sq < MIN_AVG_SQ, 0.0)
        else:
            # torch's gradient scaler uses the same attribute: fused optimizers skip the step if it is 1.
            reads_found_inf = self.steps_flat and bool(optimizer.param_groups[0].get("fused"))
            # If `skip` is None, there is no flag, and torch takes the step.
            if reads_found_inf:
                optimizer.found_inf = skip  # type: ignore[attr-defined]
            with nullcontext() if reads_found_inf or skip is None else self._restoring(skip.bool()):
                optimizer.step()

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group; `ValueError` unless it is a finite number, at least 0."""
        if not is_number(lr) or not 0.0 <= lr < math.inf:
            raise ValueError(f"{self.key}: lr={lr!r} is not allowed; it must be a finite number, at least 0")
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def adam_state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return `(exp_avg, exp_avg_sq, step)` of plain Adam, created as zeros before the first step."""
        state = self.optimizer.state[self.flat.parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=self.flat.data.device)
            state["exp_avg"] = torch.zeros_like(self.flat.data)
            state["exp_avg_sq"] = torch.zeros_like(self.flat.data)
        return state["exp_avg"], state["exp_avg_sq"], state["step"]

    def flush_denormals(self) -> None:
        """Set denormal numbers in the optimizer's state to 0 (see `MIN_AVG`). Called after each update.

        The steps of plain Adam do this themselves.
        """
        if self.steps_flat and self.on_host and not self.is_plain_adam:
            for value in self.optimizer.state.get(self.flat.parameter, {}).values():
                if torch.is_tensor(value) and value.shape == self.flat.data.shape:
                    value.masked_fill_(value.abs() < MIN_AVG_SQ, 0.0)

    def keep_only(self, params: Sequence[nn.Parameter]) -> None:
        """Step only `params` from now on, a part of the present ones. Their optimizer state is kept."""
        ids = {id(param) for param in params}
        old = self.flat
        elements = torch.cat([torch.full((n,), id(p) in ids) for n, p in zip(old.sizes, old.params)]).to(
            old.data.device
        )
        old_state = self.optimizer.state.pop(old.parameter, None)
        self.flat = FlatParameters(params)
        self.bad_gradient = None
        if self.steps_flat:
            self.optimizer.param_groups[0]["params"] = [self.flat.parameter]
            if old_state:
                self.optimizer.state[self.flat.parameter] = {
                    name: value[elements] if torch.is_tensor(value) and value.shape == old.data.shape else value
                    for name, value in old_state.items()
                }
            return
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                if id(param) not in ids:
                    self.optimizer.state.pop(param, None)
            group["params"] = [param for param in group["params"] if id(param) in ids]

    def replace(self, param: nn.Parameter, by: nn.Parameter) -> None:
        """Step the parameter `by` instead of `param`, with the optimizer state of `param`.

        `by` does not lie in the flat tensor before `FlatParameters.bind` is called.
        """
        self.flat.params = [by if p is param else p for p in self.flat.params]
        for group in self.optimizer.param_groups:
            group["params"] = [by if p is param else p for p in group["params"]]
        if param in self.optimizer.state:
            self.optimizer.state[by] = self.optimizer.state.pop(param)

    def warn_of_zero_rate(self) -> None:
        """Count an update whose learning rate is 0 and does not rise again, and warn at the second such update.

        The first such update is no reason to warn: a schedule that ends with the run leaves the last update with a rate
        of 0. The warning is given once.
        """
        if self.schedule is not None and self.schedule.rises_later:
            return
        self.updates_at_zero_rate += 1
        if self.updates_at_zero_rate == 2:
            warnings.warn(
                f"the learning rate of optimizer {self.key!r} is 0: updates train nothing with it. Where a schedule "
                "has ended, give it a later last point; to train no further, stop updating",
                RuntimeWarning,
                stacklevel=2,
            )

    # -- gradients that are not finite ---

    def keep_bad_gradient(self) -> None:
        """Keep the present gradient, which is not finite, until it is reported. On the CPU only; keep the first."""
        if self.bad_gradient is None:
            self.bad_gradient = self.flat.grad.clone()

    def bad_gradient_buffer(self) -> Tensor:
        """Return the buffer that keeps the last gradient that was not finite until it is reported. Only on a device."""
        if self.bad_gradient is None:
            self.bad_gradient = torch.zeros_like(self.flat.grad)
        return self.bad_gradient

    def pop_bad_parameter(self) -> nn.Parameter | None:
        """Return the first parameter whose gradient was not finite since the last report, and clear that gradient."""
        if self.bad_gradient is None:
            return None
        views = self.flat.unflatten(self.bad_gradient)
        bad_parameter = next((p for p, view in zip(self.flat.params, views) if not view.isfinite().all()), None)
        if self.on_host:
            self.bad_gradient = None
        else:  # compiled steps write to this buffer, so it has to stay
            self.bad_gradient.zero_()
        return bad_parameter

    def _check_on_device(self, nan_policy: NanPolicy) -> Tensor | None:
        """Count a gradient that is not finite, on a device that the host must not wait for.

        Returns a 0-d float32 that is 1 if the step is to be skipped; None if steps are not skipped.
        """
        total = self.flat.grad.sum()
        bad = (total - total).ne_(0.0)  # 1 if the total is infinite or NaN: then the difference is NaN
        self.bad_steps.add_(bad)
        buffer = self.bad_gradient_buffer()
        buffer.copy_(torch.where(bad.bool(), self.flat.grad, buffer))
        if nan_policy == "zero":
            self.flat.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            return None
        return bad.to(torch.float32)

    @contextmanager
    def _restoring(self, mask: Tensor) -> Iterator[None]:
        """Return a context after which parameters and optimizer state have their old values again where `mask` is set.

        `mask` is 0-d bool for a step to skip, or `[n]` for the frozen elements of the flat tensor. Frozen parameters
        have a gradient of 0, but earlier moments and weight decay would still move them.

        The host does not read `mask`, so it does not know whether the step is skipped. This has two consequences. State
        that the step creates has no old value, and is set to 0 where `mask` is set. And if the optimizer counts its
        steps on the host, it counts skipped ones as well.
        """
        before = [(tensor, tensor.clone()) for tensor in self._tensors_to_restore(mask)]
        known = {id(tensor) for tensor, _ in before}
        yield
        for tensor, value in before:
            tensor.copy_(torch.where(mask, value, tensor))
        for tensor in self._tensors_to_restore(mask):
            if id(tensor) not in known:
                tensor.masked_fill_(mask, 0)

    def _tensors_to_restore(self, mask: Tensor) -> list[Tensor]:
        """Return the tensors that a step changes and that `mask` fits: parameters and optimizer state."""
        tensors = [self.flat.data]
        for state in self.optimizer.state.values():
            tensors += filter(torch.is_tensor, state.values())
        return [each for each in tensors if each.device == mask.device and mask.shape in ((), each.shape)]


# -- all optimizers of a learner ---


class OptimizerSet:
    """All optimizers of one learner, in order of registration."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], RegisteredOptimizer] = {}
        self._owner: dict[int, RegisteredOptimizer] = {}
        """Optimizer of each parameter, by `id(parameter)`."""

    def __iter__(self) -> Iterator[RegisteredOptimizer]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def register(
        self,
        module_id: str,
        name: str,
        make: torch.optim.Optimizer | Callable[[nn.Parameter], torch.optim.Optimizer],
        params: Sequence[nn.Parameter],
        lr: ScheduleLike | None,
    ) -> RegisteredOptimizer:
        """Add an optimizer over `params`.

        Args:
            module_id: Module that it belongs to, or `ALL_MODULES`.
            name: Name of the optimizer within the module.
            make: Optimizer that holds exactly `params`, or a function that makes one over the flat tensor.
            params: Parameters to step. They become views of one flat tensor.
            lr: Learning rate or schedule. None leaves the rates of the optimizer alone.

        Raises:
            ValueError: the name is taken, or a parameter already has an optimizer.
        """
        if (module_id, name) in self._by_key:
            raise ValueError(f"optimizer {name!r} of module {module_id!r} is already registered; give it another name")
        params = list(params)
        for param in params:
            if id(param) in self._owner:
                raise ValueError(
                    f"a parameter of shape {tuple(param.shape)} already belongs to optimizer "
                    f"{self._owner[id(param)].key!r}; a second optimizer would step it twice"
                )
        flat = FlatParameters(params)
        optimizer = make if isinstance(make, torch.optim.Optimizer) else make(flat.parameter)
        schedule = None if lr is None else Schedule(lr, name=f"lr of {name}")
        # If `make` is an optimizer, `optimizer` is that same object: a user's own, which holds single parameters. If it
        # is a function, it has made an optimizer over the flat tensor.
        entry = RegisteredOptimizer(module_id, name, optimizer, flat, schedule, steps_flat=optimizer is not make)
        if entry.schedule is not None:
            entry.set_lr(entry.schedule(0))
        self._by_key[module_id, name] = entry
        self._owner.update({id(param): entry for param in params})
        return entry

    def replace(self, replaced: Mapping[nn.Parameter, nn.Parameter], names: Mapping[int, str]) -> None:
        """Step other parameters instead of present ones, with the same optimizer state.

        `replaced` maps each present parameter to the new one, and `names` the ids of new parameters to their names.
        Raises `ValueError` naming a parameter that does not fit; nothing is changed then.
        """
        for param, by in replaced.items():
            self._owner[id(param)].flat.check_fits(by, param, names)
        for param, by in replaced.items():
            entry = self._owner.pop(id(param))
            self._owner[id(by)] = entry
            entry.replace(param, by)

    def steps(self, param: Tensor) -> bool:
        """Return whether an optimizer steps `param`."""
        return id(param) in self._owner

    def get(self, module_id: str, name: str) -> RegisteredOptimizer:
        """Return the optimizer of that name; `KeyError` with those that exist."""
        if (module_id, name) not in self._by_key:
            raise KeyError(f"no optimizer {name!r} for module {module_id!r}; registered are: {self._names()}")
        return self._by_key[module_id, name]

    def of_module(self, module_id: str) -> list[RegisteredOptimizer]:
        """Return the optimizers registered under `module_id`, in order of registration."""
        return [entry for entry in self if entry.module_id == module_id]

    def entry_of(self, optimizer: torch.optim.Optimizer) -> RegisteredOptimizer:
        """Return the entry of `optimizer`; `ValueError` for another object, `KeyError` if it is not registered."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        for entry in self:
            if entry.optimizer is optimizer:
                return entry
        raise KeyError(f"this {type(optimizer).__name__} is not registered here; registered are: {self._names()}")

    def _names(self) -> str:
        return ", ".join(entry.key for entry in self) or "none"

    def module_ids(self) -> list[str]:
        """Return the module ids under which optimizers are registered, `ALL_MODULES` included."""
        return list(dict.fromkeys(entry.module_id for entry in self))

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return each parameter's gradient, a view of the flat gradient of its optimizer."""
        gradients: dict[nn.Parameter, Tensor] = {}
        for entry in self:
            gradients.update(entry.flat.grad_by_param)
        return gradients

    def copy_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Copy gradients that are not views already into the flat gradients; `ValueError` if a parameter has none."""
        for entry in self:
            if entry.flat.are_views(gradients.values()):
                continue
            for param, view in zip(entry.flat.params, entry.flat.grad_views):
                gradient = gradients.get(param)
                if gradient is None:
                    raise ValueError(
                        f"the gradients lack a parameter of shape {tuple(param.shape)} of optimizer {entry.key!r}; "
                        "postprocess_gradients must return one gradient for every parameter it was given"
                    )
                if gradient is not view:
                    view.copy_(gradient)

    def remove(self, module_id: str, params: Collection[int]) -> None:
        """Remove the optimizers of module `module_id`, and the parameters with the ids `params` from all others."""
        for key, entry in list(self._by_key.items()):
            remaining = [param for param in entry.flat.params if id(param) not in params]
            if entry.module_id == module_id or not remaining:
                del self._by_key[key]
            elif len(remaining) < len(entry.flat.params):
                entry.keep_only(remaining)
        self._owner = {}
        for entry in self:
            self._owner.update({id(param): entry for param in entry.flat.params})

    def end_update(
        self,
        results: dict[str, dict[str, Any]],
        may_warn_of: Collection[str],
        series: Mapping[tuple[str, str], Sequence[float]],
        config_of: Callable[[str], TrainingSection],
    ) -> int:
        """End an update: add learning rates and shares of clipped gradient steps to `results`, and warn of rates of 0.

        Returns the number of gradients that were not finite. Their count starts again from 0. Denormal numbers in the
        state of the optimizers are set to 0.

        Args:
            results: Numbers by module id, which are extended. If they already say that
                `num_bad_gradients` is 0, the counts are not read from the device.
            may_warn_of: Ids of the modules whose optimizers may warn that they train nothing.
            series: Values of each metric in the gradient steps of the update.
            config_of: Function that returns the training section of a module id.
        """
        counts = [0.0] * len(self)
        if results[ALL_MODULES].get("num_bad_gradients") != 0 and len(self):
            if all(entry.on_host for entry in self):
                counts = [entry.bad_steps.item() for entry in self]
            else:  # one transfer to the host for all of them
                counts = torch.stack([entry.bad_steps for entry in self]).tolist()
        for entry, count in zip(self, counts):
            entry.flush_denormals()
            rates = [group["lr"] for group in entry.optimizer.param_groups]
            result = results.setdefault(entry.module_id, {})
            config = config_of(entry.module_id)
            result[f"{entry.name}_learning_rate"] = rates[0]
            norms = series.get((entry.module_id, f"gradients_{entry.name}_global_norm"))
            if norms and config.grad_clip is not None and config.grad_clip_by == "global_norm":
                clipped = sum(norm > config.grad_clip for norm in norms)
                result[f"gradients_{entry.name}_share_clipped"] = clipped / len(norms)
            may_warn = entry.module_id in may_warn_of or (may_warn_of and entry.module_id == ALL_MODULES)
            if not any(rates) and may_warn:
                entry.warn_of_zero_rate()
            # Gradients are summed over the learners before they are checked. So each learner has counted the same bad
            # gradients, and `count` is not added up over learners. A count of 0 needs no write to the device.
            if count:
                entry.bad_steps.zero_()
        return int(sum(counts))

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return `{key: {"state": tensors by parameter, "param_groups": settings, "schedule": position}}`."""
        states: dict[str, Any] = {}
        for entry in self:
            state = entry.optimizer.state_dict()
            groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
            states[entry.key] = {
                "state": {i: _copy_of(item) for i, item in state["state"].items()},
                "param_groups": groups,
                "schedule": {} if entry.schedule is None else entry.schedule.get_state(),
            }
        return states

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check that `set_state` can restore `state`; `ValueError` naming missing, unknown or misshaped entries."""
        known = {entry.key for entry in self}
        if set(state) != known:
            raise ValueError(
                f"optimizer state does not fit: missing {sorted(known - set(state))}, "
                f"unknown {sorted(set(state) - known)}"
            )
        for entry in self:
            saved = state[entry.key]
            parameters = _parameters_of(entry.optimizer)
            if len(saved["param_groups"]) != len(entry.optimizer.param_groups):
                raise ValueError(f"optimizer {entry.key!r} has another number of parameter groups than the state")
            for now, before in zip(entry.optimizer.param_groups, saved["param_groups"]):
                if entry.steps_flat and now.keys() - {"params"} != before.keys():
                    raise ValueError(
                        f"optimizer {entry.key!r} is {type(entry.optimizer).__name__}, and the state is of another one "
                        f"with the settings {sorted(before)}; configure training.optimizer as it was"
                    )
            for index, item in saved["state"].items():
                if entry.is_plain_adam and set(item) != ADAM_STATE:
                    raise ValueError(f"optimizer {entry.key!r}: the state has {sorted(item)}, not {sorted(ADAM_STATE)}")
                shape = parameters[int(index)].shape
                for name, value in item.items():
                    if torch.is_tensor(value) and value.dim() and value.shape != shape:
                        raise ValueError(
                            f"optimizer {entry.key!r}: {name} of parameter {index} has shape {tuple(value.shape)}, "
                            f"the parameter {tuple(shape)}"
                        )

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore all optimizers, or none (`check_state` is called first)."""
        self.check_state(state)
        for entry in self:
            saved = state[entry.key]
            current = entry.optimizer.state_dict()["param_groups"]
            # Settings of a configured optimizer are those of the present configuration, apart from the learning rate,
            # which a schedule may have moved. Only the checkpoint knows the settings of a user's own optimizer.
            groups = []
            for now, before in zip(current, saved["param_groups"]):
                restored = {"lr": before["lr"]} if entry.steps_flat else before
                groups.append({**now, **restored})
            tensors = {int(i): _copy_of(item) for i, item in saved["state"].items()}
            entry.optimizer.load_state_dict({"state": tensors, "param_groups": groups})
            if entry.schedule is None or not saved["schedule"]:
                continue
            # `follow` moves the schedule to the saved step. It returns the saved learning rate if the present schedule
            # has another one there, because the configuration has changed since; otherwise None.
            saved_lr = entry.schedule.follow(saved["schedule"])
            if saved_lr is not None:
                entry.set_lr(entry.schedule.value)
                warn_of_configured(f"the learning rate of {entry.key}", entry.schedule.value, saved_lr)


def configured_optimizer(config: TrainingSection[Any]) -> Callable[[nn.Parameter], torch.optim.Optimizer]:
    """Return a function that makes the optimizer of `training(optimizer=, optimizer_kwargs=)` over one flat tensor.

    Raises `ValueError` for settings that the optimizer does not have, or that are set elsewhere.
    """
    kind = config.optimizer
    settings = dict(config.optimizer_kwargs)
    where = f"training.optimizer_kwargs={settings!r} is not allowed for training.optimizer={kind!r}"
    make = OPTIMIZERS[kind] if isinstance(kind, str) else kind
    is_adam = kind in ("adam", "adamw")
    elsewhere = {**SET_ELSEWHERE, "eps": "set training(adam_epsilon=...)"} if is_adam else SET_ELSEWHERE
    known = inspect.signature(make).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    for name in settings:
        # Example of the whole message: "training.optimizer_kwargs={'lr': 0.1} is not allowed for
        # training.optimizer='adam': 'lr' is not one of them; set training(lr=...), which may be a schedule, too".
        # "Them" are the settings that `optimizer_kwargs` may contain.
        if name in elsewhere:
            raise ValueError(f"{where}: {name!r} is not one of them; {elsewhere[name]}")
        if name not in known and not takes_all:
            raise ValueError(f"{where}: there is no {name!r}; {suggestion(name, sorted(known.keys() - elsewhere))}")
    if is_adam:
        settings["eps"] = config.adam_epsilon
    if kind in ("adam", "adamw", "sgd"):  # torch's RMSprop has no fused kernel
        settings["fused"] = True
    return lambda flat: make([flat], lr=1e-3, **settings)  # `training.lr` sets the rate when it is registered


def check_configured_optimizer(config: TrainingSection[Any]) -> None:
    """Check that the configured optimizer can be made over one flat tensor; `ValueError` otherwise."""
    make = configured_optimizer(config)
    param = nn.Parameter(torch.zeros(2))
    where = f"training.optimizer={config.optimizer!r} with optimizer_kwargs={config.optimizer_kwargs!r}"
    try:
        optimizer = make(param)
        check_optimizer(optimizer, [param])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where} is not allowed: {error}") from error
    if any("lr" not in group for group in optimizer.param_groups):
        raise ValueError(f"{where} is not allowed: it has no 'lr', which training.lr sets")


def warn_of_configured(name: str, configured: float, saved: float) -> None:
    """Warn that a configured value is used, and not the one that a checkpoint was made with."""
    warnings.warn(
        f"{name} is {configured:g}, as configured; the checkpoint was made with {saved:g}",
        ConfiguredValueWarning,
        stacklevel=2,
    )


def check_optimizer(optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter]) -> None:
    """Check that `optimizer` is a torch optimizer over exactly `params` that needs no closure.

    Raises:
        ValueError: it is not, or `params` are not parameters.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if any(not isinstance(param, Tensor) for param in params):
        raise ValueError("params must be a list of parameters of the module")
    held = set(map(id, _parameters_of(optimizer)))
    if held != {id(p) for p in params}:
        raise ValueError(
            f"the optimizer holds {len(held)} parameters, params lists {len(params)}, and they are not the same ones; "
            "build the optimizer from just the parameters you register"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} needs a closure that computes the loss anew within its step, and a learner "
            "makes one step from one gradient; take one that does not, such as Adam, AdamW, RMSprop or SGD"
        )


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups of an optimizer, in order."""
    return list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _copy_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the state of one parameter, with copies of its tensors."""
    return {name: value.clone() if torch.is_tensor(value) else value for name, value in item.items()}
