"""Connections to guests: opened when wanted, shared, and closed when nobody has used them for a while.

Must never hold a descriptor for each idle sandbox: a process has some twenty thousand at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

from cloche.sandbox.driver import Driver
from cloche.sandbox.handle import Sandbox


@dataclass(slots=True)
class _Held:
    sandbox: Sandbox
    used_s: float


class Handles:
    """At most ``most`` open connections, the least recently used closed first."""

    def __init__(self, driver: Driver, most: int, idle_s: float) -> None:
        self._driver = driver
        self._most = most
        self._idle_s = idle_s
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._opening: dict[str, asyncio.Task[Sandbox]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def keep(self, sandbox: Sandbox) -> None:
        """Hold a connection that somebody opened."""
        old = self._held.pop(sandbox.id, None)
        if old is not None:
            self._let_go(old.sandbox)
        self._held[sandbox.id] = _Held(sandbox, time.monotonic())
        if len(self._held) > self._most:
            self._shed()

    async def get(self, sandbox_id: str) -> Sandbox:
        """Return the connection, opened if need be. Raises NotFound, SandboxLost or InfraError."""
        held = self._held.get(sandbox_id)
        if held is not None and not held.sandbox.lost:
            held.used_s = time.monotonic()
            self._held.move_to_end(sandbox_id)
            return held.sandbox
        task = self._opening.get(sandbox_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(sandbox_id))
            self._opening[sandbox_id] = task
            task.add_done_callback(lambda done: self._opened(sandbox_id, done))
        return await asyncio.shield(task)

    async def _open(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._driver.attach(sandbox_id)
        self.keep(sandbox)
        return sandbox

    def _opened(self, sandbox_id: str, task: asyncio.Task[Sandbox]) -> None:
        self._opening.pop(sandbox_id, None)
        if not task.cancelled():
            task.exception()  # whoever still waits gets it

    def drop(self, sandbox_id: str) -> None:
        """Close the connection of a sandbox that is over."""
        held = self._held.pop(sandbox_id, None)
        if held is not None:
            self._let_go(held.sandbox)

    def sweep(self) -> None:
        """Close what is lost, and what nobody used for a while and nothing is asked on."""
        now_s = time.monotonic()
        for name, held in list(self._held.items()):
            if held.sandbox.lost or (now_s - held.used_s >= self._idle_s and not held.sandbox.busy):
                self.drop(name)

    def _shed(self) -> None:
        for name, held in list(self._held.items()):
            if len(self._held) <= self._most:
                return
            if not held.sandbox.busy:
                self.drop(name)

    def _let_go(self, sandbox: Sandbox) -> None:
        task = asyncio.get_running_loop().create_task(sandbox.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all; ends no sandbox."""
        for task in self._opening.values():
            task.cancel()
        for name in list(self._held):
            self.drop(name)
        await asyncio.gather(*self._closing, *self._opening.values(), return_exceptions=True)
