"""What can go wrong with a registry, each with a stable code.

Must never carry a credential or a signed address.
"""

from __future__ import annotations

from typing import Any

from cloche.core.errors import ImageError

NOT_FOUND = "infra/image_not_found"
UNAUTHORISED = "infra/image_unauthorised"
PLATFORM = "infra/image_platform"
DIGEST = "infra/image_digest"
TRUNCATED = "infra/image_truncated"
NOT_UNDERSTOOD = "infra/image_not_understood"
UNAVAILABLE = "infra/registry_unavailable"
RATE_LIMIT = "infra/registry_rate_limit"
TIMEOUT = "infra/image_pull_timeout"

_WORTH_ANOTHER_TRY = frozenset({UNAVAILABLE, TRUNCATED})


class RegistryError(ImageError):
    """A registry did not give the image.

    ``retry_after_s`` is how long the registry asked us to wait, where it did.
    """

    def __init__(
        self, code: str, message: str, *, hint: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.retry_after_s = retry_after_s

    @property
    def passes(self) -> bool:
        """Whether the same request may well succeed a moment later."""
        return self.code in _WORTH_ANOTHER_TRY and self.retry_after_s is None

    def to_json(self) -> dict[str, Any]:
        """Return what the callers that waited for the same pull are told."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retry_after_s": self.retry_after_s,
        }
