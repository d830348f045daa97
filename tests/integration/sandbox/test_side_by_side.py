"""Two installations on one machine never touch each other."""

# a test may block its own loop

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.native.record import read_folders
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec
from cloche.testing.sandboxes import is_clean, make_busybox_image, processes_of, stop_spawner


@pytest.fixture
async def other() -> AsyncIterator[LocalDriver]:
    """A driver of a second installation, which is gone without a trace afterwards."""
    base = Path(tempfile.mkdtemp(prefix="clo-", dir="/var/tmp"))
    own = Settings(state_dir=base / "s", run_dir=base / "r")
    driver = LocalDriver(own)
    yield driver
    await driver.close()
    await stop_spawner(own)
    left = [*is_clean(own), *processes_of(own)]
    await asyncio.to_thread(shutil.rmtree, base)
    assert not left


async def test_each_sees_and_deletes_only_its_own(
    driver: LocalDriver, other: LocalDriver, busybox_image: PreparedImage
) -> None:
    theirs_image = make_busybox_image(other._settings)
    async with (
        await driver.create(SandboxSpec(id="same-name"), busybox_image) as ours,
        await other.create(SandboxSpec(id="same-name"), theirs_image) as theirs,
    ):
        await ours.write_file("/tmp/who", b"ours")
        await theirs.write_file("/tmp/who", b"theirs")
        assert len(await driver.list()) == len(await other.list()) == 1
        assert await driver.reap() == await other.reap() == []
        assert await driver.delete("same-name")
        assert await theirs.read_file("/tmp/who") == b"theirs"
        assert (await theirs.run(Command(argv=("/bin/true",)))).ok


async def test_ranges_of_ids_do_not_meet(
    driver: LocalDriver, other: LocalDriver, busybox_image: PreparedImage
) -> None:
    bases = []
    async with (
        await driver.create(SandboxSpec(), busybox_image) as ours,
        await other.create(SandboxSpec(), make_busybox_image(other._settings)) as theirs,
    ):
        for sandbox in (ours, theirs):
            text = (await sandbox.run(Command(argv=("/bin/cat", "/proc/self/uid_map")))).stdout.text
            bases.append(int(text.split()[1]))
        assert abs(bases[0] - bases[1]) >= 65536


async def test_a_long_path_of_the_run_folder_is_no_obstacle() -> None:
    """A socket's address has at most 107 bytes; a folder's path may be longer."""
    base = Path(tempfile.mkdtemp(prefix="clo-", dir="/var/tmp"))
    own = Settings(state_dir=base / "s", run_dir=base / ("r" * 60) / ("u" * 60) / ("n" * 60))
    driver = LocalDriver(own)
    try:
        async with await driver.create(SandboxSpec(), make_busybox_image(own)) as sandbox:
            assert (await sandbox.run(Command(argv=("/bin/true",)))).ok
        assert read_folders(own.sandboxes_dir) == []
    finally:
        await driver.close()
        await stop_spawner(own)
        await asyncio.to_thread(shutil.rmtree, base)
