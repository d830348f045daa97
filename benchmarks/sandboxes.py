"""Sandbox life and command latency beside the kernel's floor, crun and podman, in one run.

    python benchmarks/sandboxes.py [--count N] [--quick]

Everything lives below a temporary folder on the disk's file system and is removed at the end. Results go to
``benchmarks/results/sandboxes.json``; ``BENCHMARKS.md`` says what they mean.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, PreparedImage, Resources, SandboxSpec
from measure import Series, forget_dead_cgroups, show, store
from peers import Crun, Podman, allow_crun_on_hybrid_cgroups, floor, make_rootfs, repeat

LIMITS = Resources(cpus=1, memory_bytes=512 << 20, pids=512)
TRUE = ("/bin/true",)


async def timed(name: str, operation: Callable[[], Awaitable[None]], count: int, workers: int) -> Series:
    """Run ``operation`` ``count`` times, ``workers`` at once."""
    times: list[float] = []
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begin = time.perf_counter()
            await operation()
            times.append((time.perf_counter() - begin) * 1e3)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    return Series(name, times, time.perf_counter() - begin)


async def true_in(sandbox: Sandbox) -> None:
    """Run ``true`` and insist that it ran."""
    completed = await sandbox.run(Command(argv=TRUE))
    if not completed.ok:
        raise RuntimeError(f"true ended with {completed}")


async def lives(driver: LocalDriver, image: PreparedImage, count: int, workers: int) -> Series:
    """Measure create → first command's output → delete."""

    async def one() -> None:
        sandbox = await driver.create(SandboxSpec(resources=LIMITS), image)
        await true_in(sandbox)
        await sandbox.delete()

    return await timed(f"cloche, Python client, {workers} at once", one, count, workers)


async def commands(driver: LocalDriver, image: PreparedImage, count: int) -> list[Series]:
    """Measure ``true`` in running sandboxes, alone and with many in flight over 1 and 8 sandboxes."""
    sandboxes = [await driver.create(SandboxSpec(resources=LIMITS), image) for _ in range(8)]
    turn = 0

    async def spread() -> None:
        nonlocal turn
        turn += 1
        await true_in(sandboxes[turn % len(sandboxes)])

    try:
        return [
            await timed("cloche, one at a time", lambda: true_in(sandboxes[0]), count, 1),
            await timed("cloche, 16 in flight, one sandbox", lambda: true_in(sandboxes[0]), count * 2, 16),
            await timed("cloche, 16 in flight, 8 sandboxes", spread, count * 2, 16),
        ]
    finally:
        for sandbox in sandboxes:
            await sandbox.delete()


async def idle_guest_kib(driver: LocalDriver, image: PreparedImage) -> int:
    """Return the private memory of a guest that has run one command and waits, in KiB.

    Anonymous pages only: the program's own are those of one sealed file, shared by all guests.
    """
    async with await driver.create(SandboxSpec(resources=LIMITS), image) as sandbox:
        await true_in(sandbox)
        (info,) = [info for info in await driver.list() if info.id == sandbox.id]
        lines = Path(f"/proc/{info.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


async def main() -> int:
    """Run everything and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few repetitions, nothing stored")
    options = parser.parse_args()
    count = 20 if options.quick else options.count
    slow = max(5, count // 10)
    work = Path(tempfile.mkdtemp(prefix="cloche-bench-", dir="/var/tmp"))
    driver = LocalDriver(Settings(state_dir=work / "state", run_dir=work / "run"))
    try:
        rootfs = make_rootfs(work / "rootfs")
        layer = work / "state" / "layers" / "bench"
        shutil.copytree(rootfs, layer, symlinks=True)
        digest = "sha256:" + hashlib.sha256(b"bench").hexdigest()
        image = PreparedImage(name="localhost/bench:1", digest=digest, layers=(layer,))
        forget_dead_cgroups()
        allow_crun_on_hybrid_cgroups()
        crun, podman = Crun(work, rootfs), Podman(work, rootfs)
        await lives(
            driver, image, 10, 2
        )  # the spawner starts with the first sandbox: not part of the figures
        life = [
            floor(work, rootfs, count, 1),
            floor(work, rootfs, count, 2),
            floor(work, rootfs, count, 4),
            await lives(driver, image, count, 1),
            await lives(driver, image, count, 4),
            await lives(driver, image, count, 16),
            await repeat("crun run, one at a time", crun.run_argv(), count // 2, 1),
            await repeat("crun run, 4 at once", crun.run_argv(), count // 2, 4),
            await repeat("podman run --rm, one at a time", podman.run_argv(), slow, 1, podman.env),
            await repeat("podman run --rm, 4 at once", podman.run_argv(), slow, 4, podman.env),
        ]
        execs = await commands(driver, image, count * 2)
        guest_kib = await idle_guest_kib(driver, image)
        execs.append(await repeat("podman exec, one at a time", podman.start_one(), slow, 1, podman.env))
        podman.stop()
        left = await driver.leftovers()
    finally:
        await driver.close()
        shutil.rmtree(work, ignore_errors=True)
    show("create → `true` → delete (limits on memory, CPU and pids; network none)", life)
    show("`true` in a running sandbox", execs)
    print(f"\nprivate memory of an idle guest: {guest_kib} KiB\nleft behind: {len(left)}")
    if not options.quick:
        print(store("sandboxes", {"life": life, "exec": execs}, idle_guest_private_kib=guest_kib))
    return 1 if left or any(item.failures for item in (*life, *execs)) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
