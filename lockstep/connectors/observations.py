"""Connectors without memory for observations: normalisation, flattening, one-hot and clipping.

For images there are the conversion to grey and resizing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.connectors.connector import Join, Leaf, LeafConnector, apply_leaves, same
from lockstep.data.actions import carries_mask
from lockstep.data.groups import STATE
from lockstep.data.trees import Tree, leaves, map_pair, map_tree
from lockstep.modules.encoders import channels_last, is_image, one_hot_outputs, spaces_in
from lockstep.ops.arrays import Array, as_dtype, constant_like, move_axis
from lockstep.ops.statistics import RunningMoments
from lockstep.ops.tensor_moments import TensorMoments
from lockstep.options.checks import check_whole


class NormalizeObs(LeafConnector):
    """Normalisation of observations by running statistics: `(obs - mean) / sqrt(var + epsilon)`, within [-clip, clip].

    Every entry of a Box that is not an image has its own statistics. The output is float32. Other leaves do not change.
    Numbers that float32 may not tell apart (float64, and whole numbers of 32 or 64 bits, such as a clock's) are
    normalised in float64. Before the first `update` the mean is 0 and the variance 1. Only `update` changes them.

    Args:
        clip: Limit of the normalised numbers.
        epsilon: Added to the variance, so that a constant entry is not divided by 0.

    Raises:
        ValueError: `clip` or `epsilon` is not above 0.
    """

    def __init__(self, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        if not clip > 0 or not epsilon > 0:
            raise ValueError(f"NormalizeObs needs clip > 0 and epsilon > 0, got {clip} and {epsilon}")
        self.clip = float(clip)
        self.epsilon = float(epsilon)

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if not isinstance(space, spaces.Box) or is_image(space):
            return space, same
        output = spaces.Box(-self.clip, self.clip, space.shape, np.float32)
        return output, _Normalizer(space, self.clip, self.epsilon)

    @property
    def moments(self) -> list[RunningMoments]:
        """Statistics of each normalised leaf, in the order of the space."""
        return [normalizer.moments for normalizer in self._normalizers()]

    def update_joined(self, data: Tree, join: Join) -> None:
        def update(transform: Leaf) -> Leaf:
            return partial(transform.update, join=join) if _is_normalizer(transform) else same

        apply_leaves(map_tree(update, self._leaves), data)

    @property
    def takes_moments(self) -> bool:
        """Whether there are statistics, to which `merge_moments` can add moments that were computed elsewhere."""
        return bool(self._normalizers())

    def normalized_leaves(self, data: Tree) -> list[Any]:
        """Return the leaves `[..., *shape]` of raw observations that are normalised, in the order of `moments`."""
        found: list[Any] = []

        def collect(transform: Leaf, leaf: Array) -> None:
            if _is_normalizer(transform):
                found.append(leaf)

        map_pair(collect, self._leaves, data)
        return found

    def merge_moments(self, moments: Sequence[RunningMoments]) -> None:
        """Add the moments of further rows to the statistics. `moments` has one entry for each normalised leaf."""
        for normalizer, leaf_moments in zip(self._normalizers(), moments, strict=True):
            normalizer.moments.merge(leaf_moments)
            normalizer.set_moments(normalizer.moments)

    def add_on_device(self, moments: Sequence[TensorMoments]) -> None:
        """Add the moments of further rows on a device to the statistics there. The host does not wait.

        `copy_from_device` copies the statistics to the host.
        """
        for normalizer, leaf_moments in zip(self._normalizers(), moments, strict=True):
            normalizer.add_on_device(leaf_moments)

    def copy_from_device(self) -> None:
        """Copy the statistics that `add_on_device` has changed to the host, which waits for the device."""
        for normalizer in self._normalizers():
            normalizer.copy_from_device()

    def copy_to_device(self) -> None:
        """Replace the statistics on the device by the statistics of the host."""
        for normalizer in self._normalizers():
            normalizer.set_moments(normalizer.moments)

    def get_state(self) -> dict[str, Any]:
        return {"leaves": [moments.get_state() for moments in self.moments]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        normalizers = self._normalizers()
        state = self._with_central_state(state)
        if set(state) != {"leaves"} or len(state["leaves"]) != len(normalizers):
            raise ValueError(f"the state does not fit {len(normalizers)} normalised leaves")
        # All states are checked before the first is used: a state that does not fit changes nothing.
        restored = [RunningMoments(normalizer.moments.shape) for normalizer in normalizers]
        for moments, saved in zip(restored, state["leaves"]):
            moments.set_state(saved)
        for normalizer, moments in zip(normalizers, restored):
            normalizer.set_moments(moments)

    def _with_central_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state with statistics of the central state, which begin anew: files of version 0.2 have none."""
        has_entry = isinstance(self._leaves, dict) and _is_normalizer(self._leaves.get(STATE))
        if not has_entry or len(state.get("leaves", ())) != len(self.moments) - 1:
            return state
        others = [leaf for name, leaf in self._leaves.items() if name != STATE]
        before = list(self._leaves).index(STATE)
        number_before = sum(map(_is_normalizer, leaves(tuple(others[:before]))))
        with_state = list(state["leaves"])
        with_state.insert(number_before, RunningMoments(self._leaves[STATE].moments.shape).get_state())
        return {"leaves": with_state}

    def _normalizers(self) -> list[_Normalizer]:
        """Return the transforms of the normalised leaves, in the order of the space."""
        return [leaf for leaf in leaves(self._leaves) if _is_normalizer(leaf)]


class _Normalizer:
    """Normalisation of one leaf, in float32 or, if its space needs more digits, in float64.

    Mean and factor have the dtype of the computation, so that numpy and torch compute the same numbers.
    """

    def __init__(self, space: spaces.Box, clip: float, epsilon: float) -> None:
        self.space = space
        self._epsilon = epsilon
        self._clip = clip
        # float32 has 24 binary digits: seconds since 1970 would be rounded to steps of 128.
        is_exact = np.can_cast(space.dtype, np.float32, "safe")
        self._dtype: type[np.floating[Any]] = np.float32 if is_exact else np.float64
        self._high = np.full((), clip, self._dtype)
        self._low = np.full((), -clip, self._dtype)
        self._tensors: dict[torch.device, list[torch.Tensor]] = {}
        """Mean and factor by device. They are changed in place, because CUDA graphs read their memory."""
        self._on_device: TensorMoments | None = None
        """Moments on the device of `add_on_device`; None if rows are added on the host only."""
        self.set_moments(RunningMoments(space.shape))

    def set_moments(self, moments: RunningMoments) -> None:
        """Normalise with these moments from now on."""
        self.moments = moments
        self._mean = moments.mean.astype(self._dtype)
        self._factor = np.asarray(1.0 / np.sqrt(moments.var + self._epsilon), self._dtype)
        for tensors in self._tensors.values():
            for tensor, array in zip(tensors, (self._mean, self._factor)):
                tensor.copy_(torch.from_numpy(array))
        if self._on_device is not None:
            self._on_device.write(moments)

    def add_on_device(self, moments: TensorMoments) -> None:
        """Add the moments of further rows on a device, and normalise with the sum there from now on."""
        device = moments.numbers.device
        if self._on_device is None:
            self._on_device = TensorMoments(self.moments.shape, device)
            self._on_device.write(self.moments)
        self._on_device.merge(moments)
        mean, factor = self._tensors_on(device)
        mean.copy_(self._on_device.mean)
        factor.copy_(1.0 / torch.sqrt(self._on_device.var + self._epsilon))

    def copy_from_device(self) -> None:
        """Copy the moments that `add_on_device` has changed to the host, which waits for the device."""
        if self._on_device is not None:
            self.set_moments(self._on_device.read())

    def _tensors_on(self, device: torch.device) -> list[torch.Tensor]:
        """Return mean and factor on a device."""
        if device not in self._tensors:
            self._tensors[device] = [torch.tensor(array, device=device) for array in (self._mean, self._factor)]
        return self._tensors[device]

    def update(self, rows: Array, join: Join) -> None:
        """Add rows `[N, ...]` to the moments. `join` is that of `Connector.update_joined`."""
        row_moments = RunningMoments(self.moments.shape)
        row_moments.update(rows)
        self.moments.merge(join(row_moments))
        self.set_moments(self.moments)

    def __call__(self, x: Array) -> Any:
        shape = self._mean.shape
        if x.shape[max(len(x.shape) - len(shape), 0) :] != shape:
            raise ValueError(f"observation of shape {tuple(x.shape)} does not fit the space {self.space}")
        if isinstance(x, torch.Tensor):
            mean, factor = self._tensors_on(x.device)
            normalised = ((x.to(mean.dtype) - mean) * factor).clamp_(-self._clip, self._clip)
            return normalised.to(torch.float32)
        # The same operations in place, for speed: this runs in every step.
        if x.dtype != self._dtype:
            x = x.astype(self._dtype)
        out = np.subtract(x, self._mean)
        out = np.multiply(out, self._factor, out)
        np.minimum(out, self._high, out=out)
        return np.maximum(out, self._low, out=out).astype(np.float32, copy=False)


def _is_normalizer(transform: object) -> TypeGuard[_Normalizer]:
    """Return whether the transform of a leaf normalises it."""
    return isinstance(transform, _Normalizer)


class OneHot(LeafConnector):
    """One-hot encoding: Discrete `[...]` becomes float32 `[..., n]`, MultiDiscrete `[..., *shape]` `[..., sum(nvec)]`.

    A number outside of the space becomes zeros. Other leaves do not change.
    """

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return space, same
        parts, values = one_hot_outputs(space)
        transform = partial(_one_hot, num_dims=len(space.shape or ()), parts=parts, values=values)
        return spaces.Box(0.0, 1.0, (len(values),), np.float32), transform


class FlattenObs(OneHot):
    """Concatenation of a tree of Box, Discrete, MultiDiscrete and MultiBinary spaces to one float32 vector.

    Numbers do not change, discrete choices become one-hot, and the parts are in the order of the space.

    Raises:
        ValueError: In `bind`, for observations with an action mask or another space.
    """

    keeps_entries = False

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return super().leaf(space)
        if not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise ValueError(
                f"FlattenObs cannot flatten {space}; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple can be"
            )
        flat = spaces.flatten_space(space)
        assert isinstance(flat, spaces.Box)
        output = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
        return output, partial(_flat, num_dims=len(space.shape or ()))

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        if carries_mask(input_space):
            raise ValueError(
                f"FlattenObs would hide the action mask of {input_space} among the numbers; leave it out, the networks "
                "take Dict observations as they are"
            )
        return spaces.flatten_space(super().output_space(input_space))

    def __call__(self, data: Tree) -> Any:
        parts = list(leaves(super().__call__(data)))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, -1)


