"""`RLModule`, the neural network of a policy, and the spec that builds one."""

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
from lockstep.data.groups import Groups, PartView, central_groups, checked_groups, space_of_old_file, split_state
from lockstep.data.spaces import describe_space, space_from
from lockstep.data.trees import Tree
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.layers import mask_logits
from lockstep.modules.lazy_layers import initialise_lazy
from lockstep.modules.model_config import NETWORK, ModelConfig, options_of
from lockstep.state.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from lockstep.state.names import import_path, name_of
from lockstep.state.sizes import checked_tensors, claims_of
from lockstep.state.streams import global_generator
from lockstep.state.trust import FileNames, Kind, NameInFile, find_class, signed

OBJECT = "__import__"
"""Key of the name of a class or function in a file."""
Batch = Mapping[str, Any]
"""Tensors by column, such as `"obs"`."""
ModuleState = dict[str, np.ndarray]
"""Arrays of parameters and buffers by name."""


class RLModule(nn.Module):
    """Network that acts and is trained.

    A subclass makes its layers in `setup` and computes in `_forward`, or in the three forward methods if they differ.
    A batch has `batch["obs"]`, the tree of tensors `[N, ...]` of the observation space. Outputs are a dict with
    `"action_dist_inputs"` `[N, D]` (or `"actions"`), and in training `"vf_preds"` `[N]` for actor-critics.

    A learner may at any time replace parameters by views into one flat tensor (`parameter.data = ...`), so a subclass
    must not keep the memory of a parameter elsewhere.
    """

    is_built: ClassVar[Literal[True]] = True
    """Whether this is a network, and not the spec of one."""
    has_module_ids: ClassVar[Literal[False]] = False
    """Whether this holds several modules by id."""
    value_parts: ClassVar[tuple[str, ...]] = ()
    """Names of the submodules of the state value, which a policy from imitation does not have."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        inference_only: bool = False,
        model_config: ModelConfig | Mapping[str, Any] | None = None,
        observation_groups: Groups | None = None,
        critic_space: Space[Any] | None = None,
    ) -> None:
        """Store the arguments and call `setup`.

        Args:
            observation_space, action_space: Spaces of the environment.
            inference_only: Leave out the parts that only training needs.
            model_config: Options for `setup`, in any form that it understands. Defaults to `ModelConfig()`.
            observation_groups: Keys of the entries of a Dict observation that each part sees, see `view_of`. Defaults
                to all entries for each part.
            critic_space: Space of `batch["critic_obs"]` `[N, ...]`, for classes that were written for version 0.2.
        """
        super().__init__()
        self.observation_space: Any = observation_space
        self.action_space: Any = action_space
        self.inference_only = inference_only
        self.model_config = ModelConfig() if model_config is None else model_config
        self.observation_groups = checked_groups(observation_groups)
        self.critic_space = critic_space
        self._action_dist: ActionDist | None = None
        self.acting_connectors: tuple[str, ...] = ()
        """Names of the connectors that a learner has around this module. Acting needs them, too."""
        self.setup()

    def setup(self) -> None:
        """Make the layers. Called once, at the end of the constructor."""

    # -- forward ---

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs of each forward method that is not overridden."""
        raise TypeError(
            f"{type(self).__name__} must define _forward(batch), or forward_inference, forward_exploration and "
            "forward_train"
        )

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for acting without exploration."""
        return self._forward(batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for acting while data is collected."""
        return self._forward(batch)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs for the loss."""
        return self._forward(batch)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs of `forward_train`. torch's own tools call this method."""
        return self.forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the state values `[N]` among the outputs of `forward_train`. `TypeError` if there are none."""
        outputs = self.forward_train(batch)
        if "vf_preds" in outputs:
            return outputs["vf_preds"]
        raise TypeError(
            f"{type(self).__name__} has no value function: define compute_values(batch) -> [N], or return 'vf_preds' "
            "[N] from forward_train"
        )

    @property
    def overrides_compute_values(self) -> bool:
        """Whether the class of this module has its own `compute_values`.

        Then the values may be missing in the outputs of `forward_train`, or come from layers that it does not run.
        """
        # Users override the method without declaring anything, so only a comparison of the methods tells it.
        return type(self).compute_values is not RLModule.compute_values

    def view_of(self, part: str) -> PartView:
        """Return what a part sees of an observation: a function of observations, with the space of its results.

        `part`: "policy", "critic", "teacher" or "intrinsic". Without a group of its own it sees all entries.
        """
        return PartView(part, self.observation_space, self.observation_groups)

    def network_inputs(self, obs: Tree) -> dict[str, Any]:
        """Return the columns of a batch for observations `[N, ...]`: `{"obs": obs}`.

        A class that was written for version 0.2 gets an agent's own observations, and the state as `"critic_obs"`.
        """
        if self.critic_space is None:
            return {"obs": obs}
        own_obs, state = split_state(obs)
        return {"obs": own_obs, "critic_obs": state}

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the recurrent state at the start of an episode, without a batch dimension; empty without memory."""
        return {}

    def is_stateful(self) -> bool:
        """Return whether acting needs a state from step to step."""
        return bool(self.get_initial_state())

    @property
    def action_dist_cls(self) -> ActionDist:
        """Distribution over the action space. `ValueError` for a space that is not supported."""
        if self._action_dist is None:
            options = options_of(self.model_config)
            self._action_dist = ActionDist(self.action_space, bool(options.get("squash_actions", False)))
        return self._action_dist

    @property
    def reads_begins(self) -> bool:
        """Whether a module with a state resets it before the rows of a sequence where the column `begins` is set.

        That column is bool `[B, T]`. Sequences of a rollout on a device have it: they are cut at fixed rows, and
        episodes may begin within them.
        """
        return False

    # -- state ---

    def get_non_inference_attributes(self) -> list[str]:
        """Return the names of submodules and parameters that acting does not need, such as a value network."""
        return []

    def parts_left_out(self) -> list[str]:
        """Return the names of submodules and parameters that other objects of this class have and this one does not."""
        return self.get_non_inference_attributes() if self.inference_only else []

    def get_state(self, *, inference_only: bool = False) -> ModuleState:
        """Return copies of all parameters and buffers by name; with `inference_only`, of those that acting needs."""
        tensors = self._acting_tensors() if inference_only else self.state_dict().items()
        return {name: _to_numpy(tensor) for name, tensor in tensors}

    def set_state(self, state: Mapping[str, np.ndarray | Tensor]) -> None:
        """Copy values into parameters and buffers in place, so that views into a flat tensor stay views.

        Values of `parts_left_out` are ignored.

        Raises:
            ValueError: Names are missing or unknown, or shapes differ. Lists all of them; nothing is changed.
        """
        copy_values(self.matched_state(state))

    def matched_state(self, state: Mapping[str, np.ndarray | Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return pairs (tensor of the module, its value in `state`) for `copy_values`. Errors as for `set_state`.

        Checking is apart from copying, so that several modules are restored either all or not at all.
        """
        tensors = self.state_dict()
        state = _with_new_names(state, tensors)
        left_out = self.parts_left_out()
        unknown = [name for name in state.keys() - tensors.keys() if name.partition(".")[0] not in left_out]
        misshaped = [
            f"{name} is {tuple(np.shape(state[name]))}, not {tuple(tensor.shape)}"
            for name, tensor in tensors.items()
            if name in state and np.shape(state[name]) != tuple(tensor.shape)
        ]
        problems = {
            "missing": sorted(tensors.keys() - state.keys()),
            "unknown": sorted(unknown),
            "of another shape": misshaped,
        }
        listed = "; ".join(f"{label}: {', '.join(names)}" for label, names in problems.items() if names)
        if listed:
            raise ValueError(f"state does not fit {type(self).__name__} ({listed})")
        return [(tensor, torch.as_tensor(state[name])) for name, tensor in tensors.items()]

    def get_flat_weights(self, *, copy: bool = True) -> np.ndarray:
        """Return every parameter and buffer that acting needs as uint8 [bytes], in a fixed order.

        Tensors that are neighbours in memory, like those of an optimizer's flat parameters, are copied as one block.

        Args:
            copy: Return a copy. With False, and if all tensors are in one block, the result is that memory itself,
                which the next gradient step changes.
        """
        blocks = [block.cpu() for block in self._acting_blocks()]
        if not blocks:
            return np.empty(0, np.uint8)
        if len(blocks) > 1:
            return torch.cat(blocks).numpy()
        return (blocks[0].clone() if copy else blocks[0]).numpy()

    def set_flat_weights(self, flat: np.ndarray) -> None:
        """Copy the result of `get_flat_weights` of an equal module into the tensors, in place.

        Raises:
            ValueError: The number of bytes is that of another network. Nothing is changed.
        """
        blocks = list(self._acting_blocks())
        expected = sum(block.numel() for block in blocks)
        if flat.dtype != np.uint8 or flat.shape != (expected,):
            raise ValueError(
                f"the weights are {flat.dtype} {flat.shape}, {type(self).__name__} needs uint8 ({expected},): they are "
                "of another network; build runners and learners from one configuration"
            )
        start = 0
        for block in blocks:
            part = flat[start : start + block.numel()]
            start += block.numel()
            if block.device.type == "cpu":
                np.copyto(block.numpy(), part)
            else:
                block.copy_(torch.from_numpy(part.copy()))

    def _acting_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters and buffers that acting needs with their names."""
        omitted = self.get_non_inference_attributes()
        for name, tensor in self.state_dict().items():
            if not any(name == item or name.startswith(f"{item}.") for item in omitted):
                yield name, tensor

    def _acting_blocks(self) -> Iterator[Tensor]:
        """Yield uint8 views of the tensors that acting needs. Neighbours in memory are one view."""
        block: Tensor | None = None
        for name, tensor in self._acting_tensors():
            if tensor.numel() == 0:
                continue
            if not tensor.is_contiguous():
                raise ValueError(f"{name} of {type(self).__name__} is not contiguous in memory; make it .contiguous()")
            part = tensor.detach().reshape(-1).view(torch.uint8)
            if block is not None and _follows(block, part):
                block = block.as_strided((block.numel() + part.numel(),), (1,))
            else:
                if block is not None:
                    yield block
                block = part
        if block is not None:
            yield block

    # -- checkpoints ---

    def state_tree(self, *, inference_only: bool = False) -> dict[str, Any]:
        """Return the content of a module's checkpoint: its weights, and the spec that builds it."""
        spec = {**self.spec().to_dict(), "acting_connectors": list(self.acting_connectors)}
        return {"weights": self.get_state(inference_only=inference_only), "spec": spec}

    def spec(self) -> RLModuleSpec:
        """Return the spec that builds an equal module, without its weights."""
        return RLModuleSpec(
            type(self),
            self.observation_space,
            self.action_space,
            self.inference_only,
            self.model_config,
            self.observation_groups or None,
            self.critic_space,
        )

    def save_to_path(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint (`weights.safetensors`, `spec.json`, manifest) and return its absolute path.

        `path`: folder of the checkpoint. Defaults to a new temporary folder.
        """
        return str(write_checkpoint(path, {"": self.state_tree()}))

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Copy the weights of a checkpoint into this module. `CheckpointError` or `ValueError` if none fits.

        Warns if the module was trained with other connectors around it than this one has.
        """
        tree = _module_tree(path)
        self.set_state(tree["weights"])
        warn_of_connectors(tree, self.acting_connectors)

    @classmethod
    def from_checkpoint(
        cls, path: str | os.PathLike[str], *, module_class: type[RLModule] | None = None, trust: bool = False
    ) -> RLModule:
        """Build the module of a checkpoint with its weights: the network alone.

        Warns if the network was trained with connectors around it, which are not restored; `lockstep.load_policy`
        restores both.

        Args:
            path: Folder of the checkpoint.
            module_class: Class of the module. Needed if it cannot be imported by name, because a script or a function
                defines it.
            trust: Allow objects that a stranger's file may not name, such as an encoder that is a function. Otherwise
                they raise `UntrustedError`.
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
        """Build the module of a `state_tree` with its weights. Arguments: see `RLModuleSpec.from_dict`."""
        module = RLModuleSpec.from_dict(tree["spec"], module_class=module_class, names=names).build()
        module.set_state(tree["weights"])
        module.acting_connectors = tuple(tree["spec"]["acting_connectors"])
        return module


@dataclass(frozen=True)
class RLModuleSpec:
    """Spec that builds an `RLModule`.

    A field that is None is set by the builder: the class by the algorithm, the spaces by the environment.
    """

    module_class: type[RLModule] | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    inference_only: bool = False
    model_config: ModelConfig | Mapping[str, Any] | None = None
    observation_groups: Groups | None = None
    """Keys of the entries of a Dict observation by part. Defaults to `rl_module(observation_groups=...)`."""
    critic_space: Space[Any] | None = None
    """Space of `"critic_obs"`, for a class that was written for version 0.2."""

    is_built: ClassVar[Literal[False]] = False
    """Whether this is a network, and not the spec of one."""
    has_module_ids: ClassVar[Literal[False]] = False
    """Whether this holds the specs of several modules by id."""

    def build(self, *, seed: int | None = None) -> RLModule:
        """Build a new module.

        Args:
            seed: Seed of the initial weights; torch's global generator is then left unchanged. None: they are drawn
                from the global generator.

        Raises:
            ValueError: A required field is None.
            ClaimedSizeError: The network of a file (`claims_of`) does not fit into memory.
            TypeError: `module_class` is not a subclass of `RLModule`.
        """
        absent = [name for name in ("module_class", "observation_space", "action_space") if getattr(self, name) is None]
        if self.module_class is None or self.observation_space is None or self.action_space is None:
            raise ValueError(f"RLModuleSpec needs {', '.join(absent)} to build a module")
        if not (isinstance(self.module_class, type) and issubclass(self.module_class, RLModule)):
            raise TypeError(
                f"module_class must be a subclass of RLModule, got {self.module_class!r}; wrap_module() takes a plain "
                "nn.Module"
            )
        # Only those that are set, since a user's class may not have the arguments.
        optional: dict[str, Any] = {}
        if self.observation_groups:
            optional["observation_groups"] = self.observation_groups
        if self.critic_space is not None:
            optional["critic_space"] = self.critic_space
        with global_generator(seed, keep=seed is not None), checked_tensors():
            module = self.module_class(
                self.observation_space,
                self.action_space,
                inference_only=self.inference_only,
                model_config=self.model_config,
                **optional,
            )
            initialise_lazy(module)
            return module

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file, with the class by its name.

        If the names are the user's own, the values are signed, so that they are trusted on this machine.
        """
        config: Any = self.model_config
        has_config_class = isinstance(config, ModelConfig)
        if has_config_class:
            config = config.to_dict()
        elif config:
            config = dict(config)
        module_class = None if self.module_class is None else name_of(self.module_class)
        plain = {
            "module_class": module_class,
            "observation_space": describe_space(self.observation_space),
            "action_space": describe_space(self.action_space),
            "inference_only": self.inference_only,
            "model_config_class": "ModelConfig" if has_config_class else None,
            "model_config": _plain_config(config),
        }
        if self.observation_groups:
            plain["observation_groups"] = {part: list(keys) for part, keys in self.observation_groups.items()}
        if self.critic_space is not None:
            plain["critic_space"] = describe_space(self.critic_space)
        return signed(plain)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        module_class: type[RLModule] | None = None,
        names: FileNames | None = None,
    ) -> Self:
        """Return the spec that `to_dict` wrote. `ValueError` if its class cannot be imported and is not passed in.

        Args:
            data: Values that `to_dict` returned.
            module_class: Class of the module, if it cannot be imported by name.
            names: Lookup of the objects that the values name. Defaults to that of a file that the user does not trust.
        """
        names = FileNames("the module's spec", data) if names is None else names.of_part(data)
        config = _read_config(data["model_config"], names)
        if isinstance(config, Mapping) and "encoder" in config:
            config = {**config, "encoder": names.text("model_config.encoder", config["encoder"])}
        if data["model_config_class"] == "ModelConfig":
            config = ModelConfig.of(config)
        if module_class is None and data["module_class"] is not None:
            module_class = import_module_class(NameInFile(data["module_class"], names, "module_class"))
        observation_space = space_from(data["observation_space"])
        action_space = space_from(data["action_space"])
        critic_space = space_from(data["critic_space"]) if "critic_space" in data else None
        groups: Groups | None = checked_groups(data.get("observation_groups")) or None
        is_default = module_class is not None and module_class.__module__.startswith("lockstep.")
        if critic_space is not None and (is_default or module_class is None):
            # Version 0.2 kept the central state of several agents apart from their observations.
            groups = central_groups(observation_space)
            observation_space = space_of_old_file(observation_space, critic_space)
            critic_space = None
        inference_only = bool(data["inference_only"])
        return cls(module_class, observation_space, action_space, inference_only, config, groups, critic_space)


def _plain_config(value: object) -> Any:
    """Return the options of a network with the classes and functions in them by name, `{"__import__": name}`.

    Raises:
        ValueError: One of them cannot be imported by its name.
    """
    if isinstance(value, Mapping):
        return {key: _plain_config(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = map(_plain_config, value)
        return tuple(parts) if isinstance(value, tuple) else list(parts)
    return {OBJECT: import_path("model_config", value)} if callable(value) else value


def _read_config(plain: object, names: FileNames) -> Any:
    """Return the options that `_plain_config` wrote. `names` finds the objects; networks need no trust."""
    if isinstance(plain, Mapping):
        if list(plain) == [OBJECT]:
            return names.find("model_config", plain[OBJECT], NETWORK)
        return {key: _read_config(part, names) for key, part in plain.items()}
    if isinstance(plain, list | tuple):
        parts = [_read_config(part, names) for part in plain]
        return tuple(parts) if isinstance(plain, tuple) else parts
    return plain


_OLD_PART = "value_encoder.features.parts.1.parts."


def _with_new_names(state: Mapping[str, Any], present: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state with the names of a value function that sees a central state, if they are those of version 0.2.

    There an agent's own Dict was one entry beside the state. Now its entries follow the state.
    """
    if not any(name.startswith(_OLD_PART) and name not in present for name in state):
        return state
    renamed = {}
    for name, value in state.items():
        if name.startswith(_OLD_PART) and name not in present:
            index, _, rest = name.removeprefix(_OLD_PART).partition(".")
            name = f"value_encoder.features.parts.{int(index) + 1}.{rest}"
        renamed[name] = value
    return renamed


def copy_values(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first one."""
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)


def _follows(block: Tensor, part: Tensor) -> bool:
    """Return whether bytes `part` begin where bytes `block` end, in the same storage."""
    # Neighbouring addresses alone are not enough: separate allocations may be adjacent by chance.
    if block.device != part.device or block.untyped_storage().data_ptr() != part.untyped_storage().data_ptr():
        return False
    return block.data_ptr() + block.numel() == part.data_ptr()


def warn_of_connectors(tree: Mapping[str, Any], present: Sequence[str] = ()) -> None:
    """Warn if a saved module acts with other connectors than those `present` around the restored module."""
    names = tuple(tree["spec"]["acting_connectors"])
    if names and names != tuple(present):
        warnings.warn(
            f"only the network is restored, without the connectors {', '.join(names)} that it was trained with: it "
            "expects observations, and gives out actions, in their form. To act in the environment, use "
            "lockstep.load_policy(path) with the folder of the run or of the policy's checkpoint",
            stacklevel=3,
        )


def _module_tree(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a checkpoint of one module."""
    tree = read_checkpoint(path).get("", {})
    if not {"weights", "spec"} <= tree.keys():
        raise CheckpointError(f"{path} is a checkpoint, but not of one RLModule: give the folder with a spec.json")
    return dict(tree)


MODULE_CLASS = Kind("an RLModule", (RLModule,), takes_others=False)
"""Classes that a file may name as a module."""
_OTHER_CLASS = "give a subclass of RLModule in a file that can be imported, 'module:Class', or pass module_class=..."


def import_module_class(name: str) -> type[RLModule]:
    """Return the RLModule subclass at an import path `package.module:Class`, which the user or a file has named."""
    module_class: type[RLModule] = find_class("rl_module_spec", name, MODULE_CLASS, _OTHER_CLASS)
    return module_class


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has none; float32 holds it exactly
        tensor = tensor.float()
    return tensor.numpy().copy()


# -- any `nn.Module` as an `RLModule` ---

MASKED_OUTPUTS = ("action_dist_inputs", "q_values")
"""Outputs that have an entry for each action, to which a mask can be applied."""


class WrappedModule(RLModule):
    """`RLModule` around a plain `nn.Module`, which `wrap_module` makes."""

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
        outputs = self._named_outputs(self.network(batch["obs"]))
        values = outputs.get("vf_preds")
        if values is not None and values.dim() > 1 and values.shape[-1] == 1:
            outputs["vf_preds"] = values.squeeze(-1)
        if self.is_masked:
            mask = self.action_dist_cls.full_mask(batch["obs"][ACTION_MASK])
            outputs |= {name: mask_logits(outputs[name], mask) for name in MASKED_OUTPUTS if name in outputs}
        return outputs

    def _named_outputs(self, returned: Any) -> dict[str, Tensor]:
        """Return the network's results by the declared names. `ValueError` if they do not match the names."""
        if isinstance(returned, Mapping):
            absent = [name for name in self.outputs if name not in returned]
            if absent:
                raise ValueError(f"the wrapped module did not return {absent}, but {list(returned)}")
            return {name: returned[name] for name in self.outputs}
        tensors = (returned,) if isinstance(returned, Tensor) else returned
        if len(tensors) != len(self.outputs):
            raise ValueError(f"the wrapped module returned {len(tensors)} tensors for the outputs {self.outputs}")
        return dict(zip(self.outputs, tensors))

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
    """Return an `RLModule` around a plain `nn.Module`, whose parameters it shares.

    The network receives the whole observation. If that has an action mask, the wrapper applies it to
    `"action_dist_inputs"` and `"q_values"`: forbidden actions get a very low number, in acting and in learning.

        outputs = ("action_dist_inputs", "vf_preds")
        module = wrap_module(MyNetwork(), env.observation_space, env.action_space, outputs)

    Args:
        network: The network, called as `network(obs)`.
        observation_space, action_space: Spaces of the environment.
        outputs: Names of the network's results: one name for a tensor, several for a tuple, or the keys to use of a
            dict. `"action_dist_inputs"` `[N, D]` or `"actions"` must be among them. `"vf_preds"` `[N]` or `[N, 1]` are
            the state values.
        model_config: Options of the action distribution, such as `squash_actions`.

    Raises:
        TypeError: `network` is not an `nn.Module`.
        ValueError: There is no output to act with, or the mask cannot be applied.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"wrap_module takes a torch nn.Module, got {type(network).__name__}")
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if not {"action_dist_inputs", "actions"} & set(names) or len(set(names)) != len(names):
        raise ValueError(f"outputs must name 'action_dist_inputs' or 'actions', each name once; got {names}")
    return WrappedModule(observation_space, action_space, model_config=model_config, network=network, outputs=names)
