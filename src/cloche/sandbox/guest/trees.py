"""Whole trees between host and sandbox.

Must never write on the host outside the target, nor follow a link that the sandbox made.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.guest.files import Files
from cloche.sandbox.guest.records import FileInfo, FileKind

_PIECE_BYTES = 1 << 20
_AT_ONCE = 16
_DEPTH_MAX = 256


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


async def _upload_file(files: Files, path: Path, inside: str, user: str | None) -> None:
    handle = await asyncio.to_thread(path.open, "rb")
    try:
        mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode)

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await asyncio.to_thread(handle.read, _PIECE_BYTES):
                yield piece

        await files.write_stream(inside, pieces(), mode=mode, user=user)
    finally:
        handle.close()


async def download(files: Files, source: str, target: Path) -> list[FileInfo]:
    """Copy a file, or what a folder holds, to ``target`` on the host; returns what was skipped.

    Only regular files and folders are copied. Raises NotFound, and InvalidInput when a path on the host
    is in the way (a symbolic link above all).
    """
    info = await files.stat(source)
    if info.kind is FileKind.FILE:
        await _download_file(files, info, target)
        return []
    if not info.is_folder:
        return [info]
    skipped: list[FileInfo] = []
    await _download_folder(files, source, target, skipped, 0)
    return skipped


async def _download_folder(
    files: Files, source: str, target: Path, skipped: list[FileInfo], depth: int
) -> None:
    if depth > _DEPTH_MAX:
        raise InvalidInput(f"{source} lies more than {_DEPTH_MAX} folders deep")
    await asyncio.to_thread(_make_host_folder, target, top=depth == 0)
    for info in await files.list_dir(source):
        if info.name in {"", ".", ".."} or "/" in info.name:
            skipped.append(info)
        elif info.is_folder:
            await _download_folder(files, info.path, target / info.name, skipped, depth + 1)
        elif info.kind is FileKind.FILE:
            await _download_file(files, info, target / info.name)
        else:
            skipped.append(info)


def _make_host_folder(path: Path, *, top: bool) -> None:
    if top:
        path.mkdir(parents=True, exist_ok=True)
    elif path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InvalidInput(f"{path} is in the way")
    else:
        path.mkdir(exist_ok=True)


def _open_host_file(path: Path, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error
    os.fchmod(fd, mode & 0o777)  # never set-uid on the host
    return fd


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def _download_file(files: Files, info: FileInfo, path: Path) -> None:
    fd = await asyncio.to_thread(_open_host_file, path, info.mode)
    pending = bytearray()
    try:
        async for piece in files.read_stream(info.path):
            pending += piece
            if len(pending) >= _PIECE_BYTES:
                await asyncio.to_thread(_write_all, fd, bytes(pending))
                pending.clear()
        await asyncio.to_thread(_write_all, fd, bytes(pending))
    finally:
        os.close(fd)
