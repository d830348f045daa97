r"""The content digest of an unpacked root file system. Must never follow a symlink or change anything.

The definition (also in docs/images.md): SHA-256 over the entries of the tree in the byte order of their
paths, the root first with the empty path. Each entry gives these fields, each preceded by its length in
eight bytes, big-endian: the path, the kind (``folder``, ``file``, ``symlink``, ``fifo``, ``whiteout``), the
permission bits in octal, the owner, the group, a symlink's target, the names and values of its xattrs in byte
order as one field ``name=value\0…``, and the SHA-256 of a file's content. Times and hard links do not count:
two trees that a program can only tell apart by them are one layer.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cloche.sandbox.images.tree import CHUNK_BYTES

PREFIX = "tree-sha256:"
_KINDS = {
    stat.S_IFDIR: b"folder",
    stat.S_IFREG: b"file",
    stat.S_IFLNK: b"symlink",
    stat.S_IFIFO: b"fifo",
    stat.S_IFCHR: b"whiteout",  # no other device is ever in a layer
}


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """The digest with its prefix, and the bytes of all regular files, each counted once."""

    digest: str
    size_bytes: int


def walk(root: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Yield (path, entry) of everything below ``root``, the children of a folder in byte order."""
    with os.scandir(os.path.join(root, prefix)) as found:  # noqa: PTH118  # bytes have no Path
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from walk(root, path + b"/")


def tree_digest(root: Path, *, check: Callable[[], None] = lambda: None) -> TreeDigest:
    """Return the content digest of the tree below ``root``; ``check`` is called per entry and may raise."""
    base = os.fsencode(root)
    total = hashlib.sha256()
    seen: dict[int, bytes] = {}
    size_bytes = 0
    _feed(total, _fields(b"", base, os.lstat(base), b""))
    rows = sorted((path, entry.path, entry.stat(follow_symlinks=False)) for path, entry in walk(base))
    for path, place, found in rows:
        check()
        content = b""
        if stat.S_ISREG(found.st_mode):
            content = seen.get(found.st_ino, b"")
            if not content:
                content = _content(place)
                seen[found.st_ino] = content
                size_bytes += found.st_size
        _feed(total, _fields(path, place, found, content))
    return TreeDigest(PREFIX + total.hexdigest(), size_bytes)


def _fields(path: bytes, place: bytes, found: os.stat_result, content: bytes) -> tuple[bytes, ...]:
    names = sorted(os.listxattr(place, follow_symlinks=False))
    xattrs = b"".join(
        name.encode() + b"=" + os.getxattr(place, name, follow_symlinks=False) + b"\0" for name in names
    )
    return (
        path,
        _KINDS.get(stat.S_IFMT(found.st_mode), b"other"),
        b"%o" % stat.S_IMODE(found.st_mode),
        b"%d" % found.st_uid,
        b"%d" % found.st_gid,
        os.readlink(place) if stat.S_ISLNK(found.st_mode) else b"",  # noqa: PTH115
        xattrs,
        content,
    )


def _feed(total: hashlib._Hash, fields: tuple[bytes, ...]) -> None:
    for item in fields:
        total.update(len(item).to_bytes(8, "big"))
        total.update(item)


def _content(path: bytes) -> bytes:
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        while chunk := os.read(descriptor, CHUNK_BYTES):
            digest.update(chunk)
    finally:
        os.close(descriptor)
    return digest.digest()
