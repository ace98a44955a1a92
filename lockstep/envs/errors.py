"""What goes wrong inside an environment, with the place where it went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from lockstep.data.trees import Tree


class EnvironmentStepError(RuntimeError):
    """An environment raised, or its worker died, while it was stepped or reset.

    The original exception is chained as `__cause__` (where there is one), so that its traceback is printed.

    Attributes:
        env_index: row of the environment in the vector; None where the back end does not tell.
        action: the last action handed to it; None for a reset.
    """

    def __init__(self, message: str, *, env_index: int | None = None, action: Tree = None) -> None:
        super().__init__(message)
        self.env_index = env_index
        self.action = action


class EnvironmentTimeoutError(EnvironmentStepError):
    """An environment did not answer within `step_timeout` seconds; the vector of workers was closed."""


class WorkerTraceback(Exception):
    """Carries the traceback text of a worker process, as the cause of the error raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


RAISED = (Exception, SystemExit)
"""What an environment may raise; `sys.exit(0)` in its code would end a run as if all had gone well."""

OLD_API = (
    "Before version 0.26 gym had step return four, with one flag `done`, and reset one: give terminated and truncated "
    "apart, or wrap the environment (shimmy.GymV21CompatibilityV0)."
)
FORMS = {
    "step": (5, "(observation, reward, terminated, truncated, info)"),
    "reset": (2, "(observation, info)"),
}
"""how many values gymnasium's two methods return, and which"""


def step_error(
    error: BaseException | str | None,
    *,
    backend: str,
    env_index: int | None,
    action: Tree = None,
    during: str,
    hint: str = "",
) -> EnvironmentStepError:
    """Return the error to raise: back end, environment index, last action, original message, and what to do."""
    which = "an environment" if env_index is None else f"environment {env_index}"
    last = "" if during == "reset" else f"; last action: {action!r}"
    if error is None:
        happened = "ended without an answer"
    else:
        happened = f"raised {error if isinstance(error, str) else f'{type(error).__name__}: {error}'}"
    return EnvironmentStepError(
        f"{which} of the {backend!r} vector {happened} (during {during}{last}). {hint or _form_hint(happened)}"
        "The traceback of the environment stands above; the vector must be reset or built again. "
        "Whether the environment keeps to gymnasium's API, check_environment (`lockstep doctor`) says.",
        env_index=env_index,
        action=action,
    )


def _form_hint(message: str) -> str:
    """Say what to do where an answer could not be unpacked."""
    for method, (number, values) in FORMS.items():
        if f"values to unpack (expected {number}" in message:
            return f"{method} must return {number} values, {values}. {OLD_API} "
    return ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean ...?` with the nearest of the known names, or nothing."""
    near = get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
