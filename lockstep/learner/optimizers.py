"""The named optimizers of a learner. The parameters of each lie in one flat tensor, and so do their gradients."""

from __future__ import annotations

import inspect
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
"""by the names of `training(optimizer=)`"""
SET_ELSEWHERE = {
    "params": "the learner gives it its parameters",
    "lr": "set training(lr=...), which may be a schedule, too",
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), "the learner chooses how a step is computed"),
    "maximize": "losses are minimized; change the sign of yours",
}
"""settings of optimizers that are no `optimizer_kwargs`, and why"""
ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}
NO_AVG, NO_AVG_SQ = 1e-30, 1e-36
"""Moments of Adam below these are set to 0. Those of weights that get no gradient (of a rectified unit that is off for
every row) shrink until they are denormal, on which some processors compute a hundred times as slowly; beside Adam's
epsilon they are nothing."""
FLUSH_EVERY = 128
"""steps of Adam between two looks for such moments; 0.9^128 of 1e-30 is not denormal yet"""
for _method in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
    # PyTorch keeps these from being traced, and loads torch._dynamo for that when one is first called: a second of
    # each start. They are called as they are instead: no code traces them.
    _plain = getattr(getattr(torch.optim.Optimizer, _method), "__wrapped__", None)
    if _plain is not None:
        _plain.__dict__.setdefault("__dynamo_disable", _plain)
GRADIENT, LEARNS = operator.attrgetter("grad"), operator.attrgetter("requires_grad")
ClipFunction = Callable[[Sequence[Tensor], float, GradClipBy, Tensor], None]


