"""What several processes share on disk: atomic JSON, locks, and staging folders that outlive no owner.

Must never leave a half-written file under its final name.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from cloche.core.ids import new_id
from cloche.sandbox.images.tools import to_the_end

POLL_S = 0.05


def private_folder(path: Path) -> Path:
    """Make the folder (and its parents) for root alone: set-uid files in it belong to the real root."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != 0o700:
        path.chmod(0o700)
    return path


def write_json(path: Path, value: object) -> None:
    """Write atomically and durably: after a crash there is the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{new_id('t')}")
    try:
        with temporary.open("w") as file:
            json.dump(value, file, indent=1, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Return the value, or None if there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock file, waiting for it; the kernel lets go when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_locked(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Yield whether the lock could be had at once, and hold it if so."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _try_flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def waiting_lock(path: Path, *, shared: bool = False) -> AsyncIterator[None]:
    """Hold the lock file without blocking the loop while waiting for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):  # noqa: ASYNC110  # another process
            await asyncio.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Staging:
    """Folders for unfinished work below one parent; each is locked by the process that works in it.

    Their names begin with ``prefix``. A parent that is not ours alone (``shared``) is left as it is.
    """

    def __init__(self, parent: Path, prefix: str = "", *, shared: bool = False) -> None:
        self._parent = parent
        self._prefix = prefix
        self._shared = shared

    @contextmanager
    def folder(self, purpose: str) -> Iterator[Path]:
        """Yield an empty folder that is gone afterwards."""
        if not self._shared:
            private_folder(self._parent)
        path = self._parent / new_id(self._prefix + purpose)
        with self._parent_locked():  # between making and locking it, it must not look like a dead one's
            path.mkdir(mode=0o700)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            shutil.rmtree(path)
            os.close(descriptor)

    @asynccontextmanager
    async def folder_aside(self, purpose: str) -> AsyncIterator[Path]:
        """Do as ``sweep`` and ``folder`` do, with the work on the disk kept off the event loop."""
        await asyncio.to_thread(self.sweep)
        manager = self.folder(purpose)
        entering = asyncio.ensure_future(asyncio.to_thread(manager.__enter__))
        try:
            await asyncio.shield(entering)
            yield entering.result()
        finally:
            await to_the_end(entering)
            await to_the_end(asyncio.ensure_future(asyncio.to_thread(manager.__exit__, None, None, None)))

    def sweep(self) -> list[Path]:
        """Remove what dead processes left, and return it."""
        if not self._parent.is_dir():
            return []
        with self._parent_locked():
            return [path for path in sorted(self._parent.glob(f"{self._prefix}*")) if _remove_dead(path)]

    @contextmanager
    def _parent_locked(self) -> Iterator[None]:
        descriptor = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _remove_dead(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False  # its owner has just finished
    try:
        dead = _try_flock(descriptor, fcntl.LOCK_EX)
        if dead:
            shutil.rmtree(path, ignore_errors=True)
        return dead
    finally:
        os.close(descriptor)
