"""Action distributions built from a network's output.

The classes are small, with few torch calls each and no Python that depends on data, so that they can be traced and
compiled. `[N]` stands for any number of leading dimensions. Common to all of them:

* `from_inputs(inputs, **static)` takes `[N, input_size(**static)]`. `static` are the keywords that the action space
  determines (`size=`, `nvec=` or `parts=`).
* `log_prob`, `entropy` and `kl` return `[N]`: sums over the parts of an action.
* To act with random numbers drawn in bulk, call `draw_noise(rng, leading_shape, **static)` once for a whole rollout,
  then `sample_with_noise(noise)` at each step. `sample(generator)` draws the noise itself and carries no gradient;
  `rsample(generator)` of a continuous distribution keeps the gradient.

Masks: the caller sets the logits of forbidden actions to a large negative *finite* number (-1e9, or `finfo.min`). Then
log-probabilities, entropies and their gradients stay finite, and the action is never drawn. `-inf` is not supported.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

FloatNoise = npt.NDArray[np.float32]
"""Random numbers that `draw_noise` returns, `[*leading_shape, noise_size]`."""

_LOG_2 = math.log(2.0)
_NO_DENSITY = "a deterministic policy has no density: no log_prob, entropy or kl"
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(ABC):
    """Batch `[N]` of independent distributions over one action each.

    `**static` stands for the keywords of the concrete class. There are no positional arguments: `*args` only tells the
    type checker that a subclass names its own keywords.
    """

    @classmethod
    @abstractmethod
    def input_size(cls, *args: Any, **static: Any) -> int:
        """Return the number of network outputs that a distribution needs for each row."""

    @classmethod
    def noise_size(cls, *args: Any, **static: Any) -> int:
        """Return the number of random numbers for each action (the last dimension of the noise)."""
        return cls.input_size(*args, **static)

    @classmethod
    def action_size(cls, *args: Any, **static: Any) -> int:
        """Return the number of entries of an action. It is 1 for a choice, whose actions are `[N]` without an axis."""
        return cls.noise_size(*args, **static)

    @classmethod
    def from_inputs(cls, inputs: Tensor, *args: Any, **static: Any) -> Self:
        """Return the distributions for a network's output.

        Args:
            inputs: `[N, input_size]`.
            args: No positional arguments are accepted.
            static: Keywords of the concrete class.

        Raises:
            ValueError: `inputs` have another last dimension.
        """
        cls.check_width(inputs, cls.input_size(**static))
        return cls(inputs)  # type: ignore[call-arg]

    @classmethod
    def check_width(cls, inputs: Tensor, width: int) -> None:
        """Raise `ValueError` unless `inputs` are `[..., width]`."""
        if inputs.shape[-1] != width:
            raise ValueError(
                f"{cls.__name__} needs {width} network outputs for each row, got inputs of shape {tuple(inputs.shape)}."
            )

    @classmethod
    @abstractmethod
    def draw_noise(
        cls, rng: np.random.Generator, leading_shape: Sequence[int], *args: Any, **static: Any
    ) -> FloatNoise:
        """Return random numbers for `sample_with_noise`, float32 `[*leading_shape, noise_size]`."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of `actions`, `[N]`; for continuous actions the logarithm of the density."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, `[N]`."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """Return `KL(self || other)` in nats, `[N]`."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the most likely action, which a policy takes when it does not explore."""

    @abstractmethod
    def sample_with_noise(self, noise: Tensor) -> Tensor:
        """Return the action that `noise` `[N, noise_size]` from `draw_noise` selects."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return one random action for each row, without a gradient.

        Args:
            generator: Source of the random numbers. Defaults to torch's global generator.
        """
        with torch.no_grad():
            return self.rsample(generator)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return one random action for each row, with its gradient (the reparametrization trick).

        Args:
            generator: Source of the random numbers. Defaults to torch's global generator.

        Raises:
            TypeError: The actions are choices, which have no gradient.
        """
        raise TypeError(f"{type(self).__name__} draws choices, which have no gradient; use sample()")


class Categorical(Distribution):
    """Distribution over `size` choices. Actions are int64 `[N]`.

    The noise is Gumbel: `argmax(logits + noise)` has exactly the probabilities of the logits (the Gumbel-max trick), so
    acting needs no softmax.

    Args:
        logits: `[N, size]`, not necessarily normalised.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self._log_probs: Tensor | None = None

    @classmethod
    def input_size(cls, *, size: int) -> int:
        return size

    @classmethod
    def action_size(cls, **static: Any) -> int:
        return 1

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, leading_shape: Sequence[int], **static: Any) -> FloatNoise:
        return _gumbel(rng, (*leading_shape, cls.input_size(**static)))

    @property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities `[N, size]`, computed once."""
        if self._log_probs is None:
            self._log_probs = torch.log_softmax(self.logits, dim=-1)
        return self._log_probs

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        log_probs = self.log_probs
        return -torch.linalg.vecdot(log_probs.exp(), log_probs)

    def kl(self, other: Self) -> Tensor:
        log_probs = self.log_probs
        return (log_probs.exp() * (log_probs - other.log_probs)).sum(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        return (self.logits + noise).argmax(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.sample_with_noise(_gumbel_like(self.logits, generator))


class MultiCategorical(Categorical):
    """Distribution over several independent choices, the i-th among `nvec[i]`. Actions are int64 `[N, len(nvec)]`.

    The logits of all parts are padded to one tensor `[N, len(nvec), max(nvec)]` (a view if all parts are equal), so the
    number of operations does not grow with the number of parts.

    Args:
        logits: `[N, sum(nvec)]`, the parts one after the other.
        nvec: Number of choices of each part.
    """

    def __init__(self, logits: Tensor, nvec: Sequence[int]) -> None:
        super().__init__(logits)
        self.nvec = tuple(int(n) for n in nvec)

    @classmethod
    def input_size(cls, *, nvec: Sequence[int]) -> int:  # type: ignore[override]
        return int(sum(nvec))

    @classmethod
    def action_size(cls, *, nvec: Sequence[int]) -> int:  # type: ignore[override]
        return len(nvec)

    @classmethod
    def from_inputs(cls, inputs: Tensor, *, nvec: Sequence[int]) -> Self:
        cls.check_width(inputs, int(sum(nvec)))
        return cls(inputs, nvec)

    @property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities of each part `[N, len(nvec), max(nvec)]`, computed once. Padding is very low."""
        if self._log_probs is None:
            # Half of the smallest number, so that subtracting the normaliser does not reach -inf: 0 * -inf is NaN.
            padding = torch.finfo(self.logits.dtype).min / 2
            self._log_probs = torch.log_softmax(self._padded_parts(self.logits, padding), dim=-1)
        return self._log_probs

    def log_prob(self, actions: Tensor) -> Tensor:
        return super().log_prob(actions).sum(-1)

    def entropy(self) -> Tensor:
        log_probs = self.log_probs
        return (log_probs.exp() * log_probs).sum((-2, -1)).neg()

    def kl(self, other: Self) -> Tensor:
        log_probs = self.log_probs
        return (log_probs.exp() * (log_probs - other.log_probs)).sum((-2, -1))

    def mode(self) -> Tensor:
        return self._padded_parts(self.logits, -math.inf).argmax(-1)

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        return self._padded_parts(self.logits + noise, -math.inf).argmax(-1)

    def _padded_parts(self, flat: Tensor, padding: float) -> Tensor:
        """Return numbers `[N, sum(nvec)]` as `[N, len(nvec), max(nvec)]`, with `padding` behind the shorter parts."""
        widest = max(self.nvec)
        if min(self.nvec) == widest:
            return flat.unflatten(-1, (len(self.nvec), widest))
        parts = flat.split(self.nvec, dim=-1)
        return torch.stack([F.pad(part, (0, widest - part.shape[-1]), value=padding) for part in parts], dim=-2)


