"""Whether the store has room for more sandboxes. Must never change it."""

from __future__ import annotations

import shutil
from pathlib import Path

from cloche.sandbox.driver import Driver


def store_has_room(driver: Driver, full: float) -> bool:
    """Whether the file system of the driver's store is used for less than ``full`` (0..1); blocks.

    A driver without a store of its own has room.
    """
    folder: Path | None = getattr(driver, "store_dir", None)
    if folder is None or not folder.exists():
        return True
    usage = shutil.disk_usage(folder)
    return usage.total == 0 or 1 - usage.free / usage.total < full