# -- clipping ---


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm (0-d) of all elements of all tensors."""
    if len(tensors) == 1:
        return torch.linalg.vector_norm(tensors[0])
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))


def clip_gradients_(tensors: Sequence[Tensor], limit: float, by: GradClipBy, norm: Tensor) -> None:
    """Clip in place. `norm` is the global norm of `tensors`; only `by="global_norm"` uses it.

    A tensor of norm n is scaled by `min(1, limit / n)`, so that its direction stays.
    """
    if by == "value":
        for tensor in tensors:
            tensor.clamp_(-limit, limit)
    elif by == "norm":
        for tensor in tensors:
            tensor.mul_((limit / (torch.linalg.vector_norm(tensor) + 1e-6)).clamp(max=1.0))
    else:
        # A norm that is NaN scales nothing, so that the sound tensors stay sound and the bad one can be named.
        bound = norm.new_full((), limit)
        scale = bound / torch.fmax(norm + 1e-6, bound)
        for tensor in tensors:
            tensor.mul_(scale)


# -- flat parameters ---


class FlatParameters:
    """Moves `params` into one contiguous tensor; each parameter becomes a view of it, its gradient a view of `grad`.

    Clipping, the optimizer's step, the all-reduce and the publishing of weights are then one operation each.
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
        """the flat tensor as one parameter, for an optimizer that steps all of it at once"""
        self.parameter.grad = self.grad
        self._places = [view.data_ptr() for view in self.unflatten(self.data)]
        self.bind({})

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Return views of `flat` in the shapes of the parameters."""
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes)]

    def are_views(self, gradients: Collection[Tensor]) -> bool:
        """Return whether `gradients`, one for each parameter, are the views of `grad` themselves."""
        return len(gradients) == len(self.params) and all(map(operator.is_, gradients, self.grad_views))

    def take(self, gradients: Mapping[nn.Parameter, Tensor]) -> Sequence[Tensor]:
        """Return the gradients of its parameters, in order: the views themselves where the dict has just these.

        On a device also where it has others beside them: one operation on the flat tensor is one launch.
        """
        if self.are_views(gradients.values()):
            return self.grad_views
        found = [gradients[param] for param in self.params]
        return self.grad_views if self.data.device.type != "cpu" and self.are_views(found) else found

    def zero_grad(self) -> None:
        """Set all gradients to zero, in one operation.

        The views stay in place, or come back where somebody set `.grad` or `.grad.data` (as `module.double()` does).
        """
        self.grad.zero_()
        try:
            if list(map(Tensor.data_ptr, map(GRADIENT, self._learning))) == self._grad_places:
                return
        except TypeError:  # None
            pass
        self._put_gradients()

    def is_bound(self) -> bool:
        """Return whether all parameters still lie in the flat tensor."""
        return list(map(Tensor.data_ptr, self.params)) == self._places

    def bind(self, names: Mapping[int, str]) -> None:
        """Make parameters views again that were given other memory (`p.data = ...`); their values are kept.

        `names`: by `id(parameter)`, for messages. Raises `ValueError` naming one that has another shape, dtype or
        device now; nothing is changed then.
        """
        for param in self.params:
            self.check_fits(param, param, names)
        # All values first: what was swapped lies in the places of others.
        moved = [
            (param, view, param.detach().clone())
            for param, view in zip(self.params, self.unflatten(self.data))
            if param.data_ptr() != view.data_ptr() or not param.is_contiguous()
        ]
        for param, view, value in moved:
            view.copy_(value)
            param.data = view
        self._put_gradients()

    def check_fits(self, param: nn.Parameter, place: nn.Parameter, names: Mapping[int, str]) -> None:
        """Raise `ValueError` naming `param` unless it can lie in the place of `place`, one of its parameters."""
        shape = next(shape for p, shape in zip(self.params, self.shapes) if p is place)
        if param.shape != shape or param.dtype != self.data.dtype or param.device != self.data.device:
            raise ValueError(
                f"{names.get(id(param), 'a parameter')} was {tuple(shape)} {self.data.dtype} on {self.data.device} "
                f"when its optimizer was made, and is {tuple(param.shape)} {param.dtype} on {param.device}: it cannot "
                "go on with it. Give it back its shape, dtype and device, or build the learner anew "
                "(framework(dtype=) sets the dtype)"
            )

    def follow_trainable(self) -> bool:
        """Take over which parameters are frozen (`requires_grad_(False)`); return whether that has changed."""
        trainable = list(map(LEARNS, self.params))
        if trainable == self._trainable:
            return False
        self._put_gradients()
        return True

    def _put_gradients(self) -> None:
        """Make gradients views of the flat one; frozen parameters have none, and optimizers pass them over."""
        self._trainable = list(map(LEARNS, self.params))
        self.grad_views = self.unflatten(self.grad)
        self.grad_by_param = dict(zip(self.params, self.grad_views))
        self._learning = [param for param in self.params if param.requires_grad]
        self.frozen: Tensor | None = None
        """`[n]` bool: the elements of frozen parameters; None where all learn"""
        if not all(self._trainable):
            parts = [torch.full((size,), not learns) for size, learns in zip(self.sizes, self._trainable)]
            self.frozen = torch.cat(parts).to(self.data.device)
        for param, view in self.grad_by_param.items():
            param.grad = view if param.requires_grad else None
        self._grad_places = [self.grad_by_param[param].data_ptr() for param in self._learning]
        self.parameter.grad = self.grad


# -- one optimizer ---


@dataclass(slots=True)
class RegisteredOptimizer:
    """One optimizer, its flat parameters and its learning-rate schedule."""

    module_id: str
    name: str
    optimizer: torch.optim.Optimizer
    flat: FlatParameters
    schedule: Schedule | None
    """None: the rates are the optimizer's own, and nobody else sets them"""
    steps_flat: bool
    """the optimizer holds the one flat tensor (ours), not the single parameters (a user's)"""
    bad_gradient: Tensor | None = None
    """a gradient that was not finite, since the last report: on the CPU the first, else zeros before it and the last"""
    hold: Tensor | None = None
    """0-d float32, 1 while steps are to leave everything as it is; None: never"""
    rate: Tensor | None = None
    """0-d float32 on the device: the learning rate of steps in a CUDA graph; None: that of the optimizer"""
    has_loss: bool = True
    """took part in the loss of the present gradient step"""
    updates_at_zero_rate: int = 0
    """updates that trained nothing, since its learning rate was 0 and does not rise again"""
    key: str = field(init=False)
    """`module_id.name`, as in checkpoints"""
    bad_steps: Tensor = field(init=False)
    """0-d: gradients that were not finite, since the last report"""
    on_host: bool = field(init=False)
    """whether its parameters are in the CPU's memory"""

    def __post_init__(self) -> None:
        self.key = f"{self.module_id}.{self.name}"
        self.bad_steps = self.flat.data.new_zeros(())
        self.on_host = self.flat.data.device.type == "cpu"

    @property
    def is_plain_adam(self) -> bool:
        """Whether it is Adam on the flat tensor with nothing special switched on: a step that can be compiled whole."""
        group = self.optimizer.param_groups[0]
        return (
            self.steps_flat
            and type(self.optimizer) is torch.optim.Adam
            and not (group["weight_decay"] or group["amsgrad"] or group["maximize"])
        )

    @property
    def steps_directly(self) -> bool:
        """Whether fused Adam's kernel may be called without `Optimizer.step` around it.

        Not where a hook or a scheduler waits for that call.
        """
        optimizer = self.optimizer
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return self.is_plain_adam and not hooks and "step" not in vars(optimizer)

    def step(self, nan_policy: NanPolicy) -> None:
        """Step on the flat gradient. One that is not finite is counted and, but for "zero", changes nothing."""
        flat, skip = self.flat, None
        if not flat.is_bound():  # moved within the forward pass, as `LSTM.flatten_parameters` does on CUDA
            flat.bind({})
        if not self.on_host:
            skip = self._look_on_device(nan_policy)
        elif not math.isfinite(float(flat.grad.sum())):
            self.bad_steps.add_(1)
            self.keep_bad_gradient()
            if nan_policy != "zero":
                return
            flat.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        if self.hold is not None:
            skip = self.hold if skip is None else torch.maximum(skip, self.hold)
        if self.steps_flat and flat.frozen is not None:
            with self._keeping(flat.frozen):
                self._take_step(skip)
        else:
            self._take_step(skip)

    def _take_step(self, skip: Tensor | None) -> None:
        """Take a step of the optimizer, unless `skip`, which the host does not read, is 1."""
        optimizer, flat = self.optimizer, self.flat
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
                found_inf=skip,  # 1 leaves everything as it is
            )
            if skip is not None:
                step.sub_(skip)
            elif self.on_host and float(step) % FLUSH_EVERY == 0:
                exp_avg.masked_fill_(exp_avg.abs() < NO_AVG, 0.0)
                exp_avg_sq.masked_fill_(exp_avg_sq < NO_AVG_SQ, 0.0)
        else:
            heeds = self.steps_flat and bool(optimizer.param_groups[0].get("fused"))
            if heeds:
                optimizer.found_inf = skip  # type: ignore[attr-defined]
            with nullcontext() if heeds or skip is None else self._keeping(skip.bool()):
                optimizer.step()

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group. `ValueError` unless it is a finite number, at least 0."""
        if not is_number(lr) or not 0.0 <= lr < math.inf:
            raise ValueError(f"{self.key}: lr={lr!r} is not allowed; it must be a finite number, at least 0")
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def adam_state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return `(exp_avg, exp_avg_sq, step)`, made where no step was taken yet."""
        state = self.optimizer.state[self.flat.parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=self.flat.data.device)
            state["exp_avg"] = torch.zeros_like(self.flat.data)
            state["exp_avg_sq"] = torch.zeros_like(self.flat.data)
        return state["exp_avg"], state["exp_avg_sq"], state["step"]

    def flush_denormals(self) -> None:
        """Set to 0 what is too small to count in the memory of an optimizer without a kernel of our own (see `NO_AVG`);
        called after each update."""
        if self.steps_flat and self.on_host and not self.is_plain_adam:
            for value in self.optimizer.state.get(self.flat.parameter, {}).values():
                if torch.is_tensor(value) and value.shape == self.flat.data.shape:
                    value.masked_fill_(value.abs() < NO_AVG_SQ, 0.0)

    def keep_only(self, params: Sequence[nn.Parameter]) -> None:
        """Go on with some of its parameters; what the optimizer remembers of them stays."""
        ids = {id(param) for param in params}
        old, group = self.flat, self.optimizer.param_groups[0]
        rows = torch.cat([torch.full((n,), id(p) in ids) for n, p in zip(old.sizes, old.params)]).to(old.data.device)
        remembered = self.optimizer.state.pop(old.parameter, None)
        self.flat = FlatParameters(params)
        self.bad_gradient = None
        if self.steps_flat:
            group["params"] = [self.flat.parameter]
            if remembered:
                self.optimizer.state[self.flat.parameter] = {
                    name: value[rows] if torch.is_tensor(value) and value.shape == old.data.shape else value
                    for name, value in remembered.items()
                }
            return
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                if id(param) not in ids:
                    self.optimizer.state.pop(param, None)
            group["params"] = [param for param in group["params"] if id(param) in ids]

    def replace(self, param: nn.Parameter, by: nn.Parameter) -> None:
        """Go on with another object in the place of `param`; what the optimizer remembers stays."""
        self.flat.params = [by if p is param else p for p in self.flat.params]  # `bind` must follow
        for group in self.optimizer.param_groups:
            group["params"] = [by if p is param else p for p in group["params"]]
        if param in self.optimizer.state:
            self.optimizer.state[by] = self.optimizer.state.pop(param)

    def warn_of_zero_rate(self) -> None:
        """Warn once, at the second update whose learning rate is 0 and does not rise again, so that it trains nothing.

        At the second: a schedule that ends with the run leaves its last update with a rate of 0.
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
        """On the CPU: keep the present gradient, which is not finite, until it is reported; the first one only."""
        if self.bad_gradient is None:
            self.bad_gradient = self.flat.grad.clone()

    def bad_gradient_buffer(self) -> Tensor:
        """Elsewhere: return where the last gradient that was not finite is kept until it is reported."""
        if self.bad_gradient is None:
            self.bad_gradient = torch.zeros_like(self.flat.grad)
        return self.bad_gradient

    def take_bad_parameter(self) -> nn.Parameter | None:
        """Return the first parameter whose gradient was not finite since the last report, and forget it."""
        if self.bad_gradient is None:
            return None
        views = self.flat.unflatten(self.bad_gradient)
        found = next((p for p, view in zip(self.flat.params, views) if not view.isfinite().all()), None)
        if self.on_host:
            self.bad_gradient = None
        else:  # an input of compiled steps
            self.bad_gradient.zero_()
        return found

    def _look_on_device(self, nan_policy: NanPolicy) -> Tensor | None:
        """Count a bad gradient where the host must not wait for the device.

        Returns 0-d float32, 1 where the step is to be skipped.
        """
        total = self.flat.grad.sum()
        bad = (total - total).ne_(0.0)  # 1 where it is infinite or not a number
        self.bad_steps.add_(bad)
        buffer = self.bad_gradient_buffer()
        buffer.copy_(torch.where(bad.bool(), self.flat.grad, buffer))
        if nan_policy == "zero":
            self.flat.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            return None
        return bad.to(torch.float32)

    @contextmanager
    def _keeping(self, kept: Tensor) -> Iterator[None]:
        """Return a context that leaves parameters, and what is remembered of them, as they are where `kept` is set.

        `kept`: 0-d bool, or `[n]` for the flat tensor: of frozen parameters the gradient is 0, but moments of earlier
        ones and weight decay would move them on. Since the host does not read it, what is remembered for the first time
        begins at 0 there, and a count of steps that the host has goes on.
        """
        before = [(tensor, tensor.clone()) for tensor in self._stepped(kept)]
        known = {id(tensor) for tensor, _ in before}
        yield
        for tensor, value in before:
            tensor.copy_(torch.where(kept, value, tensor))
        for tensor in self._stepped(kept):
            if id(tensor) not in known:
                tensor.masked_fill_(kept, 0)

    def _stepped(self, kept: Tensor) -> list[Tensor]:
        """Return the tensors that a step changes and `kept` fits: parameters, and what is remembered of them."""
        remembered = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [self.flat.data, *filter(torch.is_tensor, remembered)]
        return [each for each in tensors if each.device == kept.device and kept.shape in ((), each.shape)]


# -- all of them ---


class OptimizerSet:
    """Registration, learning rates and state of all optimizers of one learner."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], RegisteredOptimizer] = {}
        self._owner: dict[int, RegisteredOptimizer] = {}

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
        """Add an optimizer over `params`, or `make(flat_parameter)` over all of them as one tensor.

        Raises `ValueError` when the name is taken or a parameter already has an optimizer.
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
        entry = RegisteredOptimizer(module_id, name, optimizer, flat, schedule, steps_flat=optimizer is not make)
        if entry.schedule is not None:
            entry.set_lr(entry.schedule(0))
        self._by_key[module_id, name] = entry
        self._owner.update({id(param): entry for param in params})
        return entry

    def replace(self, replaced: Mapping[nn.Parameter, nn.Parameter], names: Mapping[int, str]) -> None:
        """Go on with other objects in the place of parameters. `names`: by `id` of the new ones.

        Raises `ValueError` naming one that does not fit; nothing is changed then.
        """
        for param, by in replaced.items():
            self._owner[id(param)].flat.check_fits(by, param, names)
        for param, by in replaced.items():
            entry = self._owner.pop(id(param))
            self._owner[id(by)] = entry
            entry.replace(param, by)

    def steps(self, param: Tensor) -> bool:
        """Return whether there is an optimizer for `param`."""
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
        """Return where `optimizer` is registered; `ValueError` where it is none, `KeyError` where it is not known."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        for entry in self:
            if entry.optimizer is optimizer:
                return entry
        raise KeyError(f"this {type(optimizer).__name__} is not registered here; registered are: {self._names()}")

    def _names(self) -> str:
        return ", ".join(entry.key for entry in self) or "none"

    def module_ids(self) -> list[str]:
        """Return the ids under which optimizers are registered, `ALL_MODULES` among them where it is used."""
        return list(dict.fromkeys(entry.module_id for entry in self))

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return each parameter's gradient, a view of the flat gradient of its optimizer."""
        found: dict[nn.Parameter, Tensor] = {}
        for entry in self:
            found.update(entry.flat.grad_by_param)
        return found

    def take_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Copy what is not a view already into the flat gradients. `ValueError` where a parameter has none."""
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
        """Take out the optimizers registered under `module_id`, and from all others the parameters of these ids."""
        for key, entry in list(self._by_key.items()):
            kept = [param for param in entry.flat.params if id(param) not in params]
            if entry.module_id == module_id or not kept:
                del self._by_key[key]
            elif len(kept) < len(entry.flat.params):
                entry.keep_only(kept)
        self._owner = {id(param): entry for entry in self for param in entry.flat.params}

    def report(
        self,
        results: dict[str, dict[str, Any]],
        warns_of: Collection[str],
        series: Mapping[tuple[str, str], Sequence[float]],
        config_of: Callable[[str], TrainingSection],
    ) -> int:
        """Add to `results` by module learning rates, and the shares of gradient steps whose global norm was clipped;
        return how many gradients were not finite, and count anew.

        `warns_of`: the modules whose optimizers warn where they train nothing. `series`: metrics in each gradient step.
        The device is not asked where `results` say already that none was bad.
        """
        counts = [0.0] * len(self)
        if results[ALL_MODULES].get("num_bad_gradients") != 0 and len(self):
            if all(entry.on_host for entry in self):
                counts = [entry.bad_steps.item() for entry in self]
            else:  # one transfer for all
                counts = torch.stack([entry.bad_steps for entry in self]).tolist()
        for entry, count in zip(self, counts):
            entry.flush_denormals()
            rates = [group["lr"] for group in entry.optimizer.param_groups]
            result, config = results.setdefault(entry.module_id, {}), config_of(entry.module_id)
            result[f"{entry.name}_learning_rate"] = rates[0]
            norms = series.get((entry.module_id, f"gradients_{entry.name}_global_norm"))
            if norms and config.grad_clip is not None and config.grad_clip_by == "global_norm":
                clipped = sum(norm > config.grad_clip for norm in norms)
                result[f"gradients_{entry.name}_share_clipped"] = clipped / len(norms)
            if not any(rates) and (entry.module_id in warns_of or (warns_of and entry.module_id == ALL_MODULES)):
                entry.warn_of_zero_rate()
            if count:  # the same on all learners
                entry.bad_steps.zero_()
        return int(sum(counts))

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return `{key: {"state": tensors by parameter, "param_groups": settings, "schedule": position}}`."""
        out: dict[str, Any] = {}
        for entry in self:
            state = entry.optimizer.state_dict()
            groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
            out[entry.key] = {
                "state": {i: _copy_of(item) for i, item in state["state"].items()},
                "param_groups": groups,
                "schedule": {} if entry.schedule is None else entry.schedule.get_state(),
            }
        return out

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `ValueError` naming missing, unknown or misshaped entries; nothing is changed."""
        known = {entry.key for entry in self}
        if set(state) != known:
            raise ValueError(
                f"optimizer state does not fit: missing {sorted(known - set(state))}, "
                f"unknown {sorted(set(state) - known)}"
            )
        for entry in self:
            saved = state[entry.key]
            parameters = [p for group in entry.optimizer.param_groups for p in group["params"]]
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
            groups = [  # settings are as configured, but for the rate, where the configuration makes the optimizer
                {**now, "lr": before["lr"]} if entry.steps_flat else {**now, **before}
                for now, before in zip(current, saved["param_groups"])
            ]
            tensors = {int(i): _copy_of(item) for i, item in saved["state"].items()}
            entry.optimizer.load_state_dict({"state": tensors, "param_groups": groups})
            if entry.schedule is None or not saved["schedule"]:
                continue
            saved_lr = entry.schedule.follow(saved["schedule"])
            if saved_lr is not None:
                entry.set_lr(entry.schedule.value)
                warn_of_configured(f"the learning rate of {entry.key}", entry.schedule.value, saved_lr)


def configured_optimizer(config: TrainingSection[Any]) -> Callable[[nn.Parameter], torch.optim.Optimizer]:
    """Return what makes the optimizer of `training(optimizer=, optimizer_kwargs=)` over one flat tensor.

    Raises `ValueError` for settings that it does not have, or that are set elsewhere.
    """
    kind, settings = config.optimizer, dict(config.optimizer_kwargs)
    where = f"training.optimizer_kwargs={settings!r} is not allowed for training.optimizer={kind!r}"
    make = OPTIMIZERS[kind] if isinstance(kind, str) else kind
    is_adam = kind in ("adam", "adamw")
    elsewhere = {**SET_ELSEWHERE, "eps": "set training(adam_epsilon=...)"} if is_adam else SET_ELSEWHERE
    known = inspect.signature(make).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    for name in settings:
        if name in elsewhere:
            raise ValueError(f"{where}: {name!r} is not one of them; {elsewhere[name]}")
        if name not in known and not takes_all:
            raise ValueError(f"{where}: there is no {name!r}; {suggestion(name, sorted(known.keys() - elsewhere))}")
    if is_adam:
        settings["eps"] = config.adam_epsilon
    if kind in ("adam", "adamw", "sgd"):
        settings["fused"] = True
    return lambda flat: make([flat], lr=1e-3, **settings)


def check_configured_optimizer(config: TrainingSection[Any]) -> None:
    """Raise `ValueError` unless the configured optimizer can be made of one flat tensor."""
    make, param = configured_optimizer(config), nn.Parameter(torch.zeros(2))
    where = f"training.optimizer={config.optimizer!r} with optimizer_kwargs={config.optimizer_kwargs!r}"
    try:
        optimizer = make(param)
        check_optimizer(optimizer, [param])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where} is not allowed: {error}") from error
    if any("lr" not in group for group in optimizer.param_groups):
        raise ValueError(f"{where} is not allowed: it has no 'lr', which training.lr sets")


def warn_of_configured(name: str, configured: float, saved: float) -> None:
    """Warn that a configured value is in force, and not the one that a checkpoint was made with."""
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
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
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


def _copy_of(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if torch.is_tensor(value) else value for name, value in item.items()}
