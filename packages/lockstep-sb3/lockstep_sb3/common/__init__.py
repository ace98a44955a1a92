"""Modules with the names of those in `stable_baselines3.common`.

`__all__` lists the classes that saved files name as members of this package, so that their modules may be renamed.
"""

from lockstep_sb3.common.torch_layers import BaseFeaturesExtractor, Prepared

__all__ = ["BaseFeaturesExtractor", "Prepared"]
