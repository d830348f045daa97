"""How full the store is, as admission sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloche.sandbox.native.store_usage import StoreUsage, store_usage
from cloche.sandbox.settings import Settings


@pytest.mark.parametrize(
    ("free_bytes", "free_inodes", "inodes", "used"),
    [(50, 90, 100, 0.5), (50, 5, 100, 0.95), (50, 0, 0, 0.5), (9, 0, 0, 0.91)],
)
def test_the_scarcer_of_space_and_inodes_counts(
    free_bytes: int, free_inodes: int, inodes: int, used: float
) -> None:
    found = StoreUsage(total_bytes=100, free_bytes=free_bytes, total_inodes=inodes, free_inodes=free_inodes)
    assert found.used == pytest.approx(used)
    assert found.guarded == (used >= 0.9)


def test_a_store_that_is_not_there_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    found = store_usage(Settings(state_dir=tmp_path / "not" / "yet", run_dir=tmp_path))
    there = os.statvfs(tmp_path)
    assert 0 <= found.used <= 1
    assert found.total_bytes <= there.f_blocks * there.f_frsize
