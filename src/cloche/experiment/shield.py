"""Work that must come to its end even when whoever waits for it is cancelled.

Must never swallow the cancellation: it is passed on once the work is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` to its end; a cancellation meanwhile, or several, is raised only then."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
        except BaseException:  # it ended with an error of its own, which task.result() raises below
            if not task.done():
                raise
    if cancelled:
        raise asyncio.CancelledError
    return task.result()


async def thread_to_the_end(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that blocks in a thread, and wait for it whatever comes: it cannot be stopped."""
    return await to_the_end(asyncio.to_thread(function, *arguments))
