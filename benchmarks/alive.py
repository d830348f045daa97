"""How many sandboxes can be alive at once on this machine, each answering a command, and how fast they go.

    python benchmarks/alive.py [--count N] [--limits] [--workers N] [--store]

Default isolation, network none. ``--limits`` gives each limits on memory, CPU and processes; without it they
share the pool for memory. The client lets go of each sandbox after its first command and connects again for
the second, so that it holds no descriptor per idle sandbox. The store lies on the disk, the run folder on
``/dev/shm`` (as ``/run`` is on most machines: memory). What stops it is printed as it is said; nothing is
left. With ``--store`` the result goes to ``benchmarks/results/alive.json`` beside earlier ones.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cloche.core.errors import ClocheError
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, Lease, PreparedImage, Resources, SandboxSpec
from measure import RESULTS, forget_dead_cgroups, machine
from peers import make_rootfs

LIMITS = Resources(cpus=1, memory_bytes=512 << 20, pids=512)


async def each(count: int, workers: int, work: Callable[[int], Awaitable[None]]) -> tuple[float, str | None]:
    """Do ``work`` for 0 to count - 1, some at once; return the seconds and what went wrong first."""
    numbers = iter(range(count))
    wrong: list[str] = []

    async def worker() -> None:
        for number in numbers:
            if wrong:
                return
            try:
                await work(number)
            except (ClocheError, OSError) as error:
                wrong.append(f"{number}: {error} ({getattr(error, 'hint', '')})")

    begin = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(workers)))
    return time.perf_counter() - begin, wrong[0] if wrong else None


def used_bytes() -> int:
    """Return the memory that is in use on this machine."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name: int(value.split()[0]) for name, value in lines.items()}
    return (kib["MemTotal"] - kib["MemFree"] - kib["Buffers"] - kib["Cached"] - kib["SReclaimable"]) * 1024


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Run:
    """One measurement: make, ask again, remove."""

    def __init__(self, driver: LocalDriver, image: PreparedImage, limits: bool) -> None:
        self.driver = driver
        self.image = image
        self.resources = LIMITS if limits else Resources()
        self.made: list[str] = []

    async def make(self, number: int) -> None:
        """Make one, run a command in it and let go of it."""
        spec = SandboxSpec(id=f"alive-{number}", resources=self.resources, lease=Lease(ttl_s=3600))
        sandbox = await self.driver.create(spec, self.image)
        self.made.append(sandbox.id)
        completed = await sandbox.run(Command(argv=("/bin/true",)))
        await sandbox.close()
        if not completed.ok:
            raise ClocheError(f"{sandbox.id}: {completed}")

    async def ask(self, number: int) -> None:
        """Connect again and run a command whose output is its own."""
        sandbox = await self.driver.attach(self.made[number])
        completed = await sandbox.run(Command(argv=("/bin/cat", "/etc/hostname")))
        await sandbox.close()
        if completed.stdout.text.strip() != sandbox.id:
            raise ClocheError(f"{sandbox.id}: {completed}")

    async def remove(self, number: int) -> None:
        """Delete one."""
        await self.driver.delete(self.made[number])


async def measure(run: Run, count: int, workers: int) -> dict[str, Any]:
    """Return the figures."""
    memory, figures = used_bytes(), {"asked": count}
    made_s, stopped = await each(count, workers, run.make)
    alive = len(run.made)
    print(f"{alive} alive after {made_s:.1f} s ({alive / made_s:.0f}/s); stopped by: {stopped}", flush=True)
    each_kib = (used_bytes() - memory) / 1024 / max(alive, 1)
    asked_s, silent = await each(alive, workers, run.ask)
    print(f"each answered again in {asked_s:.1f} s: {silent or 'all'}; {each_kib:.0f} KiB each", flush=True)
    open_now = descriptors()
    gone_s, kept = await each(alive, 4 * workers, run.remove)
    print(f"all gone in {gone_s:.1f} s: {kept or 'all'}; client's descriptors: {open_now}", flush=True)
    return figures | {
        "alive": alive,
        "stopped_by": stopped,
        "made_s": round(made_s, 2),
        "made_per_s": round(alive / made_s, 1),
        "kib_each": round(each_kib),
        "asked_s": round(asked_s, 2),
        "silent": silent,
        "gone_s": round(gone_s, 2),
        "kept": kept,
        "client_descriptors": open_now,
    }


def store(figures: dict[str, Any]) -> None:
    """Put the figures beside those of earlier runs."""
    path = RESULTS / "alive.json"
    before = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*before, {"machine": machine(), **figures}], indent=1) + "\n")


async def main() -> int:
    """Make an installation of its own, measure, and look for leftovers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="alive-", dir="/var/tmp"))
    run_dir = Path(tempfile.mkdtemp(prefix="alive-", dir="/dev/shm"))
    settings = Settings(state_dir=base / "s", run_dir=run_dir)
    driver = LocalDriver(settings)
    try:
        layer = settings.layers_dir / "bench"
        layer.parent.mkdir(parents=True)
        make_rootfs(layer)
        forget_dead_cgroups()
        run = Run(driver, PreparedImage(name="bench", digest="sha256:bench", layers=(layer,)), options.limits)
        figures = await measure(run, options.count, options.workers)
        left = [*itertools.islice(await driver.leftovers(), 5), *(await driver.list())[:5]]
        figures |= {"limits": options.limits, "load_1min": os.getloadavg()[0], "left_behind": len(left)}
        print(json.dumps(figures))
        if options.store:
            store(figures)
        return 1 if left or figures["stopped_by"] or figures["silent"] or figures["kept"] else 0
    finally:
        await driver.close()
        shutil.rmtree(base, ignore_errors=True)
        shutil.rmtree(run_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
