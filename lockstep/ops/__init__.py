"""Pure functions on arrays and tensors: returns, V-trace, losses, distributions, statistics.

numba is imported when a compiled kernel is first called, not with this package.
"""

from lockstep.ops.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)
from lockstep.ops.losses import (
    approximate_kl,
    clipped_ratios,
    clipped_surrogate_loss,
    clipped_value_loss,
    expectile_loss,
    exponential_weights,
    imitation_loss,
    mixture_huber_loss,
    project_on_atoms,
    quantile_huber_loss,
)
from lockstep.ops.returns import discounted_returns, gae, lambda_returns, monte_carlo_returns, n_step_returns, vtrace
from lockstep.ops.statistics import RunningMoments, explained_variance
from lockstep.ops.sum_tree import SumTree
from lockstep.ops.tensor_moments import TensorMoments

__all__ = [
    "Bernoulli",
    "Categorical",
    "DiagGaussian",
    "Distribution",
    "MultiCategorical",
    "RunningMoments",
    "SquashedGaussian",
    "SumTree",
    "TensorMoments",
    "approximate_kl",
    "clipped_ratios",
    "clipped_surrogate_loss",
    "clipped_value_loss",
    "discounted_returns",
    "expectile_loss",
    "explained_variance",
    "exponential_weights",
    "gae",
    "imitation_loss",
    "lambda_returns",
    "mixture_huber_loss",
    "monte_carlo_returns",
    "n_step_returns",
    "project_on_atoms",
    "quantile_huber_loss",
    "vtrace",
]
