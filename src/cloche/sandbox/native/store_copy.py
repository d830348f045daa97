"""Copies writable layers into a layer that stands for itself: what a snapshot and a fork are made of.

Marks for deleted things stay as overlayfs has them; owners, modes, times, xattrs, holes and hard links are
kept. Contents are cloned where the file system can, else copied inside the kernel. Sockets are left out. The
source's processes must stand still; all the same nothing here follows a link or trusts a name
(``store_walk``). Must never write outside of the folder that it is given.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.tree import OPAQUE, Limits
from cloche.sandbox.native.store_walk import (
    OVERLAY_XATTRS,
    Budget,
    is_opaque,
    is_whiteout,
    look,
    open_folder,
    opened_file,
    xattrs,
)

PATH_BYTES_MAX = 3500
"""Longer ones could not be read back by a path (PATH_MAX is 4096)."""
_FICLONE = 0x40049409  # linux/fs.h
_NO_CLONE = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS}
_PIECE_BYTES = 1 << 30


@dataclass(slots=True)
class Copied:
    """What was copied: entries, and bytes as the files claim them; ``cloned`` says that blocks are shared."""

    entries: int = 0
    size_bytes: int = 0
    cloned: bool = False


def copy_layers(
    layers: Sequence[Path],
    target: Path,
    *,
    hidden: frozenset[str] = frozenset(),
    limits: Limits | None = None,
    check: Callable[[], None] = lambda: None,
) -> Copied:
    """Merge ``layers``, the highest first, into the empty folder ``target`` as one layer.

    ``hidden`` are paths of the highest that are left out; ``check`` is called per entry and may raise to
    stop. Raises InvalidInput for what is too large, too deep or too long, OSError as the disk has it.
    """
    copier = _Copier(target, hidden, limits or Limits(), check)
    try:
        for number, layer in enumerate(layers):
            copier.layer(layer, under=number > 0)
    finally:
        copier.close()
    return copier.done


class _Copier:
    def __init__(
        self, target: Path, hidden: frozenset[str], limits: Limits, check: Callable[[], None]
    ) -> None:
        self.done = Copied()
        self._hidden = hidden
        self._limits = limits
        self._check = check
        self._budget = Budget(limits.entries)
        self._clones = True
        self._links = target.with_name(f"{target.name}.links")
        self._links.mkdir(mode=0o700)
        self._links_fd = open_folder(self._links)
        self._target = open_folder(target)

    def close(self) -> None:
        """Let go of the folders; the names that kept hard links together go too."""
        for path in self._links.iterdir():
            path.unlink()
        os.close(self._links_fd)
        os.close(self._target)
        self._links.rmdir()

    def layer(self, layer: Path, *, under: bool) -> None:
        """Copy one layer, below what is there already where ``under``."""
        source = open_folder(layer)
        try:
            self._folder(source, self._target, "", under=under)
            if not under:
                _attributes(source, self._target, os.fstat(source))
        finally:
            os.close(source)

    def _folder(self, source: int, target: int, path: str, *, under: bool) -> None:
        for name in sorted(os.listdir(source)):
            self._check()
            inner = f"{path}/{name}"
            found = None if inner in self._hidden else look(name, source)
            if found is None:
                continue
            self._count(inner, found)
            there = look(name, target) if under else None
            if there is None:
                self._entry(source, target, name, found, inner)
            elif stat.S_ISDIR(there.st_mode):
                self._below(source, target, name, found, inner)

    def _count(self, path: str, found: os.stat_result) -> None:
        self._budget.take(path, path.count("/"))
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise InvalidInput(f"{path[:200]!r} is too long a path to be copied")
        self.done.entries += 1
        self.done.size_bytes += found.st_size if stat.S_ISREG(found.st_mode) else 0
        if self.done.size_bytes > self._limits.total_bytes:
            raise InvalidInput(
                f"{path!r} makes the copy larger than {self._limits.total_bytes} bytes (holes count)"
            )

    def _below(self, source: int, target: int, name: str, found: os.stat_result, path: str) -> None:
        """Merge what a lower layer has where a folder is already."""
        above = open_folder(name, target)
        try:
            if is_opaque(above):
                return
            opaque = True  # a mark or a file of the lower layer hides what is below that one
            if stat.S_ISDIR(found.st_mode):
                lower = open_folder(name, source)
                try:
                    opaque = is_opaque(lower)
                    self._folder(lower, above, path, under=True)
                finally:
                    os.close(lower)
            if opaque:
                os.setxattr(above, OPAQUE, b"y")
        finally:
            os.close(above)

    def _entry(self, source: int, target: int, name: str, found: os.stat_result, path: str) -> None:
        kind = stat.S_IFMT(found.st_mode)
        if is_whiteout(found):
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)
        elif kind == stat.S_IFDIR:
            self._new_folder(source, target, name, path)
        elif kind == stat.S_IFREG:
            self._file(source, target, name)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            _leaf_attributes(source, target, name, found)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600, dir_fd=target)
            _leaf_attributes(source, target, name, found)

    def _new_folder(self, source: int, target: int, name: str, path: str) -> None:
        os.mkdir(name, 0o700, dir_fd=target)
        inner, made = open_folder(name, source), open_folder(name, target)
        try:
            self._folder(inner, made, path, under=False)
            if is_opaque(inner):
                os.setxattr(made, OPAQUE, b"y")
            _attributes(inner, made, os.fstat(inner))
        finally:
            os.close(inner)
            os.close(made)

    def _file(self, source: int, target: int, name: str) -> None:
        with opened_file(name, source) as data:
            found = os.fstat(data)
            key = f"{found.st_dev:x}-{found.st_ino:x}"
            if found.st_nlink > 1 and look(key, self._links_fd) is not None:
                os.link(key, name, src_dir_fd=self._links_fd, dst_dir_fd=target)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            made = os.open(name, flags, 0o600, dir_fd=target)
            try:
                self._content(data, made, found.st_size)
                _attributes(data, made, found)
            finally:
                os.close(made)
            if found.st_nlink > 1:
                os.link(name, key, src_dir_fd=target, dst_dir_fd=self._links_fd)

    def _content(self, source: int, target: int, size_bytes: int) -> None:
        if self._clones and size_bytes:
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError as error:
                if error.errno not in _NO_CLONE:
                    raise
                self._clones = False
            else:
                self.done.cloned = True
                return
        _copy_extents(source, target, size_bytes)


def _copy_extents(source: int, target: int, size_bytes: int) -> None:
    """Copy what is not a hole."""
    at = 0
    while at < size_bytes:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # nothing but a hole is left
        end = os.lseek(source, at, os.SEEK_HOLE)
        while at < end:
            copied = os.copy_file_range(source, target, min(end - at, _PIECE_BYTES), at, at)
            if copied == 0:
                return  # it is shorter by now
            at += copied
    os.ftruncate(target, size_bytes)


def _attributes(source: int, target: int, found: os.stat_result) -> None:
    os.fchown(target, found.st_uid, found.st_gid)
    os.fchmod(target, stat.S_IMODE(found.st_mode))  # after the owner: chown clears set-uid
    for key in os.listxattr(source):
        if not key.startswith(OVERLAY_XATTRS):
            os.setxattr(target, key, os.getxattr(source, key))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _leaf_attributes(source: int, target: int, name: str, found: os.stat_result) -> None:
    os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
    if stat.S_ISFIFO(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=target)
    for key, value in xattrs(name, source).items():
        os.setxattr(f"/proc/self/fd/{target}/{name}", key, value, follow_symlinks=False)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=target, follow_symlinks=False)
