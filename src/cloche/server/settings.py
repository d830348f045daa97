"""Where a service keeps what is its own, and its bounds. Plain data; must never hold a secret."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """``state_dir`` holds the secret that links and tokens are signed with, the keys and the audit log.

    ``body_max_bytes`` bounds JSON bodies; raw bodies (files, trees, input) are streamed and bounded by the
    sandbox's disk. ``public_url`` is what links begin with, where clients reach the service by another name.
    """

    state_dir: Path
    keys: Path | None = None
    public_url: str | None = None
    body_max_bytes: int = 32 << 20
    patch_max_bytes: int = 16 << 20
    audit_max_bytes: int = 256 << 20
    audit_files: int = 4
    keepalive_s: float = 3600.0
    sse_quiet_s: float = 15.0
    drain_s: float = 10.0

    @property
    def keys_file(self) -> Path:
        """Where the keys' hashes are."""
        return self.keys or self.state_dir / "keys.json"

    @property
    def secret_file(self) -> Path:
        """Where the service's secret is."""
        return self.state_dir / "secret"

    @property
    def audit_file(self) -> Path:
        """The audit log."""
        return self.state_dir / "audit.jsonl"
