"""Old name of the package `lockstep_sb3`: this module, and every module below it, is the one of that package."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings

from lockstep.compat import door_of_sb3

_door = door_of_sb3()
warnings.warn(
    "lockstep.compat.sb3 has moved: import from lockstep_sb3, whose modules have the same names",
    DeprecationWarning,
    stacklevel=2,
)

for _module in pkgutil.walk_packages(_door.__path__, prefix="lockstep_sb3."):
    importlib.import_module(_module.name)
# Both paths lead to the same module objects, so that a class is the same by its old name. `lockstep_sb3.ppo.policies`
# and the like are in `sys.modules` only, hence the loop over that.
for _name, _present in list(sys.modules.items()):
    if _name == "lockstep_sb3" or _name.startswith("lockstep_sb3."):
        sys.modules[__name__ + _name.removeprefix("lockstep_sb3")] = _present
