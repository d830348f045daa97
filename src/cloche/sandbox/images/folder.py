"""Reading a root file system out of a folder of this machine.

Must never follow a symlink, nor leave the file system that the folder is on: what is mounted below it
(``/proc``, other disks) is no part of the image.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.archive import keeps_xattr
from cloche.sandbox.images.tree import CHUNK_BYTES, Entry, Kind, TreeWriter

_KINDS = {
    stat.S_IFDIR: Kind.FOLDER,
    stat.S_IFREG: Kind.FILE,
    stat.S_IFLNK: Kind.SYMLINK,
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFCHR: Kind.DEVICE,
    stat.S_IFBLK: Kind.DEVICE,
}


def copy(source: Path, writer: TreeWriter, *, check: Callable[[], None] = lambda: None) -> None:
    """Write everything below ``source``; sockets are left out, as ``tar`` does.

    ``check`` is called per entry and may raise to stop. Raises InvalidInput naming the entry.
    """
    try:
        root = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InvalidInput(f"cannot read {source}: {error.strerror}") from error
    try:
        writer.add(_entry(".", os.fstat(root), _xattrs(root)))
        _Copy(writer, os.fstat(root).st_dev, check).folder(root, "")
    except OSError as error:
        raise InvalidInput(f"cannot read all of {source}: {error.strerror}") from error
    finally:
        os.close(root)


class _Copy:
    """One walk through a folder; remembers hard links by inode."""

    def __init__(self, writer: TreeWriter, device: int, check: Callable[[], None]) -> None:
        self._writer = writer
        self._device = device
        self._check = check
        self._seen: dict[int, str] = {}

    def folder(self, folder: int, prefix: str) -> None:
        """Write what is in the open folder, whose path in the tree is ``prefix`` (empty or ending in /)."""
        for name in sorted(os.listdir(folder)):
            self._check()
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if found.st_dev != self._device or stat.S_ISSOCK(found.st_mode):
                continue
            if stat.S_ISDIR(found.st_mode):
                self._inner(folder, name, prefix + name)
            elif found.st_nlink > 1 and found.st_ino in self._seen:
                target = self._seen[found.st_ino]
                self._writer.add(Entry(path=prefix + name, kind=Kind.HARD_LINK, target=target))
            else:
                self._seen[found.st_ino] = prefix + name
                self._leaf(folder, name, prefix + name, found)

    def _inner(self, folder: int, name: str, path: str) -> None:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            self._writer.add(_entry(path, os.fstat(inner), _xattrs(inner)))
            self.folder(inner, path + "/")
        finally:
            os.close(inner)

    def _leaf(self, folder: int, name: str, path: str, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                entry = _entry(path, os.fstat(descriptor), _xattrs(descriptor))
                self._writer.add(entry, _content(descriptor))
            finally:
                os.close(descriptor)
            return
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else ""
        self._writer.add(_entry(path, found, {}, target))


def _entry(path: str, found: os.stat_result, xattrs: dict[str, bytes], target: str = "") -> Entry:
    kind = _KINDS[stat.S_IFMT(found.st_mode)]
    return Entry(
        path=path,
        kind=kind,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        mtime_s=found.st_mtime,
        size_bytes=found.st_size if kind is Kind.FILE else 0,
        target=target,
        xattrs=xattrs,
    )


def _xattrs(descriptor: int) -> dict[str, bytes]:
    return {name: os.getxattr(descriptor, name) for name in os.listxattr(descriptor) if keeps_xattr(name)}


def _content(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, CHUNK_BYTES):
        yield chunk
