"""The workload's root shares its user with the guest, and still must not be able to harm it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason, PreparedImage, Resources, SandboxSpec

LIMITS = {"cpu": 0, "file-size": 1, "data": 2, "processes": 6, "files": 7, "memory": 9}  # getrlimit(2)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.fault("guest-limits-attacked")
async def test_limits_of_the_guest_cannot_be_changed(hostile: Sandbox, name: str) -> None:
    completed = await hostile.run(Command(argv=("probe", "limit", "1", str(LIMITS[name]), "3")))
    assert completed.stdout.text == "Operation not permitted\n"


async def test_a_program_may_still_lower_its_own_limits(hostile: Sandbox) -> None:
    completed = await hostile.run(Command(shell="ulimit -n 50; ulimit -Hn; probe limit 0 7 40"))
    assert completed.stdout.text == "50\ndone\n"


@pytest.mark.fault("memory-hidden-from-the-killer")
async def test_memory_that_nobody_seems_to_hold_is_still_the_sandboxes_own_doing(
    driver: LocalDriver, busybox_image: PreparedImage, probe: Path
) -> None:
    """Where the killer sees no process with memory it may take the guest: then the end says why."""
    spec = SandboxSpec(resources=Resources(memory_bytes=64 << 20))
    async with await driver.create(spec, busybox_image) as sandbox:
        await sandbox.upload(probe, "/bin/probe")
        hog = "(echo 0 >/proc/self/oom_score_adj; exec probe memory 12000000 2) &"
        completed = await sandbox.run(Command(shell=f"{hog * 8} wait"))
        if completed.reason is EndReason.SANDBOX_LOST:
            for _ in range(500):
                info = (await driver.list())[0]
                if info.state is SandboxState.ENDED:
                    break
                await asyncio.sleep(0.02)
            assert info.reason == "its guest was killed for lack of memory"
        else:
            assert (await sandbox.run(Command(shell="echo alive"))).stdout.text == "alive\n"


@pytest.mark.parametrize("name", ["oom_score_adj", "autogroup"])
@pytest.mark.fault("guest-proc-files-attacked")
async def test_files_of_the_guest_in_proc_cannot_be_written(hostile: Sandbox, name: str) -> None:
    completed = await hostile.run(Command(shell=f"echo 1 >/proc/1/{name}"))
    assert not completed.ok
