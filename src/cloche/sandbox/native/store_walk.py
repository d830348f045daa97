"""Looking at writable layers and image layers from the host, safely.

A writable layer belongs to a workload, which may change it at any moment, and a snapshot's layer holds what
a workload left. Every step opens one name below a descriptor with ``O_NOFOLLOW``; no path is ever put
together and followed. Must never write, never follow a link, and never walk without a bound.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cloche.core.errors import InvalidInput
from cloche.sandbox.images.tree import OPAQUE

ENTRIES_MAX = 2_000_000
DEPTH_MAX = 300
OVERLAY_XATTRS = "trusted.overlay."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Budget:
    """How many entries may still be looked at."""

    def __init__(self, entries: int = ENTRIES_MAX) -> None:
        self._entries = self._left = entries

    def take(self, path: str, depth: int) -> None:
        """Count one entry. Raises InvalidInput where it is one too many, or lies too deep."""
        self._left -= 1
        if self._left < 0:
            raise InvalidInput(f"the sandbox has written more than {self._entries:,} entries")
        if depth > DEPTH_MAX:
            raise InvalidInput(f"{path[:200]} lies more than {DEPTH_MAX} folders deep")


def open_folder(name: str | os.PathLike[str], inside: int | None = None) -> int:
    """Return a descriptor of a folder. Raises OSError for a link or what is no folder."""
    return os.open(name, _FOLDER, dir_fd=inside)


@contextmanager
def opened_file(name: str, inside: int) -> Iterator[int]:
    """Yield a descriptor of a regular file. Raises FileNotFoundError if it is something else by now."""
    fd = os.open(name, _FILE, dir_fd=inside)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileNotFoundError(name)
        yield fd
    finally:
        os.close(fd)


def look(name: str, inside: int) -> os.stat_result | None:
    """Return what is at a name, links as links; None if there is nothing."""
    try:
        return os.stat(name, dir_fd=inside, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_whiteout(found: os.stat_result) -> bool:
    """Whether it is overlayfs' mark for what is deleted."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_opaque(folder: int) -> bool:
    """Whether nothing of the layers below shows in this folder."""
    try:
        return os.getxattr(folder, OPAQUE) == b"y"
    except OSError:
        return False


def xattrs(name: str, inside: int) -> dict[str, bytes]:
    """Return the extended attributes of a name but overlayfs' own, links not followed."""
    place = f"/proc/self/fd/{inside}/{name}"
    found = {}
    for key in os.listxattr(place, follow_symlinks=False):
        if not key.startswith(OVERLAY_XATTRS):
            found[key] = os.getxattr(place, key, follow_symlinks=False)
    return found


class Below:
    """A folder of the layers below, merged: one descriptor for each layer that has it, the highest first."""

    def __init__(self, folders: Sequence[int] = ()) -> None:
        self.folders = tuple(folders)

    def find(self, name: str) -> tuple[os.stat_result, int] | None:
        """Return what shows at a name, and the folder it is in; None if nothing does."""
        for folder in self.folders:
            found = look(name, folder)
            if found is not None:
                return None if is_whiteout(found) else (found, folder)
            if is_opaque(folder):
                return None
        return None

    @contextmanager
    def enter(self, name: str) -> Iterator[Below]:
        """Yield the folder of that name, which may be in no layer."""
        opened: list[int] = []
        try:
            for folder in self.folders:
                found = look(name, folder)
                if found is not None and not stat.S_ISDIR(found.st_mode):
                    break
                if found is not None:
                    opened.append(open_folder(name, folder))
                    if is_opaque(opened[-1]):
                        break
                if is_opaque(folder):
                    break
            yield Below(opened)
        finally:
            for fd in opened:
                os.close(fd)

    def names(self) -> list[str]:
        """Return the names that show, in order."""
        seen: set[str] = set()
        for folder in self.folders:
            with os.scandir(folder) as entries:
                seen |= {entry.name for entry in entries}
            if is_opaque(folder):
                break
        return sorted(name for name in seen if self.find(name) is not None)


@contextmanager
def opened_layers(layers: Sequence[os.PathLike[str]]) -> Iterator[Below]:
    """Yield the top folder of image layers, which come the lowest first."""
    opened: list[int] = []
    try:
        for layer in reversed(layers):
            opened += [open_folder(layer)]
        yield Below(opened)
    finally:
        for fd in opened:
            os.close(fd)
