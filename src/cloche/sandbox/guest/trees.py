"""Whole trees between host and sandbox.

Must never write on the host outside the target, nor follow a link that the sandbox made.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

from cloche.core.errors import InfraError, InvalidInput, NotFound
from cloche.sandbox.guest.files import Files
from cloche.sandbox.guest.records import FileInfo, FileKind

_PIECE_BYTES = 1 << 20
_AT_ONCE = 16
_DEPTH_MAX = 256
DOWNLOAD_BYTES_MAX = 16 << 30


class _Haul:
    """What a download has left, and may still write on the host: a sandbox can claim any size at no cost."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = self._left_bytes = limit_bytes
        self.skipped: list[FileInfo] = []

    def fits(self, size_bytes: int, path: str) -> None:
        """Raise InvalidInput if a file of this size is too much, before any of it is fetched."""
        if size_bytes > self._left_bytes:
            raise InvalidInput(
                f"{path} goes beyond the {self._limit_bytes} bytes that may be copied out at once",
                hint="copy less, or make it smaller inside",
            )

    def take(self, size_bytes: int, path: str) -> None:
        """Count bytes that are about to be written; a file may have grown since it was looked at."""
        self.fits(size_bytes, path)
        self._left_bytes -= size_bytes


async def upload(files: Files, source: Path, target: str, *, user: str | None = None) -> None:
    """Copy a file, or what a folder holds, to ``target`` inside; modes and symbolic links are kept.

    Raises NotFound when there is no such file on the host; devices and sockets are left out.
    """
    if not await asyncio.to_thread(os.path.lexists, source):
        raise NotFound(f"there is no {source}")
    if not await asyncio.to_thread(source.is_dir):
        await _upload_file(files, source, target, user)
        return
    entries = await asyncio.to_thread(lambda: list(_walk(source, target.rstrip("/"))))
    mode = stat.S_IMODE((await asyncio.to_thread(source.stat)).st_mode)
    await files.make_dir(target, mode=mode, user=user)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def leaf(path: Path, inside: str) -> None:
        async with slots:
            if await asyncio.to_thread(path.is_symlink):
                await files.symlink(inside, await asyncio.to_thread(os.readlink, path), user=user)
            else:
                await _upload_file(files, path, inside, user)

    for _, inside, folder_mode in (entry for entry in entries if entry[2] is not None):
        await files.make_dir(inside, mode=folder_mode or 0, user=user)
    async with asyncio.TaskGroup() as group:
        for path, inside, folder_mode in entries:
            if folder_mode is None:
                group.create_task(leaf(path, inside))


def _walk(folder: Path, inside: str) -> Iterator[tuple[Path, str, int | None]]:
    """Yield (path, path inside, mode of a folder or None), folders before what they hold."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path, name = Path(entry.path), f"{inside}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield path, name, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            yield from _walk(path, name)
        elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
            yield path, name, None


def _open_to_read(path: Path) -> BinaryIO:
    """Open a regular file; one that became something else meanwhile (a FIFO) must not block for ever."""
    handle = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        handle.close()
        raise InvalidInput(f"{path} is not a regular file")
    return handle


async def _upload_file(files: Files, path: Path, inside: str, user: str | None) -> None:
    handle = await asyncio.to_thread(_open_to_read, path)
    try:
        mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode)

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await asyncio.to_thread(handle.read, _PIECE_BYTES):
                yield piece

        await files.write_stream(inside, pieces(), mode=mode, user=user)
    finally:
        handle.close()


async def download(
    files: Files, source: str, target: Path, *, limit_bytes: int = DOWNLOAD_BYTES_MAX
) -> list[FileInfo]:
    """Copy a file, or what a folder holds, to ``target`` on the host; returns what was skipped.

    Only regular files and folders are copied. Raises NotFound, InvalidInput when a path on the host is in
    the way (a symbolic link above all) or when it is more than ``limit_bytes``, and InfraError when the
    host's disk is full.
    """
    info = await files.stat(source)
    haul = _Haul(limit_bytes)
    if info.kind is FileKind.FILE:
        await _download_file(files, info, target, haul)
        return []
    if not info.is_folder:
        return [info]
    await _download_folder(files, source, target, haul, 0)
    return haul.skipped


async def _download_folder(files: Files, source: str, target: Path, haul: _Haul, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise InvalidInput(f"{source} lies more than {_DEPTH_MAX} folders deep")
    with _told(target):
        await asyncio.to_thread(_make_host_folder, target, top=depth == 0)
    for info in await files.list_dir(source):
        if info.name in {"", ".", ".."} or "/" in info.name:
            haul.skipped.append(info)
        elif info.is_folder:
            await _download_folder(files, info.path, target / info.name, haul, depth + 1)
        elif info.kind is FileKind.FILE:
            await _download_file(files, info, target / info.name, haul)
        else:
            haul.skipped.append(info)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the host's file system says into an error of ours."""
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise InfraError(message, hint="free some space", code="infra/disk_full") from error
        raise InvalidInput(message) from error


def _make_host_folder(path: Path, *, top: bool) -> None:
    if top:
        path.mkdir(parents=True, exist_ok=True)
    elif path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InvalidInput(f"{path} is in the way")
    else:
        path.mkdir(exist_ok=True)


def _open_host_file(path: Path, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    os.fchmod(fd, mode & 0o777)  # never set-uid on the host
    return fd


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def _download_file(files: Files, info: FileInfo, path: Path, haul: _Haul) -> None:
    haul.fits(info.size_bytes, info.path)
    with _told(path):
        fd = await asyncio.to_thread(_open_host_file, path, info.mode)
    pending = bytearray()
    try:
        async for piece in files.read_stream(info.path):
            haul.take(len(piece), info.path)
            pending += piece
            if len(pending) >= _PIECE_BYTES:
                with _told(path):
                    await asyncio.to_thread(_write_all, fd, bytes(pending))
                pending.clear()
        with _told(path):
            await asyncio.to_thread(_write_all, fd, bytes(pending))
    finally:
        os.close(fd)
