"""Waiting for many sandboxes over one stream of events.

A wait also looks by itself, ever less often: a lost event costs time, never the wait. Must never hold a
connection for each sandbox that is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing

from cloche.api.models import EventView, SandboxView, State
from cloche.core.errors import ClocheError

FIRST_LOOK_S = 0.02
LOOK_MAX_S = 10.0
LINGER_S = 5.0
_AGAIN_S = 0.5


class _Waiter:
    """One wait: woken when its sandbox comes into a state that it waits for."""

    def __init__(self, states: Collection[State]) -> None:
        self.states = {*states, State.ENDED}
        self.woken = asyncio.Event()


class Watch:
    """All waits of one backend. ``stream`` opens a stream of all events that its key may see."""

    def __init__(self, stream: Callable[[], AsyncGenerator[EventView]]) -> None:
        self._stream = stream
        self._waiters: dict[str, set[_Waiter]] = {}
        self._following: asyncio.Task[None] | None = None

    async def wait(
        self, sandbox_id: str, states: Collection[State], look: Callable[[], Awaitable[SandboxView]]
    ) -> SandboxView:
        """Return what ``look`` says once it is in one of the states, or has ended."""
        waiter = _Waiter(states)
        self._waiters.setdefault(sandbox_id, set()).add(waiter)
        self.follow()
        pause_s = FIRST_LOOK_S
        try:
            while True:
                view = await look()
                if view.state in waiter.states:
                    return view
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await waiter.woken.wait()
                waiter.woken.clear()
                pause_s = min(pause_s * 2, LOOK_MAX_S)
        finally:
            waiters = self._waiters[sandbox_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[sandbox_id]

    def follow(self) -> None:
        """Follow the events from now on, and for a while after the last wait."""
        if self._following is None or self._following.done():
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        reader = asyncio.create_task(self._read())
        try:
            while True:
                busy = bool(self._waiters)
                await asyncio.sleep(LINGER_S)
                if not busy and not self._waiters:
                    return
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(ClocheError):  # whoever waits looks by itself meanwhile, and is told
                async with aclosing(self._stream()) as events:
                    async for event in events:
                        self._wake(event)
            await asyncio.sleep(_AGAIN_S)

    def _wake(self, event: EventView) -> None:
        for waiter in self._waiters.get(event.id, ()):
            if event.state in waiter.states:
                waiter.woken.set()

    async def close(self) -> None:
        """Stop following."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
