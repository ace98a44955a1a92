"""`AlgorithmConfig`: the configuration of a run, and the builders of its policy, collectors and env runners."""

from lockstep.builder.algorithm_config import AlgorithmConfig

__all__ = ["AlgorithmConfig"]
