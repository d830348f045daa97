"""Bodies of requests and answers of the environment service, version 1: JSON, checked by pydantic.

The OpenAPI document is made of these. Both sides import them, so neither can drift. Must never do I/O, nor
hold anything but data. Times are seconds since 1970, durations seconds, sizes bytes. Unknown fields of a
request are refused with their path; unknown fields of an answer are ignored, so that a newer service can
speak to an older client.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", min_length=1, max_length=63)]
Labels = dict[Annotated[str, Field(min_length=1, max_length=63)], Annotated[str, Field(max_length=256)]]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]*$", max_length=4096)]
Port = Annotated[int, Field(ge=1, le=65535)]

LABELS = ("experiment", "trial", "attempt", "task", "model", "agent")
"""The standard keys of labels, carried into the audit log, metrics and spans."""


class Request(BaseModel):
    """A body that a client sends."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """A body that the service sends."""

    model_config = ConfigDict(extra="ignore", frozen=True)


# ---- what a sandbox is asked to be ----


class ResourcesBody(Request):
    """Limits and, where less is expected to be used, requests; absent: none of its own, request = limit."""

    cpus: Annotated[float, Field(gt=0, le=8192)] | None = None
    memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 50)] | None = None
    pids: Annotated[int, Field(ge=1, le=1 << 22)] = 4096
    disk_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 50)] | None = None
    cpus_request: Annotated[float, Field(ge=0, le=8192)] | None = None
    memory_request_bytes: Annotated[int, Field(ge=0, le=1 << 50)] | None = None


class LeaseBody(Request):
    """When the sandbox ends by itself; ``null`` switches a limit off (as far as the key's quota lets it)."""

    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] | None = 3600.0
    idle_s: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    heartbeat_s: Annotated[float, Field(gt=0, le=86_400)] | None = None


class NetworkBody(Request):
    """See :class:`cloche.sandbox.spec.NetworkPolicy`."""

    mode: Literal["none", "allowlist", "public"] = "none"
    allow: tuple[Annotated[str, Field(min_length=1, max_length=300)], ...] = ()
    presets: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...] = ()


class VolumeBody(Request):
    """A folder of the service's host (below one that its operator allows), read-only inside."""

    source: AbsolutePath
    target: AbsolutePath


class SandboxBody(Request):
    """One sandbox: everything but what the whole unit shares."""

    image: Annotated[str, Field(min_length=1, max_length=1024)]
    resources: ResourcesBody = ResourcesBody()
    env: dict[str, str] = {}
    user: str | None = None
    workdir: AbsolutePath | None = None
    volumes: tuple[VolumeBody, ...] = ()
    ports: tuple[Port, ...] = ()
    command: tuple[str, ...] | None = None
    """Argv that is started once it is ready (a sidecar's server); ``null`` starts nothing."""


class CreateBody(SandboxBody):
    """``POST /v1/sandboxes``. ``sidecars`` are more sandboxes on one private network, by name.

    Main one and sidecars are admitted, started and ended together. ``idempotency_key`` (per API key):
    the same body again gives the same sandbox, another body 409. ``id`` is a name of the client's own for
    it; one that is taken, by whomever, is 409 too.
    """

    id: Name | None = None
    labels: Labels = {}
    network: NetworkBody = NetworkBody()
    lease: LeaseBody = LeaseBody()
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    isolation: str | None = None
    no_new_privileges: bool = False
    idempotency_key: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    sidecars: dict[Name, SandboxBody] = {}


class BatchBody(Request):
    """``POST /v1/sandboxes/batch``: thousands at once; each item is answered for itself, in order."""

    create: Annotated[tuple[CreateBody, ...], Field(max_length=10_000)] = ()
    delete: Annotated[tuple[str, ...], Field(max_length=50_000)] = ()


# ---- what a sandbox is ----


