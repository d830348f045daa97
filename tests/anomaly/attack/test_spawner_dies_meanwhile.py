"""The spawner is killed at a bad moment: what was asked for is done all the same, and truly told."""

# a test may block its own loop

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, Lease, PreparedImage, SandboxSpec

ROUNDS = 8


def kill_spawner(settings: Settings) -> None:
    """Kill the spawner of this installation, and no other."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        if line[0].endswith(b"cloche-spawner") and f"--run-dir={settings.run_dir}".encode() in line:
            os.kill(int(entry.name), signal.SIGKILL)


@pytest.mark.fault("spawner-killed-in-delete")
async def test_a_delete_whose_spawner_dies_is_done_by_the_next(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    moments = random.Random(7)
    line = "mkdir /w; cd /w; for d in $(seq 1 200); do mkdir -p $d/x/y; done"
    for _ in range(ROUNDS):
        sandbox = await driver.create(SandboxSpec(), busybox_image)
        await sandbox.run(Command(shell=line))
        deleting = asyncio.create_task(sandbox.delete())
        await asyncio.sleep(moments.uniform(0, 0.005))
        kill_spawner(settings)
        try:
            await deleting
            assert await driver.list() == []
        finally:
            await driver.delete(sandbox.id)


async def test_a_lease_that_ran_out_is_told_though_another_spawner_saw_it(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(lease=Lease(ttl_s=1.0)), busybox_image)
    kill_spawner(settings)
    other = LocalDriver(settings)
    async with await other.create(SandboxSpec(), busybox_image):  # a new spawner adopts the first sandbox
        async with asyncio.timeout(20):
            while True:
                (info,) = [info for info in await other.list() if info.id == sandbox.id]
                if info.state is SandboxState.ENDED and not (settings.uppers_dir / sandbox.id).exists():
                    break
                await asyncio.sleep(0.02)
    await other.close()
    await driver.delete(sandbox.id)
    await sandbox.close()
    assert info.reason == "its lease ran out: its time was up"
