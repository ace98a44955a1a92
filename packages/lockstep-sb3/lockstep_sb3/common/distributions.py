"""Action distributions over torch's own, with the method names of Stable-Baselines3.

A loss of Lockstep does not use them: it computes the same numbers with `lockstep.ops`. Programs get them from
`model.policy.get_distribution(obs)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Normal
from torch.distributions import Distribution as TorchDistribution
from torch.distributions import kl_divergence as torch_kl_divergence

from lockstep_sb3.common.preprocessing import get_action_dim

SMALLEST_DENSITY = 1e-6
"""Added to the derivative of tanh before its logarithm, since the derivative may be 0."""


def sum_independent_dims(tensor: Tensor) -> Tensor:
    """Return the sums `[N]` over the last dimension of `[N, A]`, or the sum of all of `[A]`."""
    return tensor.sum(dim=1) if tensor.dim() > 1 else tensor.sum()


class Distribution(ABC):
    """Batch of distributions over the actions of a space.

    `proba_distribution` sets the parameters, for example the outputs of a network, and returns the distribution.
    """

    inputs: Tensor
    """Parameters as one tensor `[N, D]`: all logits, or the means and the log standard deviations."""

    def _set_inputs(self, inputs: Tensor) -> Self:
        self.inputs = inputs
        vars(self).pop("distribution", None)
        return self

    @cached_property
    @abstractmethod
    def distribution(self) -> Any:
        """Distribution of torch; several of them in a list for a MultiDiscrete."""

    @abstractmethod
    def proba_distribution_net(self, latent_dim: int, *args: Any, **kwargs: Any) -> Any:
        """Return a new last layer, which computes the parameters from features `[N, latent_dim]`."""

    @abstractmethod
    def proba_distribution(self, *args: Any, **kwargs: Any) -> Self:
        """Set the parameters, and return this distribution. Each class names its own."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probabilities (of continuous actions the log densities) `[N]`."""

    @abstractmethod
    def entropy(self) -> Tensor | None:
        """Return the entropies `[N]`; None if they have no closed form."""

    @abstractmethod
    def sample(self) -> Tensor:
        """Return a random action for each row."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the most likely action of each row."""

    def get_actions(self, deterministic: bool = False) -> Tensor:
        """Return the most likely actions, or random ones."""
        return self.mode() if deterministic else self.sample()

    def actions_from_params(self, *args: Any, deterministic: bool = False, **kwargs: Any) -> Tensor:
        """Return actions for parameters of `proba_distribution`."""
        return self.proba_distribution(*args, **kwargs).get_actions(deterministic)

    def log_prob_from_params(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return random actions for parameters of `proba_distribution`, and their log-probabilities."""
        actions = self.actions_from_params(*args, **kwargs)
        return actions, self.log_prob(actions)


class DiagGaussianDistribution(Distribution):
    """Normal distribution with independent entries.

    Args:
        action_dim: Number of entries of an action.
    """

    def __init__(self, action_dim: int) -> None:
        self.action_dim = action_dim

    def proba_distribution_net(self, latent_dim: int, log_std_init: float = 0.0) -> tuple[nn.Module, nn.Parameter]:
        """Return a layer for the means, and a parameter with the log standard deviations `[A]`."""
        log_std = nn.Parameter(torch.full((self.action_dim,), float(log_std_init)))
        return nn.Linear(latent_dim, self.action_dim), log_std

    def proba_distribution(self, mean_actions: Tensor, log_std: Tensor) -> Self:
        """Set the means `[N, A]` and the log standard deviations `[A]` or `[N, A]`."""
        return self._set_inputs(torch.cat([mean_actions, log_std.expand_as(mean_actions)], dim=-1))

    @cached_property
    def distribution(self) -> Normal:
        # Slices and not `chunk`, which torch exports to ONNX in a form that older versions do not read.
        mean = self.inputs[..., : self.action_dim]
        log_std = self.inputs[..., self.action_dim :]
        return Normal(mean, log_std.exp(), validate_args=False)

    def log_prob(self, actions: Tensor) -> Tensor:
        return sum_independent_dims(self.distribution.log_prob(actions))

    def entropy(self) -> Tensor | None:
        return sum_independent_dims(self.distribution.entropy())

    def sample(self) -> Tensor:
        """Return random actions, with their gradient."""
        return self.distribution.rsample()

    def mode(self) -> Tensor:
        return self.distribution.mean


class SquashedDiagGaussianDistribution(DiagGaussianDistribution):
    """Normal distribution whose values are squashed by tanh into (-1, 1)."""

    def __init__(self, action_dim: int, epsilon: float = SMALLEST_DENSITY) -> None:
        super().__init__(action_dim)
        self.epsilon = epsilon
        self.gaussian_actions: Tensor | None = None
        """Last actions before tanh."""

    def log_prob(self, actions: Tensor, gaussian_actions: Tensor | None = None) -> Tensor:
        """Return the log densities `[N]` of actions in (-1, 1).

        Args:
            actions: Actions `[N, A]`.
            gaussian_actions: The same actions before tanh, if they are known: more exact near the bounds.
        """
        if gaussian_actions is None:
            gaussian_actions = TanhBijector.inverse(actions)
        log_derivative = torch.log(1.0 - actions.square() + self.epsilon)
        return super().log_prob(gaussian_actions) - log_derivative.sum(dim=1)

    def entropy(self) -> Tensor | None:
        return None

    def sample(self) -> Tensor:
        self.gaussian_actions = super().sample()
        return self.gaussian_actions.tanh()

    def mode(self) -> Tensor:
        self.gaussian_actions = super().mode()
        return self.gaussian_actions.tanh()

    def log_prob_from_params(self, mean_actions: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        actions = self.actions_from_params(mean_actions, log_std)
        return actions, self.log_prob(actions, self.gaussian_actions)


class CategoricalDistribution(Distribution):
    """Distribution over the choices of a Discrete space.

    Args:
        action_dim: Number of choices.
    """

    def __init__(self, action_dim: int) -> None:
        self.action_dim = action_dim

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        return nn.Linear(latent_dim, self.action_dim)

    def proba_distribution(self, action_logits: Tensor) -> Self:
        """Set the logits `[N, A]`."""
        return self._set_inputs(action_logits)

    @cached_property
    def distribution(self) -> Categorical:
        return Categorical(logits=self.inputs, validate_args=False)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.distribution.log_prob(actions)

    def entropy(self) -> Tensor:
        return self.distribution.entropy()

    def sample(self) -> Tensor:
        return self.distribution.sample()

    def mode(self) -> Tensor:
        return self.distribution.probs.argmax(dim=-1)


class MultiCategoricalDistribution(Distribution):
    """Independent distributions over the choices of a MultiDiscrete space.

    Args:
        action_dims: Number of choices of each part.
    """

    def __init__(self, action_dims: Sequence[int]) -> None:
        self.action_dims = [int(size) for size in action_dims]

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        return nn.Linear(latent_dim, sum(self.action_dims))

    def proba_distribution(self, action_logits: Tensor) -> Self:
        """Set the logits `[N, sum of all choices]`."""
        return self._set_inputs(action_logits)

    @cached_property
    def distribution(self) -> list[Categorical]:
        parts = self.inputs.split(self.action_dims, dim=-1)
        return [Categorical(logits=part, validate_args=False) for part in parts]

    def log_prob(self, actions: Tensor) -> Tensor:
        parts = zip(self.distribution, actions.unbind(dim=1))
        return torch.stack([part.log_prob(chosen) for part, chosen in parts], dim=1).sum(dim=1)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.distribution], dim=1).sum(dim=1)

    def sample(self) -> Tensor:
        return torch.stack([part.sample() for part in self.distribution], dim=1)

    def mode(self) -> Tensor:
        return torch.stack([part.probs.argmax(dim=-1) for part in self.distribution], dim=1)


class BernoulliDistribution(Distribution):
    """Independent bits of a MultiBinary space.

    Args:
        action_dims: Number of bits.
    """

    def __init__(self, action_dims: int) -> None:
        self.action_dims = action_dims

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        return nn.Linear(latent_dim, self.action_dims)

    def proba_distribution(self, action_logits: Tensor) -> Self:
        """Set the logits `[N, bits]`."""
        return self._set_inputs(action_logits)

    @cached_property
    def distribution(self) -> Bernoulli:
        return Bernoulli(logits=self.inputs, validate_args=False)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.distribution.log_prob(actions.to(self.inputs.dtype)).sum(dim=1)

    def entropy(self) -> Tensor:
        return self.distribution.entropy().sum(dim=1)

    def sample(self) -> Tensor:
        return self.distribution.sample()

    def mode(self) -> Tensor:
        return self.distribution.probs.round()


class StateDependentNoiseDistribution(DiagGaussianDistribution):
    """Distribution of actions in state-dependent exploration, gSDE (Raffin et al. 2021): over all noise matrices.

    An action is normal, with the variance `features^2 @ sigma^2`.
    """

    def proba_distribution(self, mean_actions: Tensor, log_std: Tensor, latent_sde: Tensor | None = None) -> Self:
        """Set the parameters.

        Args:
            mean_actions: Means `[N, A]`.
            log_std: Log standard deviations `[N, A]`; with `latent_sde` those of the noise matrices, `[F, A]`.
            latent_sde: Features `[N, F]` that the noise multiplies.
        """
        if latent_sde is not None:
            variance = latent_sde.square() @ log_std.exp().square()
            log_std = 0.5 * torch.log(variance + SMALLEST_DENSITY)
        return super().proba_distribution(mean_actions, log_std)


class TanhBijector:
    """tanh, its inverse, and the logarithm of its derivative."""

    def __init__(self, epsilon: float = SMALLEST_DENSITY) -> None:
        self.epsilon = epsilon

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return tanh(x)."""
        return x.tanh()

    @staticmethod
    def atanh(x: Tensor) -> Tensor:
        """Return the inverse of tanh."""
        return x.atanh()

    @staticmethod
    def inverse(y: Tensor) -> Tensor:
        """Return the inverse of tanh, finite at -1 and 1 as well."""
        bound = 1.0 - torch.finfo(y.dtype).eps
        return y.clamp(-bound, bound).atanh()

    def log_prob_correction(self, x: Tensor) -> Tensor:
        """Return the logarithm of the derivative of tanh at `x`."""
        return torch.log(1.0 - x.tanh().square() + self.epsilon)


def make_proba_distribution(
    action_space: spaces.Space[Any], use_sde: bool = False, dist_kwargs: dict[str, Any] | None = None
) -> Distribution:
    """Return a distribution over an action space, without parameters yet.

    Args:
        action_space: The space.
        use_sde: Take the distribution of state-dependent exploration, for a Box.
        dist_kwargs: Keyword arguments of the distribution's class.

    Raises:
        ValueError: The space is of another kind.
    """
    options = dist_kwargs or {}
    if isinstance(action_space, spaces.Box):
        gaussian_class = StateDependentNoiseDistribution if use_sde else DiagGaussianDistribution
        return gaussian_class(get_action_dim(action_space), **options)
    if isinstance(action_space, spaces.Discrete):
        return CategoricalDistribution(int(action_space.n), **options)
    if isinstance(action_space, spaces.MultiDiscrete):
        return MultiCategoricalDistribution(list(action_space.nvec), **options)
    if isinstance(action_space, spaces.MultiBinary):
        return BernoulliDistribution(get_action_dim(action_space), **options)
    raise ValueError(f"{action_space} is not supported; use a Box, Discrete, MultiDiscrete or MultiBinary")


def kl_divergence(dist_true: Distribution, dist_pred: Distribution) -> Tensor:
    """Return the KL divergences of two distributions of one class: `[N]`, or `[N, A]` of each entry.

    Raises:
        ValueError: The classes differ.
    """
    if type(dist_true) is not type(dist_pred):
        raise ValueError(f"{type(dist_true).__name__} and {type(dist_pred).__name__} have no KL divergence")
    if isinstance(dist_true, MultiCategoricalDistribution):
        parts = zip(dist_true.distribution, dist_pred.distribution)
        return torch.stack([torch_kl_divergence(p, q) for p, q in parts], dim=1).sum(dim=1)
    p: TorchDistribution = dist_true.distribution
    return torch_kl_divergence(p, dist_pred.distribution)
