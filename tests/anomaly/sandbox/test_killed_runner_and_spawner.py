"""Any process of ours may be killed at any moment: sandboxes live on, and reap leaves nothing."""

# ruff: noqa: ASYNC110  # a test may block its own loop

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cloche.core.errors import InfraError, SandboxLost
from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, Lease, PreparedImage, Resources, SandboxSpec
from cloche.testing.sandboxes import processes_of, stop_spawner

RUNNER = """
import asyncio, sys
from pathlib import Path
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, Lease, PreparedImage, Resources, SandboxSpec

async def main():
    state, run, layer, count, ttl, heartbeat = sys.argv[1:]
    driver = LocalDriver(Settings(state_dir=Path(state), run_dir=Path(run)))
    image = PreparedImage(name="i", digest="d", layers=(Path(layer),))
    lease = Lease(ttl_s=float(ttl), heartbeat_s=float(heartbeat) or None)
    async def one():
        sandbox = await driver.create(SandboxSpec(lease=lease, resources=Resources(pids=64)), image)
        await sandbox.start(Command(shell="sleep 1000 & sleep 1000"))
        return sandbox
    kept = await asyncio.gather(*(one() for _ in range(int(count))))
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def spawner_pid(settings: Settings) -> int:
    """Return the pid of this installation's spawner."""
    (line,) = [line for line in processes_of(settings) if "cloche-spawner" in line]
    return int(line.split()[0])


async def kill_and_wait(pid: int) -> None:
    """Kill a process that need not be a child, and wait until it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.add_reader(descriptor, ended.set_result, None)
        await ended
        loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)


async def start_runner(
    settings: Settings, image: PreparedImage, count: int, *, ttl_s: float = 600, heartbeat_s: float = 0
) -> asyncio.subprocess.Process:
    """Start another process that makes sandboxes and then does nothing."""
    runner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUNNER, str(settings.state_dir), str(settings.run_dir)),
        *(str(image.layers[0]), str(count), str(ttl_s), str(heartbeat_s)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert runner.stdout is not None
    assert await runner.stdout.readline() == b"ready\n"
    return runner


async def until(condition, timeout_s: float = 20) -> None:
    """Wait until a condition of the outside world holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.fault("runner-and-spawner-killed")
async def test_fifty_sandboxes_whose_runner_and_spawner_were_killed_are_reaped(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    runner = await start_runner(settings, busybox_image, 50, heartbeat_s=300)
    try:
        await kill_and_wait(spawner_pid(settings))
        assert len(await driver.list()) == 50
        assert await driver.leftovers() == []  # their owner lives
    finally:
        runner.kill()
        await runner.wait()
    assert len({item.name for item in await driver.leftovers() if item.kind == "file"}) >= 50
    await driver.reap()
    assert await driver.list() == []
    assert await driver.leftovers() == []
    await stop_spawner(settings)
    assert processes_of(settings) == []


@pytest.mark.fault("spawner-killed")
async def test_sandboxes_survive_their_spawner_and_are_adopted(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandboxes = [await driver.create(SandboxSpec(), busybox_image) for _ in range(5)]
    await kill_and_wait(spawner_pid(settings))
    for sandbox in sandboxes:
        completed = await sandbox.run(Command(argv=("/bin/echo", "alive")))
        assert completed.stdout.text == "alive\n"
    async with await driver.create(SandboxSpec(), busybox_image) as newcomer:  # by the next spawner
        old, new = await driver.list(), newcomer.id
        assert {info.state for info in old} == {SandboxState.READY}
        assert new in {info.id for info in old}
        # an adopted sandbox that dies is noticed as well
        (victim,) = [info for info in old if info.id == sandboxes[0].id]
        os.kill(victim.pid, signal.SIGKILL)
        await until((settings.sandboxes_dir / victim.id / "end.json").exists)
        await until(lambda: not (settings.uppers_dir / victim.id).exists())
    for sandbox in sandboxes:
        await sandbox.delete()
    assert await driver.list() == []


@pytest.mark.fault("lease-without-anyone")
async def test_a_lease_ends_a_sandbox_though_nobody_is_left_outside(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    runner = await start_runner(settings, busybox_image, 3, ttl_s=1.5)
    pids = [info.pid for info in await driver.list()]
    assert len(pids) == 3
    await driver.close()
    await kill_and_wait(spawner_pid(settings))
    runner.kill()
    await runner.wait()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert {info.state for info in await driver.list()} == {SandboxState.ENDED}
    await driver.reap()
    assert await driver.list() == []


@pytest.mark.fault("lease-expired")
async def test_an_expired_lease_is_told_to_whoever_comes_later(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(lease=Lease(ttl_s=0.3)), busybox_image)
    await until((settings.sandboxes_dir / sandbox.id / "end.json").exists)
    with pytest.raises(SandboxLost, match="its lease ran out"):
        await driver.attach(sandbox.id)
    await sandbox.delete()


@pytest.mark.fault("spawner-killed-in-create")
async def test_a_spawner_killed_in_the_middle_of_creates(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image):
        pid = spawner_pid(settings)
        specs = [SandboxSpec(resources=Resources(pids=32)) for _ in range(40)]
        creates = [asyncio.create_task(driver.create(spec, busybox_image)) for spec in specs]
        await asyncio.sleep(0.03)
        await kill_and_wait(pid)
        made = await asyncio.gather(*creates, return_exceptions=True)
    failed = [error for error in made if isinstance(error, BaseException)]
    assert failed
    assert all(isinstance(error, InfraError) for error in failed)
    for sandbox in made:
        if not isinstance(sandbox, BaseException):
            await sandbox.delete()
    assert await driver.list() == []
    assert await driver.leftovers() == []


@pytest.mark.fault("create-cancelled")
async def test_a_create_that_is_cancelled_leaves_nothing(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as first:
        for delay_ms in (0, 1, 2, 3, 5, 8):
            task = asyncio.create_task(driver.create(SandboxSpec(), busybox_image))
            await asyncio.sleep(delay_ms / 1000)
            task.cancel()
            try:
                sandbox = await task
            except asyncio.CancelledError:
                continue
            await sandbox.delete()
        assert [info.id for info in await driver.list()] == [first.id]


@pytest.mark.fault("stale-spawner-socket")
async def test_a_socket_that_a_killed_spawner_left_is_no_obstacle(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image):
        await kill_and_wait(spawner_pid(settings))
        assert (settings.run_dir / "spawner.sock").exists()
        other = LocalDriver(settings)
        async with await other.create(SandboxSpec(), busybox_image) as sandbox:
            assert (await sandbox.run(Command(argv=("/bin/true",)))).ok
        await other.close()
