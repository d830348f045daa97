"""Limits as pure cgroup v2 enforces them, seen from outside: for the virtual machine of scripts/test-vm only.

Not collected elsewhere: a machine with v1 controllers does not have these files.
"""

# a test may block its own loop

from __future__ import annotations

from pathlib import Path

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.native.cgroups import Cgroups, detect
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, EndReason, PreparedImage, Resources, SandboxSpec

MIB = 1 << 20
HOG = "x=0123456789abcdef; while true; do x=$x$x$x$x; done"


def group_of(settings: Settings, sandbox_id: str) -> Path:
    (folder,) = Cgroups(settings).of(sandbox_id)
    return folder


def values(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}


def options_of_v2() -> set[str]:
    lines = [line for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line]
    assert len(lines) == 1
    return set(lines[0].split()[3].split(","))


def test_this_is_a_machine_with_pure_v2() -> None:
    assert detect().name == "pure"
    assert detect().limits() == {"memory", "cpu", "pids"}
    assert "nsdelegate" in options_of_v2()
    assert "favordynmods" not in options_of_v2()


async def test_cpu_is_throttled(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(resources=Resources(cpus=0.2)), busybox_image) as sandbox:
        group = group_of(settings, sandbox.id)
        assert (group / "cpu.max").read_text().split() == ["20000", "100000"]
        await sandbox.run(Command(shell="timeout 2 sh -c 'while :; do :; done'"))
        stat = values(group / "cpu.stat")
        assert stat["nr_throttled"] > 5
        assert stat["throttled_usec"] > 500_000


async def test_memory_is_held_and_its_end_is_counted(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    spec = SandboxSpec(resources=Resources(memory_bytes=64 * MIB))
    async with await driver.create(spec, busybox_image) as sandbox:
        group = group_of(settings, sandbox.id)
        assert int((group / "memory.max").read_text()) == 64 * MIB
        if (group / "memory.swap.max").exists():
            assert int((group / "memory.swap.max").read_text()) == 0
        assert (await sandbox.run(Command(shell=HOG))).reason is EndReason.OUT_OF_MEMORY
        assert values(group / "memory.events")["oom_kill"] == 1
        assert (group / "memory.oom.group").read_text().strip() == "0"  # the guest outlives its command
        assert (await sandbox.run(Command(argv=("/bin/echo", "alive")))).ok


async def test_processes_are_counted(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    async with await driver.create(SandboxSpec(resources=Resources(pids=10)), busybox_image) as sandbox:
        group = group_of(settings, sandbox.id)
        assert (group / "pids.max").read_text().strip() == "10"
        await sandbox.run(Command(shell="for i in $(seq 30); do sleep 5 & done; wait", timeout_s=5))
        assert values(group / "pids.events")["max"] > 0


async def test_limits_belong_to_the_host_and_only_what_is_below_to_the_sandbox(
    driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    spec = SandboxSpec(resources=Resources(memory_bytes=64 * MIB, cpus=0.5, pids=50))
    async with await driver.create(spec, busybox_image) as sandbox:
        group = group_of(settings, sandbox.id)
        for name in ("memory.max", "cpu.max", "pids.max", "cgroup.kill", "cgroup.freeze"):
            assert (group / name).stat().st_uid == 0, name
        assert (group / "cgroup.procs").stat().st_uid >= 0x70000000
        seen = await sandbox.run(Command(shell="cat /proc/self/cgroup; grep cgroup /proc/mounts; ls /sys/fs"))
        assert settings.instance not in seen.stdout.text
        assert "cgroup2" not in seen.stdout.text


async def test_nothing_remounts_the_hierarchy(driver: LocalDriver, busybox_image: PreparedImage) -> None:
    before = options_of_v2()
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        assert (await sandbox.run(Command(argv=("/bin/true",)))).ok
    assert options_of_v2() == before
