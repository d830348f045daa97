"""Where a machine's sandboxes and images live. Must never create or change anything."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path


def _path(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).absolute()


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders of one installation; two installations with different folders never touch each other.

    ``state_dir`` (``CLOCHE_STATE_DIR``, default ``/var/lib/cloche``) is the store: image layers and the
    writable layers of live sandboxes, on one file system. ``run_dir`` (``CLOCHE_RUN_DIR``, default
    ``/run/cloche``) holds what lives no longer than the machine's boot: one folder per live sandbox,
    which is its record, and the spawner's socket.
    """

    state_dir: Path = field(default_factory=lambda: _path("CLOCHE_STATE_DIR", "/var/lib/cloche"))
    run_dir: Path = field(default_factory=lambda: _path("CLOCHE_RUN_DIR", "/run/cloche"))

    @property
    def instance(self) -> str:
        """Eight hexadecimal digits that name this installation's cgroups, links and rules on the host."""
        return hashlib.sha256(f"{self.state_dir}\0{self.run_dir}".encode()).hexdigest()[:8]

    @property
    def sandboxes_dir(self) -> Path:
        """One folder per sandbox that is alive or not yet cleaned up: its record and its socket."""
        return self.run_dir / "sandboxes"

    @property
    def uppers_dir(self) -> Path:
        """One folder per sandbox with the overlay's ``upper`` and ``work``."""
        return self.state_dir / "uppers"

    @property
    def layers_dir(self) -> Path:
        """Unpacked image layers, one folder per content digest."""
        return self.state_dir / "layers"
