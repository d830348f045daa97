"""The seam between what wants sandboxes and what makes them. Must never name a substrate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import PreparedImage, SandboxSpec


class SandboxState(StrEnum):
    """What a sandbox is doing, as its substrate tells it."""

    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """One row of a listing. ``created_at`` is seconds since 1970; ``reason`` says why it ended."""

    id: str
    state: SandboxState
    created_at: float
    image: str
    labels: Mapping[str, str] = field(default_factory=dict)
    pid: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something on the host that belongs to no live sandbox.

    ``kind`` is ``process``, ``mount``, ``cgroup``, ``network``, ``rule`` or ``file``.
    """

    kind: str
    name: str


class Driver(Protocol):
    """Makes, finds and ends sandboxes on one substrate, which is the only truth about them."""

    @property
    def name(self) -> str:
        """``local``, ``docker`` or ``kubernetes``."""

    async def create(self, spec: SandboxSpec, image: PreparedImage) -> Sandbox:
        """Make the sandbox and return when its guest answers.

        Raises InfraError if it cannot be made; then nothing of it is left. Creating an id that exists
        raises InvalidInput.
        """

    async def attach(self, sandbox_id: str) -> Sandbox:
        """Connect to a live sandbox made by anyone. Raises NotFound or SandboxLost."""

    async def delete(self, sandbox_id: str) -> bool:
        """End it and leave nothing; return once all is gone. False if there was nothing of that id."""

    async def leftovers(self) -> list[Leftover]:
        """What is on the host that no live sandbox owns. Changes nothing."""

    async def reap(self) -> list[Leftover]:
        """Remove all leftovers, ended sandboxes among them, and return what was removed."""

    async def close(self) -> None:
        """Let go of connections. Ends no sandbox."""

    # stands last: in a class body the name `list` means this method from here on
    async def list(self) -> list[SandboxInfo]:
        """Every sandbox of this installation that is alive or not yet cleaned up."""