def _one_hot(x: Array, num_dims: int, parts: npt.NDArray[Any], values: npt.NDArray[Any]) -> Any:
    """Return choices as one-hot vectors.

    Args:
        x: `[..., *shape]`, whole numbers.
        num_dims: Number of dimensions of `shape`.
        parts: `[outputs]`, the choice that each output is about.
        values: `[outputs]`, the value of the choice for which the output is 1.
    """
    flat = _rows(x, num_dims)
    return as_dtype(flat[..., constant_like(parts, x)] == constant_like(values, x), np.float32)


def _flat(x: Array, num_dims: int) -> Any:
    """Return `x` as float32, with its last `num_dims` dimensions as one."""
    return as_dtype(_rows(x, num_dims), np.float32)


def _rows(x: Array, num_dims: int) -> Any:
    """Return `x` with its last `num_dims` dimensions as one, which is new if there are none."""
    if num_dims == 0:
        return x[..., None]
    return x.reshape(*x.shape[: x.ndim - num_dims], -1)


class ClipObs(LeafConnector):
    """Clipping of the numbers of each Box to [low, high]. Other leaves do not change.

    Raises:
        ValueError: `low` is not less than `high`.
    """

    def __init__(self, low: float, high: float) -> None:
        if not low < high:
            raise ValueError(f"ClipObs needs low < high, got {low} and {high}")
        self.low = low
        self.high = high

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if not isinstance(space, spaces.Box):
            return space, same
        low = np.clip(space.low, self.low, self.high)
        high = np.clip(space.high, self.low, self.high)
        return spaces.Box(low, high, dtype=space.dtype.type), self._clip

    def _clip(self, x: Array) -> Any:
        return x.clamp(self.low, self.high) if isinstance(x, torch.Tensor) else np.clip(x, self.low, self.high)


