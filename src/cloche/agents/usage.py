"""Counting tokens while an agent runs, so that an agent that is stopped leaves true counts behind.

Must never turn a count that the endpoint did not give into a number: one call without a count makes the
total unknown, and what is known of it stays readable as a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloche.core.outcome import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """What the endpoint counted for one call. ``prompt_tokens`` include the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


@dataclass(slots=True)
class UsageMeter:
    """The running count of one attempt, changed in place call by call.

    ``model_calls`` are requests that the endpoint took up; ``uncounted_calls`` those of them whose usage is
    not known, a call in flight among them. The ``counted_…`` figures cover all others.
    """

    model_calls: int = 0
    uncounted_calls: int = 0
    calls_without_cache_count: int = 0
    counted_prompt_tokens: int = 0
    counted_completion_tokens: int = 0
    counted_cached_tokens: int = 0

    def begin_call(self) -> None:
        """Note that a request goes out: until it is settled, the total is unknown."""
        self.model_calls += 1
        self.uncounted_calls += 1

    def withdraw_call(self) -> None:
        """Note that the request was refused before the model saw it: it cost nothing."""
        self.model_calls -= 1
        self.uncounted_calls -= 1

    def settle_call(self, counts: TokenCounts | None) -> None:
        """Note what the endpoint counted; ``None``, when it did not say, leaves the call uncounted."""
        if counts is None:
            return
        self.uncounted_calls -= 1
        self.counted_prompt_tokens += counts.prompt_tokens
        self.counted_completion_tokens += counts.completion_tokens
        if counts.cached_tokens is None:
            self.calls_without_cache_count += 1
        else:
            self.counted_cached_tokens += counts.cached_tokens

    @property
    def counted_tokens(self) -> int:
        """All tokens that are known of: never more than were used."""
        return self.counted_prompt_tokens + self.counted_completion_tokens

    def total(self) -> Usage | None:
        """Return the figures as they go on record; ``None`` when no model was called."""
        if self.model_calls == 0:
            return None
        known = self.uncounted_calls == 0
        cache_known = known and self.calls_without_cache_count == 0
        return Usage(
            input_tokens=self.counted_prompt_tokens if known else None,
            output_tokens=self.counted_completion_tokens if known else None,
            cached_tokens=self.counted_cached_tokens if cache_known else None,
            model_calls=self.model_calls,
        )
