"""Imported by the process that the others are forked from: kernels and spaces are loaded once (no gradient)."""

from trainer_tools import config_for

for name in ("ppo", "a2c", "dqn"):
    config_for(name).build_trainer()