class State(StrEnum):
    """What a sandbox is doing."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    STOPPING = "stopping"
    ENDED = "ended"


class End(StrEnum):
    """Why a sandbox ended: the closed list."""

    DELETED = "deleted"
    TTL = "ttl"
    IDLE = "idle"
    HEARTBEAT = "heartbeat"
    OUT_OF_MEMORY = "out_of_memory"
    HOST_MEMORY = "host_memory"
    GUEST_LOST = "guest_lost"
    START_FAILED = "start_failed"
    CANCELLED = "cancelled"
    UNIT = "unit"
    HOST_LOST = "host_lost"


class ErrorBody(Answer):
    """Every error: what happened, whose doing it is, what to do. ``where`` is the path of a bad field."""

    code: str
    domain: str
    message: str
    hint: str | None = None
    where: str | None = None


class SandboxView(Answer):
    """A sandbox as its owner sees it. ``times`` has the moment at which each state so far began.

    ``position`` and ``waiting_for`` (``capacity``, ``quota``, ``rate``, ``disk``, ``priority``) are set
    while it is queued; ``end`` and ``error`` once it has ended. ``digest`` is the image's content address.
    ``overcommit`` is limit divided by request, for each of ``cpus`` and ``memory`` where they differ.
    """

    id: str
    state: State
    times: dict[State, float]
    image: str
    digest: str | None = None
    labels: dict[str, str] = {}
    isolation: str | None = None
    network: NetworkBody = NetworkBody()
    resources: ResourcesBody = ResourcesBody()
    overcommit: dict[str, float] = {}
    lease: LeaseBody = LeaseBody()
    ports: tuple[int, ...] = ()
    priority: int = 0
    idempotency_key: str | None = None
    position: int | None = None
    waiting_for: str | None = None
    end: End | None = None
    error: ErrorBody | None = None
    unit: str | None = None
    sidecars: dict[str, str] = {}
    """Name of each sidecar and the id of its sandbox."""


class DefaultsView(Answer):
    """``GET …/defaults``: what its commands get where they say nothing themselves.

    A client that speaks to the guest itself (``GET …/guest``) needs it, since the guest knows no image.
    ``env`` is the image's, and the sandbox's over it. ``oom_kills`` counts the processes that the memory
    limit has killed so far; absent where the guest sees that for itself.
    """

    env: dict[str, str] = {}
    user: str = ""
    workdir: str = "/"
    oom_kills: int | None = None


class CapabilitiesView(Answer):
    """``GET /v1/capabilities``: the driver, and what it can do at each isolation level, by name.

    ``default`` is the level of a sandbox that asks for none.
    """

    driver: str
    default: str
    isolation: dict[str, tuple[str, ...]]


class SandboxPage(Answer):
    """A page of a listing; ``next`` continues it."""

    items: tuple[SandboxView, ...]
    next: str | None = None


class BatchItem(Answer):
    """One result of a batch: exactly one of the two."""

    sandbox: SandboxView | None = None
    error: ErrorBody | None = None


class BatchView(Answer):
    """Results in the order of the request."""

    created: tuple[BatchItem, ...] = ()
    deleted: tuple[BatchItem, ...] = ()


class EventView(Answer):
    """One change of state. ``seq`` only grows; a stream is continued behind it (``Last-Event-ID``)."""

    seq: int
    at: float
    id: str
    state: State
    position: int | None = None
    end: End | None = None


class FitView(Answer):
    """``POST /v1/sandboxes/would-fit``: whether a create would start at once, else what it waits for."""

    fits: bool
    ever: bool
    waiting_for: str | None = None
    position: int | None = None


# ---- commands ----


class CommandBody(Request):
    """``POST …/commands``: ``argv`` or ``shell``; see :class:`cloche.sandbox.spec.Command`.

    ``login`` runs the shell line as a login shell. ``wait`` answers when it is over (at most ``wait_s``,
    then 202 with the state so far); without it the answer comes at once. ``stdin`` is base64.
    """

    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    login: bool = False
    env: dict[str, str] = {}
    cwd: AbsolutePath | None = None
    user: str | None = None
    stdin: str | None = None
    interactive: bool = False
    terminal: tuple[Annotated[int, Field(ge=1, le=1000)], Annotated[int, Field(ge=1, le=1000)]] | None = None
    """Columns and rows."""
    timeout_s: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 2.0
    output_cap_bytes: Annotated[int, Field(ge=0, le=64 << 20)] = 1 << 20
    spill: bool = False
    wait: bool = True
    wait_s: Annotated[float, Field(gt=0, le=3600)] | None = None


class OutputView(Answer):
    """A stream's kept bytes. ``encoding`` is ``utf-8`` where they are text, else ``base64``."""

    data: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    total_bytes: int
    truncated: bool = False


class CommandView(Answer):
    """A command. ``reason`` is one of :class:`cloche.sandbox.spec.EndReason`, absent while it runs."""

    id: str
    running: bool
    pid: int | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    stdout: OutputView | None = None
    stderr: OutputView | None = None
    duration_s: float | None = None
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    message: str = ""


class CommandPage(Answer):
    """The commands that run and those that are remembered."""

    items: tuple[CommandView, ...]


class SignalBody(Request):
    """``POST …/commands/{cid}/signal``."""

    signal: Annotated[int, Field(ge=1, le=64)]


class ResizeBody(Request):
    """``POST …/commands/{cid}/resize``."""

    columns: Annotated[int, Field(ge=1, le=1000)]
    rows: Annotated[int, Field(ge=1, le=1000)]


# ---- files ----


class FileView(Answer):
    """What is at a path. ``kind`` is ``file``, ``dir``, ``link`` or ``other``; ``mode`` is octal text."""

    path: str
    kind: str
    mode: str
    size_bytes: int
    uid: int
    gid: int
    modified_at: float
    target: str | None = None
    sha256: str | None = None


class FilePage(Answer):
    """A folder's entries, or what a pattern matched."""

    items: tuple[FileView, ...]
    next: str | None = None


class MoveBody(Request):
    """``POST …/files/move``."""

    source: AbsolutePath
    target: AbsolutePath


class ChangeView(Answer):
    """One path of a workspace diff."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    type: str
    size_bytes: int = 0


class DiffView(Answer):
    """How the file system differs from the image."""

    items: tuple[ChangeView, ...]


# ---- snapshots, network, ports, life ----


class SnapshotBody(Request):
    """``POST …/snapshot``: the image's name afterwards; absent: ``snapshot/<digest>``."""

    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class ImageView(Answer):
    """An image that is here."""

    name: str
    digest: str
    origin: str


class ForkBody(Request):
    """``POST …/fork``: ``count`` sandboxes from this one's file system as it is now."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    labels: Labels = {}
    lease: LeaseBody = LeaseBody()
    network: NetworkBody | None = None
    """Absent: the same as the source's."""


class DenialView(Answer):
    """A connection or a name that the network policy refused."""

    at: float
    name: str
    address: str
    port: int
    protocol: str


class DenialPage(Answer):
    """The newest refusals."""

    items: tuple[DenialView, ...]


class LinkBody(Request):
    """``POST …/ports/{port}/link``."""

    ttl_s: Annotated[float, Field(gt=0, le=604_800)] = 3600.0


class LinkView(Answer):
    """A URL that reaches the port until it expires, without a key."""

    url: str
    expires_at: float


class ExtendBody(Request):
    """``POST …/extend``: live so long from now; ``null`` lifts the limit."""

    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] | None


class TokenView(Answer):
    """``POST …/token``: a secret that works for this one sandbox only, until it ends."""

    token: str
