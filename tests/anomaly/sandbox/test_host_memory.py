"""Running out of the memory that sandboxes share is this machine's failure, never the victim's result."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloche.core.errors import InfraError
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, EndReason, Resources, SandboxSpec
from cloche.testing.sandboxes import is_clean, make_busybox_image, stop_spawner

HOG = "x=0123456789abcdef; while true; do x=$x$x$x$x; done"


@pytest.fixture
async def small_pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalDriver]:
    """An installation whose sandboxes without a limit share 96 MiB."""
    monkeypatch.setattr("cloche.sandbox.native.request.pool_bytes", lambda: 96 << 20)
    base = Path(tempfile.mkdtemp(prefix="clo-", dir="/var/tmp"))
    driver = LocalDriver(Settings(state_dir=base / "s", run_dir=base / "r"))
    yield driver
    await driver.close()
    await stop_spawner(driver._settings)
    assert is_clean(driver._settings) == []
    await asyncio.to_thread(shutil.rmtree, base)


@pytest.mark.fault("host-memory")
async def test_the_shared_pool_is_the_machines(small_pool: LocalDriver) -> None:
    image = make_busybox_image(small_pool._settings)
    limited = SandboxSpec(resources=Resources(memory_bytes=64 << 20))
    async with (
        await small_pool.create(SandboxSpec(), image) as hog,
        await small_pool.create(limited, image) as bystander,
    ):
        with pytest.raises(InfraError, match="ran out") as caught:
            await hog.run(Command(shell=HOG))
        assert caught.value.code == "infra/host_memory"
        assert (await hog.run(Command(argv=("/bin/true",)))).ok  # its guest was spared
        assert (await bystander.run(Command(shell=HOG))).reason is EndReason.OUT_OF_MEMORY
