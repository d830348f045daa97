"""One copy of a sandbox's file system at a time; the sandbox is let go whatever becomes of the copier.

The file ``copying`` in the run folder is the lock. While the sandbox stands still for a copy it holds a
letter: ``f`` when it was frozen for that, ``p`` when somebody had paused it before. A copier that dies loses
the lock and leaves the letter, by which the next one who comes knows what to undo.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cloche.core.errors import SandboxLost

_NAME = "copying"
_POLL_S = 0.005
FROZEN, PAUSED = b"f", b"p"


class Mark:
    """The locked file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> bytes:
        """Return the letter, b"" for none."""
        return os.pread(self._fd, 1, 0)

    def write(self, letter: bytes) -> None:
        """Set the letter; b"" clears it."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, letter, 0)


def is_marked(folder: Path) -> bool:
    """Whether a copy is being made, or was when its maker died. Cheap: asked before most requests."""
    try:
        return (folder / _NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


@asynccontextmanager
async def locked_mark(folder: Path) -> AsyncIterator[Mark]:
    """Hold the lock of a sandbox's run folder, waiting for it. Raises SandboxLost when there is no folder."""
    try:
        fd = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        raise SandboxLost(f"sandbox {folder.name} is gone") from None
    try:
        while not _try_lock(fd):  # noqa: ASYNC110  # another process may hold it
            await asyncio.sleep(_POLL_S)
        yield Mark(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Rounds:
    """Runs a clean-up that many callers want: each waits for a round that began after it asked, no more."""

    def __init__(self) -> None:
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], None]) -> None:
        """Wait for a whole round of ``work`` (a function that blocks)."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._round(self._running, work))
        await asyncio.shield(self._next)

    async def _round(self, before: asyncio.Task[None] | None, work: Callable[[], None]) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        await asyncio.to_thread(work)