class Bernoulli(Distribution):
    """Distribution over `size` independent bits. Actions are int8 `[N, size]`.

    The noise is logistic: `logits + noise > 0` has the probability `sigmoid(logits)`.

    Args:
        logits: `[N, size]`, log-odds of each bit.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @classmethod
    def input_size(cls, *, size: int) -> int:
        return size

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, leading_shape: Sequence[int], *, size: int) -> FloatNoise:
        return rng.logistic(size=(*leading_shape, size)).astype(np.float32)

    def log_prob(self, actions: Tensor) -> Tensor:
        # sigmoid(-x) = 1 - sigmoid(x), so one expression serves ones (sign 1) and zeros (sign -1).
        signs = actions.to(self.logits.dtype) * 2.0 - 1.0
        return F.logsigmoid(signs * self.logits).sum(-1)

    def entropy(self) -> Tensor:
        # Written in |logits| both terms are positive, so nothing cancels where a bit is nearly certain.
        size = self.logits.abs()
        return (size * torch.sigmoid(-size) - F.logsigmoid(size)).sum(-1)

    def kl(self, other: Self) -> Tensor:
        p = self.logits
        q = other.logits
        ones = torch.sigmoid(p) * (F.logsigmoid(p) - F.logsigmoid(q))
        zeros = torch.sigmoid(-p) * (F.logsigmoid(-p) - F.logsigmoid(-q))
        return (ones + zeros).sum(-1)

    def mode(self) -> Tensor:
        return (self.logits > 0).to(torch.int8)

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        return (self.logits + noise > 0).to(torch.int8)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # The difference of two Gumbel variables is logistic.
        noise = _gumbel_like(self.logits, generator) - _gumbel_like(self.logits, generator)
        return self.sample_with_noise(noise)


class DiagGaussian(Distribution):
    """Distribution of independent normal variables. Actions are floats `[N, A]`, the noise is standard normal.

    The network's outputs `[N, 2 * A]` are the means, then the logarithms of the standard deviations.

    Args:
        mean: `[N, A]`.
        log_std: `[N, A]`, or a shape that broadcasts to it.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std if log_std.shape == mean.shape else log_std.expand_as(mean)

    @classmethod
    def input_size(cls, *, size: int) -> int:
        return 2 * size

    @classmethod
    def noise_size(cls, *, size: int) -> int:
        return size

    @classmethod
    def from_inputs(cls, inputs: Tensor, *, size: int) -> Self:
        cls.check_width(inputs, 2 * size)
        mean, log_std = inputs.chunk(2, dim=-1)
        return cls(mean, log_std)

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, leading_shape: Sequence[int], *, size: int) -> FloatNoise:
        return rng.standard_normal((*leading_shape, size), dtype=np.float32)

    def log_prob(self, actions: Tensor) -> Tensor:
        scaled = (actions - self.mean) * torch.exp(-self.log_std)
        energy = torch.addcmul(self.log_std, scaled, scaled, value=0.5).sum(-1)
        return -self.mean.shape[-1] * _HALF_LOG_2_PI - energy

    def entropy(self) -> Tensor:
        return self.log_std.sum(-1) + self.mean.shape[-1] * (0.5 + _HALF_LOG_2_PI)

    def kl(self, other: Self) -> Tensor:
        # With d = log_std - other.log_std, the deviations contribute (exp(2d) - 1) / 2 - d. expm1 is exact for small d.
        log_scale = self.log_std - other.log_std
        shift = (self.mean - other.mean) * torch.exp(-other.log_std)
        return (0.5 * (shift.square() + torch.expm1(2.0 * log_scale)) - log_scale).sum(-1)

    def mode(self) -> Tensor:
        return self.mean

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.empty_like(self.mean, requires_grad=False).normal_(generator=generator)
        return self.sample_with_noise(noise)


