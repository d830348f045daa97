"""The guest's protocol through the service: the SDK's path, what does not pass, and hostile frames."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cloche.client.http.backend import HttpBackend
from cloche.client.target import Service
from cloche.core.errors import SandboxLost
from cloche.sandbox.guest.frames import (
    PROTOCOL_VERSION,
    Code,
    Tag,
    Type,
    decode_fields,
    encode,
    encode_fields,
)
from cloche.sandbox.spec import Command, EndReason

HELLO = encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, PROTOCOL_VERSION)]))


async def test_a_handle_works_over_it_unchanged(api: Any, box: str, state: Path) -> None:
    backend = HttpBackend(Service(url=api.base))
    handle = await backend.handle(box)
    try:
        done = await handle.run(Command(shell="cat; pwd", stdin=b"in"))
        assert done.stdout.text == "in/\n"
        data = bytes(range(256)) * 20_000
        await handle.write_file("/big", data)
        assert await handle.read_file("/big") == data
        found = await asyncio.gather(*(handle.run(Command(shell=f"echo {n}")) for n in range(50)))
        assert [one.stdout.text for one in found] == [f"{n}\n" for n in range(50)]
    finally:
        await handle.close()
        await backend.close()
    api.running.context.audit.flush()
    lines = [json.loads(line) for line in (state / "audit.jsonl").read_text().splitlines()]
    assert sum(line["what"] == "guest.start" for line in lines) == 51


async def _line(api: Any, box: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = api.base.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"GET /v1/sandboxes/{box}/guest HTTP/1.1\r\nHost: {host}:{port}\r\n"
    writer.write(f"{head}Connection: Upgrade\r\nUpgrade: cloche-guest\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


async def _frame(reader: asyncio.StreamReader) -> tuple[int, int, dict[int, bytes]]:
    head = await reader.readexactly(12)
    size = int.from_bytes(head[:4], "little")
    body = await reader.readexactly(size)
    return int.from_bytes(head[4:6], "little"), int.from_bytes(head[8:], "little"), dict(decode_fields(body))


async def test_a_shutdown_does_not_pass(api: Any, box: str) -> None:
    reader, writer = await _line(api, box)
    writer.write(HELLO + encode(Type.SHUTDOWN, 2) + encode(99, 3) + encode(Type.PING, 4))
    assert (await _frame(reader))[:2] == (Type.REPLY, 1)
    for number in (2, 3):
        kind, request_id, fields = await _frame(reader)
        assert (kind, request_id) == (Type.ERROR, number)
        assert int.from_bytes(fields[Tag.CODE], "little") == Code.UNKNOWN_TYPE
    assert (await _frame(reader))[:2] == (Type.REPLY, 4)
    writer.close()
    await writer.wait_closed()


@pytest.mark.fault("relay-hostile-frames")
@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        encode(Type.PING, 1),
        HELLO + (2 << 20).to_bytes(4, "little") + bytes(8),
        HELLO + encode(Type.START, 2, b"\x06\x00\xff\xff\xff\xff"),
        encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, 77)])),
    ],
)
async def test_what_is_no_frame_ends_this_line_and_no_other(api: Any, box: str, data: bytes) -> None:
    reader, writer = await _line(api, box)
    writer.write(data)
    await reader.read()  # to its end
    writer.close()
    assert (await api.run(box, "echo well"))["stdout"]["data"] == "well\n"


async def test_a_client_that_reads_nothing_holds_up_nobody(api: Any, box: str) -> None:
    reader, writer = await _line(api, box)
    fields = [(Tag.COMMAND, "flood"), (Tag.SHELL, "head -c 50000000 /dev/zero"), (Tag.SPILL, 1)]
    wanted = [(Tag.COMMAND, "flood"), (Tag.STREAM, 0), (Tag.CREDIT, 1 << 60)]
    writer.write(HELLO + encode(Type.START, 2, encode_fields(fields)))
    writer.write(encode(Type.OUTPUT, 3, encode_fields(wanted)))
    assert (await _frame(reader))[0] == Type.REPLY
    assert (await api.run(box, "echo well"))["stdout"]["data"] == "well\n"
    writer.transport.abort()


async def test_the_end_of_the_sandbox_is_the_end_of_the_line(api: Any) -> None:
    box = await api.create()
    backend = HttpBackend(Service(url=api.base))
    handle = await backend.handle(box)
    try:
        process = await handle.start(Command(argv=("sleep", "600")))
        waiting = asyncio.create_task(process.wait())
        await api.ask("DELETE", f"/v1/sandboxes/{box}", status=200)
        assert (await waiting).reason is EndReason.SANDBOX_LOST
        with pytest.raises(SandboxLost):
            await handle.ping()
    finally:
        await handle.close()
        await backend.close()
