"""Analysis of runs: plots, comparisons, intervals, reports, and off-policy estimates."""

from lockstep.analysis.compare import Comparison, compare_runs, compare_scores
from lockstep.analysis.estimates import Estimate, estimate
from lockstep.analysis.intervals import (
    Interval,
    bootstrap,
    improvement_bootstrap,
    iqm,
    iqm_bootstrap,
    iqm_difference_bootstrap,
    performance_profile,
    probability_of_improvement,
)
from lockstep.analysis.plots import plot_runs, read_curve
from lockstep.analysis.report import write_report

__all__ = [
    "Comparison",
    "Estimate",
    "Interval",
    "bootstrap",
    "compare_runs",
    "compare_scores",
    "estimate",
    "improvement_bootstrap",
    "iqm",
    "iqm_bootstrap",
    "iqm_difference_bootstrap",
    "performance_profile",
    "plot_runs",
    "probability_of_improvement",
    "read_curve",
    "write_report",
]
