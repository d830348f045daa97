"""Reading a root file system out of a tar: plain, gzip, xz, bzip2 or, where ``zstd`` is installed, zstd.

Must never trust a member: where things may go is the writer's decision (``tree``), and an archive that
ends early is refused, never imported in part.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from cloche.core.errors import EnvironmentUnusable, InvalidInput
from cloche.sandbox.images.tree import CHUNK_BYTES, Entry, Kind

HEADER_BYTES_MAX = 1 << 20
_XATTR = "SCHILY.xattr."
_HEADERS = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Writer(Protocol):
    """What takes the members: it decides where they may go, and raises InvalidInput naming a bad one."""

    def add(self, entry: Entry, content: Iterable[bytes] = ()) -> None:
        """Write one member."""
        ...


class _Peeked:
    """A stream whose first bytes were looked at. Reads only."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.head = stream.read(6)
        self._left = self.head

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            raise ValueError("an archive is read in pieces of a known size")
        taken, self._left = self._left[:size], self._left[size:]
        return taken + (self._stream.read(size - len(taken)) if len(taken) < size else b"")


class _EndMark:
    """Whether the archive's end mark, a block of zeros, has been read."""

    def __init__(self) -> None:
        self.seen = False

    def member_type(self) -> type[tarfile.TarInfo]:
        """Return a class of members that notes the end mark and refuses absurd headers."""
        mark = self

        class Member(tarfile.TarInfo):
            @classmethod
            def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> tarfile.TarInfo:  # type: ignore[override]
                mark.seen = mark.seen or (len(buf) == tarfile.BLOCKSIZE and not any(buf))
                found = super().frombuf(buf, encoding, errors)
                if found.type in _HEADERS and found.size > HEADER_BYTES_MAX:
                    raise InvalidInput(f"an extended header of {found.size} bytes: the archive is damaged")
                return found

        return Member


def extract(source: Path | BinaryIO, writer: Writer, *, check: Callable[[], None] = lambda: None) -> None:
    """Write every member of the archive; ``check`` is called per member and may raise to stop.

    Raises InvalidInput naming the member, or saying that the archive is damaged or no archive.
    """
    if isinstance(source, Path):
        try:
            stream = source.open("rb")
        except OSError as error:
            raise InvalidInput(f"cannot read {source}: {error.strerror}") from error
        with stream:
            _extract(stream, writer, check)
    else:
        _extract(source, writer, check)


def _extract(stream: BinaryIO, writer: Writer, check: Callable[[], None]) -> None:
    with _decompressed(_Peeked(stream)) as (plain, mode):
        extract_members(plain, mode, writer, check)


def extract_members(
    plain: Any, mode: Literal["r|*", "r|"], writer: Writer, check: Callable[[], None] = lambda: None
) -> None:
    """Write every member of a stream with ``read``; mode ``r|`` takes it as it is, never as compressed.

    Raises as ``extract`` does.
    """
    mark = _EndMark()
    last = ""
    try:
        with tarfile.open(
            fileobj=plain,
            mode=mode,
            tarinfo=mark.member_type(),
            bufsize=CHUNK_BYTES,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive:
            for member in archive:
                check()
                last = member.name
                writer.add(_entry(member), _content(archive, member))
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every member
    except _DAMAGED as error:
        raise InvalidInput(f"not a readable archive{_after(last)}: {error}") from error
    except OSError as error:  # how gzip reports damage
        raise InvalidInput(f"not a readable archive{_after(last)}: {error}") from error
    if not mark.seen:
        raise InvalidInput(f"the archive ends early{_after(last)}")


def _after(member: str) -> str:
    return f" after {member!r}" if member else ""


@contextmanager
def _decompressed(peeked: _Peeked) -> Iterator[tuple[Any, Literal["r|*", "r|"]]]:
    """Yield something with ``read`` and tarfile's mode for it."""
    if peeked.head[:4] != _ZSTD_MAGIC:
        yield peeked, "r|*"
        return
    program = shutil.which("zstd")
    if program is None:
        raise EnvironmentUnusable(
            "this archive is packed with zstd, which is not installed", hint="apt-get install zstd"
        )
    with _unpacked_by([program, "-dcq"], peeked) as plain:
        yield plain, "r|"


@contextmanager
def _unpacked_by(command: list[str], peeked: _Peeked) -> Iterator[Any]:
    """Run a decompressor over a spooled copy: two pipes and one reader could block each other."""
    import tempfile  # noqa: PLC0415  # only for zstd

    with tempfile.TemporaryFile() as spool:
        while chunk := peeked.read(CHUNK_BYTES):
            spool.write(chunk)
        spool.seek(0)
        with subprocess.Popen(command, stdin=spool, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            try:
                yield process.stdout
            finally:
                process.kill()
    # a decompressor that failed has cut the archive short, which the reader has noticed


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    if not member.isreg():
        return
    stream = archive.extractfile(member)
    if stream is None:
        return
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _entry(member: tarfile.TarInfo) -> Entry:
    kind = _kind(member)
    return Entry(
        path=member.name,
        kind=kind,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        mtime_s=float(member.mtime),
        size_bytes=member.size if kind is Kind.FILE else 0,
        target=member.linkname,
        xattrs=_xattrs(member),
    )


def _kind(member: tarfile.TarInfo) -> Kind:
    tests = (
        (member.isreg, Kind.FILE),
        (member.isdir, Kind.FOLDER),
        (member.issym, Kind.SYMLINK),
        (member.islnk, Kind.HARD_LINK),
        (member.isfifo, Kind.FIFO),
        (member.isdev, Kind.DEVICE),
    )
    for test, kind in tests:
        if test():
            return kind
    raise InvalidInput(f"{member.name!r} is of a kind ({member.type!r}) that an image cannot hold")


def _xattrs(member: tarfile.TarInfo) -> dict[str, bytes]:
    """Keep file capabilities and the user's own xattrs; others belong to the machine that packed them.

    ``trusted.overlay.*`` would change how layers are merged, and is refused.
    """
    kept = {}
    for key, value in member.pax_headers.items():
        if not key.startswith(_XATTR):
            continue
        name = key.removeprefix(_XATTR)
        if name.startswith("trusted."):
            raise InvalidInput(f"{member.name!r} carries the xattr {name!r}, which an image may not set")
        if keeps_xattr(name):
            kept[name] = value.encode("utf-8", "surrogateescape")
    return kept


def keeps_xattr(name: str) -> bool:
    """Whether an imported file keeps this xattr."""
    return name == "security.capability" or name.startswith("user.")
