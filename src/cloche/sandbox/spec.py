"""What a sandbox and a command are asked to be, and how a command ended: plain frozen data.

Must never hold a live thing (socket, task, open file). Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cloche.core.ids import new_id


class NetworkMode(StrEnum):
    """What a sandbox may reach: nothing, what a list names, or public addresses.

    Never the host, private networks, metadata services or sandboxes outside its own unit.
    """

    NONE = "none"
    ALLOWLIST = "allowlist"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicy:
    """A mode and, for ``allowlist``, what it names.

    An entry of ``allow`` is ``example.org``, ``*.example.org`` (any name below it), an address or a CIDR,
    each with ``:port`` or ``:first-last`` behind it where only these ports are meant (IPv6 in brackets
    then). ``presets`` are names of lists the host knows (``packages``: what its apt, pip and npm use).
    """

    mode: NetworkMode = NetworkMode.NONE
    allow: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Hard limits; ``None`` means no limit of its own (memory then counts to the shared pool).

    ``cpus_request`` and ``memory_request_bytes`` are what admission counts, where less than the limit is
    expected to be used (overcommit); ``None`` is the limit.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    pids: int = 4096
    disk_bytes: int | None = None
    cpus_request: float | None = None
    memory_request_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A folder of the host, seen read-only at ``target`` (absolute) inside."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Membership in a set of sandboxes that come and go together and share a private network.

    ``members`` are the names of all of them, the main one first, the same in each member's spec; a member
    reaches another by its name. Members of another unit, and sandboxes without one, are out of reach.
    """

    id: str
    name: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to live: the guest itself ends the sandbox when any of these runs out.

    ``ttl_s`` counts from the start, ``idle_s`` from the last request, ``heartbeat_s`` from the last
    heartbeat (a live client sends them by itself). ``None`` switches one off.
    """

    ttl_s: float | None = 3600.0
    idle_s: float | None = None
    heartbeat_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """How an image wants its processes run, with the meaning that ``docker exec`` gives it."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedImage:
    """An image that is ready on this machine.

    ``layers`` are unpacked folders below ``Settings.state_dir``, the lowest first, with ids as in the
    image (0 is root). ``origin`` says how it came to be (``imported``, ``bootstrapped``,
    ``built``, ``pulled``).
    """

    name: str
    digest: str
    layers: tuple[Path, ...]
    config: ImageConfig = field(default_factory=ImageConfig)
    origin: str = "imported"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Everything that makes one sandbox, apart from its image.

    ``isolation`` names the runtime (``native``, ``crun``, ``runc``, ``gvisor``); ``None`` is the driver's
    default. ``owner`` and ``idempotency_key`` are the service's: who may see it, and under which key it was
    asked for, with the digest of what was asked. They are kept in the record, so that a service that starts
    again knows them; so are ``ports``, which it links to.
    """

    id: str = field(default_factory=lambda: new_id("sb"))
    resources: Resources = field(default_factory=Resources)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    hostname: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    lease: Lease = field(default_factory=Lease)
    no_new_privileges: bool = False
    isolation: str | None = None
    volumes: tuple[Volume, ...] = ()
    unit: Unit | None = None
    owner: str = ""
    idempotency_key: str | None = None
    request_digest: str = ""
    priority: int = 0
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Size of a terminal in characters."""

    columns: int = 80
    rows: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: ``argv``, or ``shell`` (a line for ``/bin/sh -c``).

    ``id`` is chosen by the client: starting the same id again attaches to the first start and never
    runs twice. ``env`` is added to the image's and the sandbox's. ``user`` is ``name``, ``uid``,
    ``name:group`` or ``uid:gid``, looked up inside; ``None`` is the sandbox's user. On ``timeout_s``
    the whole tree gets TERM and, ``grace_s`` later, KILL. ``output_cap_bytes`` bounds what is kept in
    memory of each stream (half of it the beginning, half the end); with ``spill`` all of it is kept in
    a file inside the sandbox and can be read by offset. ``stdin=None`` with ``interactive=False`` is
    an empty standard input.
    """

    argv: tuple[str, ...] = ()
    shell: str | None = None
    id: str = field(default_factory=lambda: new_id("c"))
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    stdin: bytes | None = None
    interactive: bool = False
    terminal: Terminal | None = None
    timeout_s: float | None = None
    grace_s: float = 2.0
    output_cap_bytes: int = 1 << 20
    spill: bool = False


class EndReason(StrEnum):
    """Why a command is over."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    START_FAILED = "start_failed"
    SANDBOX_LOST = "sandbox_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a stream said: the beginning, the end and how much there was in all."""

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0

    @property
    def truncated(self) -> bool:
        """Whether bytes between ``head`` and ``tail`` are missing."""
        return self.total_bytes > len(self.head) + len(self.tail)

    @property
    def data(self) -> bytes:
        """The bytes; where some are missing a line in the middle says how many."""
        if not self.truncated:
            return self.head + self.tail
        missing = self.total_bytes - len(self.head) - len(self.tail)
        return self.head + f"\n[... {missing} bytes left out ...]\n".encode() + self.tail

    @property
    def text(self) -> str:
        """``data`` as UTF-8, with U+FFFD for what is not."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a command ended. ``exit_code`` is set when it exited, ``signal`` when one ended it."""

    id: str
    reason: EndReason
    exit_code: int | None = None
    signal: int | None = None
    stdout: Output = field(default_factory=Output)
    stderr: Output = field(default_factory=Output)
    duration_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether it exited by itself with status 0."""
        return self.reason is EndReason.EXIT and self.exit_code == 0
