"""One sandbox as the service knows it, and the ring of what happened. Must never do I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from cloche.api.models import CreateBody, End, EventView, SandboxView
from cloche.core.errors import Conflict


@dataclass(slots=True, eq=False)
class Entry:
    """A sandbox, its owner, and the task that makes it as long as there is one."""

    view: SandboxView
    owner: str
    body: CreateBody | None = None
    making: asyncio.Task[None] | None = field(default=None, repr=False)


class Events:
    """The newest changes of state, each with a number that only grows; whoever waits is woken by each."""

    def __init__(self, kept: int) -> None:
        self._ring: deque[tuple[EventView, Entry]] = deque(maxlen=kept)
        self._seq = 0
        self._woken: asyncio.Future[None] | None = None

    def add(self, entry: Entry, at: float) -> None:
        """Record what the entry's state is now."""
        self._seq += 1
        view = entry.view
        event = EventView(seq=self._seq, at=at, id=view.id, state=view.state, end=view.end)
        self._ring.append((event, entry))
        if self._woken is not None:
            self._woken.set_result(None)
            self._woken = None

    async def changed(self) -> None:
        """Return at the next change."""
        if self._woken is None:
            self._woken = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._woken)

    async def follow(self, wanted: Callable[[Entry], bool], after: int | None) -> AsyncIterator[EventView]:
        """Yield changes behind ``after`` (None: from now on), for ever.

        Raises Conflict when what follows ``after`` is no longer kept; list the sandboxes then.
        """
        seen = self._seq if after is None else after
        while True:
            oldest = self._ring[0][0].seq if self._ring else self._seq + 1
            if seen + 1 < oldest or seen > self._seq:
                raise Conflict(
                    f"events behind {seen} are no longer kept", hint="list the sandboxes and follow from now"
                )
            news = [pair for pair in self._ring if pair[0].seq > seen]
            for event, entry in news:
                seen = event.seq
                if wanted(entry):
                    yield event
            if not news:
                await self.changed()


def end_of(reason: str) -> End:
    """Return the end that a driver's words for it mean; the guest does not tell which limit ran out."""
    if "lease" in reason:
        return End.TTL
    if "this machine ran out of memory" in reason:
        return End.HOST_MEMORY
    return End.OUT_OF_MEMORY if "lack of memory" in reason else End.GUEST_LOST
