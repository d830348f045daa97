"""The client of the spawner: finds the one of this installation or starts it, and asks it for things.

Must never send a request twice: a request whose connection is lost fails, and the caller decides.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from cloche.core.errors import ClocheError, EnvironmentUnusable, InfraError
from cloche.sandbox.guest.frames import (
    Fields,
    FrameReader,
    TornFrame,
    Value,
    decode_fields,
    encode,
    encode_fields,
)
from cloche.sandbox.native import launch
from cloche.sandbox.native.errors import refusal
from cloche.sandbox.native.wire import VERSION, Answer, Request, Tag
from cloche.sandbox.settings import Settings

_SUN_PATH_BYTES_MAX = 107
_START_TIMEOUT_S = 20.0
_RETRY_S = 0.02


class SpawnerConnection(asyncio.Protocol):
    """One connection: many requests may be under way, each gets one answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Fields]] = {}
        self._next_id = 0
        self._closed: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what unix sockets give
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand each answer to its request."""
        try:
            for kind, request_id, body in self._reader.feed(data):
                waiter = self._waiting.pop(request_id, None)
                if waiter is None or waiter.done():
                    continue
                fields = decode_fields(body)
                if kind == Answer.REPLY:
                    waiter.set_result(fields)
                else:
                    waiter.set_exception(refusal(fields))
        except TornFrame:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(InfraError("the spawner ended", code="infra/transport"))
        if not self._closed.done():
            self._closed.set_result(None)

    @property
    def lost(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._transport is None or self._transport.is_closing()

    async def ask(self, request: Request, fields: list[tuple[int, Value]] | None = None) -> Fields:
        """Send a request and wait for the answer. Raises what the spawner refuses with, or InfraError."""
        if self._transport is None or self._transport.is_closing():
            raise InfraError("the spawner ended", code="infra/transport")
        self._next_id = self._next_id % 0xFFFFFFFF + 1
        frame = encode(request, self._next_id, encode_fields(fields or []))
        waiter: asyncio.Future[Fields] = self._loop.create_future()
        self._waiting[self._next_id] = waiter
        self._transport.write(frame)
        return await waiter

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Let go of the connection."""
        if self._transport is not None:
            self._transport.close()
            await self._closed

    async def wait_closed(self) -> None:
        """Wait until the spawner is gone."""
        await self._closed


class Spawner:
    """The spawner of one installation, whether it runs yet or not."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection: SpawnerConnection | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, request: Request, fields: list[tuple[int, Value]] | None = None) -> Fields:
        """Ask the spawner, which is started if none runs.

        Raises EnvironmentUnusable when none can run here, InfraError when it ends before it answers, and what
        it refuses with.
        """
        connection = self._connection
        if connection is None or connection.lost:
            async with self._connecting:
                connection = self._connection
                if connection is None or connection.lost:
                    connection = self._connection = await self._connect()
        return await connection.ask(request, fields)

    async def _connect(self) -> SpawnerConnection:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while True:
                    connection = await self._greet()
                    if connection is not None:
                        return connection
                    if not await launch.start(self._settings):
                        await asyncio.sleep(_RETRY_S)  # another client starts it, or an old one is ending
        except TimeoutError as error:
            raise InfraError(
                f"the spawner did not start within {_START_TIMEOUT_S:g} s",
                hint=f"see {self._settings.run_dir / 'spawner.log'}",
                code="infra/sandbox_start_timeout",
            ) from error

    async def running(self) -> bool:
        """Whether a spawner runs now; starts none."""
        async with self._connecting:  # or each of many that ask at once would leave a connection behind
            if self._connection is None or self._connection.lost:
                self._connection = await self._greet()
            return self._connection is not None

    async def _greet(self) -> SpawnerConnection | None:
        """Connect and exchange versions; None when nobody is there, or no longer."""
        connection = await open_connection(self._settings.run_dir)
        if connection is None:
            return None
        try:
            await connection.ask(Request.HELLO, [(Tag.VERSION, VERSION)])
        except ClocheError as error:
            await connection.close()
            if isinstance(error, EnvironmentUnusable):
                raise
            return None
        return connection

    async def stop(self) -> None:
        """Ask a spawner that runs to leave once nothing is alive, and wait for it if nothing is."""
        if not await self.running() or self._connection is None:
            return
        connection, self._connection = self._connection, None
        try:
            answer = dict(await connection.ask(Request.SHUTDOWN))
        except InfraError:
            return
        if int.from_bytes(answer.get(Tag.LIVE, b""), "little") == 0:
            await connection.wait_closed()
            await launch.wait_gone(self._settings)
        await connection.close()

    async def close(self) -> None:
        """Let go of the connection; the spawner leaves by itself when it is idle."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def open_connection(run_dir: Path) -> SpawnerConnection | None:
    """Connect to the socket in this folder; None when nobody listens there."""
    loop = asyncio.get_running_loop()
    folder = None
    address = str(run_dir / "spawner.sock")
    try:
        if len(os.fsencode(address)) > _SUN_PATH_BYTES_MAX:
            folder = os.open(run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            address = f"/proc/self/fd/{folder}/spawner.sock"
        _, connection = await loop.create_unix_connection(lambda: SpawnerConnection(loop), address)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except PermissionError as error:
        raise EnvironmentUnusable("the native runtime needs root", hint="run the command as root") from error
    finally:
        if folder is not None:
            os.close(folder)
    return connection
