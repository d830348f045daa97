"""Elements of nft sets by netlink: added and removed in transactions, read back one by one.

Numbers and shapes are the kernel's (``linux/netfilter/nf_tables.h``, ``nfnetlink.h``). A transaction holds
whole or not at all. Must never wait: the kernel answers before a send returns.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NETFILTER = 12
_NFTABLES = 10
_INET = 1
_BEGIN, _END = 0x10, 0x11
_NEW, _GET, _DELETE = 12, 13, 14
_REQUEST, ACK, _DUMP, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
ERROR, _DONE = 2, 3
_NESTED = 0x8000
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS = 1, 2, 3
_KEY, _DATA, _TIMEOUT, _KEY_END = 1, 2, 4, 10
_PER_MESSAGE = 256
_RECEIVE_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Element:
    """One element: a key, or a range up to ``end``; the value of a map; how long it lives."""

    key: bytes
    end: bytes = b""
    data: bytes = b""
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Elements that a transaction adds to a set, or removes from it. ``exclusive``: none may be there yet."""

    set: str
    elements: tuple[Element, ...]
    remove: bool = False
    exclusive: bool = False


def attribute(kind: int, payload: bytes) -> bytes:
    """Return one attribute, padded."""
    size = 4 + len(payload)
    return struct.pack("=HH", size, kind) + payload + b"\0" * (-size % 4)


def _text(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def _value(kind: int, data: bytes) -> bytes:
    return attribute(kind | _NESTED, attribute(1, data))


def _element(element: Element, *, whole: bool) -> bytes:
    parts = _value(_KEY, element.key)
    if element.end:
        parts += _value(_KEY_END, element.end)
    if whole and element.data:
        parts += _value(_DATA, element.data)
    if whole and element.timeout_ms:
        parts += attribute(_TIMEOUT, struct.pack("!Q", element.timeout_ms))
    return attribute(1 | _NESTED, parts)


def message(
    kind: int, flags: int, number: int, body: bytes, *, family: int = _INET, resource: int = 0
) -> bytes:
    """Return one message with the header that all parts of netfilter share."""
    payload = struct.pack("!BBH", family, 0, resource) + body
    return struct.pack("=IHHII", 16 + len(payload), kind, _REQUEST | flags, number, 0) + payload


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, payload) of all attributes; stops at what is torn."""
    at = 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if size < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + size]
        at += size + -size % 4


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, payload) of all messages; stops at what is torn."""
    at = 0
    while at + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if size < 16:
            return
        yield kind, data[at + 16 : at + size]
        at += size + -size % 4


def _read_element(data: bytes) -> Element:
    parts = dict(attributes(data))

    def value(kind: int) -> bytes:
        return dict(attributes(parts.get(kind, b""))).get(1, b"")

    timeout = parts.get(_TIMEOUT)
    return Element(
        value(_KEY), value(_KEY_END), value(_DATA), struct.unpack("!Q", timeout)[0] if timeout else 0
    )


class Table:
    """One nft table of the family ``inet``. Raises OSError for what the kernel refuses."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETFILTER)
        self._socket.bind((0, 0))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _body(self, name: str, elements: Sequence[Element], *, whole: bool) -> bytes:
        listed = b"".join(_element(element, whole=whole) for element in elements)
        body = _text(_LIST_TABLE, self._name) + _text(_LIST_SET, name)
        return body + attribute(_LIST_ELEMENTS | _NESTED, listed) if elements else body

    def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes, or none and raise OSError."""
        self._number += 1
        wire = [message(_BEGIN, 0, self._number, b"", family=0, resource=_NFTABLES)]
        for change in changes:
            kind = _DELETE if change.remove else _NEW
            flags = ACK | (0 if change.remove else _CREATE) | (_EXCLUSIVE if change.exclusive else 0)
            for at in range(0, len(change.elements), _PER_MESSAGE):
                body = self._body(
                    change.set, change.elements[at : at + _PER_MESSAGE], whole=not change.remove
                )
                wire.append(message(_NFTABLES << 8 | kind, flags, self._number, body))
        expected = len(wire) - 1
        wire.append(message(_END, 0, self._number, b"", family=0, resource=_NFTABLES))
        if expected == 0:
            return
        self._drain()
        self._socket.send(b"".join(wire))
        answers = [number for number, _ in self._answers()]
        failed = next((number for number in answers if number), 0)
        if failed or len(answers) != expected:
            raise _error(failed or errno.EIO, f"change the sets of {self._name}")

    def find(self, name: str, element: Element) -> Element | None:
        """Return what the kernel holds under this key, ``None`` if nothing."""
        self._number += 1
        self._drain()
        body = self._body(name, [element], whole=False)
        self._socket.send(message(_NFTABLES << 8 | _GET, ACK, self._number, body))
        failed, found = 0, None
        for number, read in self._answers():
            failed = failed or number
            found = read or found
        if failed == errno.ENOENT:
            return None
        if failed:
            raise _error(failed, f"read the set {name}")
        return found

    def elements(self, name: str) -> list[Element]:
        """Return all elements of a set."""
        self._number += 1
        self._drain()
        self._socket.send(
            message(_NFTABLES << 8 | _GET, _DUMP, self._number, self._body(name, [], whole=False))
        )
        found: list[Element] = []
        while True:
            for kind, payload in messages(self._socket.recv(_RECEIVE_BYTES)):
                if kind == _DONE:
                    return found
                if kind == ERROR:
                    raise _error(-struct.unpack_from("=i", payload)[0], f"list the set {name}")
                found += _listed(payload)

    def _answers(self) -> Iterator[tuple[int, Element | None]]:
        """Yield (error, element) of all answers; they are there when the send has returned."""
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            for kind, payload in messages(data):
                if kind == ERROR:
                    yield -struct.unpack_from("=i", payload)[0], None
                else:
                    yield from ((0, element) for element in _listed(payload))

    def _drain(self) -> None:
        for _ in self._answers():
            pass


def _listed(payload: bytes) -> list[Element]:
    lists = dict(attributes(payload[4:])).get(_LIST_ELEMENTS, b"")
    return [_read_element(data) for _, data in attributes(lists)]


def _error(number: int, what: str) -> OSError:
    return OSError(number, f"{what}: {os.strerror(number)}")
