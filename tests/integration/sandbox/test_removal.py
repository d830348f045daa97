"""Whatever a workload makes of its files, they go when the sandbox goes, and nothing outside does."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec

DEEP = "cd /tmp; for i in $(seq 3000); do mkdir d; cd d; done; echo bottom > file"
WIDE = "mkdir /w; cd /w; for i in $(seq 400); do mkdir -p $i/a/b; : > $i/a/b/c; : > $i/.gone-$i; done"
MODES = "mkdir -p /m/n/o; : > /m/n/o/p; chmod 000 /m/n/o /m/n /m; mkfifo /f; nc -lU /sock & sleep 0.1"
NAMES = "cd /tmp; mkdir -- -rf .gone-0 .gone-1 '*' 'a b'; mkdir -p .gone-0/x .gone-1/y; : > 'new\nline'"
LINKS = "mkdir /l; ln -s / /l/root; ln -s ../../../../../../etc /l/up; ln /etc/passwd /l/hard; ln -s /l /l/l"
DELETED = "rm -rf /home /opt /bin/vi; mkdir /home"


@pytest.mark.parametrize(
    "line", [DEEP, WIDE, MODES, NAMES, LINKS, DELETED], ids=lambda line: line.split(";")[0]
)
async def test_any_tree_is_removed(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, line: str
) -> None:
    sandbox = await driver.create(SandboxSpec(), busybox_image)
    completed = await sandbox.run(Command(shell=line))
    assert completed.ok, completed.stderr.text
    await sandbox.delete()
    assert not (settings.uppers_dir / sandbox.id).exists()
    assert Path("/etc/passwd").exists()
    assert (busybox_image.layers[0] / "etc" / "passwd").exists()


@pytest.mark.fault("deletes-of-one-another")
async def test_a_slow_removal_holds_up_nobody(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    slow = await driver.create(SandboxSpec(), busybox_image)
    await slow.run(Command(shell="mkdir /w; cd /w; for i in $(seq 5000); do : > $i; done"))
    deleting = asyncio.create_task(slow.delete())
    async with await driver.create(SandboxSpec(), busybox_image) as quick:
        assert (await quick.run(Command(argv=("/bin/true",)))).ok
    await deleting
    assert await driver.list() == []
