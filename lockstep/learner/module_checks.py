"""What an algorithm needs of a network, named where a network of one's own lacks it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.modules import RLModule

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns

OUTPUTS = (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS, "q_values", "value_outputs")
"""what losses read of `forward_train`"""
WHERE = "docs/learner.md lists under 'Networks of your own' what each algorithm needs"


def check_parts(learner: Learner, module_id: str, *names: str) -> None:
    """Raises `ValueError` with all of `names` that a module does not have (`"critics.is_discrete"`: of a part)."""
    module = learner.module[module_id]
    missing = [name for name in names if _part(module, name) is None]
    if missing:
        raise ValueError(
            f"{type(learner).__name__} needs what {type(module).__name__} (module {module_id!r}) does not have: "
            f"{', '.join(missing)}; define them, or take a subclass of the algorithm's default module. {WHERE}"
        )


def check_outputs(learner: Learner, module: RLModule, outputs: Any, names: Collection[str] = OUTPUTS) -> None:
    """Raises `ValueError` with those of `names` that `forward_train` of a module did not return."""
    missing = [name for name in names if name not in outputs]
    if missing:
        raise ValueError(
            f"{type(learner).__name__} needs what {type(module).__name__}.forward_train does not return: "
            f"{', '.join(missing)} (it returns {', '.join(map(str, outputs))}); return them too. {WHERE}"
        )


def check_read(learner: Learner, fwd_out: Mapping[str, Any], batch: Mapping[str, TensorColumns], name: Any) -> None:
    """As `check_outputs`, after a loss looked for `name` in vain: for the module that did not return it.

    Raises `KeyError` with the names that there are where no network returns such an output.
    """
    for module_id, outputs in fwd_out.items():
        if isinstance(outputs, Tensor) or not isinstance(name, str):
            continue
        if name in OUTPUTS and name not in batch[module_id]:
            check_outputs(learner, learner.module[module_id], outputs, [name])
        if name not in outputs or name not in batch[module_id]:
            near = get_close_matches(name, [*outputs, *batch[module_id]], n=1)
            raise KeyError(
                f"the loss of {type(learner).__name__} looks for {name!r} in vain (module {module_id!r}): the outputs "
                f"fwd_out are {', '.join(map(str, outputs))}; the columns of the batch are "
                f"{', '.join(map(str, batch[module_id]))}" + (f"; did you mean {near[0]!r}?" if near else "")
            )


def _part(module: Any, name: str) -> Any:
    for each in name.split("."):
        module = getattr(module, each, None)
    return module
