"""Writing a root file system into a folder, whatever its source claims.

This is the only place that creates files of an image. It must never follow a symlink of the tree it
writes and never touch anything outside of it: every path is walked component by component with
``O_NOFOLLOW`` below one descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from cloche.core.errors import ImageError, InvalidInput

SANDBOX_IDS = 65_536
DEPTH_MAX = 200
COMPONENT_BYTES_MAX = 255
CHUNK_BYTES = 1 << 20
OPAQUE = "trusted.overlay.opaque"  # Documentation/filesystems/overlayfs.rst
IMPLIED = "trusted.cloche.implied"
_ZEROS = bytes(CHUNK_BYTES)
FULL_DISK_HINT = "remove images with `cloche image rm`, or point CLOCHE_STATE_DIR at a larger disk"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Kind(StrEnum):
    """What an entry is."""

    FOLDER = "folder"
    FILE = "file"
    SYMLINK = "symlink"
    HARD_LINK = "hard_link"
    FIFO = "fifo"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing in a tree. ``target`` is a symlink's text or, of a hard link, the path in the tree."""

    path: str
    kind: Kind
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime_s: float = 0.0
    size_bytes: int = 0
    target: str = ""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one image may hold at most; sparse files count with their whole length."""

    entries: int = 4_000_000
    total_bytes: int = 64 << 30


def full_disk(error: OSError, where: Path) -> ImageError | None:
    """Return the error to show when ``error`` says that the disk is full, else None."""
    if error.errno not in _FULL:
        return None
    return ImageError(
        f"no space left for images in {where}",
        hint=FULL_DISK_HINT,
        code="infra/disk_full",
    )


def split(path: str, member: str) -> tuple[str, ...]:
    """Return the components of a relative path; raises InvalidInput that names the member."""
    if path.startswith("/"):
        raise InvalidInput(f"{member!r} has an absolute path; an image's paths are relative to its root")
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if ".." in parts:
        raise InvalidInput(f"{member!r} leads out of the image with '..'")
    if len(parts) > DEPTH_MAX or any(len(os.fsencode(part)) > COMPONENT_BYTES_MAX for part in parts):
        raise InvalidInput(f"{member[:200]!r} is too long or too deep a path")
    return parts


class TreeWriter:
    """Writes entries below ``root`` (which exists and is ours); call ``finish`` at the end.

    A folder's mode, owner and time are set in ``finish``. A path that comes twice is replaced when both
    are of the same kind, as ``tar`` does, and refused otherwise. Device nodes below ``dev/`` are left
    out, since every sandbox gets a ``/dev`` of its own; elsewhere they are refused. Raises InvalidInput
    naming the entry, or ImageError when the disk is full.
    """

    def __init__(self, root: Path, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._parent: tuple[tuple[str, ...], int] | None = None
        self._folders: dict[tuple[str, ...], Entry] = {}
        self._made: set[tuple[str, ...]] = set()
        self._entries = 0
        self._bytes = 0

    def __enter__(self) -> TreeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_parent()
        os.close(self._root_fd)

    def add(self, entry: Entry, content: Iterable[bytes] = ()) -> None:
        """Write one entry; ``content`` is read only for a file and must be ``size_bytes`` long."""
        self._count(entry)
        parts = split(entry.path, entry.path)
        if entry.kind is Kind.DEVICE:
            if parts[:1] != ("dev",):
                raise InvalidInput(f"{entry.path!r} is a device node; an image may hold them only in dev/")
            return
        with self._named(entry.path):
            if entry.kind is Kind.FOLDER:
                self._folder(parts, entry)
                return
            if not parts:
                raise InvalidInput(f"{entry.path!r} is the root of the image and must be a folder")
            parent = self._open_parent(parts[:-1], entry.path)
            if entry.kind is Kind.HARD_LINK:
                self._hard_link(parent, parts[-1], entry)
            else:
                self._leaf(parent, parts[-1], entry, content)

    def hide(self, path: str) -> None:
        """Let nothing of the layers below show at ``path``; what this layer has there stands."""
        self._count(Entry(path=path, kind=Kind.DEVICE))
        parts = split(path, path)
        with self._named(path):
            parent = self._open_parent(parts[:-1], path)
            try:
                found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                os.mknod(parts[-1], stat.S_IFCHR, 0, dir_fd=parent)  # overlayfs' whiteout
                return
        if stat.S_ISDIR(found.st_mode):
            self.hide_below(path)
            self._made.discard(parts)  # a new folder, whatever the layers below had there

    def hide_below(self, path: str) -> None:
        """Let nothing of the layers below show inside the folder ``path``."""
        with self._named(path), self._walk(split(path, path), path) as folder:
            os.setxattr(folder, OPAQUE, b"y")

    def mark_implied(self) -> None:
        """Mark folders that no entry described: where a layer below has them, its attributes count.

        The root is marked too when there are any, so that one look tells.
        """
        implied = self._made - self._folders.keys()
        for parts in ((), *implied) if implied else ():
            path = "/".join(parts)
            with self._named(path), self._walk(parts, path) as folder:
                os.setxattr(folder, IMPLIED, b"y")

    @property
    def written_bytes(self) -> int:
        """The bytes of all files so far, as their entries claim them."""
        return self._bytes

    def finish(self) -> None:
        """Give the folders their mode, owner, xattrs and time, the deepest first."""
        self._drop_parent()
        for parts, entry in sorted(self._folders.items(), key=lambda item: -len(item[0])):
            with self._named(entry.path), self._walk(parts, entry.path) as folder:
                _set_attributes(folder, entry)

    def _count(self, entry: Entry) -> None:
        self._entries += 1
        self._bytes += entry.size_bytes
        if self._entries > self._limits.entries:
            raise InvalidInput(f"{entry.path!r} is one entry too many: at most {self._limits.entries}")
        if entry.size_bytes < 0 or self._bytes > self._limits.total_bytes:
            raise InvalidInput(f"{entry.path!r} makes the image larger than {self._limits.total_bytes} bytes")
        if not (0 <= entry.uid < SANDBOX_IDS and 0 <= entry.gid < SANDBOX_IDS):
            raise InvalidInput(
                f"{entry.path!r} belongs to {entry.uid}:{entry.gid}, outside of a sandbox's 65,536 ids",
                hint="make the archive from inside its user namespace, so that root's files belong to 0",
            )

    @contextmanager
    def _named(self, member: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = full_disk(error, self._root.parent)
            if full is not None:
                raise full from error
            reason = error.strerror or str(error)
            raise InvalidInput(f"{member!r} cannot be written: {reason}") from error

    def _drop_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _open_parent(self, parts: tuple[str, ...], member: str) -> int:
        if self._parent is None or self._parent[0] != parts:
            folder = self._open_folder(parts, member)
            self._drop_parent()
            self._parent = (parts, folder)
        return self._parent[1]

    @contextmanager
    def _walk(self, parts: tuple[str, ...], member: str) -> Iterator[int]:
        folder = self._open_folder(parts, member)
        try:
            yield folder
        finally:
            os.close(folder)

    def _open_folder(self, parts: tuple[str, ...], member: str) -> int:
        """Return a new descriptor of a folder, made where it is missing; the caller closes it."""
        folder = os.dup(self._root_fd)
        try:
            for depth, part in enumerate(parts, 1):
                inner, made = _step(folder, part, member)
                os.close(folder)
                folder = inner
                if made:
                    self._made.add(parts[:depth])
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _folder(self, parts: tuple[str, ...], entry: Entry) -> None:
        with self._walk(parts, entry.path):
            self._folders[parts] = entry

    def _hard_link(self, parent: int, name: str, entry: Entry) -> None:
        source = split(entry.target, entry.path)
        problem = f"{entry.path!r} is a hard link to {entry.target!r}, which is not in the image before it"
        if not source:
            raise InvalidInput(problem)
        with self._walk(source[:-1], entry.path) as folder:
            try:
                found = os.stat(source[-1], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise InvalidInput(problem) from None
            if stat.S_ISDIR(found.st_mode):
                raise InvalidInput(f"{entry.path!r} is a hard link to the folder {entry.target!r}")
            if _make_room(parent, name, entry, found):
                os.link(source[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)

    def _leaf(self, parent: int, name: str, entry: Entry, content: Iterable[bytes]) -> None:
        _make_room(parent, name, entry)
        if entry.kind is Kind.FILE:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(name, flags, 0o600, dir_fd=parent)
            try:
                _fill(descriptor, entry, content)
                _set_attributes(descriptor, entry)
            finally:
                os.close(descriptor)
            return
        if entry.kind is Kind.SYMLINK:
            os.symlink(entry.target, name, dir_fd=parent)
        else:
            os.mkfifo(name, 0o600, dir_fd=parent)
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if entry.kind is Kind.FIFO:
            os.chmod(name, entry.mode & 0o7777, dir_fd=parent)
        times = (_clamped(entry.mtime_s), _clamped(entry.mtime_s))
        os.utime(name, times, dir_fd=parent, follow_symlinks=False)


def _step(folder: int, part: str, member: str) -> tuple[int, bool]:
    """Open a folder in a folder; also tell whether it had to be made."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(part, flags, dir_fd=folder), False
    except FileNotFoundError:
        os.mkdir(part, 0o755, dir_fd=folder)
        return os.open(part, flags, dir_fd=folder), True
    except NotADirectoryError:
        raise InvalidInput(f"{member!r} goes through {part!r}, which is not a folder") from None


