"""Server-sent events: an id for each, a comment when nothing was said for a while, an end with a reason.

Must never let a client that does not read make the service hold more than one event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self, TypeVar

from aiohttp import web

from cloche.server.call import Call

T = TypeVar("T")


class Sse:
    """A stream of events as the answer to a call; closed as a context manager."""

    response: web.StreamResponse

    def __init__(self, call: Call, kind: str) -> None:
        self._call = call
        self._kind = kind
        self.stopped = False

    async def __aenter__(self) -> Self:
        self.response = await self._call.stream(
            "text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._call.context.metrics.streams[self._kind] += 1
        await self.response.write(b": open\n\n")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.context.metrics.streams[self._kind] -= 1
        if error is None:
            if self.stopped:
                await self.send("closing", '{"reason":"the service is stopping"}')
            await self.response.write_eof()

    async def send(self, event: str, data: str, event_id: str | None = None) -> None:
        """Send one event; ``data`` is one line."""
        head = f"id: {event_id}\n" if event_id is not None else ""
        await self.response.write(f"{head}event: {event}\ndata: {data}\n\n".encode())

    async def watched(self, source: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield what the source yields; sends comments meanwhile, and ends when the service stops."""
        quiet_s = self._call.context.settings.sse_quiet_s
        stop = asyncio.ensure_future(self._call.context.stopping.begun.wait())
        following: asyncio.Future[T] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(_next(source))
                both: list[asyncio.Future[Any]] = [following, stop]
                await asyncio.wait(both, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    try:
                        item = following.result()
                    except _End:
                        return
                    following = None
                    yield item
                elif stop.done():
                    self.stopped = True
                    return
                else:
                    await self.response.write(b": still here\n\n")
        finally:
            stop.cancel()
            if following is not None:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError, _End):
                    await following
            await source.aclose()  # type: ignore[attr-defined]  # it is a generator


async def _next(source: AsyncIterator[T]) -> T:
    try:
        return await anext(source)
    except StopAsyncIteration:
        raise _End from None


class _End(Exception):
    """The source has ended: what a task raises must not look like a generator's own end."""
