"""Whatever a command does to get away, its whole tree is gone when its end is told."""

from __future__ import annotations

import asyncio

import pytest

from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason, Terminal


async def appears(sandbox: Sandbox, word: str) -> None:
    """Wait until a process of that command line is there."""
    while word not in await living(sandbox, word):  # noqa: ASYNC110  # there is no event
        await asyncio.sleep(0.02)


async def living(sandbox: Sandbox, word: str) -> str:
    """Return the lines of ps that hold a word."""
    return (await sandbox.run(Command(shell=f"ps | grep '{word}' | grep -v grep"))).stdout.text


def hydra(*, leave: bool) -> Command:
    line = f"probe hydra 4 {int(leave)}; sleep 100"
    return Command(shell=line, timeout_s=0.5, grace_s=0.2)


@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.fault("respawning-tree")
async def test_a_timeout_ends_what_respawns_and_ignores_signals(hostile: Sandbox, leave: bool) -> None:
    completed = await hostile.run(hydra(leave=leave))
    assert completed.reason is EndReason.TIMEOUT
    assert await living(hostile, "probe hydra") == ""


@pytest.mark.parametrize("leave", [False, True])
async def test_cancelling_ends_what_respawns_and_ignores_signals(hostile: Sandbox, leave: bool) -> None:
    process = await hostile.start(Command(shell=f"probe hydra 4 {int(leave)}; sleep 100", grace_s=0.2))
    assert (await anext(process.output())).data == b"on\n"
    completed = await process.cancel()
    assert completed.reason is EndReason.CANCELLED
    assert await living(hostile, "probe hydra") == ""


async def test_killing_all_ends_what_outlived_its_command(hostile: Sandbox) -> None:
    await hostile.run(Command(shell="probe hydra 4 1"))
    assert await living(hostile, "probe hydra") != ""
    await hostile.kill_all()
    assert await living(hostile, "probe hydra") == ""


async def test_the_guest_answers_while_orphans_rain(hostile: Sandbox) -> None:
    process = await hostile.start(Command(shell="probe orphans 4 60"))
    assert (await anext(process.output())).data == b"on\n"
    async with asyncio.timeout(30):
        for _ in range(20):
            await hostile.ping()
        await process.cancel()
    assert await living(hostile, "probe orphans") == ""


async def test_an_interactive_shell_with_stopped_jobs_is_ended(hostile: Sandbox) -> None:
    process = await hostile.start(
        Command(argv=("/bin/sh", "-i"), terminal=Terminal(), interactive=True, grace_s=0.2)
    )
    await process.write(b"sleep 7101 &\nsleep 7102\n")
    await appears(hostile, "sleep 7102")
    await process.write(b"\x1a")
    completed = await process.cancel()
    assert completed.reason is EndReason.CANCELLED
    assert await living(hostile, "sleep 710") == ""
