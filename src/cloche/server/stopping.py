"""The end of a service: what waits is told, so that it can be handed back. Must never end a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Stopping:
    """Knows whether the service is stopping, and wakes what waits when it begins to."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._scopes: set[asyncio.Timeout] = set()

    def begin(self) -> None:
        """End every wait now."""
        self.begun.set()
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)

    @asynccontextmanager
    async def within(self, seconds: float | None) -> AsyncIterator[None]:
        """Bound a block by a time and by the service's life; TimeoutError for either."""
        async with asyncio.timeout(0 if self.begun.is_set() else seconds) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
