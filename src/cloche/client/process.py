"""A command under way, to await. Must never lose output that the guest still holds."""

from __future__ import annotations

import asyncio
import codecs
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from cloche.client.line import Line
from cloche.core.errors import SandboxLost
from cloche.sandbox.guest.records import Chunk
from cloche.sandbox.handle import Process, Sandbox
from cloche.sandbox.spec import Completed, EndReason

Stream = Literal["stdout", "stderr"]
_CHUNKS_AHEAD = 16


class AsyncProcess:
    """One command of a sandbox; any number of these may exist for the same one.

    Iterating yields each piece of its output, both streams as they come, until it is over.
    """

    def __init__(self, line: Line, command_id: str, *, cap_bytes: int = 1 << 20) -> None:
        self._line = line
        self._cap_bytes = cap_bytes
        self._input: tuple[Sandbox, Process] | None = None
        self._id = command_id

    @property
    def id(self) -> str:
        """Its name."""
        return self._id

    async def output(self, stream: Stream = "stdout", offset: int = 0) -> AsyncGenerator[Chunk]:
        """Yield a stream from ``offset`` on, until the command is over and all of it was yielded.

        Leave at any time and come back with the offset. Bytes that are held no longer are left out: the next
        piece's offset tells. Raises NotFound, or SandboxLost when the sandbox is over.
        """
        attempt = 0
        while True:
            try:
                live = await self._line.live()
                async with aclosing(live.process(self.id).output(stream, offset)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        offset, attempt = chunk.offset + len(chunk.data), 0
            except SandboxLost as error:
                await self._line.pause(attempt, error)
                attempt += 1
            else:
                return

    async def text(self, stream: Stream = "stdout", offset: int = 0) -> AsyncGenerator[str]:
        """Yield a stream as text; no character is cut in two, and what is no UTF-8 becomes U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async with aclosing(self.output(stream, offset)) as chunks:
            async for chunk in chunks:
                if decoded := decoder.decode(chunk.data):
                    yield decoded
        if rest := decoder.decode(b"", final=True):
            yield rest

    async def __aiter__(self) -> AsyncGenerator[Chunk]:
        """Yield the pieces of both streams as they come."""
        queue: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue(_CHUNKS_AHEAD)

        async def pump(stream: Stream) -> None:
            ending: Exception | None = None
            try:
                async with aclosing(self.output(stream)) as chunks:
                    async for chunk in chunks:
                        await queue.put(chunk)
            except Exception as error:  # noqa: BLE001  # boundary: handed to whoever iterates, and raised there
                ending = error
            await queue.put(ending)

        pumps = [asyncio.ensure_future(pump(stream)) for stream in ("stdout", "stderr")]
        open_ = len(pumps)
        try:
            while open_:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    open_ -= 1
                else:
                    yield item
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def wait(self) -> Completed:
        """Return how it ended, once it has, with the output that is kept."""
        attempt = 0
        while True:
            try:
                done = await (await self._line.live()).process(self.id, cap_bytes=self._cap_bytes).wait()
                if done.reason is not EndReason.SANDBOX_LOST:
                    return done
                raise SandboxLost(done.message)
            except SandboxLost as error:
                try:
                    await self._line.pause(attempt, error)
                except SandboxLost as lost:
                    return Completed(id=self.id, reason=EndReason.SANDBOX_LOST, message=lost.message)
                attempt += 1

    async def _writer(self) -> Process:
        """Return the one stream to its standard input, on the connection as it is."""
        live = await self._line.live()
        if self._input is None or self._input[0] is not live:
            self._input = (live, live.process(self.id))
        return self._input[1]

    async def write(self, data: bytes | str) -> None:
        """Write to its standard input; waits while nobody reads. Raises InvalidInput when it is closed.

        SandboxLost, when the connection breaks: how much of ``data`` arrived is then not known.
        """
        await (await self._writer()).write(data.encode() if isinstance(data, str) else data)

    async def close_stdin(self) -> None:
        """Close its standard input; on a terminal send what ends the input there (^D)."""
        await (await self._writer()).close_stdin()

    async def signal(self, number: int | signal.Signals) -> None:
        """Send a signal to its process group. Raises InvalidInput once it is over."""
        await (await self._line.live()).process(self.id).signal(int(number))

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal."""
        await self._line.again(lambda live: live.process(self.id).resize(columns, rows))

    async def cancel(self) -> Completed:
        """End its whole tree (TERM, then KILL after its grace time) and return how it ended."""
        return await self._line.again(lambda live: live.process(self.id).cancel())
