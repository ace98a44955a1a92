"""`AlgorithmConfig`: a whole configuration, and what builds policies, collectors and runners from it."""

from lockstep.builder.algorithm_config import AlgorithmConfig

__all__ = ["AlgorithmConfig"]
