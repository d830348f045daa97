"""How full the store's file system is: what admission asks before it lets one more sandbox begin.

Must never walk the store: it is asked all the time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cloche.sandbox.settings import Settings

GUARD = 0.90
"""Above this no sandbox is admitted: what runs needs the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """Space and inodes of the file system that holds image layers and writable layers; 0 inodes: no bound."""

    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int

    @property
    def used(self) -> float:
        """The part that is used, 0 to 1: of space or of inodes, whichever is more."""
        parts = [(self.total_bytes, self.free_bytes), (self.total_inodes, self.free_inodes)]
        return max((1 - free / total for total, free in parts if total > 0), default=0.0)

    @property
    def guarded(self) -> bool:
        """Whether no further sandbox should be admitted."""
        return self.used >= GUARD


def store_usage(settings: Settings) -> StoreUsage:
    """Look at the store's file system (at the nearest folder above, while there is no store yet).

    What the file system keeps for root counts as neither used nor free, as ``df`` has it.
    """
    place = settings.state_dir
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    reserved = found.f_bfree - found.f_bavail
    return StoreUsage(
        total_bytes=(found.f_blocks - reserved) * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        total_inodes=found.f_files,
        free_inodes=found.f_favail,
    )
