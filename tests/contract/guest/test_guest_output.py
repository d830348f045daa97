"""Output: by offset, under a cap, spilled, to several readers; a slow one holds up nobody."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from cloche.sandbox.guest.frames import PROTOCOL_VERSION, Tag, Type, encode, encode_fields
from cloche.sandbox.handle import Chunk, Process, Sandbox
from cloche.sandbox.spec import Command


async def _read(process: Process, stream: str = "stdout", offset: int = 0) -> list[Chunk]:
    return [chunk async for chunk in process.output(stream, offset)]


def _joined(chunks: list[Chunk]) -> bytes:
    return b"".join(chunk.data for chunk in chunks)


NUMBERS = "".join(f"{n:07d}\n" for n in range(100_000)).encode()
COUNT = "seq -f %07.0f 0 99999"


@pytest.fixture
async def sandbox(lone) -> Sandbox:
    return await lone.sandbox()


@pytest.mark.fault("output-over-its-cap")
@pytest.mark.parametrize("live", [False, True])
async def test_the_cap_keeps_head_and_tail(sandbox: Sandbox, live: bool) -> None:
    seen: list[Chunk] = []
    done = await sandbox.run(
        Command(shell=COUNT, output_cap_bytes=10_000), on_output=seen.append if live else None
    )
    assert done.ok
    assert done.stdout.total_bytes == len(NUMBERS)
    assert done.stdout.truncated
    assert done.stdout.head == NUMBERS[:5000]
    assert done.stdout.tail == NUMBERS[-5000:]
    assert b"790000 bytes left out" in done.stdout.data


async def test_under_the_cap_all_is_kept(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell=COUNT, output_cap_bytes=2 * len(NUMBERS)))
    assert done.stdout.data == NUMBERS
    assert not done.stdout.truncated


@pytest.mark.parametrize("cap", [0, 1, 2, 7, 4096, 8191, len(NUMBERS), len(NUMBERS) + 1])
async def test_any_cap(sandbox: Sandbox, cap: int) -> None:
    done = await sandbox.run(Command(shell=COUNT, output_cap_bytes=cap))
    head, tail = done.stdout.head, done.stdout.tail
    assert len(head) + len(tail) == min(cap, len(NUMBERS))
    assert NUMBERS.startswith(head)
    assert NUMBERS.endswith(tail)
    assert done.stdout.total_bytes == len(NUMBERS)


async def test_every_chunk_comes_once_and_in_order(sandbox: Sandbox) -> None:
    seen: list[Chunk] = []
    script = f"{COUNT} & {COUNT} >&2; wait"
    await sandbox.run(Command(shell=script, output_cap_bytes=4_000_000), on_output=seen.append)
    for stream in ("stdout", "stderr"):
        chunks = [chunk for chunk in seen if chunk.stream == stream]
        assert [chunk.offset for chunk in chunks] == [
            sum(len(before.data) for before in chunks[:n]) for n in range(len(chunks))
        ]
        assert _joined(chunks) == NUMBERS


async def test_a_reader_leaves_and_comes_back(lone) -> None:
    first, second = await lone.sandbox(), await lone.sandbox()
    process = await first.start(Command(id="long", shell=f"{COUNT}; sleep 0.2; {COUNT}"))
    got = bytearray()
    async for chunk in process.output():
        got += chunk.data
        if len(got) > 100_000:
            break
    await first.close()
    again = second.process("long")
    for chunk in await _read(again, offset=len(got)):
        assert chunk.offset == len(got)
        got += chunk.data
    assert bytes(got) == NUMBERS * 2


async def test_reading_from_any_offset_after_the_end(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(shell="printf 0123456789; printf abc >&2"))
    await process.wait()
    assert _joined(await _read(process, offset=4)) == b"456789"
    assert _joined(await _read(process, "stderr", offset=1)) == b"bc"
    assert await _read(process, offset=10) == []
    assert await _read(process, offset=1 << 60) == []


async def test_bytes_that_are_gone_are_left_out(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(shell=COUNT, output_cap_bytes=1000))
    await process.wait()
    chunks = await _read(process, offset=100)
    assert (chunks[0].offset, len(chunks[0].data)) == (100, 400)
    rest = chunks[1:]
    assert rest[0].offset == len(NUMBERS) - 500
    assert _joined(rest) == NUMBERS[-500:]


async def test_a_spilled_log_is_whole(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(shell=COUNT, output_cap_bytes=1000, spill=True))
    done = await process.wait()
    assert len(done.stdout.head + done.stdout.tail) == 1000
    assert _joined(await _read(process)) == NUMBERS
    assert _joined(await _read(process, offset=700_001)) == NUMBERS[700_001:]


@pytest.mark.fault("output-of-a-gibibyte")
@pytest.mark.slow
async def test_a_gibibyte_of_output(sandbox: Sandbox) -> None:
    done = await sandbox.run(Command(shell="head -c 1073741824 /dev/zero; echo end", output_cap_bytes=4096))
    assert done.ok
    assert done.stdout.total_bytes == (1 << 30) + 4
    assert done.stdout.tail.endswith(b"\0end\n")


async def test_a_stream_of_all_of_it(sandbox: Sandbox) -> None:
    script = "head -c 50000000 /dev/urandom | tee /dev/stderr | sha256sum >&2; true"
    digest = hashlib.sha256()
    text = bytearray()

    def take(chunk: Chunk) -> None:
        text.extend(chunk.data)

    done = await sandbox.run(Command(shell=script, output_cap_bytes=60_000_000, spill=True), on_output=take)
    assert done.stdout.total_bytes == 0
    body, said = bytes(text[:50_000_000]), bytes(text[50_000_000:])
    digest.update(body)
    assert said.split()[0].decode() == digest.hexdigest()


@pytest.mark.fault("reader-that-stalls")
async def test_a_reader_without_credit_holds_up_nobody(sandbox: Sandbox, lone) -> None:
    connection = await lone.connect()
    process = await sandbox.start(Command(id="much", shell=COUNT, output_cap_bytes=4_000_000))
    stalled = connection.call(Type.OUTPUT, [(Tag.COMMAND, "much"), (Tag.STREAM, 0), (Tag.CREDIT, 10)])
    assert _joined(await _read(process)) == NUMBERS
    assert (await process.wait()).ok
    assert not stalled.reply.done()
    assert _size(stalled.taken()) == 10
    await connection.ask(Type.PING)


def _size(pieces: list[tuple[int, bytes]]) -> int:
    return sum(len(data) for _, data in pieces)


@pytest.mark.fault("client-that-stops-reading")
async def test_a_client_that_reads_nothing_holds_up_nobody(sandbox: Sandbox, lone) -> None:
    reader, writer = await asyncio.open_unix_connection(lone.socket_path, limit=1024)
    writer.write(encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, PROTOCOL_VERSION)])))
    await sandbox.start(Command(id="flood", shell="cat /dev/zero", output_cap_bytes=1_000_000))
    want = [(Tag.COMMAND, "flood"), (Tag.STREAM, 0), (Tag.CREDIT, 1 << 40)]
    writer.write(encode(Type.OUTPUT, 2, encode_fields(want)))
    await writer.drain()
    for _ in range(20):
        assert (await sandbox.run(Command(shell="echo ok"))).stdout.data == b"ok\n"
        await sandbox.ping()
    await sandbox.process("flood").cancel()
    writer.close()
    del reader
    await writer.wait_closed()


async def test_a_flood_of_requests_without_reading_is_bounded(
    sandbox: Sandbox, lone, guest_program: str
) -> None:
    _, writer = await asyncio.open_unix_connection(lone.socket_path, limit=1024)
    writer.write(encode(Type.HELLO, 1, encode_fields([(Tag.VERSION, PROTOCOL_VERSION)])))
    ask = b"".join(encode(Type.LIST, n + 2, encode_fields([(Tag.PATH, "/usr/bin")])) for n in range(1000))
    writer.write(ask)
    for _ in range(5):
        await sandbox.ping()
        await asyncio.sleep(0.05)
    status = await sandbox.read_file("/proc/1/status")
    rss_kib = int(status.split(b"VmRSS:")[1].split()[0])
    assert rss_kib < (300_000 if "asan" in guest_program else 16_000)  # the sanitizer keeps what was freed
    writer.close()
    await writer.wait_closed()


async def test_two_readers_at_different_speed(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(shell=f"sleep 0.1; {COUNT}", output_cap_bytes=4_000_000))
    other = sandbox.process(process.id)

    async def slowly() -> bytes:
        got = bytearray()
        async for chunk in other.output():
            await asyncio.sleep(0.001)
            got += chunk.data
        return bytes(got)

    quick, slow = await asyncio.gather(_read(process), slowly())
    assert _joined(quick) == NUMBERS
    assert slow == NUMBERS
