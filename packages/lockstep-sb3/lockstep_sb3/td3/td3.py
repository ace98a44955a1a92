"""TD3, at the place that it has in Stable-Baselines3."""

from lockstep_sb3.algorithms import TD3 as TD3
