"""The way to one sandbox's guest: opened when needed, found again when it breaks while the sandbox lives.

Must never repeat what could act twice: only what merely looks is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cloche.api.models import State
from cloche.client.backend import Backend
from cloche.core.errors import InfraError, NotFound, SandboxLost
from cloche.sandbox.handle import Process, Sandbox
from cloche.sandbox.spec import Command

T = TypeVar("T")

ATTEMPTS = 6
_FIRST_PAUSE_S = 0.05
REMEMBERED = 1024
"""How many ended commands a guest remembers (docs/protocol.md)."""


class Line:
    """A connection to a guest that is shared by all that is done with one sandbox object."""

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self.backend = backend
        self.id = sandbox_id
        self._live: Sandbox | None = None
        self._lock = asyncio.Lock()

    async def live(self) -> Sandbox:
        """Return a connection that is open. Raises as ``Backend.handle`` does."""
        if self._live is not None and not self._live.lost:
            return self._live
        async with self._lock:
            if self._live is None or self._live.lost:
                await self._let_go()
                self._live = await self._reach()
            return self._live

    async def _reach(self) -> Sandbox:
        """Connect. A way that is closed for the moment is a lost one: whoever may, tries again."""
        try:
            return await self.backend.handle(self.id)
        except InfraError as error:
            if error.code != "infra/transport":
                raise
            raise SandboxLost(error.message, hint=error.hint, code=error.code) from error

    async def _let_go(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await self.backend.release(live)

    async def close(self) -> None:
        """Let go of the connection."""
        async with self._lock:
            await self._let_go()

    async def why_lost(self) -> str | None:
        """Return why the sandbox ended, or None while it lives."""
        try:
            view = await self.backend.get(self.id)
        except NotFound:
            return "it is gone"
        if view.state in {State.ENDED, State.STOPPING}:
            return view.end.value if view.end else view.state.value
        return None

    async def pause(self, attempt: int, error: SandboxLost) -> None:
        """Wait before another attempt. Raises SandboxLost when the sandbox ended or nothing helps."""
        why = await self.why_lost()
        if why is not None:
            raise SandboxLost(f"sandbox {self.id} is over: {why}") from error
        if attempt >= ATTEMPTS:
            raise error
        await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)

    async def again(self, look: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Ask what may be asked twice; a connection that is lost meanwhile is made anew."""
        attempt = 0
        while True:
            try:
                return await look(await self.live())
            except SandboxLost as error:
                await self.pause(attempt, error)
                attempt += 1

    async def start(self, command: Command) -> Process:
        """Start a command once, whatever happens to the connection.

        Its id makes a second sending attach to the first. Where the guest may have forgotten the first,
        SandboxLost is raised instead.
        """
        attempt = 0
        while True:
            try:
                live = await self.live()
                if attempt and not await self.may_send(command.id):
                    return live.process(command.id)
                return await live.start(command)
            except SandboxLost as error:
                await self.pause(attempt, error)
                attempt += 1

    async def may_send(self, command_id: str) -> bool:
        """Whether a command that was sent on a lost connection never arrived; False: it is there.

        Raises SandboxLost when that cannot be known.
        """
        known = await (await self.live()).commands()
        if any(status.id == command_id for status in known):
            return False
        if sum(not status.running for status in known) >= REMEMBERED:
            raise SandboxLost(f"whether command {command_id} ran cannot be known", code="infra/transport")
        return True