class SquashedGaussian(DiagGaussian):
    """Distribution of `tanh(u)`, where `u` is a `DiagGaussian`. Actions are floats in [-1, 1], `[N, A]`.

    Haarnoja et al. 2018, arXiv:1801.01290, appendix C. `mean` and `log_std` belong to `u`. So does the KL divergence,
    because `tanh` is one-to-one. The noise is standard normal.

    A float32 action no longer determines `u` beyond about 8. So if `u` is known, use `log_prob_of_raw` or
    `sample_with_log_prob` instead of `log_prob`.
    """

    def log_prob_of_raw(self, raw_actions: Tensor) -> Tensor:
        """Return the log-density `[N]` of `tanh(raw_actions)`, exact for every finite `raw_actions` `[N, A]`."""
        return super().log_prob(raw_actions) - _log_tanh_slope(raw_actions).sum(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density `[N]` of squashed `actions`. An action of 1 or -1 counts as the number next to it."""
        limit = 1.0 - torch.finfo(actions.dtype).eps / 2
        return self.log_prob_of_raw(torch.atanh(actions.clamp(-limit, limit)))

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(actions [N, A], log_prob [N])`, both differentiable, without inverting `tanh`."""
        raw_actions = super().sample_with_noise(noise)
        return torch.tanh(raw_actions), self.log_prob_of_raw(raw_actions)

    def entropy(self) -> Tensor:
        """Return the entropy `[N]`: that of `u` plus the expectation of `log(1 - tanh(u)**2)`, which has no closed
        form.

        The expectation is computed by the trapezoid rule on 49 nodes. The error is below 1e-6 for deviations below 2.
        """
        nodes = torch.linspace(-7.5, 7.5, 49, dtype=self.mean.dtype, device=self.mean.device)
        weights = torch.softmax(-0.5 * nodes.square(), dim=-1)
        raw = self.mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * nodes
        return super().entropy() + (_log_tanh_slope(raw) @ weights).sum(-1)

    def mode(self) -> Tensor:
        """Return `tanh` of the mean: the median. The density itself may have its maximum elsewhere."""
        return torch.tanh(self.mean)

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        return torch.tanh(super().sample_with_noise(noise))


class SquashedDeterministic(Distribution):
    """Deterministic policy: the action is `tanh` of the network's output. Actions are floats in [-1, 1], `[N, A]`.

    The noise is added to the action, which is then clipped to [-1, 1] (Lillicrap et al. 2016, Fujimoto et al. 2018).
    There is no density: `log_prob`, `entropy` and `kl` raise `TypeError`.

    Args:
        inputs: `[N, A]`, the actions before the tanh.
    """

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    @classmethod
    def input_size(cls, *, size: int) -> int:
        return size

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, leading_shape: Sequence[int], *, size: int) -> FloatNoise:
        """Return zeros: the algorithm decides how much to explore, with `GaussianNoise`."""
        return np.zeros((*leading_shape, size), np.float32)

    def log_prob(self, actions: Tensor) -> Tensor:
        raise TypeError(_NO_DENSITY)

    def entropy(self) -> Tensor:
        raise TypeError(_NO_DENSITY)

    def kl(self, other: Self) -> Tensor:
        raise TypeError(_NO_DENSITY)

    def mode(self) -> Tensor:
        return torch.tanh(self.inputs)

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        return (torch.tanh(self.inputs) + noise).clamp(-1.0, 1.0)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.mode()


