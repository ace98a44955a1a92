"""The modules of `stable_baselines3.common`, by their names.

`__all__` has the classes that files name by this folder, so that their module may be renamed.
"""

from lockstep_sb3.common.torch_layers import BaseFeaturesExtractor, Prepared

__all__ = ["BaseFeaturesExtractor", "Prepared"]
