"""What all tests share: reproducible properties, and no leftover threads, tasks or children."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("default")


def _children() -> set[int]:
    """Return the pids whose parent is this process, zombies too."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread may end while we look
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Fail a test that leaves a process of its own behind, or a descriptor table that keeps growing."""
    before = _children()
    yield
    left = _children() - before
    names = {pid: _name(pid) for pid in left}
    assert not names, f"left behind: {names}"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or os.strerror(3)
    except OSError:
        return "gone"
