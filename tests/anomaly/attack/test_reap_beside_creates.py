"""Looking for what was left, and reaping it, while others make sandboxes: what is alive is left alone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cloche.sandbox import leaks
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, NetworkMode, NetworkPolicy, PreparedImage, SandboxSpec

PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)

WAIT_S = 30


@pytest.mark.fault("reap-beside-creates")
async def test_a_sandbox_made_during_the_look_keeps_its_link(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, made = threading.Event(), threading.Event()
    look = leaks.dead_ids

    def slow(of: Settings) -> set[str]:
        looking.set()
        made.wait(WAIT_S)
        return look(of)

    monkeypatch.setattr(leaks, "dead_ids", slow)
    reaper = LocalDriver(settings)
    reaping = asyncio.create_task(reaper.reap())
    await asyncio.to_thread(looking.wait, WAIT_S)
    async with await driver.create(SandboxSpec(network=PUBLIC), busybox_image) as sandbox:
        made.set()
        reaped = await reaping
        links = (await sandbox.run(Command(shell="ip -o link | grep -c eth0"))).stdout.text
    await reaper.close()
    assert links == "1\n"
    assert reaped == []
