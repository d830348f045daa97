"""Trees of a sandbox as tar streams, out and in, through the guest; the host's disk is not touched.

Out: PAX, entries in the order of their names, folders before what they hold; regular files, folders and
symbolic links with modes, owners and times. In: plain, gzip, xz, bzip2 or zstd; see :func:`tar_in` for what
is refused. Must never hold more than a few pieces in memory, whatever an archive claims.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cloche.core.errors import ClocheError, InvalidInput, NotFound
from cloche.sandbox.guest.paths import DEPTH_MAX, Parents, folder, relative
from cloche.sandbox.guest.records import FileInfo, FileKind
from cloche.sandbox.images import archive
from cloche.sandbox.images.tree import SANDBOX_IDS, Entry, Kind

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox

PIECE_BYTES = 1 << 20
_QUEUE_PIECES = 4
_BLOCK = tarfile.BLOCKSIZE
_TYPES = {
    FileKind.FILE: tarfile.REGTYPE,
    FileKind.FOLDER: tarfile.DIRTYPE,
    FileKind.SYMLINK: tarfile.SYMTYPE,
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TarLimits:
    """What one archive may hold."""

    entries: int = 1_000_000
    total_bytes: int = 64 << 30


async def tar_out(sandbox: Sandbox, path: str, *, limits: TarLimits | None = None) -> AsyncIterator[bytes]:
    """Yield a tar of what is at ``path``: a folder's entries relative to it, or one file by its name.

    Devices, fifos and sockets are left out; hard links come as files. Raises NotFound; InvalidInput when it
    is more than ``limits``, or a file shrank while it was read.
    """
    sender = _Sender(sandbox, limits or TarLimits())
    info = await sandbox.stat(path)
    if info.is_folder:
        async for piece in sender.tree(folder(path), info):
            yield piece
    else:
        async for piece in sender.leaf(info, info.name):
            yield piece
    yield bytes(2 * _BLOCK)  # the end mark


class _Sender:
    def __init__(self, sandbox: Sandbox, limits: TarLimits) -> None:
        self._sandbox = sandbox
        self._entries = limits.entries
        self._bytes = limits.total_bytes
        self._limits = limits

    async def tree(self, base: str, top: FileInfo) -> AsyncIterator[bytes]:
        """Yield a folder and all below."""
        yield self._header(top, ".")
        waiting = [iter(await self._sandbox.list_dir(base or "/"))]
        while waiting:
            info = next(waiting[-1], None)
            if info is None:
                waiting.pop()
                continue
            if info.kind not in _TYPES:
                continue
            if len(waiting) > DEPTH_MAX:
                raise InvalidInput(f"{info.path[:200]} lies more than {DEPTH_MAX} folders deep")
            async for piece in self.leaf(info, info.path[len(base) + 1 :]):
                yield piece
            if info.is_folder:
                waiting.append(iter(await self._inner(info.path)))

    async def _inner(self, path: str) -> list[FileInfo]:
        try:
            return await self._sandbox.list_dir(path)
        except NotFound:
            return []  # it went meanwhile

    async def leaf(self, info: FileInfo, name: str) -> AsyncIterator[bytes]:
        """Yield one entry, with the content of a file."""
        yield self._header(info, name)
        if info.kind is not FileKind.FILE:
            return
        left = info.size_bytes
        async for piece in self._sandbox.read_stream(info.path):
            yield piece[:left]  # a file that grows is cut where the header says
            left -= len(piece)
            if left <= 0:
                break
        if left > 0:
            raise InvalidInput(
                f"{info.path} shrank while it was read", hint="ask again, or stop what writes it"
            )
        if info.size_bytes % _BLOCK:
            yield bytes(_BLOCK - info.size_bytes % _BLOCK)

    def _header(self, info: FileInfo, name: str) -> bytes:
        self._entries -= 1
        member = tarfile.TarInfo(name)
        member.type = _TYPES.get(info.kind, tarfile.REGTYPE)
        member.mode, member.uid, member.gid = info.mode, info.uid, info.gid
        member.mtime = info.modified_at
        member.linkname = info.target or ""
        if info.kind is FileKind.FILE:
            member.size = info.size_bytes
            self._bytes -= info.size_bytes
        if self._entries < 0 or self._bytes < 0:
            raise InvalidInput(
                f"the tree holds more than {self._limits.entries:,} entries "
                f"or {self._limits.total_bytes:,} bytes",
                hint="ask for less of it",
            )
        return member.tobuf(format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape")


async def tar_in(
    sandbox: Sandbox,
    path: str,
    chunks: AsyncIterable[bytes],
    *,
    user: str | None = None,
    limits: TarLimits | None = None,
) -> int:
    """Unpack a tar below the folder ``path``, which is made if missing; returns the number of entries.

    Files belong to whom the archive says, or all to ``user``. Refused, naming the member: absolute names,
    ``..``, names through a symbolic link (of the archive or one that is there), hard links to what was not
    unpacked here, devices and fifos, owners of 65,536 and more, an archive that is damaged, ends early or
    holds more than ``limits``. What came before a refused member stays.
    """
    base = folder(path)
    bridge = _Bridge(chunks, limits or TarLimits())
    receiver = _Receiver(sandbox, base, user)
    reading = asyncio.ensure_future(asyncio.to_thread(bridge.read_archive))
    try:
        await sandbox.make_dir(base or "/", user=user)
        await receiver.take_all(bridge)
        await reading
    finally:
        bridge.stop()
        await asyncio.gather(reading, return_exceptions=True)
    return receiver.count


class _Stopped(Exception):
    """The unpacking was given up."""


class _Bridge:
    """Between the thread in which the archive is taken apart and the loop: bounded both ways."""

    def __init__(self, chunks: AsyncIterable[bytes], limits: TarLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._source = aiter(chunks)
        self._left = b""
        self._limits = limits
        self._entries = limits.entries
        self._bytes = limits.total_bytes
        self._queue: asyncio.Queue[Entry | bytes | ClocheError | None] = asyncio.Queue(_QUEUE_PIECES)
        self._waiting: concurrent.futures.Future[Any] | None = None
        self._stopped = False

    # in the thread

    def read_archive(self) -> None:
        """Take the archive apart; ``None`` ends a file's content, and the archive."""
        try:
            archive.extract(self, self)  # type: ignore[arg-type]  # it is only read from
            self._wait(self._queue.put(None))
        except _Stopped:
            return
        except ClocheError as error:
            with contextlib.suppress(_Stopped):
                self._wait(self._queue.put(error))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._stopped:
            work.close()
            raise _Stopped
        self._waiting = waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            raise _Stopped from None

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` bytes of the archive, b"" at its end."""
        while not self._left:
            piece = self._wait(self._next())
            if piece is None:
                return b""
            self._left = piece
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    async def _next(self) -> bytes | None:
        return await anext(self._source, None)

    def add(self, entry: Entry, content: Iterable[bytes] = ()) -> None:
        """Hand one member over (the archive's reader calls it)."""
        self._entries -= 1
        self._bytes -= entry.size_bytes
        if self._entries < 0 or self._bytes < 0:
            raise InvalidInput(
                f"{entry.path!r} is too much: an archive has at most {self._limits.entries:,} entries "
                f"and {self._limits.total_bytes:,} bytes"
            )
        self._wait(self._queue.put(entry))
        if entry.kind is Kind.FILE:
            for piece in content:
                self._wait(self._queue.put(piece))
            self._wait(self._queue.put(None))

    # in the loop

    async def next(self) -> Entry | bytes | None:
        """Return what comes next. Raises what went wrong with the archive or its sender."""
        item = await self._queue.get()
        if isinstance(item, ClocheError):
            raise item
        return item

    def stop(self) -> None:
        """Let the thread go, wherever it waits."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()
        while not self._queue.empty():  # a put that could not be cancelled any more goes through
            self._queue.get_nowait()


class _Receiver:
    def __init__(self, sandbox: Sandbox, base: str, user: str | None) -> None:
        self.count = 0
        self._sandbox = sandbox
        self._base = base
        self._user = user
        self._parents = Parents(sandbox, base)
        self._made: set[tuple[str, ...]] = set()

    async def take_all(self, bridge: _Bridge) -> None:
        """Write every member until the archive ends."""
        while isinstance(entry := await bridge.next(), Entry):
            await self._take(entry, bridge)
            self.count += 1

    async def _take(self, entry: Entry, bridge: _Bridge) -> None:
        parts = relative(entry.path, entry.path)
        if not (0 <= entry.uid < SANDBOX_IDS and 0 <= entry.gid < SANDBOX_IDS):
            raise InvalidInput(
                f"{entry.path!r} belongs to {entry.uid}:{entry.gid}, outside of a sandbox's ids"
            )
        if not parts and entry.kind is not Kind.FOLDER:
            raise InvalidInput(f"{entry.path!r} is the folder itself")
        await self._parents.check(parts, entry.path)
        inside = "/".join((self._base, *parts)) or "/"
        owner = self._user or f"{entry.uid}:{entry.gid}"
        mode = entry.mode & 0o7777
        if entry.kind is Kind.FOLDER:
            await self._folder(inside, parts, mode, owner, entry)
        elif entry.kind is Kind.FILE:
            await self._sandbox.write_stream(inside, _content(bridge), mode=mode, user=owner)
            self._made.add(parts)
        elif entry.kind is Kind.SYMLINK:
            await self._sandbox.symlink(inside, entry.target, user=owner)
            self._parents.forget(parts)
        elif entry.kind is Kind.HARD_LINK:
            await self._hard_link(inside, parts, entry, owner)
        else:
            raise InvalidInput(f"{entry.path!r} is a {entry.kind.value}, which cannot be unpacked here")

    async def _folder(self, inside: str, parts: tuple[str, ...], mode: int, owner: str, entry: Entry) -> None:
        if parts:
            await self._parents.check((*parts, ""), entry.path)  # itself may be a link that is there
        await self._sandbox.make_dir(inside, mode=mode, user=owner)

    async def _hard_link(self, inside: str, parts: tuple[str, ...], entry: Entry, owner: str) -> None:
        """Copy the file: the guest makes no hard links."""
        source = relative(entry.target, entry.path)
        if source not in self._made:
            raise InvalidInput(
                f"{entry.path!r} is a hard link to {entry.target!r}, which did not come before it"
            )
        await self._parents.check(source, entry.path)
        first = "/".join((self._base, *source))
        info = await self._sandbox.stat(first, follow=False)
        await self._sandbox.write_stream(inside, self._sandbox.read_stream(first), mode=info.mode, user=owner)
        self._made.add(parts)


async def _content(bridge: _Bridge) -> AsyncIterator[bytes]:
    while isinstance(piece := await bridge.next(), bytes):
        yield piece
