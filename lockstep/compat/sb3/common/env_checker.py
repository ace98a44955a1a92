"""`check_env`: what is wrong with an environment."""

import warnings
from typing import Any

from lockstep.envs import check_environment


def check_env(env: Any, warn: bool = True, skip_render_check: bool = True) -> None:
    """Raise `AssertionError` for an environment that cannot be trained on; warn of the rest."""
    for finding in check_environment(env):
        if finding.level == "error":
            raise AssertionError(finding.message)
        if warn and finding.level == "warning":
            warnings.warn(finding.message, stacklevel=2)
