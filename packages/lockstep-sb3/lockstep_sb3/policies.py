"""Policy classes for `PPO(MlpPolicy, env)` and `MlpPolicy.load(path)`.

`lockstep_sb3.ppo.policies` and those of the other algorithms are this module, too.
"""

from lockstep_sb3.common.base_class import BasePolicy


class MlpPolicy(BasePolicy):
    """Policy for observations that are vectors."""


class CnnPolicy(BasePolicy):
    """Policy for images."""


class MultiInputPolicy(BasePolicy):
    """Policy for observations that are dicts."""
