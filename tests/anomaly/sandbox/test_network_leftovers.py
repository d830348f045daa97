"""Links, rules and the name server of public networks outlive nobody."""

# ruff: noqa: ASYNC110, ASYNC221, ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.leaks import tables
from cloche.sandbox.native import network
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, NetworkMode, NetworkPolicy, PreparedImage, SandboxSpec
from cloche.testing.sandboxes import processes_of, stop_spawner

PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)

IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@pytest.fixture(autouse=True)
def forwarding() -> Iterator[None]:
    before = IP_FORWARD.read_text()
    if before.strip() != "1":
        IP_FORWARD.write_text("1")
    yield
    if before.strip() != "1":
        IP_FORWARD.write_text(before)


def pid_of(settings: Settings, part: str) -> int:
    (line,) = [
        line for line in processes_of(settings) if part in line.split("--", 1)[0] or f"-m {part}" in line
    ]
    return int(line.split()[0])


def spawner(settings: Settings) -> int:
    return pid_of(settings, "cloche-spawner")


def resolver(settings: Settings) -> int:
    lines = [
        line for line in processes_of(settings) if "native.resolver" in line and "cloche-spawner" not in line
    ]
    assert len(lines) == 1, lines
    return int(lines[0].split()[0])


async def gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)


async def resolves(sandbox) -> bool:
    completed = await sandbox.run(Command(shell="nslookup localhost; nslookup x.invalid", timeout_s=20))
    return "NXDOMAIN" in completed.stdout.text + completed.stderr.text


async def test_names_are_resolved_after_the_spawner_was_killed(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(network=PUBLIC), busybox_image) as sandbox:
        server = resolver(settings)
        os.kill(spawner(settings), signal.SIGKILL)
        assert await resolves(sandbox)
        async with await driver.create(SandboxSpec(), busybox_image):  # the next spawner comes
            assert resolver(settings) == server
            assert await resolves(sandbox)
    await stop_spawner(settings)
    await gone(server)
    assert network.plan(settings).table not in tables()


@pytest.mark.fault("name-server-killed")
async def test_a_killed_name_server_is_replaced(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(network=PUBLIC), busybox_image) as sandbox:
        assert await resolves(sandbox)
        killed = resolver(settings)
        os.kill(killed, signal.SIGKILL)
        await gone(killed)
        async with asyncio.timeout(20):
            while not await resolves(sandbox):
                await asyncio.sleep(0.1)
        assert resolver(settings) != killed


@pytest.mark.fault("network-leftovers")
async def test_what_killed_processes_left_of_a_network_is_reaped(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(network=PUBLIC), busybox_image)
    (info,) = await driver.list()
    server = resolver(settings)
    os.kill(server, signal.SIGSTOP)  # or it may leave by itself before we have looked
    os.kill(spawner(settings), signal.SIGKILL)
    os.kill(info.pid, signal.SIGKILL)
    await gone(info.pid)
    kinds = {item.kind for item in await driver.leftovers()}
    os.kill(server, signal.SIGCONT)
    assert {"file", "cgroup", "rule", "process"} <= kinds
    await driver.reap()
    await stop_spawner(settings)
    assert await driver.leftovers() == []
    await gone(server)
    assert network.plan(settings).table not in tables()
    await sandbox.close()


async def test_a_link_without_a_sandbox_is_seen_and_removed(driver: LocalDriver, settings: Settings) -> None:
    link = f"{network.plan(settings).links}3fff"
    await driver.delete("nobody")
    subprocess.run(["ip", "link", "add", link, "type", "veth", "peer", "name", "clpeer0"], check=True)
    assert [(item.kind, item.name) for item in await driver.leftovers()] == [("network", link)]
    await driver.reap()
    assert not Path(f"/sys/class/net/{link}").exists()
    assert not Path("/sys/class/net/clpeer0").exists()


async def test_the_name_server_leaves_by_itself_when_all_others_are_gone(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    sandbox = await driver.create(SandboxSpec(network=PUBLIC), busybox_image)
    (info,) = await driver.list()
    server = resolver(settings)
    os.kill(spawner(settings), signal.SIGKILL)
    os.kill(info.pid, signal.SIGKILL)
    await gone(server)
    await driver.reap()
    await sandbox.close()
