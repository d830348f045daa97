"""cloche runs agents, models and tasks in clean, isolated sandboxes and reports what worked.

    from cloche import Sandbox, AsyncSandbox

This package root must never import a sub-package before one of these names is asked for, so that
``import cloche`` and ``cloche --help`` stay fast.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for true; importing typing would cost more than all the rest

if TYPE_CHECKING:
    from cloche.client import AsyncSandbox, Sandbox

__version__ = "0.1.0"
__all__ = ["AsyncSandbox", "Sandbox", "__version__"]


def __getattr__(name: str) -> object:
    if name in {"AsyncSandbox", "Sandbox"}:
        from cloche import client  # noqa: PLC0415  # only when it is wanted

        return getattr(client, name)
    message = f"module 'cloche' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return __all__
