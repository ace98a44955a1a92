"""Names of metrics in the logs of Stable-Baselines3, and how they follow from Lockstep's."""

from __future__ import annotations

import re
from collections.abc import Mapping

MetricNames = Mapping[str, tuple[str, float]]
"""For metrics of Lockstep their names in Stable-Baselines3, and the factors that give the values they have there."""

ON_POLICY_METRICS: MetricNames = {
    "policy_loss": ("policy_gradient_loss", 1.0),
    # Lockstep's value loss is half the squared error.
    "vf_loss": ("value_loss", 2.0),
    "entropy": ("entropy_loss", -1.0),
    "mean_kl_loss": ("approx_kl", 1.0),
    "vf_explained_var": ("explained_variance", 1.0),
    "total_loss": ("loss", 1.0),
}
TRPO_METRICS: MetricNames = {
    "policy_loss": ("policy_objective", -1.0),
    "vf_loss": ("value_loss", 2.0),
    "mean_kl_loss": ("kl_divergence_loss", 1.0),
    "vf_explained_var": ("explained_variance", 1.0),
}
OFF_POLICY_METRICS: MetricNames = {
    "qf_loss": ("loss", 1.0),
    "alpha": ("ent_coef", 1.0),
    "alpha_loss": ("ent_coef_loss", 1.0),
}
LEARNING_RATES = ("default_optimizer_learning_rate", "critic_learning_rate")
"""Metrics with the learning rate; the first that exists is logged."""
LEFT_OUT = ("total_loss", "weights_seq_no", "module_train_batch_size_mean", "diff_num_grad_updates_vs_sampler_policy")
"""Metrics of Lockstep without a name in Stable-Baselines3 that are not logged: sums and counters."""
GRADIENT_METRIC = re.compile(r"gradients_(?P<optimizer>.+)_(?P<kind>global_norm|share_clipped)")
"""Metrics of an optimizer, whose names in Lockstep are too long for a row of the log."""
GRADIENT_NAMES = {"global_norm": "grad_norm", "share_clipped": "grad_clipped"}
"""Short names of these metrics in the log."""


def training_values(metrics: Mapping[str, float], names: MetricNames) -> dict[str, float]:
    """Return the values of the section "train/" from Lockstep's metrics of an update.

    Metrics that have no name in Stable-Baselines3 keep theirs, except for sums, counters and learning rates. Only those
    of gradients get shorter names, such as "grad_norm" or "critic_grad_norm".
    """
    values: dict[str, float] = {}
    for name, value in metrics.items():
        if name in names:
            sb3_name, factor = names[name]
            values[sb3_name] = factor * value
        elif name not in LEFT_OUT and not name.startswith("num_") and not name.endswith("_learning_rate"):
            values[_short_name(name)] = value
    for name in LEARNING_RATES:
        if name in metrics:
            values.setdefault("learning_rate", metrics[name])
    return values


def _short_name(name: str) -> str:
    """Return the name of a metric in the log, which is short enough for the table of `HumanOutputFormat`."""
    match = GRADIENT_METRIC.fullmatch(name)
    if match is None:
        return name
    short = GRADIENT_NAMES[match["kind"]]
    return short if match["optimizer"] == "default_optimizer" else f"{match['optimizer']}_{short}"
