"""Imported once by the process that all others are forked from: what they would load, each anew, before they begin."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "trainer"))
for name in ("lockstep.cli.commands", "lockstep.envs.toys.counting", "lockstep.runs.pool", "trainer_tools"):
    importlib.import_module(name)

config_for = sys.modules["trainer_tools"].config_for
for name in ("ppo", "a2c", "dqn"):  # kernels and spaces; no gradient, so no threads
    config_for(name).build_trainer()
