"""Old name of the package `lockstep_sb3`. This module and all modules below it are the modules of that package."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings

from lockstep.compat import import_sb3

_package = import_sb3()
warnings.warn(
    "lockstep.compat.sb3 has moved: import from lockstep_sb3, whose modules have the same names",
    DeprecationWarning,
    stacklevel=2,
)

for _module in pkgutil.walk_packages(_package.__path__, prefix="lockstep_sb3."):
    importlib.import_module(_module.name)
# Old and new names lead to the same module objects, so that a class is the same under both. The loop is over
# `sys.modules`, since some modules, such as `lockstep_sb3.ppo.policies`, have no file.
for _name, _module_object in list(sys.modules.items()):
    if _name == "lockstep_sb3" or _name.startswith("lockstep_sb3."):
        sys.modules[__name__ + _name.removeprefix("lockstep_sb3")] = _module_object
