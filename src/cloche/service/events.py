"""The changes of state of all sandboxes, numbered, for whoever follows them. Must never block who tells.

Numbers grow over restarts too: a service begins at the time of its start. A reader that comes back too late
for what is kept is told so, never given a silent gap.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cloche.api.models import EventView


@dataclass(frozen=True, slots=True)
class Logged:
    """An event and whose it is."""

    view: EventView
    owner: str
    labels: dict[str, str]


class EventLog:
    """A bounded ring of events; readers wait on it."""

    def __init__(self, keep: int, clock: Callable[[], float] = time.time) -> None:
        self._ring: deque[Logged] = deque(maxlen=keep)
        self._clock = clock
        self._last = int(clock() * 1000) * 1000
        self._dropped = False
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    def next_number(self) -> int:
        """Take the next number."""
        self._last += 1
        return self._last

    def add(self, event: Logged) -> None:
        """Keep an event and wake the readers."""
        self._dropped = self._dropped or len(self._ring) == self._ring.maxlen
        self._ring.append(event)
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def holds(self, after: int) -> bool:
        """Whether all that came behind ``after`` is kept; 0 stands for the beginning."""
        if after == 0:
            return not self._dropped
        return after >= self._last or (bool(self._ring) and self._ring[0].view.seq <= after + 1)

    def since(self, after: int) -> Iterable[Logged]:
        """Return what came behind ``after``, oldest first."""
        if after >= self._last:
            return ()
        newer: list[Logged] = []
        for event in reversed(self._ring):
            if event.view.seq <= after:
                break
            newer.append(event)
        return reversed(newer)

    async def wait(self) -> None:
        """Return at the next event."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
