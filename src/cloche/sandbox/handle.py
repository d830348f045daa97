"""What one does with a sandbox: run commands, move files, end it. The same over every driver.

Must never know how the sandbox was made: it speaks to the guest and asks its driver to delete it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from cloche.core.errors import ClocheError, InvalidInput, SandboxLost
from cloche.sandbox.guest import trees
from cloche.sandbox.guest.connection import GuestConnection
from cloche.sandbox.guest.errors import RequestFailed, as_error
from cloche.sandbox.guest.files import Files
from cloche.sandbox.guest.frames import Fields, Tag, Type, Value, next_page, number, required
from cloche.sandbox.guest.process import OomWatch, Process
from cloche.sandbox.guest.records import Chunk, CommandStatus, FileInfo, FileKind, command_status
from cloche.sandbox.guest.start import start_fields
from cloche.sandbox.spec import Command, Completed, ImageConfig, SandboxSpec

__all__ = ["Chunk", "CommandStatus", "FileInfo", "FileKind", "Process", "Sandbox"]

_CANCEL_SLACK_S = 5.0
_HEARTBEATS_PER_LIMIT = 3


class Sandbox:
    """A live sandbox over one connection to its guest. As a context manager it deletes itself on exit.

    Drivers make it: ``config`` is the image's, ``deleter`` ends the sandbox of an id and says whether
    there was one, ``oom_kills`` (where the guest cannot see it) tells how many processes its memory limit
    has killed so far. Must be made inside a running event loop.
    """

    def __init__(
        self,
        *,
        spec: SandboxSpec,
        config: ImageConfig,
        connection: GuestConnection,
        deleter: Callable[[str], Awaitable[bool]],
        oom_kills: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self.spec = spec
        self.image = config
        self._connection = connection
        self._deleter = deleter
        self._oom = OomWatch(oom_kills)
        self._files = Files(connection)
        self._beating: asyncio.Task[None] | None = None
        if spec.lease.heartbeat_s is not None and not spec.owner:  # a service beats for its clients only
            self._beating = asyncio.get_running_loop().create_task(self._beat(spec.lease.heartbeat_s))

    @property
    def id(self) -> str:
        """The sandbox's name."""
        return self.spec.id

    @property
    def lost(self) -> bool:
        """Whether the connection is gone: every request would raise SandboxLost."""
        return self._connection.lost

    @property
    def busy(self) -> bool:
        """Whether a request on this connection waits for its answer."""
        return self._connection.busy

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.delete()

    # ---- commands ----

    def begin(self, command: Command) -> Process:
        """Send the start, and the input behind it, without waiting: ``wait`` tells what became of it.

        Raises InvalidInput for what cannot be a command, or SandboxLost.
        """
        try:
            started = self._connection.call(Type.START, start_fields(command, self.spec, self.image))
        except ValueError as error:
            raise InvalidInput(f"command {command.id}: {error}") from error
        process = Process(
            self._connection,
            command.id,
            oom=self._oom,
            cap_bytes=command.output_cap_bytes,
            started=started,
        )
        if command.stdin is not None:
            process.feed(command.stdin)
        return process

    async def start(self, command: Command) -> Process:
        """Start a command, or attach to it when its id was started before.

        A command that cannot be started is one that ended with START_FAILED. Raises InvalidInput,
        InfraError (too many) or SandboxLost.
        """
        process = self.begin(command)
        await process.started()
        return process

    async def run(self, command: Command, *, on_output: Callable[[Chunk], None] | None = None) -> Completed:
        """Start, follow and wait; ``on_output`` gets each chunk as it comes.

        When the waiting task is cancelled the command's whole tree is ended first. A connection that is
        lost in mid-command gives SANDBOX_LOST.
        """
        process = self.begin(command)
        try:
            return await process.wait(on_output=on_output)
        except BaseException:
            with contextlib.suppress(TimeoutError, ClocheError):
                async with asyncio.timeout(command.grace_s + _CANCEL_SLACK_S):
                    await process.cancel()
            raise

    def process(self, command_id: str, *, cap_bytes: int = 1 << 20) -> Process:
        """Return a handle on a command that anyone started; whether it exists shows on use (NotFound).

        ``cap_bytes`` bounds what ``wait`` keeps of each stream.
        """
        return Process(self._connection, command_id, oom=self._oom, cap_bytes=cap_bytes)

    async def commands(self) -> list[CommandStatus]:
        """Return the commands that run and those that are remembered, in that order."""
        found: dict[str, CommandStatus] = {}
        following: int | None = 0
        while following is not None:
            at, following = following, None
            fields = await self._ask(Type.COMMANDS, (Tag.OFFSET, at))
            for tag, value in fields:
                if tag == Tag.ENTRY:
                    status = command_status(value)
                    found[status.id] = status
                elif tag == Tag.NEXT:
                    following = next_page(value, at)
        return list(found.values())

    @property
    def out_of_memory_kills(self) -> int:
        """How many processes the memory limit is known to have ended, as far as commands showed it."""
        return self._oom.seen

    async def oom_kills(self) -> int | None:
        """Return how many processes the memory limit has killed; None where the guest sees that itself."""
        return await self._oom.count()

    async def kill_all(self) -> None:
        """End every command's whole tree and every process but the guest; returns when they are gone."""
        await self._ask(Type.KILL_ALL)

    # ---- files: see cloche.sandbox.guest.files and trees for the errors each raises ----

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the file's bytes. Raises NotFound, and InvalidInput for more than 64 MiB."""
        return await self._files.read(path, offset=offset, length=length)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None) -> None:
        """Replace a file at once, making the folders above it. It belongs to ``user``, else to root."""
        await self._files.write(path, data, mode=mode, user=user)

    def read_stream(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield the file's bytes, from ``offset``, at most ``length`` of them."""
        return self._files.read_stream(path, offset=offset, length=length)

    async def write_stream(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int = 0o644, user: str | None = None
    ) -> None:
        """Like ``write_file``, from pieces; nothing has changed when these fail."""
        await self._files.write_stream(path, chunks, mode=mode, user=user)

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return what is at ``path``; without ``follow`` a symbolic link is told as one."""
        return await self._files.stat(path, follow=follow)

    async def exists(self, path: str) -> bool:
        """Whether something is there."""
        return await self._files.exists(path)

    async def list_dir(self, path: str) -> list[FileInfo]:
        """Return a folder's entries by name."""
        return await self._files.list_dir(path)

    async def make_dir(
        self, path: str, *, mode: int = 0o755, parents: bool = True, user: str | None = None
    ) -> None:
        """Make a folder; with ``parents`` those above it too, and it may be there already."""
        await self._files.make_dir(path, mode=mode, parents=parents, user=user)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with ``recursive`` a folder and all it holds."""
        await self._files.remove(path, recursive=recursive)

    async def move(self, source: str, target: str) -> None:
        """Rename, replacing what is at ``target``."""
        await self._files.move(source, target)

    async def symlink(self, path: str, target: str, *, user: str | None = None) -> None:
        """Make a symbolic link at ``path`` that says ``target``, replacing a file or link that is there."""
        await self._files.symlink(path, target, user=user)

    async def upload(self, source: Path, target: str, *, user: str | None = None) -> None:
        """Copy a file, or what a folder holds, from the host to ``target``; modes and links are kept."""
        await trees.upload(self._files, source, target, user=user)

    async def download(
        self, source: str, target: Path, *, limit_bytes: int = trees.DOWNLOAD_BYTES_MAX
    ) -> list[FileInfo]:
        """Copy a file, or what a folder holds, to the host; returns what was skipped (links, devices).

        Raises InvalidInput when that is more than ``limit_bytes``.
        """
        return await trees.download(self._files, source, target, limit_bytes=limit_bytes)

    # ---- life ----

    async def _ask(self, kind: Type, *fields: tuple[int, Value]) -> Fields:
        try:
            return await self._connection.ask(kind, list(fields))
        except RequestFailed as failure:
            raise as_error(failure, f"sandbox {self.id}") from failure

    async def _beat(self, limit_s: float) -> None:
        with contextlib.suppress(SandboxLost):
            while True:
                await asyncio.sleep(limit_s / _HEARTBEATS_PER_LIMIT)
                await self.heartbeat()

    async def heartbeat(self) -> None:
        """Push the heartbeat limit on; a handle of a sandbox that has one does it by itself."""
        await self._ask(Type.HEARTBEAT)

    def stop_beating(self) -> None:
        """Send no heartbeats by itself from now on: whoever holds it only passes on those of another."""
        if self._beating is not None:
            self._beating.cancel()

    async def extend(self, ttl_s: float | None) -> None:
        """Let the sandbox live ``ttl_s`` from now on; None lifts the limit."""
        await self._ask(Type.EXTEND, (Tag.TTL_MS, 0 if ttl_s is None else max(1, int(ttl_s * 1000))))

    async def ping(self) -> float:
        """Ask the guest whether it is well; returns the seconds since it started."""
        return number(required(dict(await self._ask(Type.PING)), Tag.DURATION_US)) / 1e6

    async def ttl_left_s(self) -> float | None:
        """Return what is left of the lease's ``ttl_s``; None when nothing limits it."""
        left = dict(await self._ask(Type.PING)).get(Tag.TTL_ALONE_MS)
        return None if left is None else number(left) / 1000

    def hand_over(self) -> tuple[asyncio.Transport, str]:
        """Give the line to the guest away, with how it ends trees (HELLO's ``TREE``).

        It was greeted, and nothing is under way on it; nothing can be asked of this handle from then on.
        Raises SandboxLost.
        """
        if self._beating is not None:
            self._beating.cancel()
        return self._connection.hand_over(), self._connection.tree

    async def delete(self) -> None:
        """End the sandbox; nothing of it is left. Deleting twice is no error."""
        await self.close()
        await self._deleter(self.id)

    async def close(self) -> None:
        """Let go of the connection; sandbox and commands live on."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self._connection.close()
