"""Joins this terminal to a command in a sandbox. Must always give the terminal back as it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from cloche.sandbox.handle import Process, Sandbox
from cloche.sandbox.spec import Command, Completed, Terminal

_CHUNK_BYTES = 4096


def size() -> Terminal:
    """Return the size of this terminal, 80 × 24 where there is none."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return Terminal()
    return Terminal(columns=columns, rows=rows)


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    if not os.isatty(descriptor):
        yield
        return
    saved = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)


async def _readable(descriptor: int) -> None:
    """Wait until a read will not block; a plain file cannot be watched and never blocks."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _pass_input(process: Process) -> None:
    """Send standard input to the command until it ends."""
    descriptor = sys.stdin.fileno()
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, _CHUNK_BYTES)
        if not data:
            await process.close_stdin()
            return
        await process.write(data)


async def _pass_output(process: Process, stream: str, descriptor: int) -> None:
    async for chunk in process.output(stream):
        view = memoryview(chunk.data)
        while view:
            view = view[os.write(descriptor, view) :]


async def converse(sandbox: Sandbox, command: Command) -> Completed:
    """Run ``command`` with this process's standard streams and return how it ended."""
    loop = asyncio.get_running_loop()
    process = await sandbox.start(command)
    with contextlib.ExitStack() as stack:
        if command.terminal is not None:
            stack.enter_context(_raw(sys.stdin.fileno()))
            resizes: set[asyncio.Task[None]] = set()

            def resized() -> None:
                now = size()
                task = loop.create_task(process.resize(now.columns, now.rows))
                resizes.add(task)
                task.add_done_callback(resizes.discard)

            loop.add_signal_handler(signal.SIGWINCH, resized)
            stack.callback(loop.remove_signal_handler, signal.SIGWINCH)
        pump = asyncio.create_task(_pass_input(process))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_output(process, "stdout", sys.stdout.fileno()))
                if command.terminal is None:
                    group.create_task(_pass_output(process, "stderr", sys.stderr.fileno()))
            return await process.wait()
        except asyncio.CancelledError:
            await process.cancel()
            raise
        finally:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
