"""What an operator decides about a service. Plain data; must never be changed while it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cloche.core.admission import Limits

_PROCESSES_PER_SANDBOX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Capacity and bounds of one service.

    ``capacity`` counts what is asked for (requests, not limits): by default this host's CPUs times
    ``cpu_overcommit`` and its memory, less a tenth, times ``memory_overcommit``. ``volumes`` are the folders
    below which clients may have volumes; none by default. ``allow_images`` are patterns, all by default;
    ``locked`` refuses names without a digest. Every ``poll_s`` the service looks for what has ended, every
    ``list_s`` for what others have made.
    """

    capacity: Limits | None = None
    cpu_overcommit: float = 8.0
    memory_overcommit: float = 1.0
    starts: int = 32
    start_interval_s: float = 0.0
    queue_max: int = 200_000
    store_full: float = 0.9
    allow_images: tuple[str, ...] = ("*",)
    locked: bool = False
    volumes: tuple[Path, ...] = ()
    poll_s: float = 1.0
    list_s: float = 15.0
    handles_max: int = 4096
    handle_idle_s: float = 60.0
    ended_max: int = 20_000
    events_max: int = 200_000
    deletes: int = 64
    start_timeout_s: float = 600.0
    delete_timeout_s: float = 120.0
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4), "little"))

    def host_capacity(self) -> Limits:
        """Return the capacity: as set, or what this host has."""
        if self.capacity is not None:
            return self.capacity
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        pids = int(Path("/proc/sys/kernel/pid_max").read_text())
        return Limits(
            sandboxes=max(1, pids // _PROCESSES_PER_SANDBOX - 256),
            cpus=(os.cpu_count() or 1) * self.cpu_overcommit,
            memory_bytes=int(memory * 0.9 * self.memory_overcommit),
        )
