"""One backend per event loop and service, opened when first used, closed with its loop.

Must never hold a backend beyond its loop: what asyncio made belongs to the loop it was made in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cloche.client.backend import Backend
from cloche.client.target import Service

_opened: dict[asyncio.AbstractEventLoop, Opened] = {}


class Opened:
    """What is open in one loop."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.backends: dict[Service, Backend] = {}
        self.keeper: AsyncGenerator[None] = _until_the_loop_ends()


async def _until_the_loop_ends() -> AsyncGenerator[None]:
    """Close what is open when the loop ends: asyncio then closes every generator that was begun in it."""
    try:
        yield
    finally:
        await close()


async def backend_of(service: Service | None) -> Backend:
    """Return this loop's backend of a service; ``None`` is the one that is configured.

    Raises InvalidInput for a configuration that cannot be used.
    """
    loop = asyncio.get_running_loop()
    if loop not in _opened:
        _opened[loop] = Opened()
        await anext(_opened[loop].keeper)
    opened = _opened[loop]
    async with opened.lock:
        wanted = service if service is not None else await asyncio.to_thread(_configured)
        if wanted not in opened.backends:
            opened.backends[wanted] = await open_backend(wanted)
        return opened.backends[wanted]


def _configured() -> Service:
    from cloche.client.config import load  # noqa: PLC0415  # slow, and only needed where no service is named

    return load().service()


async def open_backend(service: Service) -> Backend:
    """Open a backend that somebody else keeps and closes."""
    if service.url is None:
        from cloche.client.embedded import open_embedded  # noqa: PLC0415  # each way is imported when used

        return open_embedded()
    from cloche.client.http.backend import HttpBackend  # noqa: PLC0415  # as above

    return HttpBackend(service)


async def close() -> None:
    """Let go of every connection that this loop's sandboxes use; ends no sandbox.

    Happens by itself at the end of ``asyncio.run``.
    """
    opened = _opened.pop(asyncio.get_running_loop(), None)
    if opened is not None:
        for backend in opened.backends.values():
            await backend.close()
