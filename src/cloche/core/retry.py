"""Whether a failed attempt is followed by another, and when. Pure: no clock, no randomness of its own."""

from __future__ import annotations

from dataclasses import dataclass

from cloche.core.errors import Domain
from cloche.core.failures import Failure, FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """At most ``retries`` further attempts, after waits that double from ``first_wait_s``.

    ``include`` and ``exclude`` hold failure codes, or the names of exceptions that Harbor's files use for
    them (``docs/failures.md``); a non-empty ``include`` replaces the table's choice, ``exclude`` wins.
    Whatever they say, only infrastructure failures are ever tried again.
    """

    retries: int = 5
    first_wait_s: float = 30.0
    factor: float = 2.0
    max_wait_s: float = 300.0
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()

    def retries_kind(self, kind: FailureKind) -> bool:
        """Whether failures of this kind are tried again."""
        names = {kind.code, kind.harbor}
        if names & self.exclude:
            return False
        return bool(names & self.include) if self.include else kind.retried


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Make another attempt, ``wait_s`` seconds from now."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The trial ends with what it has; ``reason`` is for its log."""

    reason: str


def decide(
    attempt: int, failure: Failure, policy: RetryPolicy, *, jitter: float = 0.5
) -> RetryAfter | GiveUp:
    """Decide what follows attempt number ``attempt`` (1 is the first) that ended with ``failure``.

    ``jitter`` in 0..1 spreads the wait over ± 25 %. What the other side asked for is the least wait; if
    that is longer than the policy's longest wait, the policy's holds.
    """
    if failure.domain is not Domain.INFRA:
        return GiveUp(f"{failure.code} is a result and is not tried again")
    if not policy.retries_kind(failure.kind):
        return GiveUp(f"{failure.code} would only happen again")
    if attempt > policy.retries:
        return GiveUp(f"all {policy.retries + 1} attempts are used up")
    wait_s = policy.first_wait_s * policy.factor ** min(attempt - 1, 64)
    wait_s *= 0.75 + 0.5 * jitter
    return RetryAfter(min(max(wait_s, failure.retry_after_s or 0.0), policy.max_wait_s))
