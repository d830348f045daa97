"""A layer's blob to an unpacked folder (OCI image specification 1.1, layer.md).

Deleted things become overlayfs' own marks, which is what all layers of the store have. Must never accept
content that is not what the image's diff digest says, nor unpack one stream inside another.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import FileIO
from pathlib import Path

from cloche.core.errors import EnvironmentUnusable, InvalidInput
from cloche.sandbox.images.archive import extract_members
from cloche.sandbox.images.tree import CHUNK_BYTES, Entry, Limits, TreeWriter, split

TRAILING_BYTES_MAX = 16 << 20
ZSTD_MEMORY = "--memory=128MB"

_MARK = ".wh."
_OPAQUE = ".wh..wh..opq"
_OTHER_MARKS = ".wh..wh."  # what aufs kept for itself
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class WrongDiffDigest(InvalidInput):
    """What a layer unpacks to is not what the image says."""


def unpack(blob: Path, root: Path, diff_id: str, limits: Limits, check: Callable[[], None]) -> int:
    """Unpack a layer into the empty folder ``root``; return the bytes of its files as they claim them.

    ``check`` is called now and then and may raise to stop. Raises InvalidInput naming a member that is not
    acceptable, WrongDiffDigest, ImageError when the disk is full, EnvironmentUnusable without zstd.
    """
    with (
        blob.open("rb", buffering=0) as file,
        _decompressed(file) as chunks,
        TreeWriter(root, limits) as tree,
    ):
        plain = _Plain(chunks, check)
        layer = _LayerWriter(tree)
        extract_members(plain, "r|", layer, check)
        try:
            plain.finish()
        except (zlib.error, EOFError) as error:
            raise InvalidInput(f"not a readable layer: {error}") from error
        if plain.digest != diff_id:
            raise WrongDiffDigest(f"it unpacks to {plain.digest[:19]}…, and the image says {diff_id[:19]}…")
        layer.finish()
        return tree.written_bytes


class _Plain:
    """The uncompressed bytes of a layer, hashed as they are read."""

    def __init__(self, chunks: Iterator[bytes], check: Callable[[], None]) -> None:
        self._chunks = chunks
        self._check = check
        self._hash = hashlib.sha256()
        self._left = b""

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, and none only at the end."""
        if not self._left:
            self._check()
            self._left = next(self._chunks, b"")
            self._hash.update(self._left)
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def finish(self) -> None:
        """Read what follows the archive's end, which counts for the digest; there must not be much."""
        trailing = 0
        while data := self.read(CHUNK_BYTES):
            trailing += len(data)
            if trailing > TRAILING_BYTES_MAX:
                raise InvalidInput(f"more than {TRAILING_BYTES_MAX} bytes follow the archive's end")

    @property
    def digest(self) -> str:
        """The digest of all that was read."""
        return "sha256:" + self._hash.hexdigest()


class _LayerWriter:
    """Takes whiteouts out of what is written, and applies them when all the rest stands.

    They are about the layers below only: what the same layer has at such a path stands.
    """

    def __init__(self, tree: TreeWriter) -> None:
        self._tree = tree
        self._hidden: list[str] = []
        self._opaque: list[str] = []

    def add(self, entry: Entry, content: Iterable[bytes] = ()) -> None:
        """Write one member."""
        parts = split(entry.path, entry.path)
        marked = next((place for place, part in enumerate(parts) if part.startswith(_MARK)), None)
        if marked is None:
            self._tree.add(entry, content)
            return
        folder, name = "/".join(parts[:marked]), parts[marked]
        if name.startswith(_OTHER_MARKS):
            if name == _OPAQUE:
                self._opaque.append(folder)
            return
        hidden = name.removeprefix(_MARK)
        if hidden in {"", ".", ".."} or parts[marked + 1 :]:
            raise InvalidInput(f"{entry.path!r} is a whiteout of nothing")
        self._hidden.append(f"{folder}/{hidden}" if folder else hidden)

    def finish(self) -> None:
        """Apply the whiteouts, and give the folders their attributes."""
        for path in self._opaque:
            self._tree.hide_below(path)
        covered = set(self._opaque)
        for path in sorted(self._hidden, key=lambda path: path.count("/")):
            # below what is hidden as a whole a mark would be needless, and overlayfs would list its name
            if not covered.isdisjoint(_parents(path)):
                continue
            self._tree.hide(path)
            covered.add(path)
        self._tree.mark_implied()
        self._tree.finish()


def _parents(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path


def _decompressed(file: FileIO) -> AbstractContextManager[Iterator[bytes]]:
    """Return the uncompressed chunks; what a layer is packed with is told by its first bytes."""
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == _GZIP_MAGIC:
        return nullcontext(_gunzip(file))
    if magic == _ZSTD_MAGIC:
        return _unzstd(file)
    return nullcontext(iter(lambda: file.read(CHUNK_BYTES), b""))


def _gunzip(file: FileIO) -> Iterator[bytes]:
    """Yield chunks of at most 1 MiB, however much a few bytes unpack to; several members are one stream."""
    engine = zlib.decompressobj(wbits=31)
    data = file.read(CHUNK_BYTES)
    while True:
        plain = engine.decompress(data, CHUNK_BYTES)
        if plain:
            yield plain
        data = engine.unused_data if engine.eof else engine.unconsumed_tail
        if not data and (engine.eof or not plain):
            data = file.read(CHUNK_BYTES)
            if not data:
                break
        if engine.eof:
            engine = zlib.decompressobj(wbits=31)
    if not engine.eof:
        raise EOFError("the compressed stream ends early")


@contextmanager
def _unzstd(file: FileIO) -> Iterator[Iterator[bytes]]:
    program = shutil.which("zstd")
    if program is None:
        raise EnvironmentUnusable(
            "a layer is packed with zstd, which is not installed", hint="apt-get install zstd"
        )
    with subprocess.Popen(
        [program, "-dcq", ZSTD_MEMORY], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        stream = process.stdout
        try:
            yield iter(lambda: stream.read(CHUNK_BYTES), b"")
        finally:
            process.kill()
    # a decompressor that failed has cut the stream short, which the diff digest tells
