"""Options of the default networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

from torch import nn

from lockstep.options.checks import check_choice, check_flags, check_whole, is_whole, suggestion
from lockstep.state.names import import_path
from lockstep.state.trust import Kind, UntrustedError, find_named

NETWORK = Kind("a subclass of torch.nn.Module", (nn.Module,))
"""Classes that a configuration file may name as a network."""
ACTIVATIONS = (
    *("tanh", "relu", "gelu", "silu", "elu", "leaky_relu", "sigmoid", "softplus", "softsign", "mish"),
    *("selu", "celu", "relu6", "hardtanh", "hardswish", "identity"),
)
RECURRENT = ("lstm", "gru")
MEMORY_IN = ("both", "policy", "critic", "shared")
ENCODERS = ("nature", "impala")
_NAMES_ELSEWHERE = {
    "use_lstm": "recurrent",
    "use_attention": "attention",
    "attention_dim": "size",
    "attention_num_transformer_units": "num_layers",
    "attention_memory_inference": "memory",
    "lstm_cell_size": "recurrent_size",
    "fcnet_hiddens": "hiddens",
    "share_value_network": "vf_share_layers",
}
"""Names of options in other libraries, with our names, for the error about an unknown option."""


@dataclass(frozen=True)
class AttentionConfig:
    """Options of a gated transformer as memory (Parisotto et al. 2019, https://arxiv.org/abs/1910.06764)."""

    num_layers: int = 1
    """Number of transformer layers."""
    size: int = 64
    """Size of the features of a step. Must be a multiple of `num_heads` and of 2."""
    num_heads: int = 4
    """Number of attention heads."""
    memory: int = 64
    """Number of earlier steps that each layer attends to."""
    hidden_size: int = 128
    """Width of the dense layer after the attention."""
    gate_bias: float = 2.0
    """Initial bias of the gates. With a bias above 0 the gates are almost closed at first, so that each layer begins
    close to the identity."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "size", "num_heads", "memory", "hidden_size"):
            object.__setattr__(self, name, check_whole(f"attention.{name}", getattr(self, name), 1))
        if self.size % self.num_heads or self.size % 2:
            raise ValueError(f"attention.size={self.size} must be a multiple of num_heads={self.num_heads} and of 2")
        if not math.isfinite(self.gate_bias):
            raise ValueError(f"attention.gate_bias must be a finite number, got {self.gate_bias!r}")


@dataclass(frozen=True)
class ModelConfig:
    """Options of the default networks.

    The defaults are those of PPO's reference implementation for vector observations (Huang et al. 2022, "The 37
    Implementation Details of Proximal Policy Optimization", core details 2 and 13, continuous-control details 1 to 4)
    and, for images, the network of Mnih et al. 2015.

    Raises:
        ValueError: An option has a value that is not allowed, or two options exclude each other.
    """

    hiddens: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers. Not used if the observation is one image: see `image_hiddens`."""
    value_hiddens: tuple[int, ...] | None = None
    """Widths of the hidden layers of the state value, which then needs an encoder of its own (`vf_share_layers=False`).
    Defaults to `hiddens`. Like `hiddens`, not used if the observation is one image."""
    encoder: Any = None
    """Network for the features of observations, below the hidden layers. Either a custom one: a class or function
    `E(observation_space, **encoder_config)` that makes an `nn.Module` with `output_size`, or its name `module:E`. Or a
    network for images by its name: "nature" (Mnih et al. 2015) or "impala" (the 15 convolutions of Espeholt et al.
    2018). By default it is chosen by the observation space."""
    encoder_config: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of a custom `encoder`."""
    activation: str = "tanh"
    """Activation of the hidden layers: tanh, relu, gelu, silu, elu, leaky_relu, sigmoid, softplus, softsign, mish,
    selu, celu, relu6, hardtanh, hardswish, or identity for none. Each is torch's layer with its default arguments."""
    layer_norm: bool = False
    """Layer normalisation (Ba et al. 2016) between each dense layer or convolution of an encoder and its activation.
    Not used in critics `Q(s, a)` and custom encoders. Set by PQN."""
    batch_norm: bool = False
    """Batch normalisation in the residual networks of FlashSAC. Set by FlashSAC."""
    vf_share_layers: bool = False
    """One encoder (and one memory) for policy and value, as is usual for images. False: each has its own."""
    q_share_layers: bool = False
    """Let critics `Q(s, a)` use the policy's features (of images, or of a custom encoder). The critics' loss trains the
    features, and the policy's loss does not (Yarats et al. 2019). False: critics have features of their own."""
    dueling: bool = False
    """Compute action values from a state value and advantages instead of one number per action (Wang et al. 2016)."""
    num_value_outputs: int = 1
    """Number of outputs per action for distributions of action values. Set by C51 (atoms), QR-DQN and TQC (quantiles)
    and IQN (quantiles that it acts by)."""
    num_cosines: int = 64
    """Number of cosines that represent the level of a quantile. Set by IQN."""
    value_range: tuple[float, float] | None = None
    """First and last atom of distributions of action values. Set by C51."""
    orthogonal_init: bool = True
    """Orthogonal initial weights with the gains below, and zero biases. False: torch's own initialisation."""
    hidden_gain: float = math.sqrt(2.0)
    """Gain of orthogonal weights in hidden layers."""
    policy_gain: float = 0.01
    """Gain of orthogonal weights in the policy's head. Near 0, all actions are about equally likely at first."""
    value_gain: float = 1.0
    """Gain of orthogonal weights in the value's head."""
    log_std_init: float = 0.0
    """Initial logarithm of the standard deviations of a Gaussian policy."""
    free_log_std: bool = True
    """One learned log standard deviation for each action dimension, the same for all observations. False: the network
    computes them from the observation."""
    gsde_log_std_init: float | None = None
    """Initial logarithm of the standard deviations of state-dependent exploration. None: no such exploration. Set by
    `env_runners(exploration="gsde")`."""
    noisy_sigma: float | None = None
    """Noise in the weights of all dense layers of action values, with the initial standard deviation `noisy_sigma /
    sqrt(inputs)` (Fortunato et al. 2018). With a memory, only the layers after it have noise. None: no noise. Set by
    `env_runners(exploration="noisy")`."""
    squash_actions: bool = False
    """Tanh-squashed Gaussian policy with actions in [-1, 1]. A connector rescales them to the action space."""
    squash_mean: bool = False
    """Squash the mean of a Gaussian policy by tanh into [-1, 1]. Actions drawn around it may be outside. Set by IQL."""
    symmetric: bool = False
    """Act by the mean of the policy's output for an observation and of the mirrored output for the mirrored
    observation, so that the policy is in mirror image. Needs `training(symmetry=f)`."""
    conv_filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions for images as (channels, kernel, stride). Defaults to the network of Mnih et al. 2015 from 36 x 36
    pixels on, and to two 3 x 3 convolutions below."""
    conv_activation: str = "relu"
    """Activation of convolutions."""
    image_hiddens: tuple[int, ...] = (512,)
    """Widths of the dense layers after the convolutions. Mnih et al. 2015 have (512,), Espeholt et al. 2018 (256,)."""
    num_critics: int = 2
    """Number of action-value networks in SAC and other algorithms for continuous actions. The smallest value counts
    (in TQC the mean)."""
    critic_hiddens: tuple[int, ...] | None = None
    """Widths of the hidden layers of critics `Q(s, a)`. Defaults to `hiddens`, except for TQC (512, 512, 512) and
    CrossQ (2048, 2048): their critics follow this option alone. In FlashSAC it is the width of each residual block."""
    log_std_bounds: tuple[float, float] = (-20.0, 2.0)
    """Bounds of the logarithm of SAC's standard deviations."""
    recurrent: str | None = None
    """Recurrent layer after the encoder: "lstm" or "gru". None: no recurrent layer."""
    recurrent_size: int = 64
    """Size of the recurrent state."""
    recurrent_layers: int = 1
    """Number of recurrent layers, each on the outputs of the one below."""
    attention: AttentionConfig | None = None
    """Gated transformer after the encoder, instead of `recurrent`: an `AttentionConfig`, or a dict of some of its
    fields (`{}` for its defaults)."""
    memory_below_hiddens: bool = False
    """Put the memory below the hidden layers, directly on the features of the observation. False: above them."""
    memory_in: Literal["both", "policy", "critic", "shared"] = "both"
    """Parts that have a memory: the policy, and state values or critics, each its own one ("both"); one of the two, so
    that the other depends on the present observation only; or "shared" (on-policy algorithms), where the value reads
    the policy's memory, and its loss sends no gradient there."""
    max_seq_len: int = 20
    """Number of time steps through which the gradient of a network with memory flows: episodes are cut into sequences
    of this length."""

    def __post_init__(self) -> None:
        # The class is frozen, so checked values are set by `object.__setattr__`.
        self._check_numbers()
        self._check_encoder()
        self._check_memory()
        self._check_policy()
        self._check_filters()

    def _check_numbers(self) -> None:
        """Check widths, sizes, names of activations and gains."""
        for name in ("hiddens", "image_hiddens", "critic_hiddens", "value_hiddens"):
            widths = getattr(self, name)
            if widths is None and name in ("critic_hiddens", "value_hiddens"):
                continue
            if not isinstance(widths, list | tuple) or not all(map(_is_count, widths)):
                raise ValueError(f"{name} must be a list of positive whole numbers, got {widths!r}")
            object.__setattr__(self, name, tuple(map(int, widths)))
        if self.value_hiddens is not None and self.vf_share_layers:
            raise ValueError(
                f"value_hiddens={self.value_hiddens} does not go with vf_share_layers=True, which gives policy and "
                "value the same layers; leave one of them out"
            )
        for name in (
            "recurrent_size",
            "recurrent_layers",
            "max_seq_len",
            "num_value_outputs",
            "num_cosines",
            "num_critics",
        ):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), 1))
        for name in ("activation", "conv_activation"):
            check_choice(name, getattr(self, name), ACTIVATIONS)

    def _check_encoder(self) -> None:
        """Check the options of the encoder, and look up a custom one by its name."""
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

    def _check_memory(self) -> None:
        """Check the options of the memory."""
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
        check_choice("memory_in", self.memory_in, MEMORY_IN)
        check_flags(memory_below_hiddens=self.memory_below_hiddens)
        needs_memory = {"memory_below_hiddens": False, "memory_in": "both"}
        for name, default in needs_memory.items():
            if not self.has_memory and getattr(self, name) != default:
                raise ValueError(f"{name}={getattr(self, name)!r} needs a memory; set recurrent or attention")
        if self.recurrent is None and self.recurrent_layers != 1:
            raise ValueError(f"recurrent_layers={self.recurrent_layers} needs recurrent='lstm' or 'gru'")
        if self.memory_in != "both" and self.vf_share_layers:
            raise ValueError(
                f"memory_in={self.memory_in!r} does not go with vf_share_layers=True, which gives policy and "
                "value one memory; leave one of them out"
            )
        if self.has_memory and self.q_share_layers:
            raise ValueError(f"q_share_layers=True does not go with {self.memory_in_words}: critics have their own")

    def _check_policy(self) -> None:
        """Check the options of the policy's and the value's heads."""
        check_flags(symmetric=self.symmetric)
        if self.symmetric and self.has_memory:
            raise ValueError(
                f"symmetric=True does not go with {self.memory_in_words}: the memory of mirrored observations would be "
                "a second one"
            )
        if self.symmetric and self.squash_mean:
            raise ValueError("symmetric=True does not go with squash_mean=True; leave one of them out")
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

    def _check_filters(self) -> None:
        """Check the convolutions."""
        if self.conv_filters is not None:
            filters = tuple(tuple(layer) for layer in self.conv_filters)
            if not filters or not all(len(layer) == 3 and all(map(_is_count, layer)) for layer in filters):
                raise ValueError(f"conv_filters must be (channels, kernel, stride) triples, got {self.conv_filters!r}")
            object.__setattr__(self, "conv_filters", filters)

    @classmethod
    def of(cls, value: ModelConfig | Mapping[str, Any] | None) -> Self:
        """Return a config from a config, a dict of some of its fields, or None (the defaults).

        Raises:
            ValueError: A key is not a field. Names the nearest field.
        """
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(f"model_config must be a ModelConfig, a dict or None, got {type(value).__name__}")
        return cls(**_known(cls, value, "model_config"))

    def for_value(self) -> Self:
        """Return the options of the state value's encoder, in which `hiddens` are the `value_hiddens`."""
        return self if self.value_hiddens is None else replace(self, hiddens=self.value_hiddens)

    @property
    def has_memory(self) -> bool:
        """Whether the network has a memory."""
        return self.recurrent is not None or self.attention is not None

    @property
    def memory_in_words(self) -> str:
        """The option that asks for a memory, in the form in which a user writes it."""
        return "attention" if self.attention is not None else f"recurrent={self.recurrent!r}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, from which `ModelConfig.of` makes an equal config.

        Raises:
            ValueError: The `encoder` cannot be imported by its name.
        """
        plain = asdict(self)
        if callable(self.encoder):
            plain["encoder"] = import_path("model_config.encoder", self.encoder)
        return plain


def options_of(model_config: ModelConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a `ModelConfig`, or of a dict in its place, by name."""
    return vars(model_config) if isinstance(model_config, ModelConfig) else model_config


def _known(cls: type, options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return `options` if all are fields of `cls`; else raise `ValueError` with the nearest field."""
    names = [entry.name for entry in fields(cls)]
    for key in options:
        if key not in names:
            elsewhere = [_NAMES_ELSEWHERE[key]] if _NAMES_ELSEWHERE.get(key) in names else []
            raise ValueError(f"unknown {name} key {key!r}; {suggestion(key, names, elsewhere=elsewhere)}")
    return options


def _encoder_named(name: str) -> Any:
    """Return the encoder that the user or a file has named. `ValueError` if it cannot be imported."""
    try:
        return find_named("model_config.encoder", name, NETWORK)
    except UntrustedError:  # a ValueError with advice of its own
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"encoder={name!r} cannot be imported ({error}); write 'package.module:Class' of a file that can be, or "
            f"one of {', '.join(ENCODERS)}"
        ) from error


def _is_count(value: object) -> bool:
    return is_whole(value) and value >= 1
