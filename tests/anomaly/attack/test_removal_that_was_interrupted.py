"""Deletes that were killed half way can be done again, and one that cannot is no obstacle for others."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from cloche.core.errors import ClocheError
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import PreparedImage, SandboxSpec

HALF_REMOVED = 1500


@pytest.mark.fault("removal-interrupted")
async def test_a_wide_tree_whose_removal_was_killed_is_removed(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    upper = settings.uppers_dir / sandbox.id
    for number in range(HALF_REMOVED):  # as a killed spawner leaves it: folders that it had moved to the top
        (upper / f".gone-{number}" / "a" / "b").mkdir(parents=True)
    try:
        assert await driver.delete(sandbox.id) is True
    finally:
        shutil.rmtree(upper, ignore_errors=True)
        await driver.delete(sandbox.id)
        await sandbox.close()


@pytest.mark.fault("unremovable-beside-others")
async def test_reap_goes_on_after_what_cannot_be_removed(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image):
        names = [f"left-{number}" for number in range(12)]
        for name in names:
            (settings.uppers_dir / name / "upper").mkdir(parents=True)
            (settings.uppers_dir / name / "upper" / "file").touch()
        stuck = settings.uppers_dir / names[0] / "upper" / "file"
        subprocess.run(["chattr", "+i", stuck], check=True)  # noqa: ASYNC221
        try:
            with pytest.raises(ClocheError):
                await driver.reap()
            left = [item.name for item in await driver.leftovers()]
        finally:
            for path in settings.uppers_dir.glob("left-0/**/file"):
                subprocess.run(["chattr", "-i", path], check=True)  # noqa: ASYNC221
            await driver.reap()
        assert left == [str(settings.uppers_dir / names[0])]
