"""The named optimizers of a learner, each over flat parameters."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.learner.config import NanPolicy
from lockstep.learner.flat import FlatParameters
from lockstep.state.checks import is_number
from lockstep.state.schedules import ConfiguredValueWarning, Schedule, ScheduleLike

ALL_MODULES = "__all_modules__"
DEFAULT_OPTIMIZER = "default_optimizer"
ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}
NO_AVG, NO_AVG_SQ = 1e-30, 1e-36
"""Moments of Adam below these are set to 0. Those of weights that get no gradient (of a rectified unit that is off for
every row) shrink until they are denormal, on which some processors compute a hundred times as slowly; beside Adam's
epsilon they are nothing."""
FLUSH_EVERY = 128
"""steps of Adam between two looks for such moments; 0.9^128 of 1e-30 is not denormal yet"""


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
    bad_steps: Tensor
    """0-d: gradients that were not finite, since the last report"""
    bad_gradient: Tensor | None = None
    """a gradient that was not finite, since the last report: on the CPU the first, else zeros before it and the last"""
    has_loss: bool = True
    """took part in the loss of the present gradient step"""
    updates_at_zero_rate: int = 0
    """updates that trained nothing, since its learning rate was 0 and does not rise again"""
    key: str = field(init=False)
    """`module_id.name`, as in checkpoints"""
    on_host: bool = field(init=False)
    """are its parameters in the CPU's memory?"""
    frozen: Tensor | None = field(init=False)
    """`[n]` bool: the elements that stay as they are, moments included, since `requires_grad` is off; None: none do"""

    def __post_init__(self) -> None:
        self.key = f"{self.module_id}.{self.name}"
        self.on_host = self.flat.data.device.type == "cpu"
        self.frozen = self.flat.frozen()

    @property
    def is_plain_adam(self) -> bool:
        """Adam on the flat tensor with nothing special switched on: the step that can be compiled whole."""
        group = self.optimizer.param_groups[0]
        return (
            self.steps_flat
            and type(self.optimizer) is torch.optim.Adam
            and not (group["weight_decay"] or group["amsgrad"] or group["maximize"])
        )

    @property
    def steps_directly(self) -> bool:
        """May the kernel of fused Adam be called without `Optimizer.step` around it (60 us)? Not where a hook or a
        scheduler waits for that call.
        """
        optimizer = self.optimizer
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        return self.is_plain_adam and not hooks and "step" not in vars(optimizer)

    def fused_adam_(self, skip: Tensor | None) -> None:
        """What `optimizer.step()` does for fused Adam. `skip`: 0-d float32, 1 leaves everything as it is."""
        group = self.optimizer.param_groups[0]
        exp_avg, exp_avg_sq, step = self.adam_state()
        beta1, beta2 = group["betas"]
        step.add_(1.0)
        torch._fused_adam_(
            [self.flat.data],
            [self.flat.grad],
            [exp_avg],
            [exp_avg_sq],
            [],
            [step],
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=skip,
        )
        if skip is not None:
            step.sub_(skip)
        elif self.on_host and float(step) % FLUSH_EVERY == 0:
            exp_avg.masked_fill_(exp_avg.abs() < NO_AVG, 0.0)
            exp_avg_sq.masked_fill_(exp_avg_sq < NO_AVG_SQ, 0.0)

    def keep_only(self, params: Sequence[nn.Parameter]) -> None:
        """Goes on with some of its parameters; what the optimizer remembers of them stays."""
        ids = {id(param) for param in params}
        old, group = self.flat, self.optimizer.param_groups[0]
        rows = torch.cat([torch.full((n,), id(p) in ids) for n, p in zip(old.sizes, old.params)]).to(old.data.device)
        remembered = self.optimizer.state.pop(old.parameter, None)
        self.flat = FlatParameters(params)
        self.frozen = self.flat.frozen()
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
        """Goes on with another object in the place of `param`; what the optimizer remembers stays."""
        self.flat.replace(param, by)
        for group in self.optimizer.param_groups:
            group["params"] = [by if p is param else p for p in group["params"]]
        if param in self.optimizer.state:
            self.optimizer.state[by] = self.optimizer.state.pop(param)

    def follow_trainable(self) -> bool:
        """Takes over which parameters are frozen; True where that has changed."""
        if not self.flat.follow_trainable():
            return False
        self.frozen = self.flat.frozen()
        return True

    def set_lr(self, lr: float) -> None:
        """The learning rate of every parameter group. `ValueError` unless it is a finite number, at least 0."""
        if not is_number(lr) or not 0.0 <= lr < math.inf:
            raise ValueError(f"{self.key}: lr={lr!r} is not allowed; it must be a finite number, at least 0")
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def step(self, nan_policy: NanPolicy) -> None:
        """One step on the flat gradient. One that is not finite is counted and, but for "zero", changes nothing."""
        if not self.flat.is_bound():  # moved within the forward pass, as `LSTM.flatten_parameters` does on CUDA
            self.flat.bind({})
        skip = None
        if not self.on_host:
            skip = self._look_on_device(nan_policy)
        elif not math.isfinite(float(self.flat.grad.sum())):
            self.bad_steps.add_(1)
            self.keep_bad_gradient()
            if nan_policy != "zero":
                return
            self.flat.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self._move(skip)

    def _move(self, skip: Tensor | None) -> None:
        kept = [] if self.frozen is None else self._frozen_values(self.frozen)
        if self.steps_directly:
            self.fused_adam_(skip)
        elif skip is not None and not self.is_plain_adam and bool(skip):
            return
        else:
            if skip is not None and self.is_plain_adam:
                self.optimizer.found_inf = skip  # type: ignore[attr-defined]
            self.optimizer.step()
        for tensor, values in kept:
            tensor[self.frozen] = values

    def _frozen_values(self, frozen: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What a step on the flat tensor must leave as it is: frozen parameters, and what is remembered of them.

        (Their gradient is 0, but moments of earlier gradients and weight decay would move them on.)
        """
        if not self.steps_flat:  # they have no gradient, and are passed over
            return []
        remembered = self.optimizer.state.get(self.flat.parameter, {}).values()
        tensors = [self.flat.data, *(v for v in remembered if torch.is_tensor(v) and v.shape == self.flat.data.shape)]
        return [(tensor, tensor[frozen]) for tensor in tensors]

    def _look_on_device(self, nan_policy: NanPolicy) -> Tensor | None:
        """The same where the host must not wait for the device; returns 1 (0-d float32) where to skip the step."""
        total = self.flat.grad.sum()
        bad = (total - total).ne_(0.0)  # 1 where it is infinite or not a number
        self.bad_steps.add_(bad)
        buffer = self.bad_gradient_buffer()
        buffer.copy_(torch.where(bad.bool(), self.flat.grad, buffer))
        if nan_policy == "zero":
            self.flat.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            return None
        return bad.to(torch.float32)

    def keep_bad_gradient(self) -> None:
        """On the CPU: the present gradient is not finite; the first one is kept until it is reported."""
        if self.bad_gradient is None:
            self.bad_gradient = self.flat.grad.clone()

    def bad_gradient_buffer(self) -> Tensor:
        """Elsewhere: where the last gradient that was not finite is kept until it is reported."""
        if self.bad_gradient is None:
            self.bad_gradient = torch.zeros_like(self.flat.grad)
        return self.bad_gradient

    def take_bad_parameter(self) -> nn.Parameter | None:
        """The first parameter whose gradient was not finite since the last report; forgets it."""
        if self.bad_gradient is None:
            return None
        views = self.flat.unflatten(self.bad_gradient)
        found = next((p for p, view in zip(self.flat.params, views) if not view.isfinite().all()), None)
        if self.on_host:
            self.bad_gradient = None
        else:  # an input of compiled steps
            self.bad_gradient.zero_()
        return found

    def adam_state(self) -> tuple[Tensor, Tensor, Tensor]:
        """`(exp_avg, exp_avg_sq, step)`, made where no step was taken yet."""
        state = self.optimizer.state[self.flat.parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=self.flat.data.device)
            state["exp_avg"] = torch.zeros_like(self.flat.data)
            state["exp_avg_sq"] = torch.zeros_like(self.flat.data)
        return state["exp_avg"], state["exp_avg_sq"], state["step"]


class OptimizerSet:
    """Registration, learning rates and state of all optimizers of one learner."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], RegisteredOptimizer] = {}
        self._owner: dict[int, str] = {}

    def __iter__(self) -> Any:
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
        """Adds an optimizer over `params`, or `make(flat_parameter)` over all of them as one tensor.

        Raises `ValueError` when the name is taken, a parameter already has an optimizer, or the optimizer holds
        other parameters than those given.
        """
        if (module_id, name) in self._by_key:
            raise ValueError(f"optimizer {name!r} of module {module_id!r} is already registered; give it another name")
        params = list(params)
        for param in params:
            if id(param) in self._owner:
                raise ValueError(
                    f"a parameter of shape {tuple(param.shape)} already belongs to optimizer "
                    f"{self._owner[id(param)]!r}; a second optimizer would step it twice"
                )
        is_given = isinstance(make, torch.optim.Optimizer)
        if isinstance(make, torch.optim.Optimizer):
            check_optimizer(make, params)
        flat = FlatParameters(params)
        optimizer = make if isinstance(make, torch.optim.Optimizer) else make(flat.parameter)
        entry = RegisteredOptimizer(
            module_id,
            name,
            optimizer,
            flat,
            None if lr is None else Schedule(lr, name=f"lr of {name}"),
            not is_given,
            torch.zeros((), dtype=flat.data.dtype, device=flat.data.device),
        )
        if entry.schedule is not None:
            entry.set_lr(entry.schedule(0))
        self._by_key[module_id, name] = entry
        self._owner.update({id(param): entry.key for param in params})
        return entry

    def replace(self, replaced: Mapping[nn.Parameter, nn.Parameter], names: Mapping[int, str]) -> None:
        """Goes on with other objects in the place of parameters. Raises `ValueError` naming one that does not fit;
        nothing is changed then. `names`: by `id` of the new ones.
        """
        owners = {entry.key: entry for entry in self}
        for param, by in replaced.items():
            owners[self._owner[id(param)]].flat.check_fits(by, param, names)
        for param, by in replaced.items():
            key = self._owner.pop(id(param))
            self._owner[id(by)] = key
            owners[key].replace(param, by)

    def steps(self, param: nn.Parameter) -> bool:
        """Is there an optimizer for it?"""
        return id(param) in self._owner

    def get(self, module_id: str, name: str) -> RegisteredOptimizer:
        """The optimizer of that name; `KeyError` with those that exist."""
        try:
            return self._by_key[module_id, name]
        except KeyError:
            known = ", ".join(entry.key for entry in self) or "none"
            raise KeyError(f"no optimizer {name!r} for module {module_id!r}; registered are: {known}") from None

    def of_module(self, module_id: str) -> list[RegisteredOptimizer]:
        """The optimizers registered under `module_id`, in order of registration."""
        return [entry for entry in self if entry.module_id == module_id]

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Each parameter's gradient, a view on the flat gradient of its optimizer."""
        found: dict[nn.Parameter, Tensor] = {}
        for entry in self:
            found.update(entry.flat.grad_by_param)
        return found

    def take_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Copies what is not a view already into the flat gradients. `ValueError` where a parameter has none."""
        for entry in self:
            if entry.flat.are_views(gradients.values()):
                continue
            for param, view in zip(entry.flat.params, entry.flat.grad_views):
                given = gradients.get(param)
                if given is None:
                    raise ValueError(
                        f"the gradients lack a parameter of shape {tuple(param.shape)} of optimizer {entry.key!r}; "
                        "postprocess_gradients must return one gradient for every parameter it was given"
                    )
                if given is not view:
                    view.copy_(given)

    def module_ids(self) -> list[str]:
        """The ids under which optimizers are registered, `ALL_MODULES` among them where it is used."""
        return list(dict.fromkeys(entry.module_id for entry in self))

    def part_of_module(self, module_id: str, gradients: Mapping[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The gradients of what the optimizers registered under `module_id` step."""
        return {param: gradients[param] for entry in self.of_module(module_id) for param in entry.flat.params}

    def entry_of(self, optimizer: torch.optim.Optimizer) -> RegisteredOptimizer:
        """Where `optimizer` is registered; `ValueError` where it is none, `KeyError` where it is not registered."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        for entry in self:
            if entry.optimizer is optimizer:
                return entry
        known = ", ".join(entry.key for entry in self) or "none"
        raise KeyError(f"this {type(optimizer).__name__} is not registered here; registered are: {known}")

    def remove(self, module_id: str, params: Collection[int]) -> None:
        """Takes out the optimizers registered under `module_id`, and from all others the parameters of these ids."""
        for key, entry in list(self._by_key.items()):
            kept = [param for param in entry.flat.params if id(param) not in params]
            if entry.module_id == module_id or not kept:
                del self._by_key[key]
            elif len(kept) < len(entry.flat.params):
                entry.keep_only(kept)
        self._owner = {id(param): entry.key for entry in self for param in entry.flat.params}

    def get_state(self) -> dict[str, Any]:
        """`{key: {"state": tensors by parameter, "param_groups": settings, "schedule": position}}`."""
        out: dict[str, Any] = {}
        for entry in self:
            state = entry.optimizer.state_dict()
            groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
            out[entry.key] = {
                "state": {i: {k: _copied(v) for k, v in item.items()} for i, item in state["state"].items()},
                "param_groups": groups,
                "schedule": {} if entry.schedule is None else entry.schedule.get_state(),
            }
        return out

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises `ValueError` naming missing, unknown or misshaped entries; changes nothing."""
        known = {entry.key for entry in self}
        if set(state) != known:
            raise ValueError(
                f"optimizer state does not fit: missing {sorted(known - set(state))}, "
                f"unknown {sorted(set(state) - known)}"
            )
        for entry in self:
            given = state[entry.key]
            parameters = [p for group in entry.optimizer.param_groups for p in group["params"]]
            if len(given["param_groups"]) != len(entry.optimizer.param_groups):
                raise ValueError(f"optimizer {entry.key!r} has another number of parameter groups than the state")
            for index, item in given["state"].items():
                if entry.is_plain_adam and set(item) != ADAM_STATE:
                    raise ValueError(
                        f"optimizer {entry.key!r}: the state has {sorted(item)}, Adam {sorted(ADAM_STATE)}"
                    )
                for name, value in item.items():
                    if torch.is_tensor(value) and value.dim() and value.shape != parameters[int(index)].shape:
                        raise ValueError(
                            f"optimizer {entry.key!r}: {name} of parameter {index} has shape {tuple(value.shape)}, "
                            f"the parameter {tuple(parameters[int(index)].shape)}"
                        )

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores all optimizers, or none (`check_state` is called first)."""
        self.check_state(state)
        for entry in self:
            given = state[entry.key]
            current = entry.optimizer.state_dict()["param_groups"]
            own = ("eps",) if entry.steps_flat else ()  # of the optimizer that the configuration makes
            groups = [
                {**now, **saved, **{name: now[name] for name in own if name in now}}
                for now, saved in zip(current, given["param_groups"])
            ]
            tensors = {int(i): {k: _copied(v) for k, v in item.items()} for i, item in given["state"].items()}
            entry.optimizer.load_state_dict({"state": tensors, "param_groups": groups})
            if entry.schedule is None or not given["schedule"]:
                continue
            saved_lr = entry.schedule.follow(given["schedule"])
            if saved_lr is not None:
                entry.set_lr(entry.schedule.value)
                tell_configured(f"the learning rate of {entry.key}", entry.schedule.value, saved_lr)


def fused_adam(epsilon: float) -> Callable[[nn.Parameter], torch.optim.Optimizer]:
    """Makes what an optimizer is by default: Adam over one flat tensor."""

    def make(flat: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.Adam([flat], lr=1e-3, eps=epsilon, fused=True)

    return make


def tell_configured(what: str, configured: float, saved: float) -> None:
    """Warn that a configured value is in force, and not the one that a checkpoint was made with."""
    warnings.warn(
        f"{what} is {configured:g}, as configured; the checkpoint was made with {saved:g}",
        ConfiguredValueWarning,
        stacklevel=2,
    )


def check_optimizer(optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter]) -> None:
    """Raises `ValueError` unless `optimizer` is one and holds just `params`."""
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


def _copied(value: Any) -> Any:
    return value.clone() if torch.is_tensor(value) else value
