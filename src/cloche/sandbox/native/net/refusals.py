"""Packets that the rules refused, as the kernel tells them (nflog): who sent them, and whereto.

The kernel sends a few per sandbox and second and loses the rest. Must never trust what a packet says beyond
its header, which the workload wrote.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cloche.sandbox.native.net import nfnetlink

_LOG = 4
_PACKET, _CONFIG = 0, 1
_COMMAND, _MODE, _DELAY, _THRESHOLD = 1, 2, 4, 5
_BIND = 1
_COPY_PACKET = 2
_IN_DEVICE, _PAYLOAD = 4, 9
_SNAP_BYTES = 64
_RECEIVE_BYTES = 1 << 17
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One packet: the index of the link it came in by, and where it wanted to go."""

    link: int
    address: str
    port: int
    protocol: str


class RefusalLog:
    """The packets of one group. Raises OSError where another process listens, or the kernel has no log."""

    def __init__(self, group: int) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, nfnetlink.NETFILTER
        )
        self._socket.bind((0, 0))
        self._group = group
        self._configure(_COMMAND, bytes([_BIND]))
        self._configure(_MODE, struct.pack("!IBB", _SNAP_BYTES, _COPY_PACKET, 0))
        self._configure(_DELAY, struct.pack("!I", 1))
        self._configure(_THRESHOLD, struct.pack("!I", 1))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _configure(self, kind: int, value: bytes) -> None:
        body = nfnetlink.attribute(kind, value)
        self._socket.send(
            nfnetlink.message(_LOG << 8 | _CONFIG, nfnetlink.ACK, 1, body, family=0, resource=self._group)
        )
        for answer, payload in nfnetlink.messages(self._socket.recv(_RECEIVE_BYTES)):
            number = -struct.unpack_from("=i", payload)[0] if answer == nfnetlink.ERROR else 0
            if number:
                raise OSError(number, f"listen to refused packets: {os.strerror(number)}")

    def read(self) -> Iterator[Refusal]:
        """Yield what has come; returns when there is no more."""
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # some were lost because there were too many
            for kind, payload in nfnetlink.messages(data):
                if kind == _LOG << 8 | _PACKET:
                    found = _refusal(dict(nfnetlink.attributes(payload[4:])))
                    if found is not None:
                        yield found


def _refusal(parts: dict[int, bytes]) -> Refusal | None:
    packet, device = parts.get(_PAYLOAD, b""), parts.get(_IN_DEVICE, b"")
    if len(device) != 4 or len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    start = (packet[0] & 15) * 4
    protocol = _PROTOCOLS.get(packet[9], str(packet[9]))
    ported = protocol in {"tcp", "udp"} and len(packet) >= start + 4
    port = struct.unpack_from("!H", packet, start + 2)[0] if ported else 0
    address = str(ipaddress.IPv4Address(packet[16:20]))
    return Refusal(struct.unpack("!I", device)[0], address, port, protocol)
