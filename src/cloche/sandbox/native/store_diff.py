"""How a sandbox's file system differs from its image: its writable layer against the layers below.

What was only opened for writing, or written again as it was, is no difference. A folder is one only for its
own mode or owner. Times do not count. Must never change anything; see ``store_walk`` for how it looks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloche.sandbox.driver import Change, ChangeKind
from cloche.sandbox.native.store_walk import (
    Below,
    Budget,
    is_opaque,
    is_whiteout,
    look,
    open_folder,
    opened_file,
    opened_layers,
    xattrs,
)

CONTENT_BYTES_MAX = 64 << 20
"""A file of the same size and larger than this is told as modified without a look at its content."""
_PIECE_BYTES = 1 << 20
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}

OWN_PATHS = ("/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/sys")
"""What every sandbox has mounted: places for these may be made in its writable layer, and say nothing."""


def hidden_paths(volumes: Iterable[str]) -> frozenset[str]:
    """Return the paths that are ours: neither told in a diff nor kept in a snapshot."""
    return frozenset((*OWN_PATHS, *(f"/{target.strip('/')}" for target in volumes)))


def diff(upper: Path, layers: Sequence[Path], hidden: frozenset[str] = frozenset(OWN_PATHS)) -> list[Change]:
    """Return every path that differs, in order. Raises InvalidInput when it is too much or lies too deep."""
    walk = _Walk(hidden)
    with opened_layers(layers) as below:
        top = open_folder(upper)
        try:
            image = os.fstat(below.folders[0])
            if _attributes(os.fstat(top)) != _attributes(image):
                walk.add("/", ChangeKind.MODIFIED, image)
            walk.folder(_Place(top, below, "", alone=False))
        finally:
            os.close(top)
    return sorted(walk.changes, key=lambda change: change.path)


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder of the writable layer, with what is below it in the image.

    ``alone``: nothing of the layers below shows in it.
    """

    folder: int
    below: Below
    path: str
    alone: bool


class _Walk:
    def __init__(self, hidden: frozenset[str]) -> None:
        self.changes: list[Change] = []
        self._hidden = hidden
        self._budget = Budget()

    def add(self, path: str, kind: ChangeKind, found: os.stat_result) -> None:
        """Note one path; names that are not UTF-8 are shown escaped."""
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        regular = stat.S_ISREG(found.st_mode) and kind is not ChangeKind.DELETED
        self.changes.append(
            Change(
                path=shown,
                kind=kind,
                type=_TYPES.get(stat.S_IFMT(found.st_mode), "other"),
                size_bytes=found.st_size if regular else 0,
            )
        )

    def folder(self, at: _Place) -> None:
        """Compare a folder and all below."""
        seen = set()
        with os.scandir(at.folder) as entries:
            for entry in entries:
                self._budget.take(at.path, at.path.count("/"))
                seen.add(entry.name)
        for name in sorted(seen):
            found = None if f"{at.path}/{name}" in self._hidden else look(name, at.folder)
            if found is not None:
                self._entry(at, name, found)
        for name in at.below.names() if at.alone else ():
            under = None if name in seen else at.below.find(name)
            if under is not None:
                self.add(f"{at.path}/{name}", ChangeKind.DELETED, under[0])

    def _entry(self, at: _Place, name: str, found: os.stat_result) -> None:
        under = at.below.find(name)
        path = f"{at.path}/{name}"
        if is_whiteout(found):
            if under is not None:
                self.add(path, ChangeKind.DELETED, under[0])
            return
        if under is None:
            self.add(path, ChangeKind.ADDED, found)
        elif _differs(found, at.folder, under[0], under[1], name):
            self.add(path, ChangeKind.MODIFIED, found)
        if stat.S_ISDIR(found.st_mode):
            self._subfolder(at, name)

    def _subfolder(self, at: _Place, name: str) -> None:
        try:
            inner = open_folder(name, at.folder)
        except OSError:
            return  # it went, or became something else, while we looked
        try:
            with at.below.enter(name) as lower:
                self.folder(_Place(inner, lower, f"{at.path}/{name}", at.alone or is_opaque(inner)))
        finally:
            os.close(inner)


def _attributes(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mode, found.st_uid, found.st_gid


def _differs(found: os.stat_result, folder: int, under: os.stat_result, lower: int, name: str) -> bool:
    if _attributes(found) != _attributes(under):
        return True
    if stat.S_ISDIR(found.st_mode):
        return False
    try:
        return xattrs(name, folder) != xattrs(name, lower) or _inside_differs(
            found, folder, under, lower, name
        )
    except FileNotFoundError:
        return True  # it changed while we looked


def _inside_differs(found: os.stat_result, folder: int, under: os.stat_result, lower: int, name: str) -> bool:
    if stat.S_ISLNK(found.st_mode):
        return os.readlink(name, dir_fd=folder) != os.readlink(name, dir_fd=lower)
    if stat.S_ISREG(found.st_mode):
        return found.st_size != under.st_size or _content_differs(folder, lower, name, found.st_size)
    return found.st_rdev != under.st_rdev


def _content_differs(folder: int, lower: int, name: str, size_bytes: int) -> bool:
    if size_bytes > CONTENT_BYTES_MAX:
        return True
    with opened_file(name, folder) as ours, opened_file(name, lower) as theirs:
        while True:
            piece = os.read(ours, _PIECE_BYTES)
            if piece != os.read(theirs, _PIECE_BYTES):
                return True
            if not piece:
                return False
