"""Whole runs by the program, and the environments of other people's programs that tests speak with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.testing.experiments import installation, make_task
from cloche.testing.sandboxes import settings

__all__ = ["installation", "make_task", "peer", "settings"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def peer() -> Callable[[str], Path]:
    """Return a function from an environment's name (scripts/setup-peers) to its folder, made if need be.

    Where it cannot be made the test fails with the reason: a skip would hide that nothing was checked.
    """

    def find(name: str) -> Path:
        done = subprocess.run(
            [ROOT / "scripts" / "setup-peers", name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"there is no environment of {name}: {done.stderr.strip()}", pytrace=False)
        return Path(done.stdout.strip())

    return find
