"""Clients and guests that stop at any moment: the sandbox ends, and nothing of it is left."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, EndReason, Lease, PreparedImage, SandboxSpec

CLIENT = """
import asyncio, sys
from pathlib import Path
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Lease, PreparedImage, SandboxSpec
settings = Settings(state_dir=Path(sys.argv[1]), run_dir=Path(sys.argv[2]))
image = PreparedImage(name="x", digest="sha256:x", layers=(Path(sys.argv[3]),))
async def main():
    driver = LocalDriver(settings)
    print("on", flush=True)
    spec = lambda: SandboxSpec(lease=Lease(heartbeat_s=0.5))
    await asyncio.gather(*(driver.create(spec(), image) for _ in range(6)))
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def pid_of(driver: LocalDriver, sandbox: Sandbox) -> int:
    (pid,) = [info.pid for info in await driver.list() if info.id == sandbox.id]
    assert pid is not None
    return pid


@pytest.mark.parametrize("after_ms", [0, 10, 30, 60, 200])
async def test_a_client_killed_in_the_middle_of_creates(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, after_ms: int
) -> None:
    folders = (str(settings.state_dir), str(settings.run_dir), str(busybox_image.layers[0]))
    client = subprocess.Popen([sys.executable, "-c", CLIENT, *folders], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert client.stdout is not None
    await asyncio.to_thread(client.stdout.readline)
    await asyncio.sleep(after_ms / 1000)
    client.kill()
    client.wait()
    client.stdout.close()
    async with asyncio.timeout(20):
        while any(info.state is not SandboxState.ENDED for info in await driver.list()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await driver.reap()
    assert await driver.list() == []
    assert await driver.leftovers() == []


async def test_a_stopped_guest_is_deleted(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    os.kill(await pid_of(driver, sandbox), signal.SIGSTOP)
    await sandbox.delete()
    assert await driver.list() == []


async def test_a_lease_that_runs_out_under_a_command(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    async with await driver.create(SandboxSpec(lease=Lease(ttl_s=0.5)), busybox_image) as sandbox:
        completed = await sandbox.run(Command(shell="echo begun; sleep 100"))
        assert completed.reason is EndReason.SANDBOX_LOST


async def test_creating_one_name_at_once_makes_one(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    others = [LocalDriver(settings) for _ in range(4)]
    made = await asyncio.gather(
        *(each.create(SandboxSpec(id="one"), busybox_image) for each in others), return_exceptions=True
    )
    (winner,) = [each for each in made if isinstance(each, Sandbox)]
    assert sum(isinstance(each, InvalidInput) for each in made) == 3
    assert (await winner.run(Command(shell="echo alive"))).ok
    await winner.delete()
    for each in others:
        await each.close()


async def test_many_clients_start_one_spawner(busybox_image: PreparedImage, settings: Settings) -> None:
    drivers = [LocalDriver(settings) for _ in range(8)]

    async def life(each: LocalDriver) -> bool:
        async with await each.create(SandboxSpec(), busybox_image) as sandbox:
            return (await sandbox.run(Command(shell="true"))).ok

    assert all(await asyncio.gather(*map(life, drivers)))
    for each in drivers:
        await each.close()
    spawners = [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"--run-dir={settings.run_dir}" in _command_line(entry)
    ]
    assert len(spawners) == 1


def _command_line(entry: Path) -> str:
    try:
        line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""  # it ended while we looked
    return line if line.split("\0")[0].endswith("cloche-spawner") else ""
