"""The guest's own protocol through the service: frames are looked at, and passed on where allowed.

A line of its own to the guest for each client, so that a slow one slows nobody else: each side stops being
read while the other one does not take. Must never pass a request type on that is not in the list below, nor
hold more than one request's frame.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from cloche.core.errors import InvalidInput
from cloche.sandbox.guest.frames import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    PROTOCOL_VERSION,
    Code,
    Fields,
    Tag,
    TornFrame,
    Type,
    decode_fields,
    encode,
    encode_fields,
    number,
)
from cloche.server.call import Call
from cloche.service.caller import Scope

PROTOCOL = "cloche-guest"
_HEADER = struct.Struct("<IHHI")
_READS = frozenset(
    {Type.PING, Type.WAIT, Type.OUTPUT, Type.COMMANDS, Type.READ, Type.STAT, Type.LIST, Type.HEARTBEAT}
)
_STREAM = frozenset({Type.DATA, Type.CREDIT, Type.FINISH, Type.RESET})
_WRITES = frozenset(
    {
        *(Type.START, Type.STDIN, Type.SIGNAL, Type.RESIZE, Type.CANCEL, Type.KILL_ALL, Type.EXTEND),
        *(Type.WRITE, Type.MAKE_DIR, Type.REMOVE, Type.MOVE, Type.SYMLINK),
    }
)


def allowed(kind: int, *, writes: bool) -> bool:
    """Whether a client may send frames of this type; SHUTDOWN and what is not known here it may not."""
    return kind in _READS or kind in _STREAM or (writes and kind in _WRITES)


class _Side(asyncio.Protocol):
    """What both ends of a relay have: a transport, and another side that may have to wait."""

    def __init__(self, over: Callable[[], None]) -> None:
        self.other: _Side | None = None
        self.transport: asyncio.Transport | None = None
        self._over = over

    def pause_writing(self) -> None:
        """Stop reading from the other side while this one does not take."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """One end is the end of both."""
        self._over()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to whoever is at this end."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


class GuestSide(_Side):
    """What comes from the guest goes to the client as it is; answers of our own go between two frames."""

    def __init__(self, over: Callable[[], None]) -> None:
        super().__init__(over)
        self._left = 0
        self._head = bytearray()
        self._between: list[bytes] = []

    def say(self, frame: bytes) -> None:
        """Put a frame of our own into what the client gets."""
        self._between.append(frame)
        if self._left == 0:
            self._speak()

    def _speak(self) -> None:
        if self.other is not None and self._between:
            self.other.write(b"".join(self._between))
            self._between.clear()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; only where frames end is looked at."""
        assert self.other is not None  # noqa: S101  # both sides are made before either reads
        view = memoryview(bytes(self._head) + data if self._head else data)
        self._head.clear()
        at, sent, end = 0, 0, len(view)
        while True:
            step = min(self._left, end - at)
            at += step
            self._left -= step
            if self._left or end - at < HEADER_BYTES:
                break
            if self._between and at > sent:
                self.other.write(view[sent:at])
                sent = at
            self._speak()
            size, _, flags, _ = _HEADER.unpack_from(view, at)
            if size > BODY_BYTES_MAX or flags != 0:
                self._over()
                return
            self._left = HEADER_BYTES + size
        if at > sent:
            self.other.write(view[sent:at])
        if self._left == 0:
            self._head += view[at:]
            self._speak()


