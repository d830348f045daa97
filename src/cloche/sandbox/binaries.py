"""Where the compiled guest and spawner are. Must never compile or download anything."""

from __future__ import annotations

import platform
from pathlib import Path

from cloche.core.errors import EnvironmentUnusable

_FOLDER = Path(__file__).resolve().parent.parent / "_guest"


def _program(name: str, arch: str | None) -> Path:
    machine = arch or platform.machine()
    path = _FOLDER / machine / name
    if not path.is_file():
        raise EnvironmentUnusable(
            f"this installation carries no {name} for {machine}",
            hint="install a wheel for this machine, or run scripts/build-guest in a checkout",
            code="doctor/no_guest",
        )
    return path


def guest_path(arch: str | None = None) -> Path:
    """Return the guest program for ``arch`` (as ``uname -m`` says it; default: this machine's)."""
    return _program("cloche-guest", arch)


def spawner_path(arch: str | None = None) -> Path:
    """Return the spawner program for ``arch``."""
    return _program("cloche-spawner", arch)
