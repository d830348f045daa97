"""Waiting for clean-up that must end even when the waiting task is cancelled.

Must never start work of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end and return the result; a cancellation that comes meanwhile is delivered after it."""
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation says more
        raise cancelled
    return task.result()
