"""Time as agents see it. Must never be read from anywhere else in this package, so that tests can own it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What time it is, and how to wait."""

    def now(self) -> datetime:
        """Return the date and time, in UTC, with its time zone."""

    async def sleep(self, seconds: float) -> None:
        """Return once that much time has passed."""


class SystemClock:
    """This machine's clock and the event loop's timers."""

    def now(self) -> datetime:
        """Return the date and time, in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Return once that much time has passed."""
        await asyncio.sleep(seconds)
