"""Hostile clients: garbage, torn frames, wrong order, disconnects; the guest still serves the others."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from cloche.core.errors import InfraError, SandboxLost
from cloche.sandbox.guest import connection as connection_module
from cloche.sandbox.guest.connection import connect
from cloche.sandbox.guest.errors import RequestFailed
from cloche.sandbox.guest.frames import (
    PROTOCOL_VERSION,
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
)
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command

HELLO = encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, PROTOCOL_VERSION)]))


@pytest.fixture
async def sandbox(lone) -> Sandbox:
    return await lone.sandbox()


async def _say(guest, data: bytes) -> list[tuple[int, int, bytes]]:
    """Send bytes, and no more; return the frames that come back before the guest hangs up."""
    reader, writer = await asyncio.open_unix_connection(guest.socket_path)
    frames = []
    try:
        writer.write(data)
        writer.write_eof()
        received = FrameReader()
        while piece := await reader.read(65536):
            frames += received.feed(piece)
    except ConnectionError:
        pass  # it hung up before it had read everything: that is an answer too
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return frames


def _code(frame: tuple[int, int, bytes]) -> int:
    assert frame[0] == Type.ERROR
    return number(dict(decode_fields(frame[2]))[Tag.CODE])


@pytest.mark.fault("hostile-frames")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Code.BAD_FRAME),
        (b"\xff" * 64, Code.BAD_FRAME),
        (struct.pack("<IHHI", (1 << 20) + 1, 1, 0, 1), Code.BAD_FRAME),
        (struct.pack("<IHHI", 0, 1, 7, 1), Code.BAD_FRAME),
        (encode(Type.PING, 1), Code.BAD_FRAME),
        (encode(Type.DATA, 1, bytes(8)), Code.BAD_FRAME),
        (encode(Type.HELLO, 1, b"\x01\x00\xff\xff\xff\xff"), Code.BAD_FRAME),
        (encode(Type.HELLO, 1, b"\x01"), Code.BAD_FRAME),
        (encode(Type.HELLO, 1), Code.VERSION),
        (encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, 2)])), Code.VERSION),
        (encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, b"1")])), Code.VERSION),
    ],
)
async def test_a_bad_start_ends_the_connection(lone, sandbox: Sandbox, data: bytes, code: Code) -> None:
    frames = await _say(lone, data + encode(Type.PING, 9))
    assert [_code(frame) for frame in frames] == [code]
    assert (await sandbox.run(Command(argv=("true",)))).ok


async def test_a_torn_request_after_a_good_start(lone, sandbox: Sandbox) -> None:
    frames = await _say(
        lone, HELLO + encode(Type.START, 2, b"\x06\x00\x10\x00\x00\x00x") + encode(Type.PING, 3)
    )
    assert frames[0][0] == Type.REPLY
    assert [_code(frame) for frame in frames[1:]] == [Code.BAD_FRAME]
    await sandbox.ping()


async def test_an_unknown_request_is_refused_and_no_more(lone) -> None:
    connection = await lone.connect()
    for kind in (0, 15, 19, 28, 39, 44, 50, 51, 65535):
        call = connection.call(Type.PING)
        frame_id = call.id
        connection.send(encode(kind, frame_id + 1_000_000))
        await call.result()
    await connection.ask(Type.PING)


@pytest.mark.parametrize(
    "kind", [kind for kind in Type if kind not in {Type.HELLO, Type.SHUTDOWN, Type.KILL_ALL}]
)
async def test_every_request_without_any_field(lone, sandbox: Sandbox, kind: Type) -> None:
    await _say(lone, HELLO + encode(kind, 2) + encode(kind, 0) + encode(kind, 0xFFFFFFFF))
    assert (await sandbox.run(Command(argv=("true",)))).ok


async def test_an_id_that_is_used_twice_ends_the_connection(lone, sandbox: Sandbox) -> None:
    await sandbox.start(Command(id="on", argv=("sleep", "100")))
    wait = encode(Type.WAIT, 5, encode_fields([(Tag.COMMAND, "on")]))
    frames = await _say(lone, HELLO + wait + wait)
    assert _code(frames[-1]) == Code.BAD_FRAME


@pytest.mark.fault("client-drops-in-mid-frame")
async def test_a_disconnect_at_every_byte(lone, sandbox: Sandbox, tmp_path) -> None:
    request = encode_fields([(Tag.COMMAND, "cut"), (Tag.SHELL, "exit 0"), (Tag.STDIN, 1)])
    write = encode(Type.WRITE, 4, encode_fields([(Tag.PATH, str(tmp_path / "file"))]))
    talk = HELLO + encode(Type.START, 2, request) + write + encode_data(4, 0, b"abc")
    for length in range(len(talk) + 1):
        await _say(lone, talk[:length])
    assert (await sandbox.run(Command(argv=("true",)))).ok
    assert list(tmp_path.iterdir()) == []


async def test_data_beyond_the_window_ends_the_stream(lone, sandbox: Sandbox) -> None:
    await sandbox.start(Command(id="deaf", argv=("sleep", "100"), interactive=True))
    talk = HELLO + encode(Type.STDIN, 2, encode_fields([(Tag.COMMAND, "deaf")]))
    sent = 0
    while sent <= 2 * WINDOW_BYTES:
        talk += encode_data(2, sent, bytes(65536))
        sent += 65536
    frames = [frame for frame in await _say(lone, talk) if frame[1] == 2 and frame[0] == Type.ERROR]
    assert [_code(frame) for frame in frames] == [Code.LIMIT]
    await sandbox.ping()


async def test_data_out_of_place_ends_the_stream(lone, tmp_path) -> None:
    write = encode(Type.WRITE, 2, encode_fields([(Tag.PATH, str(tmp_path / "file"))]))
    for data in (encode_data(2, 5, b"x"), encode(Type.DATA, 2, b"short")):
        frames = await _say(lone, HELLO + write + data)
        assert _code(frames[-1]) == Code.BAD_REQUEST
    assert list(tmp_path.iterdir()) == []


async def test_frames_for_no_stream_are_ignored(lone) -> None:
    talk = HELLO
    for kind in (Type.CREDIT, Type.FINISH, Type.RESET):
        talk += encode(kind, 77)
    talk += encode_data(78, 0, b"x") + encode_credit(79, 1 << 63) + encode(Type.PING, 3)
    frames = await _say(lone, talk)
    assert [(kind, request_id) for kind, request_id, _ in frames] == [(Type.REPLY, 1), (Type.REPLY, 3)]


@pytest.mark.parametrize("seed", range(5))
async def test_random_frames(lone, sandbox: Sandbox, seed: int) -> None:
    rng = random.Random(seed)
    kinds = [kind for kind in Type if kind not in {Type.SHUTDOWN, Type.KILL_ALL, Type.REMOVE, Type.MOVE}]
    for _ in range(60):
        talk = HELLO
        for _ in range(rng.randrange(1, 8)):
            fields = [
                (rng.choice(list(Tag)), rng.choice([rng.getrandbits(64), rng.randbytes(rng.randrange(20))]))
                for _ in range(rng.randrange(6))
            ]
            body = encode_fields([(tag, value) for tag, value in fields if tag not in {Tag.PATH, Tag.SPILL}])
            if rng.random() < 0.2:
                body = body[: rng.randrange(len(body) + 1)]
            talk += encode(rng.choice(kinds), rng.randrange(4), body)
        await _say(lone, talk)
    await sandbox.kill_all()
    assert (await sandbox.run(Command(argv=("true",)))).ok


async def test_more_connections_than_there_may_be(lone, sandbox: Sandbox) -> None:
    pairs = [await asyncio.open_unix_connection(lone.socket_path) for _ in range(80)]
    assert (await sandbox.run(Command(argv=("true",)))).ok
    for _, writer in pairs:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    await (await lone.connect()).ask(Type.PING)


async def test_more_requests_than_may_be_open(lone, sandbox: Sandbox) -> None:
    await sandbox.start(Command(id="on", argv=("sleep", "100")))
    connection = await lone.connect()
    calls = [connection.call(Type.WAIT, [(Tag.COMMAND, "on")]) for _ in range(4100)]
    with pytest.raises(RequestFailed) as caught:
        await calls[-1].result()
    assert caught.value.code == Code.LIMIT
    await connection.ask(Type.PING)


@pytest.mark.fault("guest-of-another-version")
async def test_a_guest_of_another_version_is_said(lone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PROTOCOL_VERSION", 99)
    with pytest.raises(InfraError, match="protocol version 1") as caught:
        await connect(lone.socket_path)
    assert caught.value.code == "infra/protocol"


async def test_nobody_listens(tmp_path) -> None:
    with pytest.raises(SandboxLost, match="nothing answers"):
        await connect(tmp_path / "no.sock")


async def test_a_socket_path_longer_than_an_address(lone, tmp_path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    (folder / "guest.sock").hardlink_to(lone.socket_path)
    connection = await connect(folder / "guest.sock")
    await connection.ask(Type.PING)
    await connection.close()
