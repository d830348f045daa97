"""Limits on memory, CPU and processes hold, are told apart, and never harm the host."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.native.cgroups import detect
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, EndReason, PreparedImage, Resources, SandboxSpec

MIB = 1 << 20
HOG = "x=0123456789abcdef; while true; do x=$x$x$x$x; done"


@pytest.mark.fault("memory-hog")
async def test_a_memory_hog_is_ended_and_reported_as_such(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    spec = SandboxSpec(resources=Resources(memory_bytes=64 * MIB))
    async with await driver.create(spec, busybox_image) as sandbox:
        completed = await sandbox.run(Command(shell=HOG))
        assert completed.reason is EndReason.OUT_OF_MEMORY
        assert (await sandbox.run(Command(argv=("/bin/echo", "still here")))).stdout.text == "still here\n"


async def test_a_kill_that_is_not_for_memory_is_a_signal(
    driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    spec = SandboxSpec(resources=Resources(memory_bytes=64 * MIB))
    async with await driver.create(spec, busybox_image) as sandbox:
        completed = await sandbox.run(Command(shell="kill -9 $$"))
        assert (completed.reason, completed.signal) == (EndReason.SIGNAL, 9)


@pytest.mark.fault("fork-bomb")
async def test_a_fork_bomb_is_held(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    spec = SandboxSpec(resources=Resources(pids=64, memory_bytes=128 * MIB))
    async with await driver.create(spec, busybox_image) as sandbox:
        bomb = Command(shell="b() { b | b & }; b; sleep 100", timeout_s=1.0, grace_s=0.2)
        completed = await sandbox.run(bomb)
        assert completed.reason is EndReason.TIMEOUT
        assert (await sandbox.run(Command(argv=("/bin/echo", "quiet again")))).ok


async def test_delete_ends_a_fork_bomb_that_runs(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    sandbox = await driver.create(SandboxSpec(resources=Resources(pids=200)), busybox_image)
    await sandbox.start(Command(shell="b() { b | b & b; }; b"))
    await asyncio.sleep(0.3)
    assert await driver.delete(sandbox.id)
    assert await driver.leftovers() == []
    await sandbox.close()


async def test_the_process_limit_counts(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with await driver.create(SandboxSpec(resources=Resources(pids=10)), busybox_image) as sandbox:
        completed = await sandbox.run(
            Command(shell="for i in $(seq 30); do sleep 5 & done; wait", timeout_s=3)
        )
        assert "can't fork" in completed.stderr.text


async def test_the_cpu_limit_throttles(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with await driver.create(SandboxSpec(resources=Resources(cpus=0.2)), busybox_image) as sandbox:
        completed = await sandbox.run(Command(shell="timeout 1 sh -c 'while :; do :; done'"))
        assert completed.duration_s >= 0.9
        assert completed.cpu_s < 0.5 * completed.duration_s


async def test_without_a_limit_memory_counts_to_the_shared_pool(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    memory = detect().v1.get("memory") or detect().v2
    assert memory is not None
    async with await driver.create(SandboxSpec(), busybox_image):
        pool = memory / f"cloche-{settings.instance}" / "_pool"
        limit = next(
            pool / name for name in ("memory.limit_in_bytes", "memory.max") if (pool / name).exists()
        )
        total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
        assert total // 2 <= int(limit.read_text()) < total


@pytest.mark.parametrize(
    "resources",
    [Resources(memory_bytes=1), Resources(cpus=0), Resources(pids=0), Resources(cpus=-1.0)],
)
async def test_limits_that_cannot_be_are_refused(
    driver: LocalDriver, busybox_image: PreparedImage, resources: Resources
) -> None:
    with pytest.raises(InvalidInput, match=r"is the least|is not between"):
        await driver.create(SandboxSpec(resources=resources), busybox_image)
    assert await driver.list() == []


@pytest.mark.fault("core-dump")
async def test_a_crash_leaves_no_core(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        completed = await sandbox.run(
            Command(shell="cd /tmp; ulimit -c unlimited; sh -c 'kill -SEGV $$'; ls")
        )
        assert completed.stdout.text == ""
