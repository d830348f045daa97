"""The lease: the guest ends by itself, and with it everything in its namespace."""

from __future__ import annotations

import asyncio

import pytest

from cloche.core.errors import SandboxLost
from cloche.sandbox.guest.frames import Type
from cloche.sandbox.spec import Command, EndReason, Lease, SandboxSpec


@pytest.mark.fault("lease-runs-out")
@pytest.mark.parametrize("tree", ["keeper", "cgroup", "plain"])
async def test_the_ttl_ends_the_sandbox(make_guest, tree: str) -> None:
    guest = make_guest("--ttl-ms=400", tree=tree)
    sandbox = await guest.sandbox()
    done = await sandbox.run(Command(shell="setsid sleep 100 & exec sleep 100"))
    assert done.reason is EndReason.SANDBOX_LOST
    assert "lost" in done.message
    assert await guest.ended() == 10
    assert sandbox.lost
    for call in (sandbox.ping(), sandbox.run(Command(argv=("true",))), sandbox.read_file("/etc/passwd")):
        with pytest.raises(SandboxLost):
            await call


async def test_extending_moves_the_end(make_guest) -> None:
    guest = make_guest("--ttl-ms=600")
    sandbox = await guest.sandbox()
    await sandbox.extend(3600)
    await asyncio.sleep(1)
    assert (await sandbox.run(Command(argv=("true",)))).ok
    await sandbox.extend(None)
    await sandbox.ping()
    await sandbox.extend(0.05)
    await guest.ended()


async def test_an_idle_sandbox_ends(make_guest) -> None:
    guest = make_guest("--idle-ms=300")
    sandbox = await guest.sandbox()
    await sandbox.run(Command(argv=("true",)))
    assert await guest.ended() == 11


async def test_who_waits_is_not_idle(make_guest) -> None:
    guest = make_guest("--idle-ms=300")
    sandbox = await guest.sandbox()
    assert (await sandbox.run(Command(shell="sleep 1; echo done"))).stdout.data == b"done\n"
    await guest.ended()


async def test_heartbeats_and_pings_are_no_use(make_guest) -> None:
    guest = make_guest("--idle-ms=400")
    sandbox = await guest.sandbox(spec=SandboxSpec(lease=Lease(ttl_s=None, heartbeat_s=0.1)))

    async def ping_on() -> None:
        while True:
            await sandbox.ping()
            await asyncio.sleep(0.02)

    with pytest.raises(SandboxLost):
        await ping_on()
    await guest.ended()


@pytest.mark.fault("client-is-gone-for-good")
async def test_without_heartbeats_it_ends(make_guest) -> None:
    guest = make_guest("--heartbeat-ms=300")
    sandbox = await guest.sandbox()  # its specification knows of no heartbeat, so it sends none
    done = await sandbox.run(Command(argv=("sleep", "100")))
    assert done.reason is EndReason.SANDBOX_LOST
    await guest.ended()


async def test_a_handle_sends_heartbeats_by_itself(make_guest) -> None:
    guest = make_guest("--heartbeat-ms=500")
    sandbox = await guest.sandbox(spec=SandboxSpec(lease=Lease(ttl_s=None, heartbeat_s=0.5)))
    done = await sandbox.run(Command(shell="sleep 1.5; echo still here"))
    assert done.stdout.data == b"still here\n"
    await sandbox.close()
    await guest.ended()


async def test_shutdown(lone) -> None:
    connection = await lone.connect()
    await connection.ask(Type.SHUTDOWN)
    assert await lone.ended() == 0


async def test_deleting_twice(lone) -> None:
    sandbox = await lone.sandbox()
    async with sandbox:
        assert sandbox.id.startswith("sb-")
    await sandbox.delete()
    with pytest.raises(SandboxLost):
        await sandbox.ping()


@pytest.mark.fault("guest-killed-in-mid-command")
async def test_a_guest_that_is_killed_is_a_lost_sandbox(lone) -> None:
    sandbox = await lone.sandbox()
    seen = asyncio.Event()
    task = asyncio.create_task(
        sandbox.run(Command(shell="echo before; sleep 100"), on_output=lambda _: seen.set())
    )
    process = await sandbox.start(Command(id="other", argv=("cat",), interactive=True))
    await seen.wait()
    lone.end()
    done = await task
    assert done.reason is EndReason.SANDBOX_LOST
    assert done.stdout.data == b"before\n"
    with pytest.raises(SandboxLost):
        await process.write(b"x")
    assert (await process.wait()).reason is EndReason.SANDBOX_LOST
