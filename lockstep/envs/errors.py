"""Errors of environments, which name the row, the action and the cause."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from lockstep.data.trees import Tree


class EnvironmentStepError(RuntimeError):
    """Error raised when an environment raises, or its worker dies, in a step or a reset.

    The original exception, if there is one, is chained as `__cause__`, so that its traceback is printed.

    Attributes:
        env_index: Row of the environment in the vector; None if the back end does not name it.
        action: The last action that it received; None for a reset.
    """

    def __init__(self, message: str, *, env_index: int | None = None, action: Tree = None) -> None:
        super().__init__(message)
        self.env_index = env_index
        self.action = action


class EnvironmentTimeoutError(EnvironmentStepError):
    """Error raised when an environment does not answer within `step_timeout` seconds. The workers were ended."""


class WorkerTraceback(Exception):
    """Traceback text of a worker process, chained as the cause of the error raised in this process."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text}")


RAISED = (Exception, SystemExit)
"""Exceptions of an environment that become an `EnvironmentStepError`. `SystemExit` is one of them, since `sys.exit(0)`
in an environment's code would end a run with the exit code of success."""

OLD_API = (
    "Before version 0.26 gym had step return four, with one flag `done`, and reset one: give terminated and truncated "
    "apart, or wrap the environment (shimmy.GymV21CompatibilityV0)."
)
"""Advice for environments with the interface of gym before version 0.26."""
ANSWER_FORMS = {
    "step": (5, "(observation, reward, terminated, truncated, info)"),
    "reset": (2, "(observation, info)"),
}
"""Number of values that each of gymnasium's two methods returns, and their names."""


def step_error(
    error: BaseException | str | None,
    *,
    backend: str,
    env_index: int | None,
    action: Tree = None,
    during: str,
    hint: str = "",
) -> EnvironmentStepError:
    """Return the error to raise: it says back end, row, last action, original message, and what to do.

    Args:
        error: The environment's exception, or its text from a worker; None for a worker that ended without an answer.
        backend: Name of the back end.
        env_index: Row of the environment; None if unknown.
        action: Last action; left out of the message during a reset.
        during: Name of the call, such as "step" or "reset".
        hint: What to do. By default, advice for answers of a wrong length, or nothing.
    """
    subject = "an environment" if env_index is None else f"environment {env_index}"
    last_action = "" if during == "reset" else f"; last action: {action!r}"
    if error is None:
        event = "ended without an answer"
    elif isinstance(error, str):
        event = f"raised {error}"
    else:
        event = f"raised {type(error).__name__}: {error}"
    return EnvironmentStepError(
        f"{subject} of the {backend!r} vector {event} (during {during}{last_action}). {hint or _form_hint(event)}"
        "The traceback of the environment stands above; the vector must be reset or built again. "
        "Whether the environment keeps to gymnasium's API, check_environment (`lockstep doctor`) says.",
        env_index=env_index,
        action=action,
    )


def _form_hint(message: str) -> str:
    """Return advice if a message says that an answer could not be unpacked; else an empty string."""
    for method, (number, values) in ANSWER_FORMS.items():
        if f"values to unpack (expected {number}" in message:
            return f"{method} must return {number} values, {values}. {OLD_API} "
    return ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean ...?` with the nearest of the known names; an empty string if none is near."""
    near = get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
