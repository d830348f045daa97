"""What the layers of an image lack to be merged as one that is unpacked in order.

A layer may have a file in a folder that it does not describe: unpacked in order, the folder keeps what a
layer below gave it; merged by overlayfs, the upper folder's attributes count. And the working folder need
not exist: who runs the image makes it. Both go into one more layer on top. Must never follow a symlink.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloche.sandbox.images.digest import walk
from cloche.sandbox.images.tree import IMPLIED, OPAQUE, Entry, Kind


@dataclass(frozen=True, slots=True)
class _Shown:
    """A folder as the merged image shows it: the one on top, and the one that describes it."""

    top: Entry
    described: Entry

    @property
    def wrong(self) -> bool:
        """Whether the merged folder would not have the attributes that it should."""
        return self._attributes(self.top) != self._attributes(self.described)

    @staticmethod
    def _attributes(entry: Entry) -> tuple[object, ...]:
        return (entry.mode, entry.uid, entry.gid, entry.xattrs)


def lowest_that_counts(layers: Sequence[Path]) -> int:
    """Return the place of the topmost layer that hides all below it, or 0.

    overlayfs takes such a mark in every folder but a layer's root.
    """
    return max((place for place, layer in enumerate(layers) if _marked(layer, OPAQUE)), default=0)


def missing_folders(layers: Sequence[Path], workdir: str) -> tuple[Entry, ...]:
    """Return the folders of a layer that must come on top of ``layers`` (the lowest first), parents first."""
    found: dict[str, Entry] = {}
    for path in sorted({path for layer in layers for path in _implied(layer)}):
        shown = _look(layers, path)
        if shown is not None and shown.wrong:
            _add_with_parents(found, layers, path)
    wanted = workdir.strip("/")
    if wanted and _can_be_made(layers, wanted):
        _add_with_parents(found, layers, wanted)
    return tuple(found[path] for path in sorted(found))


def _add_with_parents(found: dict[str, Entry], layers: Sequence[Path], path: str) -> None:
    for prefix in _prefixes(path):
        shown = _look(layers, prefix)
        found[prefix] = shown.described if shown is not None else Entry(path=prefix, kind=Kind.FOLDER)


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[: length + 1]) for length in range(len(parts)))


def _implied(layer: Path) -> Iterator[str]:
    if not _marked(layer, IMPLIED):
        return
    root = os.fsencode(layer)
    for path, entry in walk(root):
        if entry.is_dir(follow_symlinks=False) and _marked(Path(os.fsdecode(entry.path)), IMPLIED):
            yield os.fsdecode(path)


def _can_be_made(layers: Sequence[Path], path: str) -> bool:
    """Whether nothing stands at ``path``, and only folders on the way to it."""
    for prefix in _prefixes(path):
        if _look(layers, prefix) is None:
            return not any(_stands(layer, prefix) for layer in layers)
    return False


def _stands(layer: Path, path: str) -> bool:
    """Whether a layer has something at ``path`` that is not a whiteout."""
    try:
        found = os.lstat(layer / path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not stat.S_ISCHR(found.st_mode)


def _look(layers: Sequence[Path], path: str) -> _Shown | None:
    """Return the folder that the merged image shows at ``path``, or None if that is not a folder."""
    top: Entry | None = None
    for layer in reversed(layers):
        found, ends = _look_in(layer, path)
        if found is not None:
            top = top or found
            if IMPLIED not in found.xattrs:
                return _Shown(_plain(top), _plain(found))
        if ends:
            break
    return None if top is None else _Shown(_plain(top), _plain(top))


def _look_in(layer: Path, path: str) -> tuple[Entry | None, bool]:
    """Return the folder of one layer, and whether the layers below it do not matter any more."""
    hidden_below = False
    place = layer
    for prefix in _prefixes(path):
        place = layer / prefix
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            return None, hidden_below
        if not stat.S_ISDIR(found.st_mode):
            return None, True
        # a mark on the folder itself hides what is in it, not what it is
        hidden_below = hidden_below or (prefix != path and _marked(place, OPAQUE))
    return _entry(place, path), hidden_below


def _entry(place: Path, path: str) -> Entry:
    found = os.lstat(place)
    names = os.listxattr(place, follow_symlinks=False)
    return Entry(
        path=path,
        kind=Kind.FOLDER,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        mtime_s=found.st_mtime,
        xattrs={name: os.getxattr(place, name, follow_symlinks=False) for name in names if name != OPAQUE},
    )


def _plain(entry: Entry) -> Entry:
    """Return the entry without our own mark."""
    xattrs = {name: value for name, value in entry.xattrs.items() if name != IMPLIED}
    return Entry(
        path=entry.path,
        kind=entry.kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime_s=entry.mtime_s,
        xattrs=xattrs,
    )


def _marked(place: Path, mark: str) -> bool:
    try:
        os.getxattr(place, mark, follow_symlinks=False)
    except OSError:  # there is none, or the file system knows none
        return False
    return True
