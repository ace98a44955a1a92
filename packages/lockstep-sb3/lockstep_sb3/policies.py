"""Names of policies, for `PPO(MlpPolicy, env)` and `MlpPolicy.load(path)`; `sb3.ppo.policies` and its kin are this."""

from lockstep_sb3.common.base_class import BasePolicy


class MlpPolicy(BasePolicy):
    """Networks for vectors."""


class CnnPolicy(BasePolicy):
    """Networks for images."""


class MultiInputPolicy(BasePolicy):
    """Networks for observations that are dicts."""