_TYPES = {Kind.FILE: stat.S_IFREG, Kind.SYMLINK: stat.S_IFLNK, Kind.FIFO: stat.S_IFIFO}


def _make_room(parent: int, name: str, entry: Entry, same_as: os.stat_result | None = None) -> bool:
    """Remove an earlier entry of the same kind; False if it is the very file ``same_as`` already."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return True
    if same_as is not None:
        if (found.st_dev, found.st_ino) == (same_as.st_dev, same_as.st_ino):
            return False
        wanted = stat.S_IFMT(same_as.st_mode)
    else:
        wanted = _TYPES[entry.kind]
    if stat.S_IFMT(found.st_mode) != wanted:
        raise InvalidInput(f"{entry.path!r} comes twice, as different kinds of thing")
    os.unlink(name, dir_fd=parent)
    return True


def _fill(descriptor: int, entry: Entry, content: Iterable[bytes]) -> None:
    """Write the content, leaving holes where whole chunks are zero."""
    written = 0
    for chunk in content:
        written += len(chunk)
        if written > entry.size_bytes:
            break
        if chunk == _ZEROS[: len(chunk)]:
            os.lseek(descriptor, len(chunk), os.SEEK_CUR)
            continue
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view) :]
    if written != entry.size_bytes:
        raise InvalidInput(f"{entry.path!r} does not have the {entry.size_bytes} bytes that it claims")
    os.ftruncate(descriptor, written)


def _set_attributes(descriptor: int, entry: Entry) -> None:
    os.fchown(descriptor, entry.uid, entry.gid)
    os.fchmod(descriptor, entry.mode & 0o7777)  # after the owner: chown clears set-uid
    for name, value in entry.xattrs.items():
        os.setxattr(descriptor, name, value)
    os.utime(descriptor, (_clamped(entry.mtime_s), _clamped(entry.mtime_s)))


def _clamped(time_s: float) -> float:
    """Return a time that ext4 can store."""
    return min(max(time_s, 0.0), float((1 << 34) - 1))
