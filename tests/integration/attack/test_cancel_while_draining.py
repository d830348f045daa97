"""A command that is cancelled just after its leader ended: what it left behind goes too."""

from __future__ import annotations

import asyncio

import pytest

from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command


async def living(sandbox: Sandbox, word: str) -> str:
    return (await sandbox.run(Command(shell=f"ps | grep '{word}' | grep -v grep"))).stdout.text


@pytest.mark.fault("cancelled-while-draining")
async def test_cancel_ends_what_holds_the_pipes(hostile: Sandbox) -> None:
    line = "(while :; do echo tick; sleep 0.05; done) & exit 0"  # never quiet: it drains for a second
    process = await hostile.start(Command(shell=line, grace_s=0))
    await anext(process.output())
    await process.cancel()
    assert await living(hostile, "sleep 0.05") == ""


async def test_a_run_that_is_given_up_ends_what_holds_the_pipes(hostile: Sandbox) -> None:
    line = "(while :; do echo tick; sleep 0.05; done) & exit 0"
    started = asyncio.Event()
    running = asyncio.create_task(
        hostile.run(Command(shell=line, grace_s=0), on_output=lambda _: started.set())
    )
    await started.wait()
    running.cancel()
    await asyncio.wait([running])
    assert await living(hostile, "sleep 0.05") == ""
