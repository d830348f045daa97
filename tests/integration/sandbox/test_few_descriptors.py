"""Sandboxes live on where the spawner has no descriptor left: a limit on files is no limit on sandboxes."""

# ruff: noqa: ASYNC110  # an end has no event here

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from cloche.sandbox.driver import SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native import launch
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec
from cloche.testing.sandboxes import stop_spawner

FILES = 160
"""The spawner keeps 128 for what is open only for a moment."""
MANY = 40


@pytest.fixture
async def many(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Sandbox]]:
    """More sandboxes than the spawner has descriptors for."""
    await stop_spawner(settings)
    arguments = launch._arguments
    monkeypatch.setattr(launch, "_arguments", lambda own: ["prlimit", f"--nofile={FILES}", *arguments(own)])
    made = [await driver.create(SandboxSpec(), busybox_image) for _ in range(MANY)]
    yield made
    for sandbox in made:
        await sandbox.delete()
    await stop_spawner(settings)


@pytest.mark.fault("no-descriptor-for-a-sandbox")
async def test_those_without_a_descriptor_live_and_end_like_the_others(
    driver: LocalDriver, many: list[Sandbox]
) -> None:
    last = many[-1]
    for sandbox in many:
        assert (await sandbox.run(Command(argv=("/bin/true",)))).ok
    await driver.pause(last.id)
    await driver.resume(last.id)
    assert (await last.run(Command(argv=("/bin/true",)))).ok
    victim = many[-2]
    (pid,) = [info.pid for info in await driver.list() if info.id == victim.id]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while not (driver._settings.sandboxes_dir / victim.id / "end.json").exists():
            await asyncio.sleep(0.05)
    states = {info.id: info.state for info in await driver.list()}
    assert states.pop(victim.id) is SandboxState.ENDED
    assert set(states.values()) == {SandboxState.READY}
