"""A connection to a guest through a service: ``GET …/guest`` upgraded, then the guest's own protocol.

Must never read past the answer's head as if it were HTTP: what follows belongs to the guest.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import quote, urlsplit

from cloche.client.errors import transport_error
from cloche.client.http.session import CONNECT_TIMEOUT_S, headers_of, keep_alive, refusal
from cloche.client.target import Service
from cloche.core.errors import InfraError
from cloche.sandbox.guest.connection import GuestConnection
from cloche.sandbox.guest.errors import RequestFailed

HEAD_BYTES_MAX = 65536
BODY_BYTES_MAX = 1 << 20
PROTOCOL = "cloche-guest"


class _Head(asyncio.Protocol):
    """Collects an answer's head, and its body where it is no upgrade, then steps aside."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[tuple[int, dict[str, str], bytes]] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what a TCP connection gives
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            keep_alive(sock)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = bytes(self._data).partition(b"\r\n\r\n")
        if self.answer.done() or (not found and len(self._data) < HEAD_BYTES_MAX):
            return
        try:
            status, headers = _parse(head)
            wanted = 0 if status == 101 else min(int(headers.get("content-length", "0")), BODY_BYTES_MAX)
        except ValueError:
            self.answer.set_exception(ConnectionError("the answer is no HTTP"))
            return
        if len(rest) >= wanted:
            if self.transport is not None and status == 101:
                self.transport.pause_reading()
            self.answer.set_result((status, headers, rest))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError("the service closed the connection"))


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
        raise ValueError(first)
    pairs = (line.partition(":") for line in lines)
    return int(status[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _request(service: Service, path: str, host: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", f"Upgrade: {PROTOCOL}"]
    lines += [f"{name}: {value}" for name, value in headers_of(service).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def connect(service: Service, sandbox_id: str) -> GuestConnection:
    """Connect to the guest of a sandbox. Raises what the service says, or InfraError when it says nothing."""
    parts = urlsplit(service.url or "")
    secure = parts.scheme == "https"
    loop = asyncio.get_running_loop()
    path = f"{parts.path.rstrip('/')}/v1/sandboxes/{quote(sandbox_id, safe='')}/guest"
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, head = await loop.create_connection(
                lambda: _Head(loop),
                parts.hostname or "",
                parts.port or (443 if secure else 80),
                ssl=ssl.create_default_context() if secure else None,
            )
            transport.write(_request(service, path, parts.netloc))
            status, headers, rest = await head.answer
            if status != 101:
                raise refusal(status, headers, rest).error
            return await _greeted(loop, transport, rest)
    except (OSError, TimeoutError) as error:
        raise transport_error(f"no connection to sandbox {sandbox_id}", error) from error
    except BaseException:
        if transport is not None:
            transport.close()
        raise


async def _greeted(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, rest: bytes
) -> GuestConnection:
    connection = GuestConnection(loop)
    transport.set_protocol(connection)
    connection.connection_made(transport)
    if rest:
        connection.data_received(rest)
    transport.resume_reading()
    try:
        await connection.hello()
    except BaseException as error:
        await connection.close()
        if isinstance(error, RequestFailed):
            raise InfraError(f"the guest refused the connection: {error}", code="infra/protocol") from error
        raise
    return connection
