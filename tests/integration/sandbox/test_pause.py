"""A paused sandbox stands still, its lease goes on, and it can be ended like any other."""

# ruff: noqa: ASYNC110  # a test may block its own loop

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput, NotFound, SandboxLost
from cloche.sandbox.driver import Capability, SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native.cgroups import Cgroups
from cloche.sandbox.native.spawner import Spawner
from cloche.sandbox.native.wire import Request, Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, Lease, PreparedImage, Resources, SandboxSpec

COUNT = "i=0; while :; do i=$((i+1)); echo $i; done"


def frozen(settings: Settings, sandbox_id: str) -> bool:
    """Ask the kernel."""
    return any(
        "frozen 1" in (group / "cgroup.events").read_text()
        for group in Cgroups(settings).of(sandbox_id)
        if (group / "cgroup.events").exists()
    )


async def state_of(driver: LocalDriver, sandbox_id: str) -> SandboxState:
    return next(info.state for info in await driver.list() if info.id == sandbox_id)


async def reaches(driver: LocalDriver, sandbox_id: str, state: SandboxState) -> None:
    async with asyncio.timeout(30):
        while await state_of(driver, sandbox_id) is not state:
            await asyncio.sleep(0.02)


async def kill_spawner(settings: Settings) -> None:
    """End it as a crash would, and wait for its end."""
    spawner = Spawner(settings)
    pid = int.from_bytes(dict(await spawner.ask(Request.STATUS))[Tag.PID], "little")
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(lambda: select.select([watch], [], [], 30))
    os.close(watch)
    await spawner.close()


@pytest.mark.parametrize("resources", [Resources(), Resources(memory_bytes=64 << 20, cpus=1.0)])
async def test_nothing_moves_while_it_is_paused(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, resources: Resources
) -> None:
    assert Capability.PAUSE in driver.capabilities()
    async with await driver.create(SandboxSpec(resources=resources), busybox_image) as sandbox:
        counting = await sandbox.start(Command(shell="while :; do date +%N > /tmp/now; done"))
        await driver.pause(sandbox.id)
        assert await state_of(driver, sandbox.id) is SandboxState.PAUSED
        assert frozen(settings, sandbox.id)
        file = settings.uppers_dir / sandbox.id / "upper/tmp/now"
        before = (file.stat().st_mtime_ns, file.read_text()) if file.exists() else None
        await driver.pause(sandbox.id)  # twice is no error
        await asyncio.sleep(0.3)
        assert before == ((file.stat().st_mtime_ns, file.read_text()) if file.exists() else None)
        with pytest.raises(InvalidInput, match="is paused"):
            await driver.attach(sandbox.id)
        await driver.resume(sandbox.id)
        await driver.resume(sandbox.id)
        assert await state_of(driver, sandbox.id) is SandboxState.READY
        assert (await sandbox.run(Command(argv=("/bin/true",)))).ok  # the connection lived on
        await counting.cancel()


