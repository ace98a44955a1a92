"""The neural network of a policy, and the recipe for building one."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.space_codec import describe_space, space_from
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.model_config import ModelConfig
from lockstep.state.checkpoint import CheckpointError, read_checkpoint, write_checkpoint

Batch = Mapping[str, Any]
ModuleState = dict[str, np.ndarray]


class RLModule(nn.Module):
    """A network that acts and is trained. Subclasses make their layers in :meth:`setup` and compute in
    :meth:`_forward`, or in the three forward methods where these differ.

    A batch has `batch["obs"]`, the tree of tensors `[N, ...]` of the observation space. Outputs are a dict
    with `"action_dist_inputs"` `[N, D]` (or `"actions"`), and in training `"vf_preds"` `[N]` for
    actor-critics.

    Parameters may be replaced by views into one flat tensor (`parameter.data = ...`) at any time.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        inference_only: bool = False,
        model_config: ModelConfig | Mapping[str, Any] | None = None,
    ) -> None:
        """`inference_only` leaves out what only training needs; `model_config` is handed to `setup` as it is
        (None: the default :class:`ModelConfig`).
        """
        super().__init__()
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, Space):
                raise TypeError(f"{name} must be a gymnasium Space, got {type(space).__name__}")
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.model_config = ModelConfig() if model_config is None else model_config
        self._action_dist: ActionDist | None = None
        self.acting_connectors: tuple[str, ...] = ()
        """names of the connectors that a learner has around this module; acting needs them too"""
        self.setup()

    def setup(self) -> None:
        """Make the layers. Called once, at the end of the constructor."""

    # Forward

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """What each forward method does unless it is overridden."""
        raise TypeError(
            f"{type(self).__name__} must define _forward(batch), or forward_inference, forward_exploration "
            f"and "
            "forward_train"
        )

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """For acting greedily."""
        return self._forward(batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """For acting while data is collected."""
        return self._forward(batch)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """For the loss."""
        return self._forward(batch)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """:meth:`forward_train`, so that torch's own tools find it."""
        return self.forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """State values `[N]`: those that `forward_train` returns. `TypeError` for a module without a value function."""
        outputs = self.forward_train(batch)
        if "vf_preds" in outputs:
            return outputs["vf_preds"]
        raise TypeError(
            f"{type(self).__name__} has no value function: define compute_values(batch) -> [N], or "
            "return 'vf_preds' [N] from forward_train"
        )

    def get_initial_state(self) -> dict[str, Tensor]:
        """Recurrent state at an episode's start, without a batch dimension; empty for a stateless module."""
        return {}

    def is_stateful(self) -> bool:
        """Whether acting needs a state from step to step."""
        return bool(self.get_initial_state())

    @property
    def action_dist_cls(self) -> ActionDist:
        """Distribution over the action space (`ValueError` for a space that has none)."""
        if self._action_dist is None:
            config = self.model_config
            named = config.to_dict() if isinstance(config, ModelConfig) else config
            self._action_dist = ActionDist(self.action_space, bool(named.get("squash_actions", False)))
        return self._action_dist

    # State

    def get_non_inference_attributes(self) -> list[str]:
        """Names of submodules and parameters that acting does not need (a value network)."""
        return []

    def get_state(self, *, inference_only: bool = False) -> ModuleState:
        """A copy of all parameters and buffers by name. `inference_only`: without what acting does not
        need.
        """
        dropped = self.get_non_inference_attributes() if inference_only else []
        return {
            name: _to_numpy(tensor)
            for name, tensor in self.state_dict().items()
            if not any(name == item or name.startswith(f"{item}.") for item in dropped)
        }

    def set_state(self, state: Mapping[str, np.ndarray | Tensor]) -> None:
        """Copy values into parameters and buffers in place (views into a flat tensor stay views).

        An `inference_only` module passes over the names it left out.

        Raises:
            ValueError: missing, unknown or misshaped names (all are listed); nothing is changed then.
        """
        self._copy_checked(self._check_state(state))

    def _check_state(self, state: Mapping[str, np.ndarray | Tensor]) -> list[tuple[Tensor, Tensor]]:
        own = self.state_dict()
        dropped = tuple(self.get_non_inference_attributes()) if self.inference_only else ()
        missing = sorted(own.keys() - state.keys())
        unknown = sorted(name for name in state.keys() - own.keys() if name.partition(".")[0] not in dropped)
        shapes = [
            f"{name} is {tuple(np.shape(state[name]))}, not {tuple(tensor.shape)}"
            for name, tensor in own.items()
            if name in state and np.shape(state[name]) != tuple(tensor.shape)
        ]
        problems = [
            f"{label}: {', '.join(items)}"
            for label, items in (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
            if items
        ]
        if problems:
            raise ValueError(f"state does not fit {type(self).__name__} ({'; '.join(problems)})")
        return [(tensor, torch.as_tensor(state[name])) for name, tensor in own.items()]

    @staticmethod
    def _copy_checked(pairs: list[tuple[Tensor, Tensor]]) -> None:
        with torch.no_grad():
            for target, source in pairs:
                target.copy_(source)

    # Checkpoints

    def state_tree(self, *, inference_only: bool = False) -> dict[str, Any]:
        """What a checkpoint keeps of a module: its weights and the spec that builds it."""
        spec = {**self.spec().to_dict(), "acting_connectors": list(self.acting_connectors)}
        return {"weights": self.get_state(inference_only=inference_only), "spec": spec}

    def spec(self) -> RLModuleSpec:
        """The recipe that builds such a module (without its weights)."""
        return RLModuleSpec(
            type(self), self.observation_space, self.action_space, self.inference_only, self.model_config
        )

    def save_to_path(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint (`weights.safetensors`, `spec.json`, manifest) and return its absolute path.

        `path` None: a new temporary folder.
        """
        return str(write_checkpoint(path, {"": self.state_tree()}))

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Take the weights of a checkpoint. `CheckpointError` or `ValueError` if there is none that fits.

        Warns as :meth:`from_checkpoint` does, unless this module has the same connectors around it.
        """
        tree = _module_tree(path)
        self.set_state(tree["weights"])
        warn_of_connectors(tree, self.acting_connectors)

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], *, module_class: type[RLModule] | None = None) -> RLModule:
        """Build the module whose checkpoint is in `path`, weights included: the network alone.

        `module_class` is needed for a class that cannot be imported by name (one made in a script or a
        function). Warns where the network was trained with connectors around it, which are not restored with it;
        `lockstep.load_policy` acts with both.
        """
        tree = _module_tree(path)
        module = cls.from_state_tree(tree, module_class=module_class)
        warn_of_connectors(tree)
        return module

    @staticmethod
    def from_state_tree(tree: Mapping[str, Any], *, module_class: type[RLModule] | None = None) -> RLModule:
        """The module that :meth:`state_tree` described."""
        module = RLModuleSpec.from_dict(tree["spec"], module_class=module_class).build()
        module.set_state(tree["weights"])
        module.acting_connectors = _connectors_of(tree)
        return module


@dataclass(frozen=True)
class RLModuleSpec:
    """How to build an :class:`RLModule`. Fields that are None are filled in by who builds it (an algorithm
    knows its default class, an environment its spaces).
    """

    module_class: type[RLModule] | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    inference_only: bool = False
    model_config: ModelConfig | Mapping[str, Any] | None = None

    def build(self, *, seed: int | None = None) -> RLModule:
        """A new module. With `seed`, the initial weights depend on nothing else and torch's global generator
        is left as it was.

        Raises:
            ValueError: a field that is needed is None.
        """
        absent = [name for name in ("module_class", "observation_space", "action_space") if getattr(self, name) is None]
        if absent or self.module_class is None or self.observation_space is None or self.action_space is None:
            raise ValueError(f"RLModuleSpec needs {', '.join(absent)} to build a module")
        if not (isinstance(self.module_class, type) and issubclass(self.module_class, RLModule)):
            raise TypeError(
                f"module_class must be a subclass of RLModule, got {self.module_class!r}; wrap_module() "
                f"takes a plain "
                "nn.Module"
            )
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
            return self.module_class(
                self.observation_space,
                self.action_space,
                inference_only=self.inference_only,
                model_config=self.model_config,
            )

    def to_dict(self) -> dict[str, Any]:
        """As plain values for a file; the class by its import path."""
        config = self.model_config
        known = isinstance(config, ModelConfig)
        cls = self.module_class
        return {
            "module_class": None if cls is None else f"{cls.__module__}:{cls.__qualname__}",
            "observation_space": describe_space(self.observation_space),
            "action_space": describe_space(self.action_space),
            "inference_only": self.inference_only,
            "model_config_class": "ModelConfig" if known else None,
            "model_config": config.to_dict() if isinstance(config, ModelConfig) else config and dict(config),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, module_class: type[RLModule] | None = None) -> Self:
        """The inverse of :meth:`to_dict`. `ValueError` if the class cannot be imported and none is passed
        in.
        """
        config = data["model_config"]
        if data["model_config_class"] == "ModelConfig":
            config = ModelConfig.of(config)
        if module_class is None and data["module_class"] is not None:
            module_class = _import_module_class(data["module_class"])
        return cls(
            module_class,
            space_from(data["observation_space"]),
            space_from(data["action_space"]),
            bool(data["inference_only"]),
            config,
        )


def _connectors_of(tree: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(tree["spec"].get("acting_connectors", ()))  # an older checkpoint does not say


def warn_of_connectors(tree: Mapping[str, Any], around: Sequence[str] = ()) -> None:
    """Warn where a module was saved that acts behind other connectors than those `around` the one that is restored."""
    names = _connectors_of(tree)
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


def _import_module_class(name: str) -> type[RLModule]:
    """The RLModule subclass at an import path `package.module:Class`."""
    source, _, qualified = name.partition(":")
    try:
        found: Any = importlib.import_module(source)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the module class {name} cannot be imported ({error}); put it into an importable file, or pass "
            "module_class=..."
        ) from error
    if not (isinstance(found, type) and issubclass(found, RLModule)):
        raise ValueError(f"{name} is not an RLModule; the checkpoint is foreign or its class has changed")
    return found


def _to_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has none; float32 holds it exactly
        tensor = tensor.float()
    return tensor.numpy().copy()
