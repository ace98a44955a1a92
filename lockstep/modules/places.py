"""`ParameterPlaces`: notices when parameters that were read as arrays or views were replaced."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


class ParameterPlaces:
    """Where the parameters `names` of `module` are now, so that one can ask later whether they still are there.

    Asking costs about a microsecond: no attribute of a module is looked up.
    """

    def __init__(self, module: nn.Module, names: Iterable[str]) -> None:
        layers: dict[tuple[int, str], tuple[dict[str, Any], str, nn.Module]] = {}
        owners: list[dict[str, Any]] = []
        self._names: list[str] = []
        for path in names:
            here, (*between, name) = module, path.split(".")
            for key in between:
                within: dict[str, Any] = here._modules
                here = within[key]
                layers[id(within), key] = (within, key, here)
            owners.append(here._parameters)
            self._names.append(name)
        self._owners = owners
        self._layers = [[*each] for each in zip(*layers.values())] or [[], [], []]
        self._places = list(map(Tensor.data_ptr, map(operator.getitem, self._owners, self._names)))

    def have_changed(self) -> bool:
        """Is a layer on the way another object, or the memory of a parameter elsewhere?"""
        within, keys, layers = self._layers
        try:
            if not all(map(operator.is_, map(operator.getitem, within, keys), layers)):
                return True
            return list(map(Tensor.data_ptr, map(operator.getitem, self._owners, self._names))) != self._places
        except (KeyError, TypeError):  # gone, or None now
            return True
