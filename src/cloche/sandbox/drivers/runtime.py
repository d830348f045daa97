"""The seam between the local driver and what isolates: native now, OCI runtimes beside it later.

Must never know images beyond their layers, nor what sandboxes are used for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloche.sandbox.driver import Capability, Denial, Leftover
from cloche.sandbox.spec import NetworkPolicy, PreparedImage, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A sandbox that was made: where its guest listens, and who counts what its memory limit killed."""

    socket: Path
    oom_kills: Callable[[], Awaitable[int]] | None


class Runtime(Protocol):
    """Isolates processes in one way; the run folder is its record."""

    @property
    def isolation(self) -> str:
        """How it isolates, as records say it: ``native``, later ``crun`` or ``gvisor``."""

    def capabilities(self) -> frozenset[Capability]:
        """Return what it can do on this machine as it is."""

    async def create(self, spec: SandboxSpec, image: PreparedImage, record: bytes) -> Made:
        """Make the sandbox; ``record`` is on disk before. Raises a ClocheError, and then nothing is left."""

    def find(self, sandbox_id: str) -> Made:
        """Return how to reach a sandbox that exists."""

    async def delete(self, sandbox_id: str) -> bool:
        """End it and leave nothing; False if there was nothing. Can be repeated."""

    async def pause(self, sandbox_id: str, ttl_s: float | None) -> None:
        """Freeze it, and end it from outside once ``ttl_s`` have passed; again: the new time counts."""

    async def resume(self, sandbox_id: str) -> None:
        """Let it go on; its guest counts idle time and heartbeats from now."""

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> NetworkPolicy:
        """Change what it may reach and return what holds; a failure leaves it with nothing."""

    async def network(self, sandbox_id: str) -> NetworkPolicy:
        """Return what holds now."""

    async def denials(self, sandbox_id: str) -> list[Denial]:
        """Return what was refused of late, within a bound."""

    async def leftovers(self) -> list[Leftover]:
        """Return what is on the host that no live sandbox owns."""

    async def reap(self) -> list[Leftover]:
        """Remove all leftovers and return them."""

    async def close(self) -> None:
        """Let go of connections; ends no sandbox."""
