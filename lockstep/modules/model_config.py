"""Settings of the default networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from lockstep.state.checks import check_choice, check_whole, is_whole, suggestion

ACTIVATIONS = ("tanh", "relu", "gelu", "silu", "elu")
RECURRENT = ("lstm", "gru")
_ELSEWHERE = {
    "use_lstm": "recurrent",
    "lstm_cell_size": "recurrent_size",
    "fcnet_hiddens": "hiddens",
    "share_value_network": "vf_share_layers",
}


@dataclass(frozen=True)
class ModelConfig:
    """Settings of the default networks.

    The defaults are those of PPO's reference implementation for vector observations (Huang et al. 2022, "The 37
    Implementation Details of Proximal Policy Optimization", core details 2 and 13, continuous-control details 1 to 4)
    and, for images, the network of Mnih et al. 2015.

    Raises:
        ValueError: a width, gain, activation or filter that cannot be.
    """

    hiddens: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers. Not used when the observation is one image: see `image_hiddens`."""
    activation: str = "tanh"
    """Activation of the hidden layers: tanh, relu, gelu, silu or elu."""
    vf_share_layers: bool = False
    """One encoder (and one memory) for policy and value, as is usual for images, or one for each."""
    dueling: bool = False
    """Action values from a value and advantages instead of one number for each action (Wang et al. 2016)."""
    num_value_outputs: int = 1
    """Numbers for each action in distributions of action values. Set by C51 (atoms) and QR-DQN (quantiles)."""
    value_range: tuple[float, float] | None = None
    """First and last atom of distributions of action values. Set by C51."""
    orthogonal_init: bool = True
    """Orthogonal weights with the gains below and zero biases; False leaves torch's own initialisation."""
    hidden_gain: float = math.sqrt(2.0)
    policy_gain: float = 0.01
    value_gain: float = 1.0
    log_std_init: float = 0.0
    """Start of the logarithm of the standard deviations of a Gaussian head."""
    free_log_std: bool = True
    """One learned log_std for each action dimension, the same for all observations; False: outputs of the network."""
    squash_actions: bool = False
    """tanh-squashed Gaussian with actions in [-1, 1] (rescale them to the space with a connector)."""
    conv_filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions for images as (channels, kernel, stride).

    None: the Nature CNN from 36 x 36 pixels upwards, two 3 x 3 convolutions below."""
    conv_activation: str = "relu"
    image_hiddens: tuple[int, ...] = (512,)
    """Dense layers after the convolutions."""
    num_critics: int = 2
    """Networks of action values of SAC and of algorithms for continuous actions; the smallest value counts."""
    log_std_bounds: tuple[float, float] = (-20.0, 2.0)
    """Bounds of the logarithm of the standard deviations of SAC."""
    recurrent: str | None = None
    """"lstm" or "gru": a memory after the encoder; None: no memory."""
    recurrent_size: int = 64
    """Numbers in the memory."""
    max_seq_len: int = 20
    """Time steps through which the gradient of a recurrent network flows: episodes are cut into such sequences."""

    def __post_init__(self) -> None:
        for name in ("hiddens", "image_hiddens"):
            widths = getattr(self, name)
            if not isinstance(widths, list | tuple) or not all(map(_is_count, widths)):
                raise ValueError(f"{name} must be a list of positive whole numbers, got {widths!r}")
            object.__setattr__(self, name, tuple(map(int, widths)))
        for name in ("recurrent_size", "max_seq_len", "num_value_outputs", "num_critics"):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), 1))
        for name in ("activation", "conv_activation"):
            check_choice(name, getattr(self, name), ACTIVATIONS)
        if self.recurrent is not None:
            check_choice("recurrent", self.recurrent, RECURRENT)
        for name in ("hidden_gain", "policy_gain", "value_gain", "log_std_init"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be a finite number, got {getattr(self, name)!r}")
        if self.value_range is not None:
            object.__setattr__(self, "value_range", tuple(map(float, self.value_range)))
        bounds = tuple(self.log_std_bounds)
        if len(bounds) != 2 or not all(map(math.isfinite, bounds)) or bounds[0] >= bounds[1]:
            raise ValueError(f"log_std_bounds must be (lowest, highest), two finite numbers, got {bounds!r}")
        object.__setattr__(self, "log_std_bounds", bounds)
        if self.conv_filters is not None:
            filters = tuple(tuple(layer) for layer in self.conv_filters)
            if not filters or not all(len(layer) == 3 and all(map(_is_count, layer)) for layer in filters):
                raise ValueError(f"conv_filters must be (channels, kernel, stride) triples, got {self.conv_filters!r}")
            object.__setattr__(self, "conv_filters", filters)

    @classmethod
    def of(cls, value: ModelConfig | Mapping[str, Any] | None) -> Self:
        """Return a config from a config, a dict of some of its fields, or None (the defaults).

        Raises:
            ValueError: a key that is no field (with the nearest one that is).
        """
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(f"model_config must be a ModelConfig, a dict or None, got {type(value).__name__}")
        names = [entry.name for entry in fields(cls)]
        for key in value:
            if key not in names:
                elsewhere = [_ELSEWHERE[key]] if key in _ELSEWHERE else []
                raise ValueError(f"unknown model_config key {key!r}; {suggestion(key, names, elsewhere=elsewhere)}")
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values; `ModelConfig.of` gives back an equal config."""
        return asdict(self)


def _is_count(value: object) -> bool:
    return is_whole(value) and value >= 1  # type: ignore[operator]