Part = tuple[type[Distribution], dict[str, Any]]
"""Class of one part of a `Composite`, and its `static` keywords."""


class Composite(Distribution):
    """Independent distributions of the parts of an action, for example a choice and a continuous vector.

    Actions are floats `[N, A]` with the parts side by side. A choice is stored as a float too, which is exact up to
    2**24. The noise of the parts is side by side as well. The network's outputs `[N, D]` are the inputs of the parts in
    their order, except that the logarithms of the standard deviations of all Gaussian parts come last: a network may
    have these as free parameters behind its outputs.

    Args:
        parts: Distribution of each part.
        static: Class and `static` keywords of each part.
    """

    def __init__(self, parts: Sequence[Distribution], static: Sequence[Part]) -> None:
        self.parts = parts
        self.static = static

    @classmethod
    def input_size(cls, *, parts: Sequence[Part]) -> int:
        return sum(dist.input_size(**static) for dist, static in parts)

    @classmethod
    def noise_size(cls, *, parts: Sequence[Part]) -> int:
        return sum(dist.noise_size(**static) for dist, static in parts)

    @classmethod
    def action_size(cls, *, parts: Sequence[Part]) -> int:
        return sum(dist.action_size(**static) for dist, static in parts)

    @classmethod
    def from_inputs(cls, inputs: Tensor, *, parts: Sequence[Part]) -> Self:
        cls.check_width(inputs, cls.input_size(parts=parts))
        # A Gaussian part has twice as many inputs as random numbers: its means, and behind all parts its deviations.
        sizes = [dist.noise_size(**static) for dist, static in parts]
        num_deviations = [dist.input_size(**static) - size for (dist, static), size in zip(parts, sizes)]
        pieces = inputs.split([*sizes, *num_deviations], dim=-1)
        distributions = []
        for i, (dist, static) in enumerate(parts):
            piece = pieces[i]
            if num_deviations[i]:
                piece = torch.cat([piece, pieces[len(parts) + i]], dim=-1)
            distributions.append(dist.from_inputs(piece, **static))
        return cls(distributions, parts)

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, leading_shape: Sequence[int], *, parts: Sequence[Part]) -> FloatNoise:
        return np.concatenate([dist.draw_noise(rng, leading_shape, **static) for dist, static in parts], axis=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        sizes = [dist.action_size(**static) for dist, static in self.static]
        pieces = []
        for piece, (dist, _) in zip(actions.split(sizes, dim=-1), self.static):
            # The actions of a `Categorical` have no axis of their own.
            pieces.append(piece.squeeze(-1) if dist is Categorical else piece)
        return _sum(part.log_prob(piece) for part, piece in zip(self.parts, pieces))

    def entropy(self) -> Tensor:
        return _sum(part.entropy() for part in self.parts)

    def kl(self, other: Self) -> Tensor:
        return _sum(part.kl(other_part) for part, other_part in zip(self.parts, other.parts))

    def mode(self) -> Tensor:
        return self._concatenated([part.mode() for part in self.parts])

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        pieces = noise.split([dist.noise_size(**static) for dist, static in self.static], dim=-1)
        return self._concatenated([part.sample_with_noise(piece) for part, piece in zip(self.parts, pieces)])

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self._concatenated([part.sample(generator) for part in self.parts])

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        return self._concatenated([part.rsample(generator) for part in self.parts])

    def _concatenated(self, actions: Sequence[Tensor]) -> Tensor:
        """Return the actions of the parts side by side `[N, A]`, as float64 if a part has it, and float32 otherwise."""
        pieces = []
        for piece, (dist, _) in zip(actions, self.static):
            pieces.append(piece.unsqueeze(-1) if dist is Categorical else piece)
        floats = [piece.dtype for piece in pieces if piece.is_floating_point()]
        widest = torch.float64 if torch.float64 in floats else torch.float32
        return torch.cat([piece.to(widest) for piece in pieces], dim=-1)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of one or more tensors; the builtin `sum` would begin with an addition of 0."""
    return functools.reduce(torch.add, terms)


def _log_tanh_slope(raw: Tensor) -> Tensor:
    """Return `log(1 - tanh(raw)**2)`, as `2 (log 2 - raw + logsigmoid(2 raw))`, which is exact in both tails."""
    # Not softplus: beyond a threshold it drops the tiny term, and with it the gradient.
    return 2.0 * (_LOG_2 - raw + F.logsigmoid(2.0 * raw))


def _gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatNoise:
    """Return random numbers with the standard Gumbel distribution, as minus the logarithm of exponential ones."""
    # An exponential number may be 0, whose logarithm is not finite.
    exponential = rng.standard_exponential(shape).astype(np.float32)
    np.maximum(exponential, np.finfo(np.float32).tiny, out=exponential)
    return -np.log(exponential)


def _gumbel_like(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return random numbers with the standard Gumbel distribution, in the shape and dtype of `logits`."""
    exponential = torch.empty_like(logits, requires_grad=False).exponential_(generator=generator)
    return exponential.clamp_(min=torch.finfo(logits.dtype).tiny).log_().neg_()