# -- images ---


class Grayscale(LeafConnector):
    """Conversion of images with three channels, `[H, W, 3]` or `[3, H, W]`, to their luminance `[H, W]`.

    Luminance is `0.299 R + 0.587 G + 0.114 B` (ITU-R BT.601), in the dtype of the image. Other leaves do not change. It
    is applied before observations are recorded, so that the small image is stored.

    Raises:
        ValueError: In `bind`, if there is no such image.
    """

    is_recorded = True

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        output = super().output_space(input_space)
        if output == input_space:
            raise ValueError(f"Grayscale needs images with three channels, got {input_space}")
        return output

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if not isinstance(space, spaces.Box) or not is_image(space) or len(space.shape) != 3:
            return space, same
        axis = -1 if channels_last(space.shape) else -3
        if space.shape[axis] != 3:
            return space, same
        low = space.low.min(axis)
        high = space.high.max(axis)
        return spaces.Box(low, high, dtype=space.dtype.type), partial(_luminance, axis=axis)


class Resize(LeafConnector):
    """Resizing of images to `height` x `width`: each new pixel is the mean of the area that it covers.

    Dtype and position of the channels do not change; bytes are rounded. Other leaves do not change. It is applied
    before observations are recorded, so that the small image is stored.

    Args:
        height: New height in pixels.
        width: New width in pixels.

    Raises:
        ValueError: In `bind`, if there is no image.
    """

    is_recorded = True

    def __init__(self, height: int, width: int) -> None:
        self.height = check_whole("height", height, 1)
        self.width = check_whole("width", width, 1)

    def output_space(self, input_space: Space[Any]) -> Space[Any]:
        if not any(is_image(leaf) for leaf in spaces_in(input_space)):
            raise ValueError(f"Resize needs images, got {input_space}")
        return super().output_space(input_space)

    def leaf(self, space: Space[Any]) -> tuple[Space[Any], Leaf]:
        if not isinstance(space, spaces.Box) or not is_image(space):
            return space, same
        has_channels_last = len(space.shape) == 3 and channels_last(space.shape)
        height, width = space.shape[:2] if has_channels_last else space.shape[-2:]
        rows = _area_weights(height, self.height)
        columns = _area_weights(width, self.width)
        transform = partial(_resized, rows=rows, columns=columns.T, channels_last=has_channels_last)
        low, high = transform(space.low), transform(space.high)
        return spaces.Box(low, high, dtype=space.dtype.type), transform


