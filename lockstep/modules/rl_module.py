"""The neural network of a policy, and the recipe for building one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, carries_mask
from lockstep.data.spaces import describe_space, space_from
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.layers import mask_logits
from lockstep.modules.lazy_layers import initialise_lazy
from lockstep.modules.model_config import ModelConfig
from lockstep.state.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from lockstep.state.names import name_of
from lockstep.state.sizes import checked_tensors, claims_of
from lockstep.state.streams import global_generator
from lockstep.state.trust import FileNames, Kind, NameInFile, find_class, signed

Batch = Mapping[str, Any]
ModuleState = dict[str, np.ndarray]


class RLModule(nn.Module):
    """A network that acts and is trained.

    Subclasses make their layers in `setup` and compute in `_forward`, or in the three forward methods where these
    differ. A batch has `batch["obs"]`, the tree of tensors `[N, ...]` of the observation space. Outputs are a dict with
    `"action_dist_inputs"` `[N, D]` (or `"actions"`), and in training `"vf_preds"` `[N]` for actor-critics.

    Parameters may be replaced by views into one flat tensor (`parameter.data = ...`) at any time.
    """

    is_built: ClassVar[Literal[True]] = True
    """Whether this is a network, and not the spec of one."""
    has_module_ids: ClassVar[Literal[False]] = False
    """Whether this holds several modules by id."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        inference_only: bool = False,
        model_config: ModelConfig | Mapping[str, Any] | None = None,
        critic_space: Space[Any] | None = None,
    ) -> None:
        """Call `setup`.

        Args:
            observation_space, action_space: what it observes, and what it chooses.
            inference_only: leave out what only training needs.
            model_config: handed to `setup` as it is; None is the default `ModelConfig`.
            critic_space: of `batch["critic_obs"]` `[N, ...]`, which a centralised critic sees besides in training.
        """
        super().__init__()
        self.observation_space: Any = observation_space
        self.action_space: Any = action_space
        self.inference_only = inference_only
        self.model_config = ModelConfig() if model_config is None else model_config
        self.critic_space = critic_space
        self._action_dist: ActionDist | None = None
        self.acting_connectors: tuple[str, ...] = ()
        """names of the connectors that a learner has around this module; acting needs them too"""
        self.setup()

    def setup(self) -> None:
        """Make the layers. Called once, at the end of the constructor."""

    # -- forward ---

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the outputs; each forward method does this unless it is overridden."""
        raise TypeError(
            f"{type(self).__name__} must define _forward(batch), or forward_inference, forward_exploration and "
            "forward_train"
        )

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """Compute what acting greedily needs."""
        return self._forward(batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """Compute what acting needs while data is collected."""
        return self._forward(batch)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Compute what the loss needs."""
        return self._forward(batch)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Call `forward_train`, so that torch's own tools find it."""
        return self.forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the state values `[N]` among the outputs of `forward_train`. `TypeError` where there are none."""
        outputs = self.forward_train(batch)
        if "vf_preds" in outputs:
            return outputs["vf_preds"]
        raise TypeError(
            f"{type(self).__name__} has no value function: define compute_values(batch) -> [N], or return 'vf_preds' "
            "[N] from forward_train"
        )

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the recurrent state at an episode's start, without a batch dimension; empty without memory."""
        return {}

    def is_stateful(self) -> bool:
        """Return whether acting needs a state from step to step."""
        return bool(self.get_initial_state())

    @property
    def action_dist_cls(self) -> ActionDist:
        """Distribution over the action space (`ValueError` for a space that has none)."""
        if self._action_dist is None:
            config = self.model_config
            fields = vars(config) if isinstance(config, ModelConfig) else config
            self._action_dist = ActionDist(self.action_space, bool(fields.get("squash_actions", False)))
        return self._action_dist

    # -- state ---

    def get_non_inference_attributes(self) -> list[str]:
        """Return the names of submodules and parameters that acting does not need (a value network)."""
        return []

    def parts_left_out(self) -> list[str]:
        """Return the names of submodules and parameters that this module does not have, and other such ones do."""
        return self.get_non_inference_attributes() if self.inference_only else []

    def get_state(self, *, inference_only: bool = False) -> ModuleState:
        """Return a copy of all parameters and buffers by name, or with `inference_only` of those that acting needs."""
        tensors = self._acting_tensors() if inference_only else self.state_dict().items()
        return {name: _to_numpy(tensor) for name, tensor in tensors}

    def set_state(self, state: Mapping[str, np.ndarray | Tensor]) -> None:
        """Copy values into parameters and buffers in place (views into a flat tensor stay views).

        A module passes over the names of `parts_left_out`.

        Raises:
            ValueError: missing, unknown or misshaped names (all are listed); nothing is changed then.
        """
        copy_values(self.matched_state(state))

    def matched_state(self, state: Mapping[str, np.ndarray | Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return (tensor of the module, its value in `state`), for `copy_values`. Raises as `set_state` does."""
        tensors = self.state_dict()
        dropped = self.parts_left_out()
        problems = {
            "missing": sorted(tensors.keys() - state.keys()),
            "unknown": sorted(name for name in state.keys() - tensors.keys() if name.partition(".")[0] not in dropped),
            "of another shape": [
                f"{name} is {tuple(np.shape(state[name]))}, not {tuple(tensor.shape)}"
                for name, tensor in tensors.items()
                if name in state and np.shape(state[name]) != tuple(tensor.shape)
            ],
        }
        listed = "; ".join(f"{label}: {', '.join(names)}" for label, names in problems.items() if names)
        if listed:
            raise ValueError(f"state does not fit {type(self).__name__} ({listed})")
        return [(tensor, torch.as_tensor(state[name])) for name, tensor in tensors.items()]

    def get_flat_weights(self, *, copy: bool = True) -> np.ndarray:
        """Return every parameter and buffer that acting needs as [bytes] uint8, in a fixed order.

        Tensors that lie one after another in memory, as an optimizer's flat parameters do, are copied at once; with
        `copy=False` and all of them there, the result is that memory itself, which changes with the next gradient step.
        """
        runs = [run.cpu() for run in self._acting_runs()]
        if not runs:
            return np.empty(0, np.uint8)
        if len(runs) > 1:
            return torch.cat(runs).numpy()
        return (runs[0].clone() if copy else runs[0]).numpy()

    def set_flat_weights(self, flat: np.ndarray) -> None:
        """Copy what `get_flat_weights` gave for such a module into the tensors, in place.

        Raises:
            ValueError: the buffer is of a module of another shape; nothing is changed then.
        """
        runs = list(self._acting_runs())
        expected = sum(run.numel() for run in runs)
        if flat.dtype != np.uint8 or flat.shape != (expected,):
            raise ValueError(
                f"the weights are {flat.dtype} {flat.shape}, {type(self).__name__} needs uint8 ({expected},): they are "
                "of another network; build runners and learners from one configuration"
            )
        start = 0
        for run in runs:
            part = flat[start : start + run.numel()]
            start += run.numel()
            if run.device.type == "cpu":
                np.copyto(run.numpy(), part)
            else:
                run.copy_(torch.from_numpy(part.copy()))

    def _acting_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters and buffers that acting needs, with their names."""
        dropped = self.get_non_inference_attributes()
        for name, tensor in self.state_dict().items():
            if not any(name == item or name.startswith(f"{item}.") for item in dropped):
                yield name, tensor

    def _acting_runs(self) -> Iterator[Tensor]:
        """Yield the tensors that acting needs as uint8 views on their memory; neighbours in memory are one view."""
        run: Tensor | None = None
        for name, tensor in self._acting_tensors():
            if tensor.numel() == 0:
                continue
            if not tensor.is_contiguous():
                raise ValueError(f"{name} of {type(self).__name__} is not contiguous in memory; make it .contiguous()")
            part = tensor.detach().reshape(-1).view(torch.uint8)
            if run is not None and _follows(run, part):
                run = run.as_strided((run.numel() + part.numel(),), (1,))
            else:
                if run is not None:
                    yield run
                run = part
        if run is not None:
            yield run

    # -- checkpoints ---

    def state_tree(self, *, inference_only: bool = False) -> dict[str, Any]:
        """Return what a checkpoint keeps of a module: its weights and the spec that builds it."""
        spec = {**self.spec().to_dict(), "acting_connectors": list(self.acting_connectors)}
        return {"weights": self.get_state(inference_only=inference_only), "spec": spec}

    def spec(self) -> RLModuleSpec:
        """Return the recipe that builds such a module (without its weights)."""
        return RLModuleSpec(
            type(self),
            self.observation_space,
            self.action_space,
            self.inference_only,
            self.model_config,
            self.critic_space,
        )

    def save_to_path(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint (`weights.safetensors`, `spec.json`, manifest) and return its absolute path.

        `path` None: a new temporary folder.
        """
        return str(write_checkpoint(path, {"": self.state_tree()}))

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Take the weights of a checkpoint. `CheckpointError` or `ValueError` if there is none that fits.

        Warns as `from_checkpoint` does, unless this module has the same connectors around it.
        """
        tree = _module_tree(path)
        self.set_state(tree["weights"])
        warn_of_connectors(tree, self.acting_connectors)

    @classmethod
    def from_checkpoint(
        cls, path: str | os.PathLike[str], *, module_class: type[RLModule] | None = None, trust: bool = False
    ) -> RLModule:
        """Build the module whose checkpoint is in `path`, weights included: the network alone.

        `module_class` is needed for a class that cannot be imported by name (one made in a script or a function).
        `trust=True` allows what the file of a stranger may not name, such as an encoder that is a function
        (`UntrustedError` otherwise). Warns where the network was trained with connectors around it, which are not
        restored with it; `lockstep.load_policy` acts with both.
        """
        tree = _module_tree(path)
        names = FileNames(Path(path), tree["spec"], trust)
        with claims_of(path):
            module = cls.from_state_tree(tree, module_class=module_class, names=names)
        warn_of_connectors(tree)
        return module

    @staticmethod
    def from_state_tree(
        tree: Mapping[str, Any], *, module_class: type[RLModule] | None = None, names: FileNames | None = None
    ) -> RLModule:
        """Build the module that `state_tree` described; `names` as for `RLModuleSpec.from_dict`."""
        module = RLModuleSpec.from_dict(tree["spec"], module_class=module_class, names=names).build()
        module.set_state(tree["weights"])
        module.acting_connectors = tuple(tree["spec"]["acting_connectors"])
        return module


@dataclass(frozen=True)
class RLModuleSpec:
    """How to build an `RLModule`.

    Fields that are None are filled in by who builds it: an algorithm knows its default class, an environment its
    spaces.
    """

    module_class: type[RLModule] | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    inference_only: bool = False
    model_config: ModelConfig | Mapping[str, Any] | None = None
    critic_space: Space[Any] | None = None

    is_built: ClassVar[Literal[False]] = False
    """Whether this is a network, and not the spec of one."""
    has_module_ids: ClassVar[Literal[False]] = False
    """Whether this holds the specs of several modules by id."""

    def build(self, *, seed: int | None = None) -> RLModule:
        """Build a new module.

        With `seed`, the initial weights depend on nothing else and torch's global generator is left as it was.

        Raises:
            ValueError: a field that is needed is None.
            ClaimedSizeError: a network from a file (`claims_of`) that does not fit into memory.
            TypeError: a `module_class` that is no `RLModule`.
        """
        absent = [name for name in ("module_class", "observation_space", "action_space") if getattr(self, name) is None]
        if self.module_class is None or self.observation_space is None or self.action_space is None:
            raise ValueError(f"RLModuleSpec needs {', '.join(absent)} to build a module")
        if not (isinstance(self.module_class, type) and issubclass(self.module_class, RLModule)):
            raise TypeError(
                f"module_class must be a subclass of RLModule, got {self.module_class!r}; wrap_module() takes a plain "
                "nn.Module"
            )
        with global_generator(seed, keep=seed is not None), checked_tensors():
            module = self.module_class(
                self.observation_space,
                self.action_space,
                inference_only=self.inference_only,
                model_config=self.model_config,
                **({} if self.critic_space is None else {"critic_space": self.critic_space}),
            )
            initialise_lazy(module)
            return module

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file; the class by its name. The user's signature is over own names."""
        config, cls = self.model_config, self.module_class
        plain = {
            "module_class": None if cls is None else name_of(cls),
            "observation_space": describe_space(self.observation_space),
            "action_space": describe_space(self.action_space),
            "inference_only": self.inference_only,
            "model_config_class": "ModelConfig" if isinstance(config, ModelConfig) else None,
            "model_config": config.to_dict() if isinstance(config, ModelConfig) else config and dict(config),
            **({} if self.critic_space is None else {"critic_space": describe_space(self.critic_space)}),
        }
        return signed(plain)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        module_class: type[RLModule] | None = None,
        names: FileNames | None = None,
    ) -> Self:
        """Return the spec that `to_dict` wrote. `ValueError` if its class cannot be imported and none is passed in.

        `names`: how the objects are found that it names; None: as in a file that the user has not trusted.
        """
        names = FileNames("the module's spec", data) if names is None else names.of_part(data)
        config = data["model_config"]
        if isinstance(config, Mapping) and "encoder" in config:
            config = {**config, "encoder": names.text("model_config.encoder", config["encoder"])}
        if data["model_config_class"] == "ModelConfig":
            config = ModelConfig.of(config)
        if module_class is None and data["module_class"] is not None:
            module_class = import_module_class(NameInFile(data["module_class"], names, "module_class"))
        observation_space, action_space = space_from(data["observation_space"]), space_from(data["action_space"])
        critic_space = space_from(data["critic_space"]) if "critic_space" in data else None
        return cls(module_class, observation_space, action_space, bool(data["inference_only"]), config, critic_space)


def copy_values(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first one."""
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)


def _follows(run: Tensor, part: Tensor) -> bool:
    """Return whether `part` begins where `run` ends, in the same storage."""
    same = run.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() and run.device == part.device
    return same and run.data_ptr() + run.numel() == part.data_ptr()


def warn_of_connectors(tree: Mapping[str, Any], around: Sequence[str] = ()) -> None:
    """Warn where a module was saved that acts behind connectors other than those `around` the restored one."""
    names = tuple(tree["spec"]["acting_connectors"])
    if names and names != tuple(around):
        warnings.warn(
            f"only the network is restored, without the connectors {', '.join(names)} that it was trained with: it "
            "expects observations, and gives out actions, in their form. To act in the environment, use "
            "lockstep.load_policy(path) with the folder of the run or of the policy's checkpoint",
            stacklevel=3,
        )


def _module_tree(path: str | os.PathLike[str]) -> dict[str, Any]:
    tree = read_checkpoint(path).get("", {})
    if not {"weights", "spec"} <= tree.keys():
        raise CheckpointError(f"{path} is a checkpoint, but not of one RLModule: give the folder with a spec.json")
    return dict(tree)


MODULE_CLASS = Kind("an RLModule", (RLModule,), takes_others=False)
_OTHER_CLASS = "give a subclass of RLModule in a file that can be imported, 'module:Class', or pass module_class=..."


def import_module_class(name: str) -> type[RLModule]:
    """Return the RLModule subclass at an import path `package.module:Class`, which the user or a file has named."""
    found: type[RLModule] = find_class("rl_module_spec", name, MODULE_CLASS, _OTHER_CLASS)
    return found


def _to_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has none; float32 holds it exactly
        tensor = tensor.float()
    return tensor.numpy().copy()


# -- any `nn.Module` as an `RLModule` ---

MASKED_OUTPUTS = ("action_dist_inputs", "q_values")
"""the outputs with an entry for each action"""


class WrappedModule(RLModule):
    """An `RLModule` around a plain `nn.Module`; made by `wrap_module`."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        inference_only: bool = False,
        model_config: ModelConfig | Mapping[str, Any] | None = None,
        network: nn.Module | None = None,
        outputs: Sequence[str] = (),
    ) -> None:
        if not isinstance(network, nn.Module):
            raise ValueError(
                "a wrapped nn.Module cannot be built from its spec alone; make it anew, wrap it with wrap_module() and "
                "call restore_from_path()"
            )
        super().__init__(observation_space, action_space, inference_only=inference_only, model_config=model_config)
        self.network = network
        self.outputs = tuple(outputs)
        self.is_masked = carries_mask(observation_space) and self.action_dist_cls.split_mask(observation_space)[1]
        if self.is_masked and "actions" in self.outputs:
            raise ValueError(
                f"outputs={self.outputs} of a network for observations with an action mask: the mask cannot be applied "
                "to actions that are already chosen; let the network return 'action_dist_inputs' instead"
            )

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        returned = self.network(batch["obs"])
        if isinstance(returned, Tensor):
            returned = (returned,)
        if isinstance(returned, Mapping):
            absent = [name for name in self.outputs if name not in returned]
            if absent:
                raise ValueError(f"the wrapped module did not return {absent}, but {list(returned)}")
            named = {name: returned[name] for name in self.outputs}
        elif len(returned) == len(self.outputs):
            named = dict(zip(self.outputs, returned))
        else:
            raise ValueError(f"the wrapped module returned {len(returned)} tensors for the outputs {self.outputs}")
        values = named.get("vf_preds")
        if values is not None and values.dim() > 1 and values.shape[-1] == 1:
            named["vf_preds"] = values.squeeze(-1)
        if self.is_masked:
            mask = self.action_dist_cls.full_mask(batch["obs"][ACTION_MASK])
            named |= {name: mask_logits(named[name], mask) for name in MASKED_OUTPUTS if name in named}
        return named

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the output `"vf_preds"` `[N]`; `TypeError` if it is not among the declared ones."""
        if "vf_preds" not in self.outputs:
            return super().compute_values(batch)
        return self._forward(batch)["vf_preds"]


def wrap_module(
    network: nn.Module,
    observation_space: Space[Any],
    action_space: Space[Any],
    outputs: str | Sequence[str] = "action_dist_inputs",
    *,
    model_config: ModelConfig | Mapping[str, Any] | None = None,
) -> RLModule:
    """Make an `RLModule` of a plain `nn.Module`; it shares the parameters.

    The network sees the whole observation. Where that carries an action mask, the wrapper applies it to
    `"action_dist_inputs"` and `"q_values"`: forbidden actions get a very low number, when acting and when learning.

        outputs = ("action_dist_inputs", "vf_preds")
        module = wrap_module(MyNetwork(), env.observation_space, env.action_space, outputs)

    Args:
        outputs: names what `network(obs)` returns: one name for a tensor, several for a tuple (or for the entries to
            take of a dict). Among them must be `"action_dist_inputs"` `[N, D]` or `"actions"`; `"vf_preds"` `[N]` or
            `[N, 1]` are the state values.

    Raises:
        TypeError: `network` is no `nn.Module`.
        ValueError: no output to act with, or a mask that cannot be applied.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"wrap_module takes a torch nn.Module, got {type(network).__name__}")
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if not {"action_dist_inputs", "actions"} & set(names) or len(set(names)) != len(names):
        raise ValueError(f"outputs must name 'action_dist_inputs' or 'actions', each name once; got {names}")
    return WrappedModule(observation_space, action_space, model_config=model_config, network=network, outputs=names)
