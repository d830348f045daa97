"""Errors from what a service answered. Must never lose its code, nor make a known failure an unknown one."""

from __future__ import annotations

from collections.abc import Iterator

from cloche.api.models import ErrorBody
from cloche.core.errors import (
    ClocheError,
    Domain,
    EnvironmentUnusable,
    InfraError,
    PlanRefused,
    UsageError,
)

_FAMILIES: dict[str, type[ClocheError]] = {
    "user": UsageError,
    "plan": PlanRefused,
    "doctor": EnvironmentUnusable,
    "infra": InfraError,
}


def _classes(base: type[ClocheError] = ClocheError) -> Iterator[type[ClocheError]]:
    for cls in base.__subclasses__():
        if cls.__module__ == ClocheError.__module__:
            yield cls
        yield from _classes(cls)


def class_of(code: str) -> type[ClocheError]:
    """Return the class of a code: its own, that of the code it refines (``infra/image_…``), its family's."""
    known = {cls.code: cls for cls in _classes() if "code" in vars(cls)}
    while code:
        if code in known:
            return known[code]
        code = code.rpartition("_")[0]
    return ClocheError


def error_of(body: ErrorBody, retry_after_s: float | None = None) -> ClocheError:
    """Return the error that a service told of."""
    cls = class_of(body.code)
    if cls is ClocheError:
        cls = _FAMILIES.get(body.code.partition("/")[0], ClocheError)
    error = cls(body.message, hint=body.hint, where=body.where, code=body.code)
    if body.domain in set(Domain):
        error.domain = Domain(body.domain)  # type: ignore[misc]  # as with codes: an instance is more exact
    if retry_after_s is not None:
        error.retry_after_s = retry_after_s  # type: ignore[attr-defined]  # what classify reads
    return error


def transport_error(what: str, error: BaseException) -> InfraError:
    """Return the error for a service that cannot be reached, or broke off."""
    return InfraError(
        f"{what}: {str(error) or type(error).__name__}",
        hint="is the service running? cloche config show says which address is used",
        code="infra/transport",
    )
