"""The seam between what wants sandboxes and what makes them. Must never name a substrate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import NetworkPolicy, PreparedImage, SandboxSpec


class Capability(StrEnum):
    """What a driver (or one of its runtimes) can do beyond running commands and moving files."""

    PAUSE = "pause"
    FORK = "fork"
    SNAPSHOT = "snapshot"
    DIFF = "diff"
    DISK_LIMIT = "disk_limit"
    MEMORY_LIMIT = "memory_limit"
    CPU_LIMIT = "cpu_limit"
    PIDS_LIMIT = "pids_limit"
    PUBLIC = "public"
    ALLOWLIST = "allowlist"
    NETWORK_SWITCH = "network_switch"
    UNIT = "unit"
    VOLUMES = "volumes"


class SandboxState(StrEnum):
    """What a sandbox is doing, as its substrate tells it."""

    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    ENDED = "ended"


class EndCause(StrEnum):
    """Why a sandbox ended, as its substrate tells it. ``TTL``, ``IDLE``, ``HEARTBEAT``: its lease."""

    DELETED = "deleted"
    TTL = "ttl"
    IDLE = "idle"
    HEARTBEAT = "heartbeat"
    OUT_OF_MEMORY = "out_of_memory"
    HOST_MEMORY = "host_memory"
    GUEST_LOST = "guest_lost"


class ChangeKind(StrEnum):
    """How a path differs from the image."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path of a workspace diff. ``type`` is ``file``, ``dir``, ``link`` or ``other``."""

    path: str
    kind: ChangeKind
    type: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A connection or a name that the network policy refused. ``at`` is seconds since 1970."""

    at: float
    name: str
    address: str
    port: int
    protocol: str


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
    cause: EndCause | None = None
    spec: SandboxSpec | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something on the host that belongs to no live sandbox.

    ``kind`` is ``process``, ``mount``, ``cgroup``, ``network``, ``rule`` or ``file``.
    """

    kind: str
    name: str


class Driver(Protocol):
    """Makes, finds and ends sandboxes on one substrate, which is the only truth about them.

    What its ``capabilities`` lack raises PlanRefused (``plan/capability_missing``), naming the capability;
    ``create`` refuses a spec that needs it in the same way. All but ``create`` raise NotFound or SandboxLost.
    """

    @property
    def name(self) -> str:
        """``local``, ``docker`` or ``kubernetes``."""

    def capabilities(self, isolation: str | None = None) -> frozenset[Capability]:
        """Return what it can do with this isolation (``None``: its default), on this machine as it is."""

    async def create(self, spec: SandboxSpec, image: PreparedImage) -> Sandbox:
        """Make the sandbox and return when its guest answers.

        Raises InfraError if it cannot be made; then nothing of it is left. Creating an id that exists
        raises InvalidInput.
        """

    async def attach(self, sandbox_id: str) -> Sandbox:
        """Connect to a live sandbox made by anyone. Raises NotFound or SandboxLost."""

    async def delete(self, sandbox_id: str) -> bool:
        """End it and leave nothing; return once all is gone. False if there was nothing of that id."""

    async def ended(self, ids: Collection[str]) -> Mapping[str, SandboxInfo | None]:
        """Return those of these that are over, ``None`` for one of which nothing is left. Cheap for many."""

    async def pause(self, sandbox_id: str) -> None:
        """Freeze every process but keep the lease running; twice is no error."""

    async def resume(self, sandbox_id: str) -> None:
        """Let it go on; of one that is not paused is no error."""

    async def fork(self, sandbox_id: str, specs: Sequence[SandboxSpec]) -> list[Sandbox]:
        """Make sandboxes whose file systems begin as this one's is now; it is frozen only for the copy."""

    async def snapshot(self, sandbox_id: str, name: str) -> PreparedImage:
        """Make an image of the file system as it is now: the image's layers and one of what was written."""

    async def diff(self, sandbox_id: str) -> list[Change]:
        """Return how the file system differs from the image, by path."""

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> NetworkPolicy:
        """Change what it may reach, read back what holds and return that. Fails closed."""

    async def network(self, sandbox_id: str) -> NetworkPolicy:
        """Return what it may reach, read back from what enforces it."""

    async def denials(self, sandbox_id: str) -> list[Denial]:
        """Return what its network policy refused so far (the newest, within a bound)."""

    async def leftovers(self) -> list[Leftover]:
        """What is on the host that no live sandbox owns. Changes nothing."""

    async def reap(self) -> list[Leftover]:
        """Remove all leftovers, ended sandboxes among them, and return what was removed."""

    async def close(self) -> None:
        """Let go of connections. Ends no sandbox."""

    # stands last: in a class body the name `list` means this method from here on
    async def list(self) -> list[SandboxInfo]:
        """Every sandbox of this installation that is alive or not yet cleaned up."""
