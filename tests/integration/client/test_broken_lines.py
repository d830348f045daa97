"""The way to a guest breaks while the sandbox lives: commands run once, and no output is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from cloche.api.models import SandboxView, State
from cloche.client.aio import AsyncSandbox
from cloche.client.backend import Backend
from cloche.client.http import guest
from cloche.client.target import Service
from cloche.core.errors import NotFound, SandboxLost
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.guest.records import Chunk
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native.runtime import NativeRuntime
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import EndReason, ImageConfig, PreparedImage, SandboxSpec


class Relay:
    """Upgrades and carries bytes to a guest, as a service does, and can be cut."""

    def __init__(self, settings: Settings) -> None:
        self._runtime = NativeRuntime(settings)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.closed = False
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        name = head.split(b"/")[3].decode()
        try:
            inner = await asyncio.open_unix_connection(self._runtime.find(name).socket)
        except OSError:
            writer.close()
            return
        self.connections += 1
        self._writers |= {writer, inner[1]}
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: cloche-guest\r\n\r\n")
        for source, sink in ((reader, inner[1]), (inner[0], writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            return
        finally:
            sink.close()

    def cut(self) -> None:
        """Break every connection at once."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self.cut()
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


class OverRelay:
    """As much of a backend as a sandbox object needs here."""

    def __init__(self, relay: Relay, driver: LocalDriver) -> None:
        self.relay = relay
        self.driver = driver

    async def get(self, sandbox_id: str) -> SandboxView:
        infos = {info.id: info for info in await self.driver.list()}
        if sandbox_id not in infos:
            raise NotFound(f"there is no sandbox {sandbox_id}")
        state = State(infos[sandbox_id].state.value)
        return SandboxView(id=sandbox_id, state=state, times={}, image="busybox", lease={"heartbeat_s": None})

    async def handle(self, sandbox_id: str) -> Sandbox:
        connection = await guest.connect(Service(self.relay.url), sandbox_id)
        return Sandbox(
            spec=SandboxSpec(id=sandbox_id),
            config=ImageConfig(env={"PATH": "/bin"}),
            connection=connection,
            deleter=self.driver.delete,
        )

    async def release(self, handle: Sandbox) -> None:
        await handle.close()

    async def delete(self, sandbox_id: str) -> SandboxView:
        view = await self.get(sandbox_id)
        await self.driver.delete(sandbox_id)
        return view.model_copy(update={"state": State.ENDED})


@pytest_asyncio.fixture
async def relay(settings: Settings) -> AsyncIterator[Relay]:
    made = Relay(settings)
    await made.open()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def box(relay: Relay, driver: LocalDriver, busybox_image: PreparedImage) -> AsyncIterator[AsyncSandbox]:
    made = await driver.create(SandboxSpec(), busybox_image)
    await made.close()
    backend = OverRelay(relay, driver)
    sandbox = AsyncSandbox(cast(Backend, backend), await backend.get(made.id))
    yield sandbox
    await sandbox.close()
    await driver.delete(made.id)


async def test_a_sandbox_over_an_upgraded_connection(box: AsyncSandbox, tmp_path: Any) -> None:
    assert (await box.run("echo $((6*7)); echo no >&2")).stdout.text == "42\n"
    assert (await box.run(["cat"], stdin="räksmörgås")).stdout.text == "räksmörgås"
    assert (await box.run("exit 3")).exit_code == 3
    assert (await box.run("sleep 30", timeout_s=0.2)).reason is EndReason.TIMEOUT
    data = bytes(range(256)) * 20_000
    await box.files.write("/deep/er/file", data)
    assert await box.files.read("/deep/er/file") == data
    await box.files.download("/deep", tmp_path / "deep")
    assert (tmp_path / "deep" / "er" / "file").read_bytes() == data
    assert [info.path for info in await box.files.glob("/deep/**/f*")] == ["/deep/er/file"]
    process = await box.start("while read line; do echo got $line; done", interactive=True)
    await process.write("one\n")
    await process.write("two\n")
    await process.close_stdin()
    assert [text async for text in process.text()][-1].endswith("two\n")
    assert (await process.wait()).ok


@pytest.mark.fault("guest-connection-cut")
async def test_a_command_runs_once_though_its_connection_breaks(box: AsyncSandbox, relay: Relay) -> None:
    pieces: list[Chunk] = []
    seen = asyncio.Event()

    def tell(chunk: Chunk) -> None:
        pieces.append(chunk)
        seen.set()

    line = "echo began >> /log; echo one; while [ ! -e /go ]; do sleep 0.02; done; echo two"
    running = asyncio.create_task(box.run(line, on_output=tell))
    await seen.wait()
    relay.cut()
    assert await box.files.exists("/log")  # a look finds the way again; a write is never sent twice
    await box.files.write("/go", b"")
    done = await running
    assert (done.reason, done.stdout.text) == (EndReason.EXIT, "one\ntwo\n")
    assert b"".join(piece.data for piece in pieces) == b"one\ntwo\n"
    assert await box.files.read_text("/log") == "began\n"
    assert relay.connections >= 2


@pytest.mark.fault("start-answer-lost")
async def test_a_start_that_was_cut_off_is_never_run_twice(box: AsyncSandbox, relay: Relay) -> None:
    for number in range(12):
        await box.run("true")
        starting = asyncio.create_task(box.start("echo ran >> /log", id=f"c-{number}"))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        relay.cut()
        await (await starting).wait()
    assert (await box.files.read_text("/log")).count("ran") == 12


async def test_a_stream_goes_on_where_it_was_cut(box: AsyncSandbox, relay: Relay) -> None:
    process = await box.start("for i in $(seq 400); do echo line $i; sleep 0.002; done")
    data, cuts = b"", 0
    async for chunk in process.output():
        data += chunk.data
        if len(data) > 800 * (cuts + 1) and cuts < 3:
            cuts += 1
            relay.cut()
    assert cuts == 3
    assert data == b"".join(b"line %d\n" % number for number in range(1, 401))
    both = [chunk async for chunk in process]
    assert b"".join(chunk.data for chunk in both) == data


@pytest.mark.fault("sandbox-gone-in-mid-command")
async def test_a_sandbox_that_is_over_is_told_and_not_waited_for(
    box: AsyncSandbox, driver: LocalDriver
) -> None:
    seen = asyncio.Event()
    running = asyncio.create_task(box.run("echo here; sleep 60", on_output=lambda _: seen.set()))
    await seen.wait()
    await driver.delete(box.id)
    done = await running
    assert done.reason is EndReason.SANDBOX_LOST
    assert "is over" in done.message
    with pytest.raises((SandboxLost, NotFound)):
        await box.files.read("/etc/passwd")


async def test_a_cancelled_caller_ends_the_tree_over_a_new_connection(
    box: AsyncSandbox, relay: Relay
) -> None:
    seen = asyncio.Event()
    line = "sleep 61 & while [ ! -e /go ]; do echo on; sleep 0.02; done; sleep 62"
    running = asyncio.create_task(box.run(line, on_output=lambda _: seen.set()))
    await seen.wait()
    relay.cut()
    seen.clear()
    await seen.wait()  # over the next connection
    await box.files.write("/go", b"")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "sleep 6" not in (await box.run("ps")).stdout.text
