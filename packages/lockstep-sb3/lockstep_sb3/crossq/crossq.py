"""CrossQ, at the place that it has in Stable-Baselines3."""

from lockstep_sb3.algorithms import CrossQ as CrossQ
