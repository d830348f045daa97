"""The spawner's socket: only root may use it, and nonsense ends a connection, never the spawner."""

# a test may block its own loop

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator

import pytest

from cloche.core.errors import EnvironmentUnusable, InfraError
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.guest.frames import encode, encode_fields
from cloche.sandbox.native import spawner as client
from cloche.sandbox.native import wire
from cloche.sandbox.native.spawner import Spawner
from cloche.sandbox.native.wire import Request, Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec

HELLO = encode(Request.HELLO, 1, encode_fields([(Tag.VERSION, wire.VERSION)]))

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def alive(driver: LocalDriver, busybox_image: PreparedImage) -> AsyncIterator[None]:
    """A sandbox lives meanwhile, and still works afterwards."""
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        yield
        assert (await sandbox.run(Command(argv=("/bin/true",)))).ok
        async with await driver.create(SandboxSpec(), busybox_image) as another:
            assert (await another.run(Command(argv=("/bin/true",)))).ok


async def talk(settings: Settings, data: bytes) -> bytes:
    """Send bytes and return all that comes back until the spawner hangs up or nothing more comes."""
    reader, writer = await asyncio.open_unix_connection(settings.run_dir / "spawner.sock")
    try:
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        os.urandom(100_000),
        struct.pack("<IHHI", 0xFFFFFFFF, 1, 0, 1),
        struct.pack("<IHHI", 8, 1, 7, 1) + bytes(8),
        encode(Request.CREATE, 1),
        HELLO + os.urandom(5000),
        HELLO + struct.pack("<IHHI", 0xFFFFFF, 2, 0, 2),
    ],
    ids=[
        "nothing",
        "http",
        "noise",
        "huge",
        "flags",
        "no hello",
        "noise after hello",
        "too long after hello",
    ],
)
@pytest.mark.usefixtures("alive")
async def test_nonsense_ends_the_connection_only(settings: Settings, data: bytes) -> None:
    await talk(settings, data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        encode_fields([(Tag.ID, "a b")]),
        encode_fields([(Tag.ID, "../../etc")]),
        encode_fields([(Tag.ID, "ok"), (Tag.HOSTNAME, "h"), (Tag.ARG, "x"), (Tag.LAYER, "../../../etc")]),
        encode_fields([(Tag.ID, "ok"), (Tag.HOSTNAME, "h"), (Tag.ARG, "x"), (Tag.LAYER, "/etc")]),
        encode_fields([(Tag.ID, "ok"), (Tag.HOSTNAME, "h"), (Tag.ARG, "x"), (Tag.LAYER, "a/../../b")]),
        encode_fields([(Tag.ID, "ok"), (Tag.ID, "twice")]),
        encode_fields([(Tag.ID, "nul\0inside")]),
        encode_fields([(99, "unknown tag")]),
        encode_fields([(Tag.ID, "ok"), (Tag.NETWORK, 7)]),
    ],
)
@pytest.mark.usefixtures("alive")
async def test_a_wrong_create_is_refused(settings: Settings, body: bytes) -> None:
    answer = await talk(settings, HELLO + encode(Request.CREATE, 2, body))
    assert b"bad_request" in answer
    assert not (settings.sandboxes_dir / "ok").exists()


@pytest.mark.parametrize("name", ["..", "../sandboxes", "UP", "", "a/b"])
@pytest.mark.usefixtures("alive")
async def test_a_wrong_delete_is_refused(settings: Settings, name: str) -> None:
    request = encode(Request.DELETE, 2, encode_fields([(Tag.ID, name)]))
    assert b"bad_request" in await talk(settings, HELLO + request)


@pytest.mark.usefixtures("alive")
async def test_bytes_may_come_one_by_one(settings: Settings) -> None:
    reader, writer = await asyncio.open_unix_connection(settings.run_dir / "spawner.sock")
    for number in HELLO:
        writer.write(bytes([number]))
        await writer.drain()
    async with asyncio.timeout(5):
        assert len(await reader.readexactly(12)) == 12
    writer.close()


@pytest.mark.fault("spawner-of-another-version")
@pytest.mark.usefixtures("alive")
async def test_another_version_is_told_apart(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "VERSION", wire.VERSION + 1)
    newer = Spawner(settings)
    with pytest.raises(EnvironmentUnusable, match="another version"):
        await newer.ask(Request.STATUS)
    await newer.close()


@pytest.mark.usefixtures("alive")
async def test_the_sockets_folder_is_roots_alone(settings: Settings) -> None:
    assert settings.run_dir.stat().st_mode & 0o777 == 0o700
    assert settings.state_dir.stat().st_mode & 0o777 == 0o700
    assert (settings.run_dir / "spawner.sock").stat().st_mode & 0o777 == 0o600


async def test_the_spawner_leaves_when_it_is_idle_and_the_next_is_started(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image):
        runtime = driver._runtime
        await runtime.stop()  # something is alive: it stays
        assert (settings.run_dir / "spawner.sock").exists()
    await runtime.stop()
    assert not (settings.run_dir / "spawner.sock").exists()
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        assert (await sandbox.run(Command(argv=("/bin/true",)))).ok


async def test_many_clients_start_one_spawner(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    await driver._runtime.stop()
    clients = [Spawner(settings) for _ in range(8)]
    answers = await asyncio.gather(*(each.ask(Request.STATUS) for each in clients))
    assert len({dict(answer)[Tag.PID] for answer in answers}) == 1
    for each in clients:
        await each.close()


async def test_a_connection_that_is_lost_fails_what_waits(settings: Settings) -> None:
    one = Spawner(settings)
    await one.ask(Request.STATUS)
    connection = one._connection
    assert connection is not None
    asking = asyncio.create_task(connection.ask(Request.STATUS))
    await asyncio.sleep(0)
    connection.abort()
    with pytest.raises(InfraError, match="spawner ended"):
        await asking
    assert dict(await one.ask(Request.STATUS))[Tag.VERSION]  # the next request connects anew
    await one.close()
