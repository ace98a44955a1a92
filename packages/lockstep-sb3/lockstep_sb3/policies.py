"""Old place of the policy classes, which had the same classes for all algorithms."""

from typing import Any

from lockstep_sb3.common.moved import moved_name

_MOVED = {
    "BasePolicy": "lockstep_sb3.common.policies:BasePolicy",
    "CnnPolicy": "lockstep_sb3.ppo.policies:CnnPolicy",
    "MlpPolicy": "lockstep_sb3.ppo.policies:MlpPolicy",
    "MultiInputPolicy": "lockstep_sb3.ppo.policies:MultiInputPolicy",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