async def test_a_paused_sandbox_can_be_deleted(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    await sandbox.start(Command(shell=COUNT))
    await driver.pause(sandbox.id)
    assert await driver.delete(sandbox.id)
    assert await driver.list() == []
    await sandbox.close()


@pytest.mark.fault("paused-sandbox-out-of-time")
async def test_the_ttl_of_a_paused_sandbox_runs_out(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    sandbox = await driver.create(SandboxSpec(lease=Lease(ttl_s=600)), busybox_image)
    await sandbox.extend(0.7)  # what the guest was told counts, not what the record says
    await driver.pause(sandbox.id)
    await reaches(driver, sandbox.id, SandboxState.ENDED)
    with pytest.raises(SandboxLost, match="lease ran out"):
        await driver.resume(sandbox.id)
    with pytest.raises(SandboxLost, match="lease ran out"):
        await driver.attach(sandbox.id)
    assert await driver.delete(sandbox.id)
    await sandbox.close()


@pytest.mark.fault("spawner-dies-while-one-is-paused")
async def test_the_next_spawner_knows_what_is_paused(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    short = await driver.create(SandboxSpec(lease=Lease(ttl_s=1.5)), busybox_image)
    long = await driver.create(SandboxSpec(), busybox_image)
    for sandbox in (short, long):
        await driver.pause(sandbox.id)
    await kill_spawner(settings)
    assert await state_of(driver, long.id) is SandboxState.PAUSED
    another = Spawner(settings)
    await another.ask(Request.STATUS)
    await reaches(driver, short.id, SandboxState.ENDED)
    await driver.resume(long.id)
    assert (await long.run(Command(argv=("/bin/true",)))).ok
    for sandbox in (short, long):
        assert await driver.delete(sandbox.id)
        await sandbox.close()
    await another.close()


async def test_idle_time_and_heartbeats_begin_anew(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    lease = Lease(ttl_s=600, idle_s=0.5, heartbeat_s=600)
    sandbox: Sandbox = await driver.create(SandboxSpec(lease=lease), busybox_image)
    await driver.pause(sandbox.id)
    await asyncio.sleep(0.8)  # longer than it may be idle
    assert await state_of(driver, sandbox.id) is SandboxState.PAUSED
    await driver.resume(sandbox.id)
    assert (await sandbox.run(Command(argv=("/bin/true",)))).ok
    await reaches(driver, sandbox.id, SandboxState.ENDED)
    await driver.delete(sandbox.id)
    await sandbox.close()


async def test_nobody_inside_can_make_the_lease_longer(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    sandbox = await driver.create(SandboxSpec(lease=Lease(ttl_s=600, idle_s=0.7)), busybox_image)
    process = await sandbox.start(
        Command(shell="(while :; do kill -USR1 1; sleep 0.05; done) >/dev/null 2>&1 &")
    )
    del process
    await reaches(driver, sandbox.id, SandboxState.ENDED)
    await driver.delete(sandbox.id)
    await sandbox.close()


async def test_pause_of_what_is_not_there(driver: LocalDriver) -> None:
    for attempt in (driver.pause, driver.resume):
        with pytest.raises(NotFound):
            await attempt("not-there")


def test_the_old_freezer_where_there_is_no_v2(settings: Settings, busybox_image: PreparedImage) -> None:
    """The same in a mount namespace that shows only control groups of the old kind."""
    if not Path("/sys/fs/cgroup/unified").is_dir():
        pytest.fail("this machine has no control groups of the old kind")
    code = (
        "import asyncio\n"
        "from pathlib import Path\n"
        "from cloche.sandbox.drivers.local import LocalDriver\n"
        "from cloche.sandbox.settings import Settings\n"
        "from cloche.sandbox.spec import *\n"
        "from cloche.testing.sandboxes import is_clean, make_busybox_image, stop_spawner\n"
        "async def main(base):\n"
        "    own = Settings(state_dir=base / 's', run_dir=base / 'r')\n"
        "    image, driver = make_busybox_image(own), LocalDriver(own)\n"
        "    assert driver._runtime._cgroups.layout.name == 'v1'\n"
        "    one = await driver.create(SandboxSpec(), image)\n"
        "    two = await driver.create(SandboxSpec(lease=Lease(ttl_s=1.0)), image)\n"
        "    for each in (one, two):\n"
        "        await each.start(Command(shell='while :; do :; done'))\n"
        "        await driver.pause(each.id)\n"
        "        group = driver._runtime._cgroups.layout.freezer / f'cloche-{own.instance}' / each.id\n"
        "        assert (group / 'freezer.state').read_text() == 'FROZEN\\n'\n"
        "    await driver.resume(one.id)\n"
        "    assert (await one.run(Command(argv=('/bin/true',)))).ok\n"
        "    await driver.pause(one.id)\n"
        "    await driver.delete(one.id)\n"
        "    while [i.state.value for i in await driver.list()] != ['ended']:\n"
        "        await asyncio.sleep(0.02)\n"
        "    await driver.delete(two.id)\n"
        "    await asyncio.gather(one.close(), two.close())\n"
        "    await driver.close()\n"
        "    await stop_spawner(own)\n"
        "    assert is_clean(own) == []\n"
        "import sys; asyncio.run(main(Path(sys.argv[1])))\n"
    )
    base = settings.state_dir.parent / "v1"
    hidden = 'umount /sys/fs/cgroup/unified && exec "$@"'
    subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", sys.executable, "-c", code, str(base)],
        check=True,
        timeout=90,
    )
