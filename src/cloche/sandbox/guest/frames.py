"""The guest's frames and fields as bytes, both ways. Must never do I/O, nor trust a length from outside.

The numbers are those of ``guest/protocol.h``; ``docs/protocol.md`` says what they mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum

from cloche.core.errors import InfraError

PROTOCOL_VERSION = 1
BODY_BYTES_MAX = 1 << 20
WINDOW_BYTES = 262144
"""What may be sent on a new stream before there is credit."""

_HEADER = struct.Struct("<IHHI")
_FIELD = struct.Struct("<HI")
_NUMBER = struct.Struct("<HIQ")
_OFFSET = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size


class Type(IntEnum):
    """What a frame is."""

    HELLO = 1
    PING = 2
    START = 3
    WAIT = 4
    OUTPUT = 5
    STDIN = 6
    SIGNAL = 7
    RESIZE = 8
    CANCEL = 9
    COMMANDS = 10
    KILL_ALL = 11
    HEARTBEAT = 12
    EXTEND = 13
    SHUTDOWN = 14
    READ = 20
    WRITE = 21
    STAT = 22
    LIST = 23
    MAKE_DIR = 24
    REMOVE = 25
    MOVE = 26
    SYMLINK = 27
    DATA = 40
    CREDIT = 41
    FINISH = 42
    RESET = 43
    REPLY = 50
    ERROR = 51


class Tag(IntEnum):
    """What a field is."""

    VERSION = 1
    TOKEN = 2
    CODE = 3
    MESSAGE = 4
    ERRNO = 5
    COMMAND = 6
    ARG = 7
    SHELL = 8
    ENV = 9
    CWD = 10
    USER = 11
    STDIN = 12
    COLUMNS = 13
    ROWS = 14
    TIMEOUT_MS = 15
    GRACE_MS = 16
    CAP_BYTES = 17
    SPILL = 18
    ATTACHED = 19
    PID = 20
    STREAM = 21
    OFFSET = 22
    CREDIT = 23
    AT_END = 24
    SIGNAL = 25
    REASON = 26
    EXIT_CODE = 27
    TOTAL_BYTES = 28
    DURATION_US = 29
    CPU_US = 30
    PEAK_BYTES = 31
    UNEXPECTED = 32
    ENTRY = 33
    NEXT = 34
    RUNNING = 35
    STARTED_MS = 36
    TTL_MS = 37
    PATH = 38
    TARGET = 39
    LENGTH = 40
    MODE = 41
    KIND = 42
    UID = 43
    GID = 44
    MTIME_NS = 45
    NAME = 46
    RECURSIVE = 47
    PARENTS = 48
    TREE = 49
    LIMIT = 50
    CONNECTIONS = 51
    FOLLOW = 52
    TTL_ALONE_MS = 70


class Code(IntEnum):
    """Why a request failed."""

    BAD_FRAME = 1
    VERSION = 2
    BAD_REQUEST = 3
    NO_COMMAND = 4
    NOT_RUNNING = 5
    SYSTEM = 7
    LIMIT = 8
    UNKNOWN_TYPE = 9
    CLOSED = 10
    TOKEN = 11


Value = bytes | str | int
Fields = list[tuple[int, bytes]]


class TornFrame(InfraError):
    """What came from the guest is no frame, no sequence of fields, or lacks a field that it must have."""

    code = "infra/protocol"


def encode_fields(fields: Iterator[tuple[int, Value]] | list[tuple[int, Value]]) -> bytes:
    """Return a body: numbers as 8 bytes, text as UTF-8 (surrogate escapes become their bytes)."""
    parts = []
    for tag, value in fields:
        if isinstance(value, int):
            parts.append(_NUMBER.pack(tag, 8, value))
            continue
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        parts.append(_FIELD.pack(tag, len(data)))
        parts.append(data)
    return b"".join(parts)


def encode(kind: int, request_id: int, body: bytes = b"") -> bytes:
    """Return one frame. Raises ValueError when the body is longer than a frame may be."""
    if len(body) > BODY_BYTES_MAX:
        message = f"a request of {len(body)} bytes is too long for one frame ({BODY_BYTES_MAX})"
        raise ValueError(message)
    return _HEADER.pack(len(body), kind, 0, request_id) + body


def encode_data(request_id: int, offset: int, data: bytes | memoryview) -> bytes:
    """Return a DATA frame."""
    return b"".join(
        (_HEADER.pack(len(data) + 8, Type.DATA, 0, request_id), _OFFSET.pack(offset), bytes(data))
    )


def encode_credit(request_id: int, count: int) -> bytes:
    """Return a CREDIT frame."""
    return _HEADER.pack(8, Type.CREDIT, 0, request_id) + _OFFSET.pack(count)


def decode_fields(body: bytes) -> Fields:
    """Return the fields of a body in order. Raises TornFrame."""
    fields: Fields = []
    at, end = 0, len(body)
    while at < end:
        if end - at < 6:
            raise TornFrame("a field's head is cut off")
        tag, size = _FIELD.unpack_from(body, at)
        at += 6
        if size > end - at:
            raise TornFrame("a field is longer than its frame")
        fields.append((tag, body[at : at + size]))
        at += size
    return fields


def number(value: bytes) -> int:
    """Return the number in a field. Raises TornFrame."""
    if len(value) != 8:
        raise TornFrame("a number is not 8 bytes long")
    return int.from_bytes(value, "little")


def required(values: Mapping[int, bytes], tag: Tag) -> bytes:
    """Return the field that an answer must have. Raises TornFrame."""
    value = values.get(tag)
    if value is None:
        raise TornFrame(f"an answer without {tag.name}")
    return value


def next_page(value: bytes, offset: int) -> int:
    """Return where the next page of a listing begins. Raises TornFrame where that is no further on."""
    following = number(value)
    if following <= offset:
        raise TornFrame("a listing that does not go on")
    return following


def split_data(body: bytes) -> tuple[int, bytes]:
    """Return (offset, bytes) of a DATA frame's body. Raises TornFrame."""
    if len(body) < 8:
        raise TornFrame("a data frame without an offset")
    return int.from_bytes(body[:8], "little"), body[8:]


class FrameReader:
    """Puts frames together from bytes that arrive in any pieces. Holds at most one frame's bytes more."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return the (type, id, body) of every frame that is complete now. Raises TornFrame."""
        pending = self._pending
        pending += data
        frames = []
        at, end = 0, len(pending)
        while end - at >= HEADER_BYTES:
            size, kind, flags, request_id = _HEADER.unpack_from(pending, at)
            if size > BODY_BYTES_MAX or flags != 0:
                raise TornFrame("this is no frame")
            stop = at + HEADER_BYTES + size
            if stop > end:
                break
            frames.append((kind, request_id, bytes(pending[at + HEADER_BYTES : stop])))
            at = stop
        if at:
            del pending[:at]
        return frames
