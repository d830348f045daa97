"""What a guest tells about commands and files, as frozen data. Must never hold a live thing."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cloche.sandbox.guest.frames import Fields, Tag, TornFrame, decode_fields, number, required
from cloche.sandbox.spec import EndReason, Output

REASONS = {
    1: EndReason.EXIT,
    2: EndReason.SIGNAL,
    3: EndReason.TIMEOUT,
    4: EndReason.CANCELLED,
    5: EndReason.OUT_OF_MEMORY,
    6: EndReason.START_FAILED,
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a command's output: which stream, where in it, and the bytes."""

    stream: str
    offset: int
    data: bytes


class FileKind(StrEnum):
    """What a path names."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One file inside. ``mode`` is the permission bits, ``modified_at`` seconds since 1970."""

    path: str
    kind: FileKind
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified_at: float
    target: str | None = None

    @property
    def name(self) -> str:
        """The last component."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.kind is FileKind.FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """How a command ended, as the guest saw it.

    ``unexpected`` says that SIGKILL ended it and that nobody had asked the guest to send one.
    """

    reason: EndReason
    exit_code: int | None = None
    signal: int | None = None
    duration_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int | None = None
    unexpected: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStatus:
    """One row of the table of commands: ``started_at`` in seconds since 1970, ``end`` once it is over."""

    id: str
    running: bool
    started_at: float
    pid: int | None
    stdout_bytes: int
    stderr_bytes: int
    end: EndRecord | None = None


def _kind(bits: int) -> FileKind:
    kinds = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.FOLDER, stat.S_IFLNK: FileKind.SYMLINK}
    return kinds.get(bits, FileKind.OTHER)


def text(value: bytes) -> str:
    """Return a path or name; bytes that are not UTF-8 become surrogates, which go back as they came."""
    return value.decode("utf-8", "surrogateescape")


def file_info(fields: Fields, path: str) -> FileInfo:
    """Return what STAT or an entry of LIST says about ``path``."""
    values = dict(fields)
    target = values.get(Tag.TARGET)
    return FileInfo(
        path=path,
        kind=_kind(number(required(values, Tag.KIND))),
        size_bytes=number(required(values, Tag.LENGTH)),
        mode=number(required(values, Tag.MODE)),
        uid=number(required(values, Tag.UID)),
        gid=number(required(values, Tag.GID)),
        modified_at=number(required(values, Tag.MTIME_NS)) / 1e9,
        target=None if target is None else text(target),
    )


def _reason(value: int) -> EndReason:
    reason = REASONS.get(value)
    if reason is None:
        raise TornFrame(f"a command that ended for reason {value}, which there is not")
    return reason


def end_record(fields: Fields) -> EndRecord:
    """Return what WAIT says."""
    values = dict(fields)

    def optional(tag: Tag) -> int | None:
        return number(values[tag]) if tag in values else None

    return EndRecord(
        reason=_reason(number(required(values, Tag.REASON))),
        exit_code=optional(Tag.EXIT_CODE),
        signal=optional(Tag.SIGNAL),
        duration_s=(optional(Tag.DURATION_US) or 0) / 1e6,
        cpu_s=(optional(Tag.CPU_US) or 0) / 1e6,
        peak_memory_bytes=optional(Tag.PEAK_BYTES) or None,
        unexpected=bool(optional(Tag.UNEXPECTED)),
        message=values.get(Tag.MESSAGE, b"").decode("utf-8", "replace"),
    )


def command_status(entry: bytes) -> CommandStatus:
    """Return one entry of COMMANDS."""
    fields = decode_fields(entry)
    values = dict(fields)
    totals = [number(value) for tag, value in fields if tag == Tag.TOTAL_BYTES]
    if len(totals) != 2:
        raise TornFrame("a command without its two streams")
    return CommandStatus(
        id=text(required(values, Tag.COMMAND)),
        running=bool(number(required(values, Tag.RUNNING))),
        started_at=number(required(values, Tag.STARTED_MS)) / 1e3,
        pid=number(values[Tag.PID]) if Tag.PID in values else None,
        stdout_bytes=totals[0],
        stderr_bytes=totals[1],
        end=end_record(fields) if Tag.REASON in values else None,
    )


class Collector:
    """Keeps the beginning and the end of a stream under a cap, whatever pieces and gaps it comes in."""

    def __init__(self, cap_bytes: int) -> None:
        self._head_max = cap_bytes // 2
        self._tail_max = cap_bytes - self._head_max
        self._head = bytearray()
        self._tail = bytearray()
        self._next = 0
        self._whole = True  # no byte is missing after the head yet

    def add(self, offset: int, data: bytes) -> None:
        """Take bytes that stand at ``offset``; what lies between them and the last ones is missing."""
        if offset != self._next:
            self._whole = False
            self._tail.clear()
        self._next = offset + len(data)
        if self._whole and not self._tail and len(self._head) < self._head_max:
            room = self._head_max - len(self._head)
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_max:
            del self._tail[: -self._tail_max or None]

    def extend(self, pieces: Iterable[tuple[int, bytes]]) -> Collector:
        """Take several pieces."""
        for offset, data in pieces:
            self.add(offset, data)
        return self

    def output(self, total_bytes: int | None = None) -> Output:
        """Return what is held; ``total_bytes`` as the guest says it, else what came."""
        tail = bytes(self._tail[-self._tail_max :]) if self._tail_max else b""
        total = self._next if total_bytes is None else total_bytes
        return Output(head=bytes(self._head), tail=tail, total_bytes=total)
