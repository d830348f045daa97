"""What all of the machine shares and no control group counts: one sandbox must not take all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason, PreparedImage, SandboxSpec, Terminal

TERMINALS_MAX = 1024
REQUESTS = 60000  # of fs.aio-max-nr, 65536


@pytest.mark.fault("terminals-taken")
async def test_terminals_are_left_for_others(
    driver: LocalDriver, busybox_image: PreparedImage, hostile: Sandbox
) -> None:
    process = await hostile.start(Command(argv=("probe", "terminals", "4096", "30"), grace_s=0))
    taken = int((await anext(process.output())).data)
    async with await driver.create(SandboxSpec(), busybox_image) as other:
        completed = await other.run(Command(shell="echo fine", terminal=Terminal()))
    await process.cancel()
    assert completed.reason is EndReason.EXIT, completed.message
    assert taken <= TERMINALS_MAX


@pytest.mark.fault("async-io-taken")
async def test_asynchronous_requests_are_left_for_others(
    driver: LocalDriver, busybox_image: PreparedImage, hostile: Sandbox, probe: Path
) -> None:
    process = await hostile.start(Command(argv=("probe", "requests", str(REQUESTS), "30"), grace_s=0))
    await anext(process.output())
    async with await driver.create(SandboxSpec(), busybox_image) as other:
        await other.upload(probe, "/bin/probe")
        completed = await other.run(Command(argv=("probe", "requests", "8000", "0")))
    await process.cancel()
    assert completed.stdout.text != "Resource temporarily unavailable\n"
