"""Where the sandbox commands get their sandboxes: what is configured. Must import what is slow when used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloche.client.aio import AsyncSandbox
    from cloche.client.backend import Backend
    from cloche.sandbox.handle import Sandbox


@asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    """Open the service that is configured, or this machine."""
    from cloche.client.config import load
    from cloche.client.pool import open_backend

    opened = await open_backend(load().service())
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def attached(sandbox_id: str) -> AsyncIterator[Sandbox]:
    """Connect to the guest of a sandbox."""
    async with backend() as opened:
        sandbox = await opened.handle(sandbox_id)
        try:
            yield sandbox
        finally:
            await opened.release(sandbox)


@asynccontextmanager
async def held(sandbox_id: str) -> AsyncIterator[AsyncSandbox]:
    """Take hold of a sandbox; it lives on afterwards."""
    from cloche.client.aio import AsyncSandbox

    async with backend() as opened:
        sandbox = AsyncSandbox(opened, await opened.get(sandbox_id))
        try:
            yield sandbox
        finally:
            await sandbox.close()
