"""A command under way or over: its end, its output, its input. Must never report an end it does not know.

A connection that is lost gives ``EndReason.SANDBOX_LOST`` where an end is asked for, and SandboxLost
everywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from cloche.core.errors import SandboxLost
from cloche.sandbox.guest.connection import HELD_BYTES_MAX, READ_WINDOW_BYTES, Call, GuestConnection
from cloche.sandbox.guest.errors import RequestFailed, as_error
from cloche.sandbox.guest.frames import Code, Fields, Tag, Type, Value, number, required
from cloche.sandbox.guest.records import Chunk, Collector, EndRecord, end_record
from cloche.sandbox.spec import Completed, EndReason, Output

STREAMS = ("stdout", "stderr")
_OVER = {Code.CLOSED, Code.NOT_RUNNING, Code.NO_COMMAND}
_UNLIMITED = 1 << 62
_KILLED = 128 + signal.SIGKILL


class OomWatch:
    """Tells whether the sandbox ran out of memory, where the guest itself cannot see it.

    ``kills`` returns how many processes of the sandbox its memory limit has killed so far.
    """

    def __init__(self, kills: Callable[[], Awaitable[int]] | None) -> None:
        self._kills = kills
        self.seen = 0

    async def count(self) -> int | None:
        """Return how many processes were killed so far; None where the guest sees that for itself."""
        return None if self._kills is None else await self._kills()

    async def refine(self, end: EndRecord, before: int) -> EndReason:
        """Return the reason, OUT_OF_MEMORY where a kill nobody asked for goes with a new OOM kill.

        Raises what ``kills`` does where it was not the sandbox's own limit, whatever the guest took it for.
        """
        told = end.reason is EndReason.OUT_OF_MEMORY
        suspicious = (end.reason is EndReason.SIGNAL and end.unexpected) or (
            end.reason is EndReason.EXIT and end.exit_code == _KILLED
        )
        if self._kills is None or not (suspicious or told):
            return end.reason
        self.seen = max(self.seen, await self._kills())
        return EndReason.OUT_OF_MEMORY if told or self.seen > before else end.reason


class Process:
    """A handle on one command of a sandbox; any number of them may exist for the same command."""

    def __init__(
        self,
        connection: GuestConnection,
        command_id: str,
        *,
        oom: OomWatch,
        cap_bytes: int = 1 << 20,
        started: Call | None = None,
    ) -> None:
        self.id = command_id
        self._connection = connection
        self._oom = oom
        self._oom_before = oom.seen
        self._cap_bytes = cap_bytes
        self._started = started
        self._input: Call | None = None
        self._feeding: asyncio.Task[None] | None = None

    def _fields(self, *more: tuple[int, Value]) -> list[tuple[int, Value]]:
        return [(Tag.COMMAND, self.id), *more]

    async def _ask(self, kind: Type, *more: tuple[int, Value]) -> Fields:
        try:
            return await self._connection.ask(kind, self._fields(*more))
        except RequestFailed as failure:
            raise as_error(failure, f"command {self.id}") from failure

    async def started(self) -> None:
        """Wait until the guest has taken the start. Raises InvalidInput, InfraError or SandboxLost."""
        if self._started is not None:
            try:
                await self._started.result()
            except RequestFailed as failure:
                raise as_error(failure, f"command {self.id}") from failure

    # ---- the end ----

    async def wait(self, *, on_output: Callable[[Chunk], None] | None = None) -> Completed:
        """Wait for the end and return it with the output that is kept; ``on_output`` gets it as it comes."""
        calls: list[Call] = []
        collectors = (Collector(self._cap_bytes), Collector(self._cap_bytes))
        try:
            # sent ahead, in one write with the start where that is on its way too
            calls += [self._connection.call(Type.WAIT, self._fields())]
            calls += [self._ask_output(which, live=on_output is not None) for which in (0, 1)]
            await self.started()
            if on_output is None:
                outputs = [await _held(*pair) for pair in zip(calls[1:], collectors, strict=True)]
            else:
                outputs = await _live(calls[1:], collectors, on_output)
            end = end_record(await calls[0].result())
            reason = await self._oom.refine(end, self._oom_before)
        except RequestFailed as failure:
            raise as_error(failure, f"command {self.id}") from failure
        except SandboxLost as error:
            return self._lost(error, *(collector.output() for collector in collectors))
        finally:
            for call in calls:
                call.abandon()
        return self._completed(end, reason, outputs)

    def _ask_output(self, which: int, *, live: bool) -> Call:
        credit = READ_WINDOW_BYTES if live else _UNLIMITED  # what is held at the end is bounded by its cap
        more = ((Tag.STREAM, which), (Tag.CREDIT, credit), (Tag.AT_END, 0 if live else 1))
        window = READ_WINDOW_BYTES if live else HELD_BYTES_MAX
        return self._connection.call(Type.OUTPUT, self._fields(*more), window=window)

    def _completed(self, end: EndRecord, reason: EndReason, outputs: list[Output]) -> Completed:
        return Completed(
            id=self.id,
            reason=reason,
            exit_code=end.exit_code,
            signal=end.signal,
            stdout=outputs[0],
            stderr=outputs[1],
            duration_s=end.duration_s,
            cpu_s=end.cpu_s,
            peak_memory_bytes=end.peak_memory_bytes,
            message=end.message,
        )

    def _lost(self, error: SandboxLost, *outputs: Output) -> Completed:
        stdout, stderr = outputs or (Output(), Output())
        return Completed(
            id=self.id, reason=EndReason.SANDBOX_LOST, stdout=stdout, stderr=stderr, message=error.message
        )

    # ---- output and input ----

    async def output(self, stream: str = "stdout", offset: int = 0) -> AsyncGenerator[Chunk]:
        """Yield the stream from ``offset`` until the command is over and all of it was yielded.

        Bytes that are no longer held are left out: the next chunk's offset tells. Leave at any time and
        come back with the offset to go on from. Raises NotFound or SandboxLost.
        """
        call = self._connection.call(
            Type.OUTPUT,
            self._fields(
                (Tag.STREAM, STREAMS.index(stream)), (Tag.OFFSET, offset), (Tag.CREDIT, READ_WINDOW_BYTES)
            ),
        )
        try:
            async for at, data in call.chunks():
                yield Chunk(stream, at, data)
        except RequestFailed as failure:
            raise as_error(failure, f"{stream} of command {self.id}") from failure
        finally:
            call.abandon()

    def open_input(self) -> Call:
        """Open the stream to its standard input, once for this handle."""
        if self._input is None:
            self._input = self._connection.call(Type.STDIN, self._fields())
        return self._input

    def feed(self, data: bytes) -> None:
        """Send all of its standard input and close it; what is too much for now follows by itself."""
        call = self.open_input()
        if call.send_at_once(data):
            call.finish()
        else:
            self._feeding = asyncio.get_running_loop().create_task(_feed(call, data))

    async def write(self, data: bytes) -> None:
        """Write to its standard input; waits while nobody reads. Raises InvalidInput when closed."""
        try:
            call = self.open_input()
            await call.accepted()
            await call.send(data)
        except RequestFailed as failure:
            raise as_error(failure, f"standard input of command {self.id}") from failure

    async def settled(self) -> None:
        """Wait until the command has taken all that was written. Raises InvalidInput when closed."""
        if self._input is not None:
            try:
                await self._input.settled()
            except RequestFailed as failure:
                raise as_error(failure, f"standard input of command {self.id}") from failure

    def leave_input(self) -> None:
        """Let go of its standard input, which stays open: another handle may write on."""
        if self._input is not None:
            self._input.abandon()
            self._input = None

    async def close_stdin(self) -> None:
        """Close its standard input; on a terminal send what ends the input there (^D)."""
        try:
            call = self.open_input()
            call.finish()
            await call.result()
        except RequestFailed as failure:
            if failure.code not in _OVER:
                raise as_error(failure, f"standard input of command {self.id}") from failure
        finally:
            self._input = None

    # ---- control ----

    async def signal(self, number: int) -> None:
        """Send a signal to its process group. Raises InvalidInput once it is over."""
        await self._ask(Type.SIGNAL, (Tag.SIGNAL, number))

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal."""
        await self._ask(Type.RESIZE, (Tag.COLUMNS, columns), (Tag.ROWS, rows))

    async def cancel(self) -> Completed:
        """End its whole tree (TERM, then KILL after its grace time) and return how it ended.

        On one that is over, what lives on of its tree is killed.
        """
        try:
            await self._ask(Type.CANCEL)
        except SandboxLost as error:
            return self._lost(error)
        return await self.wait()


async def _feed(call: Call, data: bytes) -> None:
    """Send what the command takes; it may end, or close its input, before all of it is sent."""
    with contextlib.suppress(RequestFailed, SandboxLost):
        await call.send(data)
        call.finish()
        await call.result()


async def _held(call: Call, collector: Collector) -> Output:
    total = number(required(dict(await call.result()), Tag.TOTAL_BYTES))
    return collector.extend(call.taken()).output(total)


async def _live(
    calls: Sequence[Call], collectors: Sequence[Collector], on_output: Callable[[Chunk], None]
) -> list[Output]:
    async def pump(which: int) -> Output:
        async for offset, data in calls[which].chunks():
            collectors[which].add(offset, data)
            on_output(Chunk(STREAMS[which], offset, data))
        total = number(required(dict(await calls[which].result()), Tag.TOTAL_BYTES))
        return collectors[which].output(total)

    pumps = [asyncio.ensure_future(pump(which)) for which in (0, 1)]
    try:
        return list(await asyncio.gather(*pumps))
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
