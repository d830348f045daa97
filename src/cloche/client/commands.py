"""A command from what a caller said, and its whole course. Must never send a start that could run twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from cloche.client.line import Line
from cloche.core.errors import ClocheError, InvalidInput, SandboxLost
from cloche.core.ids import new_id
from cloche.sandbox.guest.records import Chunk
from cloche.sandbox.spec import Command, Completed, EndReason, Terminal


class CommandOptions(TypedDict, total=False):
    """How a command is run, beside what is run.

    ``env`` is added to the sandbox's; ``cwd`` and ``user`` replace its. ``stdin`` is all of its standard
    input. After ``timeout_s`` its whole tree gets TERM and, ``grace_s`` (2) later, KILL; there is no limit
    unless one is given. ``login`` runs a shell line as a login shell does. ``output_cap_bytes`` (1 MiB)
    bounds what is kept of each stream, head and tail; ``spill`` keeps all of it in a file inside. ``id`` is a
    name of one's own: a command of that id that was started before is attached to, not run again.
    """

    env: Mapping[str, str]
    cwd: str
    user: str
    stdin: bytes | str
    timeout_s: float
    grace_s: float
    login: bool
    output_cap_bytes: int
    spill: bool
    id: str


def command_of(
    command: str | Sequence[str],
    options: CommandOptions,
    *,
    interactive: bool = False,
    terminal: Terminal | None = None,
) -> Command:
    """Return the command. Raises InvalidInput for an empty one, and for ``login`` without a line."""
    stdin = options.get("stdin")
    login = options.get("login", False)
    text = command if isinstance(command, str) else None
    argv = () if isinstance(command, str) else tuple(command)
    if login:
        if text is None:
            raise InvalidInput("login is for a shell line, and this is a program with arguments")
        argv, text = ("/bin/sh", "-lc", text), None
    if text is None and not argv:
        raise InvalidInput("there is no command")
    made = Command(
        argv=argv,
        shell=text,
        id=options.get("id") or new_id("c"),
        env=dict(options.get("env", {})),
        cwd=options.get("cwd"),
        user=options.get("user"),
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        interactive=interactive,
        terminal=terminal,
        timeout_s=options.get("timeout_s"),
    )
    return replace(
        made,
        grace_s=options.get("grace_s", made.grace_s),
        output_cap_bytes=options.get("output_cap_bytes", made.output_cap_bytes),
        spill=options.get("spill", made.spill),
    )


class Followed:
    """One command from its start to its end, over as many connections as that takes."""

    def __init__(self, line: Line, command: Command, on_output: Callable[[Chunk], None] | None) -> None:
        self._line = line
        self._command = command
        self._on_output = on_output
        self._told = {"stdout": 0, "stderr": 0}

    def _tell(self, chunk: Chunk) -> None:
        """Pass on what was not passed on before, over an earlier connection."""
        told, end = self._told[chunk.stream], chunk.offset + len(chunk.data)
        if end > told and self._on_output is not None:
            self._told[chunk.stream] = end
            skip = max(0, told - chunk.offset)
            self._on_output(Chunk(chunk.stream, chunk.offset + skip, chunk.data[skip:]))

    async def run(self) -> Completed:
        """Start it, follow it and return its end; a cancelled caller ends its whole tree first."""
        done = await self._once(first=True)
        attempt = 0
        while done.reason is EndReason.SANDBOX_LOST:
            try:
                await self._line.pause(attempt, SandboxLost(done.message))
                attempt += 1
                done = await self._once(first=False)
            except SandboxLost as error:
                return replace(done, message=error.message)
        return done

    async def _once(self, *, first: bool) -> Completed:
        command, tell = self._command, self._tell if self._on_output else None
        try:
            live = await self._line.live()
            if first or await self._line.may_send(command.id):
                return await live.run(command, on_output=tell)
        except SandboxLost as error:
            return Completed(id=command.id, reason=EndReason.SANDBOX_LOST, message=error.message)
        process = live.process(command.id)
        if command.stdin is not None:  # how much of its input arrived is not known: it gets no more
            with contextlib.suppress(ClocheError):
                await process.close_stdin()
        try:
            return await process.wait(on_output=tell)
        except asyncio.CancelledError:
            with contextlib.suppress(ClocheError, TimeoutError):
                async with asyncio.timeout(command.grace_s + 5):
                    await process.cancel()
            raise
