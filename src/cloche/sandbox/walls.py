"""How many sandboxes this machine has room for, wall by wall: what runs out first, and what moves it.

A sandbox that idles is one process in one set of namespaces. Must never change anything, nor count what is in
use now: a wall says what there would be room for on this machine if nothing else were on it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass

from cloche.sandbox.native.host import Host

SLOTS = 32_767
"""Live sandboxes of one installation: ranges of 65,536 ids that fit above 0x70000000 (``guest/spawner``)."""
IDLE_BYTES = 450 << 10
"""Memory of an idle sandbox without limits, kernel memory included (BENCHMARKS.md: 410 to 430 KiB seen)."""
LIMITED_BYTES = 700 << 10
"""The same with a memory limit of its own at 10,000 of them; each costs more the more there are."""
MEMORY_GROUPS_MAX = 65_535
"""Ids of memory control groups in the kernel (MEM_CGROUP_ID_MAX of mm/memcontrol.c)."""
_WANTED = 10_000
_LOW_DESCRIPTORS = 2048


@dataclass(frozen=True, slots=True)
class Wall:
    """One limit: what it is now, and for how many sandboxes that is room. ``room`` None: no wall."""

    name: str
    value: str
    room: int | None
    fix: str = ""

    @property
    def low(self) -> bool:
        """Whether ten thousand sandboxes would not fit."""
        return self.room is not None and self.room < _WANTED


def _namespaces(host: Host) -> Iterator[Wall]:
    kinds = ("user", "pid", "mnt", "uts", "ipc", "net")
    limits = {kind: host.number(f"/proc/sys/user/max_{kind}_namespaces") for kind in kinds}
    known = {kind: limit for kind, limit in limits.items() if limit is not None}
    if known:
        kind = min(known, key=lambda name: known[name])
        yield Wall(
            "namespaces",
            f"user.max_{kind}_namespaces {known[kind]:,}",
            known[kind],
            f"sysctl -w user.max_{kind}_namespaces=262144",
        )


def _descriptors() -> Wall:
    """No wall: beyond it a sandbox lives without a descriptor, and its end is noticed seconds later."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    room = max(hard - min(_LOW_DESCRIPTORS, hard // 4), 0)
    return Wall("descriptors", f"{hard:,} per process: {room:,} sandboxes watched without delay", None)


def _memory() -> Iterator[Wall]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shown = f"{total / (1 << 30):,.1f} GiB, {IDLE_BYTES >> 10} KiB each when idle"
    yield Wall("memory", shown, total // IDLE_BYTES, "more memory")
    limited = min(MEMORY_GROUPS_MAX, total // LIMITED_BYTES)
    yield Wall(
        "memory limits",
        f"{MEMORY_GROUPS_MAX:,} groups, {LIMITED_BYTES >> 10} KiB each when idle",
        limited,
        "give no memory limit where the shared pool will do",
    )


def walls(host: Host) -> list[Wall]:
    """Return every wall that is known, the installation's own among them."""
    mounts = host.number("/proc/sys/fs/mount-max")
    found = [
        Wall(
            "installation", f"{SLOTS:,} ranges of ids", SLOTS, "a second CLOCHE_STATE_DIR and CLOCHE_RUN_DIR"
        )
    ]
    found += _namespaces(host)
    if mounts is not None:
        found.append(Wall("mounts", f"{mounts:,} per namespace, of which a sandbox uses about 20", None))
    return [*found, _descriptors(), *_memory()]
