"""Tiny environments with exact answers: probes, counting environments, and control tasks without velocities."""

from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv
from lockstep.envs.toys.privileged import HistoryProbe, PrivilegedProbe
from lockstep.envs.toys.probes import PROBES, BitFlipping, Probe, SparseMaze, goal_functions, register_environments

__all__ = [
    "PROBES",
    "BitFlipping",
    "CountingEnv",
    "CountingVectorEnv",
    "HistoryProbe",
    "PrivilegedProbe",
    "Probe",
    "SparseMaze",
    "goal_functions",
    "register_environments",
]
