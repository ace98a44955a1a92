"""Settings of the default networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from torch import nn

from lockstep.options.checks import check_choice, check_whole, is_whole, suggestion
from lockstep.state.names import import_path
from lockstep.state.trust import Kind, UntrustedError, find_named

NETWORK = Kind("a subclass of torch.nn.Module", (nn.Module,))
"""the classes that a file may name as a network"""
ACTIVATIONS = ("tanh", "relu", "gelu", "silu", "elu")
RECURRENT = ("lstm", "gru")
ENCODERS = ("nature", "impala")
_ELSEWHERE = {
    "use_lstm": "recurrent",
    "use_attention": "attention",
    "attention_dim": "size",
    "attention_num_transformer_units": "num_layers",
    "attention_memory_inference": "memory",
    "lstm_cell_size": "recurrent_size",
    "fcnet_hiddens": "hiddens",
    "share_value_network": "vf_share_layers",
}


@dataclass(frozen=True)
class AttentionConfig:
    """Settings of a gated transformer as memory (Parisotto et al. 2019, https://arxiv.org/abs/1910.06764)."""

    num_layers: int = 1
    size: int = 64
    """Numbers in the features of a step, a multiple of `num_heads` and of 2."""
    num_heads: int = 4
    memory: int = 64
    """Steps before the present one that each layer can look back to."""
    hidden_size: int = 128
    """Width of the dense layer after the attention."""
    gate_bias: float = 2.0
    """How far the gates are closed at first: above 0 a layer begins as (almost) the identity."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "size", "num_heads", "memory", "hidden_size"):
            object.__setattr__(self, name, check_whole(f"attention.{name}", getattr(self, name), 1))
        if self.size % self.num_heads or self.size % 2:
            raise ValueError(f"attention.size={self.size} must be a multiple of num_heads={self.num_heads} and of 2")
        if not math.isfinite(self.gate_bias):
            raise ValueError(f"attention.gate_bias must be a finite number, got {self.gate_bias!r}")


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
    encoder: Any = None
    """A network of your own for the features of observations, which the hidden layers stand on: a class or function
    `E(observation_space, **encoder_config)` that makes an `nn.Module` with `output_size`, or its name `module:E`. Or a
    network for images by its name: "nature" (Mnih et al. 2015) or "impala" (the 15 convolutions of Espeholt et al.
    2018)."""
    encoder_config: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `encoder`."""
    activation: str = "tanh"
    """Activation of the hidden layers: tanh, relu, gelu, silu or elu."""
    layer_norm: bool = False
    """Layer normalisation (Ba et al. 2016) between each dense layer or convolution of an encoder and its activation;
    not in critics `Q(s, a)`, nor in an `encoder` of your own. Set by PQN."""
    vf_share_layers: bool = False
    """One encoder (and one memory) for policy and value, as is usual for images, or one for each."""
    q_share_layers: bool = False
    """Critics `Q(s, a)` see the features that the policy sees (of images, or an `encoder` of your own), which their
    loss trains; the policy sends them no gradient (Yarats et al. 2019). False: features of their own."""
    dueling: bool = False
    """Action values from a value and advantages instead of one number for each action (Wang et al. 2016)."""
    num_value_outputs: int = 1
    """Numbers for each action in distributions of action values. Set by C51 (atoms), QR-DQN and TQC (quantiles)
    and IQN (quantiles that it acts by)."""
    num_cosines: int = 64
    """Cosines that stand for the level of a quantile. Set by IQN."""
    value_range: tuple[float, float] | None = None
    """First and last atom of distributions of action values. Set by C51."""
    orthogonal_init: bool = True
    """Orthogonal weights with the gains below and zero biases; False leaves torch's own initialisation."""
    hidden_gain: float = math.sqrt(2.0)
    """Gain of orthogonal hidden layers."""
    policy_gain: float = 0.01
    """Gain of the policy's head: near 0, all actions begin about equally likely."""
    value_gain: float = 1.0
    """Gain of the value's head."""
    log_std_init: float = 0.0
    """Start of the logarithm of the standard deviations of a Gaussian head."""
    free_log_std: bool = True
    """One learned log_std for each action dimension, the same for all observations; False: outputs of the network."""
    gsde_log_std_init: float | None = None
    """Start of the logarithms of the deviations of state-dependent exploration; None: none. Set by
    `env_runners(exploration="gsde")`."""
    noisy_sigma: float | None = None
    """Action values: noise in the weights of all dense layers, which begins with deviations of `noisy_sigma /
    sqrt(inputs)` (Fortunato et al. 2018); with a memory, of those after it. None: none. Set by
    `env_runners(exploration="noisy")`."""
    squash_actions: bool = False
    """tanh-squashed Gaussian with actions in [-1, 1] (rescale them to the space with a connector)."""
    squash_mean: bool = False
    """tanh of a Gaussian's mean, which so lies in [-1, 1]; the actions that are drawn around it may lie beyond. Set by
    IQL."""
    conv_filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions for images as (channels, kernel, stride).

    None: the Nature CNN from 36 x 36 pixels upwards, two 3 x 3 convolutions below."""
    conv_activation: str = "relu"
    """Activation of convolutions."""
    image_hiddens: tuple[int, ...] = (512,)
    """Dense layers after the convolutions: (512,) as in Mnih et al. 2015; Espeholt et al. 2018 have (256,)."""
    num_critics: int = 2
    """Networks of action values of SAC and of algorithms for continuous actions; the smallest value counts (TQC: the
    mean)."""
    critic_hiddens: tuple[int, ...] | None = None
    """Widths of the hidden layers of critics `Q(s, a)`. Defaults to `hiddens`, except for TQC (512, 512, 512) and
    CrossQ (2048, 2048): their critics follow this option alone."""
    log_std_bounds: tuple[float, float] = (-20.0, 2.0)
    """Bounds of the logarithm of the standard deviations of SAC."""
    recurrent: str | None = None
    """"lstm" or "gru": a memory after the encoder; None: no memory."""
    recurrent_size: int = 64
    """Numbers in the memory."""
    attention: AttentionConfig | None = None
    """A gated transformer after the encoder as memory, in place of `recurrent`: an `AttentionConfig`, or a dict of some
    of its fields, `{}` for the defaults."""
    max_seq_len: int = 20
    """Time steps through which the gradient of a network with memory flows: episodes are cut into such sequences."""

    def __post_init__(self) -> None:
        for name in ("hiddens", "image_hiddens", "critic_hiddens"):
            widths = getattr(self, name)
            if widths is None and name == "critic_hiddens":
                continue
            if not isinstance(widths, list | tuple) or not all(map(_is_count, widths)):
                raise ValueError(f"{name} must be a list of positive whole numbers, got {widths!r}")
            object.__setattr__(self, name, tuple(map(int, widths)))
        for name in ("recurrent_size", "max_seq_len", "num_value_outputs", "num_cosines", "num_critics"):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), 1))
        for name in ("activation", "conv_activation"):
            check_choice(name, getattr(self, name), ACTIVATIONS)
        if isinstance(self.encoder, str) and self.encoder not in ENCODERS:
            object.__setattr__(self, "encoder", _encoder_named(self.encoder))
        if self.encoder is not None and not callable(self.encoder) and self.encoder not in ENCODERS:
            raise ValueError(
                f"encoder={self.encoder!r} must be a class, a function, the name 'module:Class' of one, or one of "
                f"{', '.join(ENCODERS)}"
            )
        if not isinstance(self.encoder_config, Mapping):
            raise ValueError(f"encoder_config={self.encoder_config!r} must be a dict of arguments of the encoder")
        if self.encoder_config and not callable(self.encoder):
            raise ValueError(
                f"encoder_config={self.encoder_config!r} needs an encoder of your own: set encoder, to a class, a "
                "function, or the name 'module:Class' of one"
            )
        if self.encoder in ENCODERS and self.conv_filters is not None:
            raise ValueError(f"conv_filters={self.conv_filters!r} do not go with encoder={self.encoder!r}; give one")
        if self.layer_norm and self.encoder == "impala":
            raise ValueError("layer_norm=True does not go with encoder='impala'; leave one of them out")
        if self.recurrent is not None:
            check_choice("recurrent", self.recurrent, RECURRENT)
        attention: Any = self.attention
        if isinstance(attention, Mapping):
            attention = AttentionConfig(**_known(AttentionConfig, attention, "attention"))
            object.__setattr__(self, "attention", attention)
        if attention is not None and not isinstance(attention, AttentionConfig):
            raise ValueError(f"attention={attention!r} must be a dict such as {{'memory': 64}}, or None")
        if self.attention is not None and self.recurrent is not None:
            raise ValueError(f"attention does not go with recurrent={self.recurrent!r}: choose one memory")
        if self.has_memory and self.q_share_layers:
            raise ValueError(f"q_share_layers=True does not go with {self.memory_in_words}: critics have their own")
        for name in ("hidden_gain", "policy_gain", "value_gain", "log_std_init"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be a finite number, got {getattr(self, name)!r}")
        if self.squash_mean and self.squash_actions:
            raise ValueError("squash_mean=True does not go with squash_actions=True, which squashes what is drawn")
        if self.squash_mean and self.gsde_log_std_init is not None:
            raise ValueError("squash_mean=True does not go with exploration='gsde', whose noise is added to the mean")
        if self.noisy_sigma is not None and not 0.0 < self.noisy_sigma < math.inf:
            raise ValueError(f"noisy_sigma must be a positive number, or None, got {self.noisy_sigma!r}")
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
        return cls(**_known(cls, value, "model_config"))

    @property
    def has_memory(self) -> bool:
        """Return whether the network remembers from step to step."""
        return self.recurrent is not None or self.attention is not None

    @property
    def memory_in_words(self) -> str:
        """Return the option that asks for a memory, as a user wrote it."""
        return "attention" if self.attention is not None else f"recurrent={self.recurrent!r}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values; `ModelConfig.of` gives back an equal config.

        Raises:
            ValueError: an `encoder` that cannot be imported by its name.
        """
        plain = asdict(self)
        if callable(self.encoder):
            plain["encoder"] = import_path("model_config.encoder", self.encoder)
        return plain


def _known(cls: type, options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return `options` if all of them are fields of `cls`; `ValueError` otherwise, with the nearest that is."""
    names = [entry.name for entry in fields(cls)]
    for key in options:
        if key not in names:
            elsewhere = [_ELSEWHERE[key]] if _ELSEWHERE.get(key) in names else []
            raise ValueError(f"unknown {name} key {key!r}; {suggestion(key, names, elsewhere=elsewhere)}")
    return options


def _encoder_named(name: str) -> Any:
    """Return the class or function that the user or a file has named; `ValueError` where there is none."""
    try:
        return find_named("model_config.encoder", name, NETWORK)
    except UntrustedError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"encoder={name!r} cannot be imported ({error}); write 'package.module:Class' of a file that can be, or "
            f"one of {', '.join(ENCODERS)}"
        ) from error


def _is_count(value: object) -> bool:
    return is_whole(value) and value >= 1