def _luminance(x: Array, axis: int) -> Any:
    """Return the luminance `[..., H, W]` of images with three channels at `axis` (-1 or -3)."""
    red, green, blue = (x[..., i] if axis == -1 else x[..., i, :, :] for i in range(3))
    if x.dtype in (np.uint8, torch.uint8):
        # In whole numbers (77 / 256 = 0.301 and so on), whose sums are the same for any number of rows.
        red, green, blue = (as_dtype(part, np.int32) for part in (red, green, blue))
        return as_dtype((red * 77 + green * 150 + blue * 29 + 128) // 256, np.uint8)
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    return luminance.to(x.dtype) if isinstance(x, torch.Tensor) else luminance.astype(x.dtype)


def _area_weights(size: int, new_size: int) -> npt.NDArray[np.float32]:
    """Return the share that each old pixel has in each new one, `[new_size, size]`; a row sums to 1."""
    edges = np.linspace(0.0, size, new_size + 1)
    starts = np.maximum.outer(edges[:-1], np.arange(size))
    stops = np.minimum.outer(edges[1:], np.arange(1, size + 1))
    overlaps = np.maximum(stops - starts, 0.0)
    return (overlaps / overlaps.sum(1, keepdims=True)).astype(np.float32)


def _resized(x: Array, rows: npt.NDArray[Any], columns: npt.NDArray[Any], channels_last: bool) -> Any:
    """Return resized images.

    Args:
        x: Images `[..., H, W]`, or `[..., H, W, C]` with `channels_last`.
        rows: `[new_height, H]`, weights of the rows.
        columns: `[W, new_width]`, weights of the columns.
        channels_last: Whether the channels are the last dimension.
    """
    images = as_dtype(move_axis(x, -1, -3) if channels_last else x, np.float32)
    # One product for each image, so that its bits do not depend on the number of images.
    out = constant_like(rows, x) @ images @ constant_like(columns, x)
    if isinstance(x, torch.Tensor):
        out = (out if x.is_floating_point() else out.round()).to(x.dtype)
    else:
        out = (np.rint(out) if x.dtype.kind in "iu" else out).astype(x.dtype)
    return move_axis(out, -3, -1) if channels_last else out
