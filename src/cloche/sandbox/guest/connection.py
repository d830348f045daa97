"""One connection to a guest: requests out, replies and data in.

Must never wait without an end in sight: when the connection is lost, everything that waits on it fails
with SandboxLost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

from cloche.core.errors import InfraError, SandboxLost
from cloche.sandbox.guest.errors import RequestFailed, from_fields
from cloche.sandbox.guest.frames import (
    PROTOCOL_VERSION,
    WINDOW_BYTES,
    Fields,
    FrameReader,
    Tag,
    TornFrame,
    Type,
    Value,
    decode_fields,
    encode,
    encode_credit,
    encode_data,
    encode_fields,
    split_data,
)

READ_WINDOW_BYTES = 1 << 20
"""What the guest may send on one stream before the reader has taken it."""
HELD_BYTES_MAX = 64 << 20
"""What a guest holds of one stream at most, and so may send at a stroke where all of it was asked for."""
_PIECE_BYTES = 65536
_JOINED_BYTES_MAX = 32768
_PIECES_MAX = 8192
_SUN_PATH_BYTES_MAX = 107
_HELLO_TIMEOUT_S = 10.0


class Call:
    """A request under way: its reply, and the data that comes before it."""

    __slots__ = (
        "_connection",
        "_credit",
        "_data",
        "_granted",
        "_held",
        "_next",
        "_room",
        "_sent",
        "_unclaimed",
        "_waiter",
        "_window",
        "id",
        "reply",
    )

    def __init__(self, connection: GuestConnection, request_id: int, window: int = READ_WINDOW_BYTES) -> None:
        self._connection = connection
        self.id = request_id
        self.reply: asyncio.Future[Fields] = connection.loop.create_future()
        self._data: deque[tuple[int, bytes | bytearray]] = deque()
        self._window = window
        self._held = 0
        self._next = 0
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._credit = WINDOW_BYTES
        self._sent = 0
        self._granted = False
        self._unclaimed = 0

    async def result(self) -> Fields:
        """Wait for the reply. Raises RequestFailed or SandboxLost."""
        return await self.reply

    def feed(self, body: bytes) -> None:
        """Take data that the guest sent, no more than it may. Raises TornFrame."""
        offset, data = split_data(body)
        if offset < self._next:
            raise TornFrame("data that goes back")
        follows = offset == self._next
        self._next = offset + len(data)
        self._held += len(data)
        if self._held > self._window:
            raise TornFrame("more data than there was credit for")
        last = self._data[-1][1] if self._data and follows else None
        if last is not None and len(last) + len(data) <= _JOINED_BYTES_MAX:
            self._join(data)  # so that many small pieces do not cost more than their bytes
        elif data:
            self._data.append((offset, data))
        if len(self._data) > _PIECES_MAX:
            raise TornFrame("data in more pieces than anybody needs")
        self._wake()

    def _join(self, data: bytes) -> None:
        offset, last = self._data[-1]
        if isinstance(last, bytes):
            last = bytearray(last)
            self._data[-1] = (offset, last)
        last += data

    def grant(self, count: int) -> None:
        """Take credit that the guest gave."""
        self._credit += count
        self._granted = True
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def end(self, outcome: Fields | Exception) -> None:
        """Take the reply or the failure; nothing comes after it."""
        if not self.reply.done():
            if isinstance(outcome, Exception):
                self.reply.set_exception(outcome)
                self.reply.exception()  # it may be that nobody asks for it: that is no mistake
            else:
                self.reply.set_result(outcome)
        self._wake()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def chunks(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (offset, bytes) as they come and give the guest credit for what was taken.

        Ends when the reply is there; raises as ``result`` does.
        """
        while True:
            while self._data:
                offset, data = self._data.popleft()
                self._held -= len(data)
                yield offset, bytes(data)
                self._unclaimed += len(data)
                if self._unclaimed >= READ_WINDOW_BYTES // 4 and not self.reply.done():
                    self._connection.send(encode_credit(self.id, self._unclaimed))
                    self._unclaimed = 0
            if self.reply.done():
                self.reply.result()
                return
            self._waiter = self._connection.loop.create_future()
            await self._waiter

    def taken(self) -> list[tuple[int, bytes]]:
        """Return the data that came and was not iterated over: for small answers, after the reply."""
        taken = [(offset, bytes(data)) for offset, data in self._data]
        self._data.clear()
        self._held = 0
        return taken

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes on this stream as credit allows. Raises as ``result`` does when it ended early."""
        view = memoryview(data)
        while view:
            while self._credit <= 0 and not self.reply.done():
                self._room = self._connection.loop.create_future()
                await self._room
            if self.reply.done():
                self.reply.result()
                return
            part = view[: min(self._credit, _PIECE_BYTES)]
            self._connection.send(encode_data(self.id, self._sent, part))
            self._sent += len(part)
            self._credit -= len(part)
            view = view[len(part) :]
            await self._connection.drained()

    async def accepted(self) -> None:
        """Wait until the guest has given credit, if only none, or ended this. Raises as ``result`` does."""
        while not self._granted and not self.reply.done():
            self._room = self._connection.loop.create_future()
            await self._room
        if self.reply.done():
            self.reply.result()

    async def settled(self) -> None:
        """Wait until the guest has used all that was sent. Raises as ``result`` does when it ended early."""
        while self._credit < WINDOW_BYTES and not self.reply.done():
            self._room = self._connection.loop.create_future()
            await self._room
        if self.reply.done():
            self.reply.result()

    def send_at_once(self, data: bytes) -> bool:
        """Send bytes if there is credit for all of them; False, with nothing sent, if not."""
        if len(data) > self._credit:
            return False
        for at in range(0, len(data), _PIECE_BYTES):
            part = data[at : at + _PIECE_BYTES]
            self._connection.send(encode_data(self.id, self._sent, part))
            self._sent += len(part)
            self._credit -= len(part)
        return True

    def finish(self) -> None:
        """Say that no more data follows."""
        self._connection.send(encode(Type.FINISH, self.id))

    def abandon(self) -> None:
        """Tell the guest to forget this request; its reply, if one is on its way, is ignored."""
        self._connection.forget(self)


class GuestConnection(asyncio.Protocol):
    """The asyncio protocol that speaks to one guest. Make one with :func:`connect`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}
        self._next_id = 0
        self._lost: SandboxLost | None = None
        self._out: list[bytes] = []
        self._writable: asyncio.Future[None] | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        self.tree = ""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what unix sockets and pipes give
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand each complete frame to the request that it answers."""
        try:
            for kind, request_id, body in self._reader.feed(data):
                call = self._calls.get(request_id)
                if call is not None:
                    self._handle(kind, call, body)
                elif request_id == 0 and kind == Type.ERROR:
                    self._fail(f"the guest ended the connection: {from_fields(decode_fields(body))}")
        except TornFrame as error:
            self._fail(f"the guest sent what is no frame: {error}")

    def _handle(self, kind: int, call: Call, body: bytes) -> None:
        if kind == Type.DATA:
            call.feed(body)
        elif kind in {Type.REPLY, Type.ERROR}:
            fields = decode_fields(
                body
            )  # may raise: the call must still be known then, to fail with the rest
            outcome = fields if kind == Type.REPLY else from_fields(fields)
            del self._calls[call.id]
            call.end(outcome)
        elif kind == Type.CREDIT:
            call.grant(int.from_bytes(body, "little"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        self._fail(f"the connection to the sandbox was lost{f': {exc}' if exc else ''}")
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Remember that the socket is full."""
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        """Let writers go on."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # our side

    def _fail(self, message: str) -> None:
        if self._lost is None:
            self._lost = SandboxLost(message)
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.end(SandboxLost(message))
        self.resume_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    @property
    def lost(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._lost is not None

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._calls)

    def send(self, data: bytes) -> None:
        """Queue bytes; what is queued in one turn of the loop goes out in one write."""
        if self._lost is not None:
            return
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        data, self._out = b"".join(self._out), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait while the socket is full."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def call(
        self, kind: Type, fields: list[tuple[int, Value]] | None = None, *, window: int = READ_WINDOW_BYTES
    ) -> Call:
        """Send a request; ``window`` is how many bytes of data may wait here until they are taken.

        Raises SandboxLost, or ValueError when it is too long for a frame.
        """
        if self._lost is not None:
            raise SandboxLost(self._lost.message)
        self._next_id = self._next_id % 0xFFFFFFFF + 1
        frame = encode(kind, self._next_id, encode_fields(fields) if fields else b"")
        call = Call(self, self._next_id, window)
        self._calls[call.id] = call
        self.send(frame)
        return call

    async def ask(self, kind: Type, fields: list[tuple[int, Value]] | None = None) -> Fields:
        """Send a request and wait for its reply. When the waiting task is cancelled it is abandoned."""
        call = self.call(kind, fields)
        try:
            return await call.reply
        except asyncio.CancelledError:
            call.abandon()
            raise

    def forget(self, call: Call) -> None:
        """Abandon a call (see :meth:`Call.abandon`)."""
        if self._calls.pop(call.id, None) is not None:
            self.send(encode(Type.RESET, call.id))
            call.end(RequestFailed("abandoned"))

    async def hello(self) -> None:
        """Exchange versions. Raises RequestFailed or SandboxLost."""
        reply = dict(await self.ask(Type.HELLO, [(Tag.VERSION, PROTOCOL_VERSION)]))
        self.tree = reply.get(Tag.TREE, b"").decode("utf-8", "replace")

    def hand_over(self) -> asyncio.Transport:
        """Give the greeted line away to another protocol; nothing can be asked here from then on."""
        if self._transport is None or self._lost is not None:
            raise SandboxLost("the connection is gone")
        transport, self._transport = self._transport, None
        self._fail("the line was given away")
        self.closed.set_result(None)
        return transport

    async def close(self) -> None:
        """Let go of the connection; the guest and its commands live on."""
        if self._out:
            self._flush()
        self._fail("the connection was closed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(self.closed)


async def connect(path: Path, *, timeout_s: float = _HELLO_TIMEOUT_S) -> GuestConnection:
    """Connect to the guest that listens at this unix socket and greet it.

    A path longer than a socket address may be is reached through its folder's descriptor. Raises
    SandboxLost when nobody listens, InfraError when the other side does not speak this protocol.
    """
    loop = asyncio.get_running_loop()
    folder = None
    address = str(path)
    try:
        if len(os.fsencode(address)) > _SUN_PATH_BYTES_MAX:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            address = f"/proc/self/fd/{folder}/{path.name}"
        _, connection = await loop.create_unix_connection(lambda: GuestConnection(loop), address)
    except OSError as error:
        raise SandboxLost(f"nothing answers at {path}: {error.strerror or error}") from error
    finally:
        if folder is not None:
            os.close(folder)
    return await _greeted(connection, timeout_s)


async def _greeted(connection: GuestConnection, timeout_s: float) -> GuestConnection:
    try:
        async with asyncio.timeout(timeout_s):
            await connection.hello()
    except BaseException as error:
        await connection.close()
        if isinstance(error, TimeoutError):
            raise SandboxLost(f"the guest did not answer within {timeout_s:g} s") from error
        if isinstance(error, RequestFailed):
            message = f"the guest refused the connection: {error}"
            raise InfraError(message, code="infra/protocol") from error
        raise
    return connection
