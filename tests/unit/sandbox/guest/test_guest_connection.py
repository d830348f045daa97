"""The connection against a scripted other side: credit, order, cancellation, loss; never a hang."""

from __future__ import annotations

import asyncio

import pytest

from cloche.core.errors import InvalidInput, NotFound, SandboxLost
from cloche.sandbox.guest.connection import READ_WINDOW_BYTES, GuestConnection
from cloche.sandbox.guest.errors import RequestFailed
from cloche.sandbox.guest.frames import (
    WINDOW_BYTES,
    Code,
    FrameReader,
    Tag,
    Type,
    decode_fields,
    encode,
    encode_credit,
    encode_data,
    encode_fields,
    number,
    split_data,
)
from cloche.sandbox.guest.process import OomWatch, Process
from cloche.sandbox.spec import EndReason


class FakeTransport(asyncio.Transport):
    """Keeps what was written; closing it tells the protocol on the next turn, as the real one does."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.reader = FrameReader()
        self.frames: list[tuple[int, int, bytes]] = []
        self.writes = 0
        self.gone = False
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        self.frames += self.reader.feed(bytes(data))

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.gone = True
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


@pytest.fixture
async def connection() -> GuestConnection:
    connection = GuestConnection(asyncio.get_running_loop())
    connection.connection_made(FakeTransport(connection))
    return connection


@pytest.fixture
async def other(connection: GuestConnection) -> FakeTransport:
    transport = connection._transport
    assert isinstance(transport, FakeTransport)
    return transport


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def reply(request_id: int, *fields: tuple[int, int | bytes | str]) -> bytes:
    return encode(Type.REPLY, request_id, encode_fields(list(fields)))


async def test_answers_find_their_requests_in_any_order(
    connection: GuestConnection, other: FakeTransport
) -> None:
    first, second = (asyncio.ensure_future(connection.ask(Type.PING)) for _ in range(2))
    await turn()
    assert [frame[:2] for frame in other.frames] == [(Type.PING, 1), (Type.PING, 2)]
    assert other.writes == 1
    connection.data_received(reply(2, (Tag.PID, 22)) + reply(1, (Tag.PID, 11)))
    assert number(dict(await first)[Tag.PID]) == 11
    assert number(dict(await second)[Tag.PID]) == 22


async def test_a_refusal_is_raised(connection: GuestConnection) -> None:
    call = connection.call(Type.STAT)
    connection.data_received(encode(Type.ERROR, call.id, encode_fields([(Tag.CODE, 3), (Tag.MESSAGE, "no")])))
    with pytest.raises(RequestFailed, match="no"):
        await call.result()


async def test_credit_is_given_as_data_is_taken(connection: GuestConnection, other: FakeTransport) -> None:
    call = connection.call(Type.READ)
    piece = bytes(32768)
    for n in range(READ_WINDOW_BYTES // len(piece)):
        connection.data_received(encode_data(call.id, n * len(piece), piece))
    await turn()
    assert [frame for frame in other.frames if frame[0] == Type.CREDIT] == []  # nobody has taken any
    chunks = call.chunks()
    for _ in range(READ_WINDOW_BYTES // len(piece)):
        await anext(chunks)
    await turn()
    given = sum(number(body) for kind, _, body in other.frames if kind == Type.CREDIT)
    assert READ_WINDOW_BYTES // 2 <= given <= READ_WINDOW_BYTES
    connection.data_received(reply(call.id))
    assert [chunk async for chunk in chunks] == []


async def test_sending_waits_for_credit(connection: GuestConnection, other: FakeTransport) -> None:
    call = connection.call(Type.WRITE)
    sending = asyncio.ensure_future(call.send(bytes(WINDOW_BYTES + 10)))
    await turn()
    sent = [split_data(body) for kind, _, body in other.frames if kind == Type.DATA]
    assert sum(len(data) for _, data in sent) == WINDOW_BYTES
    assert not sending.done()
    connection.data_received(encode_credit(call.id, 4))
    await turn()
    connection.data_received(encode_credit(call.id, 6))
    await sending
    sent = [split_data(body) for kind, _, body in other.frames if kind == Type.DATA]
    await turn()
    assert [offset for offset, _ in sent] == [
        sum(len(data) for _, data in sent[:n]) for n in range(len(sent))
    ]


async def test_sending_ends_with_the_stream(connection: GuestConnection) -> None:
    call = connection.call(Type.WRITE)
    sending = asyncio.ensure_future(call.send(bytes(WINDOW_BYTES + 10)))
    await turn()
    connection.data_received(encode(Type.ERROR, call.id, encode_fields([(Tag.CODE, 7), (Tag.ERRNO, 28)])))
    with pytest.raises(RequestFailed, match="No space"):
        await sending


async def test_a_full_socket_holds_the_sender_up(connection: GuestConnection) -> None:
    connection.pause_writing()
    call = connection.call(Type.WRITE)
    sending = asyncio.ensure_future(call.send(bytes(10)))
    await turn()
    assert not sending.done()
    connection.resume_writing()
    await sending


async def test_a_cancelled_request_is_abandoned(connection: GuestConnection, other: FakeTransport) -> None:
    task = asyncio.ensure_future(connection.ask(Type.WAIT))
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await turn()
    assert [frame[:2] for frame in other.frames] == [(Type.WAIT, 1), (Type.RESET, 1)]
    connection.data_received(reply(1))  # it was on its way: nobody minds
    assert not connection.lost


async def test_a_stream_that_is_left_is_abandoned(connection: GuestConnection, other: FakeTransport) -> None:
    process = Process(connection, "c", oom=OomWatch(None))
    output = process.output()
    reading = asyncio.ensure_future(anext(output))
    await turn()
    connection.data_received(encode_data(1, 0, b"x"))
    assert (await reading).data == b"x"
    await output.aclose()  # type: ignore[attr-defined]
    await turn()
    assert other.frames[-1][:2] == (Type.RESET, 1)


@pytest.mark.fault("connection-lost-in-mid-command")
async def test_everything_that_waits_learns_of_the_loss(connection: GuestConnection) -> None:
    process = Process(connection, "c", oom=OomWatch(None))
    waiting = asyncio.ensure_future(process.wait())
    asking = asyncio.ensure_future(connection.ask(Type.PING))
    reading = asyncio.ensure_future(anext(process.output()))
    writing = asyncio.ensure_future(process.write(b"x"))
    await turn()
    connection.connection_lost(ConnectionResetError("reset"))
    assert (await waiting).reason is EndReason.SANDBOX_LOST
    for task in (asking, reading, writing):
        with pytest.raises(SandboxLost, match="lost: reset"):
            await task
    assert (await process.wait()).reason is EndReason.SANDBOX_LOST
    with pytest.raises(SandboxLost):
        await connection.ask(Type.PING)


@pytest.mark.parametrize(
    "data", [b"\xff" * 12, encode(Type.REPLY, 1, b"\x01"), encode(Type.DATA, 1, b"short")]
)
async def test_garbage_from_the_other_side_is_a_loss(connection: GuestConnection, data: bytes) -> None:
    call = connection.call(Type.PING)
    connection.data_received(data)
    with pytest.raises(SandboxLost, match="no frame"):
        await call.result()
    assert connection.lost
    await connection.close()


async def test_the_guests_last_words_are_passed_on(connection: GuestConnection) -> None:
    call = connection.call(Type.PING)
    connection.data_received(
        encode(Type.ERROR, 0, encode_fields([(Tag.CODE, 1), (Tag.MESSAGE, "this is no frame")]))
    )
    with pytest.raises(SandboxLost, match="ended the connection: this is no frame"):
        await call.result()


async def test_frames_of_later_versions_are_ignored(connection: GuestConnection) -> None:
    call = connection.call(Type.PING)
    connection.data_received(encode(99, call.id) + encode(99, 0) + reply(call.id))
    assert await call.result() == []


async def test_request_ids_start_again_before_they_run_out(connection: GuestConnection) -> None:
    connection._next_id = 0xFFFFFFFE
    assert [connection.call(Type.PING).id for _ in range(2)] == [0xFFFFFFFF, 1]
    await connection.close()


async def test_the_start_is_refused(connection: GuestConnection) -> None:
    started = connection.call(Type.START)
    process = Process(connection, "c", oom=OomWatch(None), started=started)
    waiting = asyncio.ensure_future(process.wait())
    await turn()
    error = encode_fields([(Tag.CODE, Code.BAD_REQUEST), (Tag.MESSAGE, "no id")])
    connection.data_received(encode(Type.ERROR, started.id, error))
    with pytest.raises(InvalidInput, match="no id"):
        await waiting


async def test_an_unknown_command(connection: GuestConnection) -> None:
    process = Process(connection, "c", oom=OomWatch(None))
    waiting = asyncio.ensure_future(process.wait())
    await turn()
    error = encode_fields([(Tag.CODE, Code.NO_COMMAND), (Tag.MESSAGE, "no such command")])
    for request_id in (1, 2, 3):
        connection.data_received(encode(Type.ERROR, request_id, error))
    with pytest.raises(NotFound):
        await waiting


async def test_all_of_the_input_goes_with_the_start(
    connection: GuestConnection, other: FakeTransport
) -> None:
    process = Process(connection, "c", oom=OomWatch(None))
    process.feed(b"data")
    await turn()
    assert [kind for kind, _, _ in other.frames] == [Type.STDIN, Type.DATA, Type.FINISH]
    assert dict(decode_fields(other.frames[0][2])) == {Tag.COMMAND: b"c"}
    assert other.writes == 1


async def test_closing_twice(connection: GuestConnection) -> None:
    await connection.close()
    await connection.close()
    assert connection.lost
