"""The thread in which the sync face's work is done: one event loop for the process, begun when first used.

Works from any thread, one whose own loop runs (a notebook's) included. A process that was forked has the
thread no more: what was made before is refused there. Must never block its own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from cloche.core.errors import UsageError

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 10.0
_LOOK_S = 0.5


class _Errand(Generic[T]):
    """One piece of work, which its caller may give up at any moment: a Ctrl-C comes between any two lines."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Task[object] | None = None
        self._given_up = False
        self._over = threading.Event()

    async def whole(self) -> T:
        """Do the work, in the loop."""
        self._task = asyncio.current_task()
        try:
            if self._given_up:
                raise asyncio.CancelledError
            return await self._work()
        finally:
            self._over.set()

    def give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the work, where it goes on, and wait for its clean-up."""
        self._given_up = True
        if self._task is not None and not self._over.is_set():
            loop.call_soon_threadsafe(self._task.cancel)
            self._over.wait(_CLOSE_TIMEOUT_S)


class Portal:
    """A loop in a thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="cloche", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        await self._closing.wait()
        from cloche.client.pool import close  # noqa: PLC0415  # only where something may be open

        await close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "this sandbox was made before the process was forked, and its connections stayed behind",
                hint="make or connect to it in the child, or start workers with the method spawn",
            )
        if threading.current_thread() is self._thread:
            raise UsageError("the sync sandbox was used inside its own loop", hint="use AsyncSandbox there")
        if not self._thread.is_alive():
            raise UsageError("the process is ending, and sandboxes can be used no more")

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it in the loop and wait for it; an interrupted caller waits until it is cancelled."""
        self._check()
        errand = _Errand(work)
        try:
            future: Future[T] = asyncio.run_coroutine_threadsafe(errand.whole(), self._loop)
            while not future.done():
                wait([future], _LOOK_S)  # not for ever: a signal that comes just before is seen only after it
            return future.result()
        except BaseException:
            errand.give_up(self._loop)
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what an async iterator yields; leaving early ends it."""
        end = object()

        async def following() -> T | object:
            return await anext(items, end)

        try:
            while (item := self.run(following)) is not end:
                yield item  # type: ignore[misc]  # it is no `end`
        finally:
            close = getattr(items, "aclose", None)
            if close is not None and os.getpid() == self._pid and self._thread.is_alive():
                self.run(close)

    def close(self) -> None:
        """Let go of all connections and end the thread."""
        if os.getpid() == self._pid and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_CLOSE_TIMEOUT_S)


class _Only:
    """The portal of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.portal: Portal | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self.lock = threading.Lock()  # the parent's may have been held by a thread that is not here
        self.portal = None

    def get(self) -> Portal:
        with self.lock:
            if self.portal is None:
                self.portal = Portal()
                atexit.register(self.portal.close)
            return self.portal


_only = _Only()


def portal() -> Portal:
    """Return this process's portal, begun if need be."""
    return _only.get()
