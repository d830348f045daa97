"""The errors that people see: each has a stable code, a domain, an HTTP status, one line and a hint.

This module must never print, exit or know of a particular substrate. The tree::

    ClocheError
     ├── UsageError            the caller asked for something that cannot be (exit code 2)
     │    ├── InvalidInput     a value, a file or a field is wrong; says which
     │    ├── NotFound         nothing of that name is there, or it is not yours
     │    ├── Conflict         it is there already, or not in a state for that
     │    └── QuotaExceeded    too much was asked in too little time; says when to come again
     ├── EnvironmentUnusable   this machine cannot do it; the hint says what to change (exit code 5)
     ├── PlanRefused           a task or plan asks for what this driver or version cannot do (exit code 2)
     └── InfraError            something broke that is nobody's score
          ├── SandboxLost      the sandbox ended before its work did
          ├── ImageError       an image could not be made or found
          └── ModelError       the model endpoint failed

A subclass's docstring is its default message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Domain(StrEnum):
    """Whose doing a failure is. Only ``agent`` failures may count as an agent's result."""

    INFRA = "infra"
    AGENT = "agent"
    VERIFIER = "verifier"
    BUDGET = "budget"
    USER = "user"


class ClocheError(Exception):
    """Something went wrong in cloche itself."""

    code: ClassVar[str] = "infra/internal"
    domain: ClassVar[Domain] = Domain.INFRA
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        where: str | None = None,
        code: str | None = None,
    ) -> None:
        """Say what happened in one line, where (``file:line``) and, as a hint, what to do about it."""
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0].rstrip("."))
        self.hint = hint
        self.where = where
        if code is not None:
            self.code = code  # type: ignore[misc]  # an instance may be more exact than its class

    @property
    def message(self) -> str:
        """The one line that says what happened."""
        return str(self)


class UsageError(ClocheError):
    """The command was used wrongly."""

    code = "user/usage"
    domain = Domain.USER
    http_status = 422
    exit_code = 2


class InvalidInput(UsageError):
    """A value is not valid."""

    code = "user/invalid_input"


class NotFound(UsageError):
    """There is nothing of that name."""

    code = "user/not_found"
    http_status = 404


class Conflict(UsageError):
    """What is there already stands against it."""

    code = "user/conflict"
    http_status = 409


class QuotaExceeded(UsageError):
    """The key has used up what it may ask for."""

    code = "user/quota"
    http_status = 429

    def __init__(
        self, message: str | None = None, *, retry_after_s: float = 1.0, hint: str | None = None
    ) -> None:
        """``retry_after_s`` is in how many seconds the same request may be granted."""
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class PlanRefused(UsageError):
    """The plan asks for something that cannot be done here."""

    code = "plan/refused"


class EnvironmentUnusable(ClocheError):
    """This machine lacks something that is needed."""

    code = "doctor/unusable"
    http_status = 503
    exit_code = 5


class InfraError(ClocheError):
    """Something outside the agent and the task broke."""

    code = "infra/error"
    http_status = 502


class SandboxLost(InfraError):
    """The sandbox ended before its work did."""

    code = "infra/sandbox_lost"


class ImageError(InfraError):
    """The image could not be made."""

    code = "infra/image"


class ModelError(InfraError):
    """The model endpoint failed."""

    code = "infra/model"