class ClientSide(_Side):
    """What comes from the client goes to the guest where it is allowed; the greeting is answered here."""

    def __init__(
        self,
        over: Callable[[], None],
        guest: GuestSide,
        *,
        tree: str,
        writes: bool,
        ttl_max_s: float | None,
        started: Callable[[str], None],
    ) -> None:
        super().__init__(over)
        self._guest = guest
        self._tree = tree
        self._writes = writes
        self._ttl_max_s = ttl_max_s
        self._started = started
        self._greeted = False
        self._pending = bytearray()
        self._left = 0

    def data_received(self, data: bytes) -> None:
        """Take whole requests, and the bytes of streams as they come."""
        try:
            self._take(data)
        except TornFrame as error:
            self._refuse(0, Code.BAD_FRAME, str(error))
            self._over()

    def _take(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        at, end = 0, len(pending)
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                self._guest.write(bytes(pending[at : at + step]))
                self._left -= step
                at += step
                continue
            if end - at < HEADER_BYTES:
                break
            size, kind, flags, request_id = _HEADER.unpack_from(pending, at)
            if size > BODY_BYTES_MAX or flags != 0:
                raise TornFrame("this is no frame")
            if kind == Type.DATA and self._greeted:
                self._left = HEADER_BYTES + size
                continue
            if end - at < HEADER_BYTES + size:
                break
            frame = bytes(pending[at : at + HEADER_BYTES + size])
            at += len(frame)
            self._request(kind, request_id, frame)
        del pending[:at]

    def _request(self, kind: int, request_id: int, frame: bytes) -> None:
        if kind == Type.HELLO:
            self._hello(request_id, decode_fields(frame[HEADER_BYTES:]))
        elif not self._greeted:
            raise TornFrame("the first frame must be HELLO")
        elif not allowed(kind, writes=self._writes):
            self._refuse(request_id, Code.UNKNOWN_TYPE, f"the service passes no request {kind} on")
        elif kind == Type.EXTEND and not self._may_extend(decode_fields(frame[HEADER_BYTES:])):
            self._refuse(request_id, Code.BAD_REQUEST, f"this key's lease is {self._ttl_max_s:g} s at most")
        else:
            if kind == Type.START:
                names = dict(decode_fields(frame[HEADER_BYTES:]))
                self._started(names.get(Tag.COMMAND, b"").decode("utf-8", "replace")[:128])
            self._guest.write(frame)

    def _hello(self, request_id: int, fields: Fields) -> None:
        if dict(fields).get(Tag.VERSION) != PROTOCOL_VERSION.to_bytes(8, "little"):
            self._refuse(request_id, Code.VERSION, f"this service speaks version {PROTOCOL_VERSION}")
            self._over()
            return
        self._greeted = True
        body = encode_fields([(Tag.VERSION, PROTOCOL_VERSION), (Tag.TREE, self._tree)])
        self._guest.say(encode(Type.REPLY, request_id, body))

    def _may_extend(self, fields: Fields) -> bool:
        if self._ttl_max_s is None:
            return True
        ttl_ms = number(dict(fields).get(Tag.TTL_MS, bytes(8)))
        return 0 < ttl_ms <= self._ttl_max_s * 1000

    def _refuse(self, request_id: int, code: Code, message: str) -> None:
        body = encode_fields([(Tag.CODE, int(code)), (Tag.MESSAGE, message)])
        self._guest.say(encode(Type.ERROR, request_id, body))


class _Upgraded(web.StreamResponse):
    """Stands for an answer that was sent by hand: the line is no longer HTTP's."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


async def serve(call: Call) -> web.StreamResponse:
    """``GET …/guest``, upgraded: the line is the guest's until one end lets go."""
    request = call.request
    transport = request.transport
    if request.headers.get("Upgrade", "").lower() != PROTOCOL:
        raise InvalidInput(f"this path is spoken to with `Upgrade: {PROTOCOL}`", where="Upgrade")
    await call.handle()  # who may not, and what does not live, is told as HTTP
    own = await call.service.driver.attach(call.id)
    line, tree = own.hand_over()
    if transport is None:
        line.close()
        return _Upgraded(status=499)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def over() -> None:
        if not done.done():
            done.set_result(None)

    guest = GuestSide(over)
    client = ClientSide(
        over,
        guest,
        tree=tree,
        writes=Scope.WRITE in call.caller.scopes or call.caller.admin,
        ttl_max_s=call.caller.quota.ttl_s,
        started=lambda command: _audit_start(call, command),
    )
    guest.other, client.other = client, guest
    guest.transport, client.transport = line, transport
    call.started = True
    await _carry(call, guest, client, done)
    return _Upgraded(status=101)


async def _carry(call: Call, guest: GuestSide, client: ClientSide, done: asyncio.Future[None]) -> None:
    line, transport = guest.transport, client.transport
    assert line is not None  # noqa: S101  # set by the caller
    assert transport is not None  # noqa: S101  # set by the caller
    http = transport.get_protocol()
    head = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
    transport.set_protocol(client)
    line.set_protocol(guest)
    transport.write(f"{head}X-Request-ID: {call.request_id}\r\n\r\n".encode())
    call.context.metrics.streams["guest"] += 1
    stop = asyncio.ensure_future(call.context.stopping.begun.wait())
    waited: list[asyncio.Future[Any]] = [done, stop]
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        call.context.metrics.streams["guest"] -= 1
        line.close()
        transport.close()
        if isinstance(http, asyncio.Protocol):  # aiohttp counts its connections by this
            asyncio.get_running_loop().call_soon(http.connection_lost, None)


def _audit_start(call: Call, command: str) -> None:
    call.context.metrics.commands += 1
    call.context.audit.write(
        key=call.caller.key,
        owner=call.caller.owner,
        what="guest.start",
        sandbox=call.id,
        labels=call.labels,
        status=202,
        code=None,
        duration_s=0.0,
        request_id=call.request_id,
        more={"command": command},
    )
