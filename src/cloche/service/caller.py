"""Who asks, and how much of the service is theirs. Plain data; must never hold a secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Bounds of one key; ``None`` is none. ``floor`` sandboxes are always its own, whatever others ask.

    ``creates_per_s`` delays creates (never refuses them); ``requests_per_s`` is answered with 429.
    """

    sandboxes: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    creates_per_s: float | None = None
    requests_per_s: float | None = None
    ttl_s: float | None = None
    floor: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The one behind a request. ``sandbox`` is set for a token that works for this one sandbox only.

    ``owner`` names the tenant: what belongs to another is not found. ``admin`` sees everything.
    """

    owner: str = "local"
    key: str = "local"
    scopes: frozenset[Scope] = frozenset(Scope)
    quota: Quota = field(default_factory=Quota)
    sandbox: str | None = None

    @property
    def admin(self) -> bool:
        """Whether it may see what belongs to others."""
        return Scope.ADMIN in self.scopes


LOCAL = Caller()
"""The user of an embedded service."""
