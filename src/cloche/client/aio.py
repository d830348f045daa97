"""``AsyncSandbox``: one sandbox, to await.

It finds its way back to a guest whose connection was lost while the sandbox lives. Must never start a
command a second time, nor end a sandbox when it is garbage: only ``delete`` and leaving ``with`` do.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from cloche.api.models import (
    CreateBody,
    DenialView,
    EventView,
    ExtendBody,
    ForkBody,
    ImageView,
    LeaseBody,
    NetworkBody,
    SandboxView,
    SnapshotBody,
    State,
)
from cloche.client.backend import Backend
from cloche.client.commands import CommandOptions, Followed, command_of
from cloche.client.errors import error_of
from cloche.client.files import AsyncFiles
from cloche.client.line import Line
from cloche.client.pool import backend_of
from cloche.client.process import AsyncProcess
from cloche.client.request import HEARTBEAT_S, Network, Options, network_body, request
from cloche.client.target import Service
from cloche.core.errors import ClocheError, InfraError, NotFound, SandboxLost
from cloche.sandbox.guest.records import Chunk, CommandStatus
from cloche.sandbox.spec import Completed, Terminal

_BEATS_PER_LIMIT = 3
_LOGIN_SHELL = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi"


class Making:
    """What ``create`` and ``connect`` return: await it, or enter it with ``async with``."""

    def __init__(self, make: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._make = make
        self._made: AsyncSandbox | None = None

    def __await__(self) -> Generator[None, None, AsyncSandbox]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._made = await self
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.delete()


class AsyncSandbox:
    """A sandbox. As a context manager it deletes itself on exit; without, it lives as long as its lease.

    While the object is open it sends the heartbeats that its lease asks for. Made by ``create``,
    ``create_many``, ``connect`` and ``fork`` only.
    """

    def __init__(self, backend: Backend, view: SandboxView) -> None:
        self._backend = backend
        self._view = view
        self._line = Line(backend, view.id)
        self._beating: asyncio.Task[None] | None = None
        if view.lease.heartbeat_s is not None:
            self._beating = asyncio.get_running_loop().create_task(self._beat(view.lease.heartbeat_s))

    # ---- making and finding ----

    @classmethod
    def create(
        cls,
        image: str,
        *,
        timeout_s: float | None = None,
        service: Service | None = None,
        **options: Unpack[Options],
    ) -> Making:
        """Make a sandbox and wait until it is ready; options: :class:`cloche.client.Options`.

        Waits in the queue as long as it takes; after ``timeout_s`` the request is taken back and InfraError
        (``infra/sandbox_start_timeout``) raised. Raises InvalidInput, NotFound (no such image), PlanRefused.
        """
        body = request(image, **options)

        async def make() -> AsyncSandbox:
            backend = await backend_of(service)
            return await ready(backend, await backend.create(body), timeout_s)

        return Making(make)

    @classmethod
    async def create_many(
        cls,
        bodies: Sequence[CreateBody],
        *,
        timeout_s: float | None = None,
        service: Service | None = None,
    ) -> list[AsyncSandbox | ClocheError]:
        """Make many with one request (``cloche.client.request`` makes each body).

        Returns, in order, each sandbox once it is ready, or what it failed with.
        """
        backend = await backend_of(service)

        async def one(view: SandboxView | ClocheError) -> AsyncSandbox | ClocheError:
            if isinstance(view, ClocheError):
                return view
            try:
                return await ready(backend, view, timeout_s)
            except ClocheError as error:
                return error

        return await asyncio.gather(*map(one, await backend.create_many(bodies)))

    @classmethod
    def connect(cls, sandbox_id: str, *, service: Service | None = None) -> Making:
        """Take hold of a sandbox that lives, whoever made it. Raises NotFound, SandboxLost when it ended."""

        async def make() -> AsyncSandbox:
            backend = await backend_of(service)
            view = await backend.get(sandbox_id)
            if view.state is State.ENDED:
                raise _end_error(view)
            return cls(backend, view)

        return Making(make)

    # ---- what it is ----

    @property
    def id(self) -> str:
        """Its name."""
        return self._view.id

    @property
    def view(self) -> SandboxView:
        """What was last heard of it: see ``refresh``."""
        return self._view

    async def refresh(self) -> SandboxView:
        """Ask for it as it is now."""
        self._view = await self._backend.get(self.id)
        return self._view

    async def wait(
        self, states: Collection[State] = (State.ENDED,), *, timeout_s: float | None = None
    ) -> SandboxView:
        """Wait until it is in one of the states, or has ended. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            self._view = await self._backend.wait(self.id, states)
        return self._view

    async def events(self) -> AsyncIterator[EventView]:
        """Yield its changes of state until it has ended."""
        async for event in self._backend.events(ids=[self.id]):
            yield event
            if event.state is State.ENDED:
                return

    def sidecar(self, name: str) -> Making:
        """Take hold of one of its sidecars. Raises NotFound."""

        async def make() -> AsyncSandbox:
            view = await self._backend.get(self._view.sidecars.get(name, name))
            return AsyncSandbox(self._backend, view)

        return Making(make)

    # ---- commands ----

    async def run(
        self,
        command: str | Sequence[str],
        *,
        on_output: Callable[[Chunk], None] | None = None,
        **options: Unpack[CommandOptions],
    ) -> Completed:
        """Run to the end: text is a line for the shell, a sequence a program and its arguments.

        Options: :class:`cloche.client.commands.CommandOptions`. A command that fails, is killed or times out
        is a result, not an error: see ``reason``, ``exit_code`` and ``ok``. ``on_output`` gets each piece as
        it comes. When the waiting task is cancelled the command's whole tree is ended first.
        """
        return await Followed(self._line, command_of(command, options), on_output).run()

    async def start(
        self,
        command: str | Sequence[str],
        *,
        interactive: bool = False,
        terminal: tuple[int, int] | None = None,
        **options: Unpack[CommandOptions],
    ) -> AsyncProcess:
        """Start a command and return at once; ``interactive`` leaves its standard input open.

        ``terminal`` gives it one of so many columns and rows. A repeated ``id`` attaches to the first start.
        """
        size = Terminal(columns=terminal[0], rows=terminal[1]) if terminal else None
        wanted = command_of(command, options, interactive=interactive or size is not None, terminal=size)
        await self._line.start(wanted)
        return AsyncProcess(self._line, wanted.id, cap_bytes=wanted.output_cap_bytes)

    async def terminal(
        self, columns: int = 80, rows: int = 24, **options: Unpack[CommandOptions]
    ) -> AsyncProcess:
        """Start a login shell on a terminal of its own."""
        return await self.start(_LOGIN_SHELL, terminal=(columns, rows), **options)

    def process(self, command_id: str) -> AsyncProcess:
        """Return a command that anyone started; whether it exists shows on use (NotFound)."""
        return AsyncProcess(self._line, command_id)

    async def commands(self) -> list[CommandStatus]:
        """Return the commands that run and those that are remembered."""
        return await self._line.again(lambda live: live.commands())

    @property
    def files(self) -> AsyncFiles:
        """Its files."""
        return AsyncFiles(self._line)

    # ---- its life ----

    async def pause(self) -> None:
        """Freeze every process; the lease goes on."""
        self._view = await self._backend.pause(self.id)

    async def resume(self) -> None:
        """Let it go on."""
        self._view = await self._backend.resume(self.id)

    async def snapshot(self, name: str | None = None) -> ImageView:
        """Make an image of its files as they are now."""
        return await self._backend.snapshot(self.id, SnapshotBody(name=name))

    async def fork(
        self,
        count: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        ttl_s: float | None = 3600.0,
        heartbeat_s: float | None = HEARTBEAT_S,
    ) -> list[AsyncSandbox]:
        """Make ``count`` sandboxes whose files begin as this one's are now; no process goes along."""
        lease = LeaseBody(ttl_s=ttl_s, heartbeat_s=heartbeat_s)
        body = ForkBody(count=count, labels=dict(labels or {}), lease=lease)
        views = await self._backend.fork(self.id, body)
        return list(await asyncio.gather(*(ready(self._backend, view, None) for view in views)))

    async def set_network(
        self, mode: Network | None = None, *, allow: Sequence[str] = (), presets: Sequence[str] = ()
    ) -> NetworkBody:
        """Change what it may reach, and return what holds now."""
        return await self._backend.set_network(self.id, network_body(mode, allow, presets))

    async def denials(self) -> list[DenialView]:
        """Return what its network policy refused, the newest within a bound."""
        return list((await self._backend.denials(self.id)).items)

    async def port_url(self, port: int, *, ttl_s: float = 3600.0) -> str:
        """Return a URL that reaches a port inside until it expires.

        From a service it is signed and works from anywhere; embedded it is an address of this machine,
        open to all of its users for as long as this process lives.
        """
        return (await self._backend.link(self.id, port, ttl_s)).url

    async def extend(self, ttl_s: float | None) -> None:
        """Let it live ``ttl_s`` seconds from now; ``None`` lifts the limit."""
        self._view = await self._backend.extend(self.id, ExtendBody(ttl_s=ttl_s))

    async def heartbeat(self) -> None:
        """Push its heartbeat limit on; happens by itself."""
        await self._backend.heartbeat(self.id)

    async def _beat(self, limit_s: float) -> None:
        """Send heartbeats until the sandbox is gone; one that fails is followed by the next."""
        while self._view.state is not State.ENDED:
            await asyncio.sleep(limit_s / _BEATS_PER_LIMIT)
            try:
                await self._backend.heartbeat(self.id)
            except ClocheError as error:
                if not isinstance(error, InfraError) or isinstance(error, SandboxLost):
                    return

    async def delete(self) -> SandboxView:
        """End it; returns once nothing of it is left. One that is gone already is no error."""
        await self.close()
        try:
            self._view = await self._backend.delete(self.id)
        except NotFound:
            self._view = self._view.model_copy(update={"state": State.ENDED})
        return self._view

    async def close(self) -> None:
        """Let go of it: it lives on, for as long as its lease says."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        await self._line.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.delete()

    # stands last: in a class body the name `list` means this method from here on
    @classmethod
    async def list(
        cls, *, labels: Mapping[str, str] | None = None, service: Service | None = None
    ) -> builtins.list[SandboxView]:
        """Return the sandboxes that have these labels, all of one's own without."""
        backend = await backend_of(service)
        found: builtins.list[SandboxView] = []
        after: str | None = None
        while True:
            page = await backend.list(labels=labels, after=after)
            found += page.items
            after = page.next
            if after is None:
                return found


def _end_error(view: SandboxView) -> ClocheError:
    if view.error is not None:
        return error_of(view.error)
    return SandboxLost(f"sandbox {view.id} is over: {view.end.value if view.end else 'ended'}")


async def ready(backend: Backend, view: SandboxView, timeout_s: float | None = None) -> AsyncSandbox:
    """Wait until a sandbox is ready that a backend was asked for.

    When that fails, or is cancelled, the sandbox is deleted: nobody would ever hear of it.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if view.state is not State.READY:
                view = await backend.wait(view.id, {State.READY})
    except BaseException as error:
        with contextlib.suppress(ClocheError):
            view = await asyncio.shield(backend.delete(view.id))
        if isinstance(error, TimeoutError):
            message = f"sandbox {view.id} was not ready after {timeout_s:g} s"
            raise InfraError(message, code="infra/sandbox_start_timeout") from error
        raise
    if view.state is State.ENDED:
        raise _end_error(view)
    return AsyncSandbox(backend, view)
