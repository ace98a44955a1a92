"""Translation of `policy_kwargs` into Lockstep's options of networks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces
from torch import nn

from lockstep.modules import is_image
from lockstep_sb3.common.torch_layers import (
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    Prepared,
    in_new_form,
    widths_by_name,
)

ACTIVATIONS: dict[type, str] = {
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.ELU: "elu",
    nn.LeakyReLU: "leaky_relu",
    nn.Sigmoid: "sigmoid",
    nn.Softplus: "softplus",
    nn.Softsign: "softsign",
    nn.Mish: "mish",
    nn.SELU: "selu",
    nn.CELU: "celu",
    nn.ReLU6: "relu6",
    nn.Hardtanh: "hardtanh",
    nn.Hardswish: "hardswish",
    nn.Identity: "identity",
}
"""Names of activations in Lockstep, by their torch class."""
FIXED = {"use_expln": False, "full_std": True, "squash_output": False, "clip_mean": 2.0}
"""Options that have no counterpart, with the value that is accepted."""
SMALLEST_IMAGE = 36
"""Pixels of the smallest images that `NatureCNN` takes."""


def check_fixed(kwargs: dict[str, Any]) -> None:
    """Remove the options in `FIXED` from `kwargs`. `ValueError` for another value than theirs."""
    for name, value in FIXED.items():
        given = kwargs.pop(name, value)
        if given != value:
            raise ValueError(f"policy_kwargs: {name}={given!r} is not allowed here; leave it out")


def model_config_of(
    kwargs: dict[str, Any],
    space: gym.Space,
    *,
    is_cnn: bool,
    critic: str | None,
    widths: tuple[int, ...],
    activation: type,
) -> dict[str, Any]:
    """Remove the settings of networks from `kwargs`, and return them as fields of `ModelConfig`.

    Args:
        kwargs: Keywords of the policy (`policy_kwargs`), which are changed.
        space: Observation space.
        is_cnn: Whether the policy is `CnnPolicy`.
        critic: Name of the critics in `net_arch`: "vf" for state values, "qf" for values of actions. None: there are
            none besides the policy.
        widths: Default widths of the hidden layers.
        activation: Default activation.

    Raises:
        ValueError: An option has no counterpart.
    """
    check_fixed(kwargs)
    activation = kwargs.pop("activation_fn", activation)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn={activation} is not there; {[each.__name__ for each in ACTIVATIONS]} are")
    model: dict[str, Any] = {"activation": ACTIVATIONS[activation]}

    extractor = kwargs.pop("features_extractor_class", None)
    options = dict(kwargs.pop("features_extractor_kwargs", None) or {})
    normalize = kwargs.pop("normalize_images", True)
    share = kwargs.pop("share_features_extractor", None)
    if is_cnn and not is_image(space) and extractor is None:
        raise ValueError(f"CnnPolicy takes images, not {space}; give MlpPolicy, or MultiInputPolicy for a Dict")

    # Widths of the layers after the convolutions or the extractor.
    is_nature = is_cnn and extractor in (None, NatureCNN)
    net_arch = in_new_form(kwargs.pop("net_arch", None))
    if net_arch is None:
        defaults = min(widths, (256, 256)) if critic == "qf" else ()
        net_arch = defaults if is_nature else widths
    if critic is None and isinstance(net_arch, dict):
        raise ValueError(f"net_arch={net_arch} is not allowed here; there is one network, so give a list of widths")
    policy_widths, critic_widths = widths_by_name(net_arch, critic or "vf")
    model["hiddens"] = policy_widths
    if critic == "qf":
        model["critic_hiddens"] = critic_widths
    elif critic_widths != policy_widths:
        model["value_hiddens"] = critic_widths

    # Network before these layers. Lockstep's own is used where it is the same: it is faster.
    is_separate = critic == "qf" or critic_widths != policy_widths
    if extractor is None and is_image(space) and not is_cnn:
        extractor = FlattenExtractor
    if is_cnn and extractor is None and not normalize:
        extractor = NatureCNN
    if is_nature and is_separate and _fits_nature(space):
        extractor = NatureCNN
    if not normalize and extractor is None and _has_images(space):
        extractor = CombinedExtractor
    if extractor is NatureCNN and is_nature and normalize and not is_separate:
        extractor = None
    if extractor is CombinedExtractor and normalize and not options.get("normalized_image"):
        extractor = None
    if extractor is FlattenExtractor and not is_image(space) and not isinstance(space, spaces.Dict):
        extractor = None

    if extractor is not None:
        preparation = {"extractor": extractor, "normalize_images": normalize, **options}
        model |= {"encoder": Prepared, "encoder_config": preparation}
        if critic == "qf" and share:
            model["q_share_layers"] = True
    elif is_image(space):
        model["image_hiddens"] = (options.pop("features_dim", 512), *policy_widths)
    elif _has_images(space):
        model["image_hiddens"] = (options.pop("cnn_output_dim", 256),)
    options.pop("normalized_image", None)
    if options and extractor is None:
        raise ValueError(f"features_extractor_kwargs={options} are not allowed without a features_extractor_class")
    return model


def _fits_nature(space: Any) -> bool:
    """Return whether `NatureCNN` takes the images of a space."""
    return len(space.shape) == 3 and sorted(space.shape)[1] >= SMALLEST_IMAGE


def _has_images(space: Any) -> bool:
    """Return whether a space is an image, or has one inside."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(_has_images, parts))
    return is_image(space)
