"""A sandbox's record: what it was asked to be, as JSON in its run folder.

The run folder is the truth about sandboxes.

Must never hold anything secret that the sandbox itself does not hold. The spawner writes the record before
it makes the sandbox, ``native`` (how to know its process again) before the guest runs, and ``end.json``
(why it ended) after.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from cloche.core.errors import InvalidInput
from cloche.sandbox.driver import EndCause, SandboxInfo, SandboxState
from cloche.sandbox.spec import PreparedImage, SandboxSpec

VERSION = 2

_REASONS = {
    ("guest_exit", 0): "its guest was told to end",
    ("guest_exit", 10): "its lease ran out: its time was up",
    ("guest_exit", 11): "its lease ran out: it was idle",
    ("guest_exit", 12): "its lease ran out: no heartbeat came",
    "guest_exit": "its guest failed",
    "out_of_memory": "its guest was killed for lack of memory",
    "host_memory": "this machine ran out of memory",
    "lost": "its guest was killed or crashed",
}

_CAUSES: dict[tuple[str, int] | str, EndCause] = {
    ("guest_exit", 0): EndCause.DELETED,
    ("guest_exit", 10): EndCause.TTL,
    ("guest_exit", 11): EndCause.IDLE,
    ("guest_exit", 12): EndCause.HEARTBEAT,
    "out_of_memory": EndCause.OUT_OF_MEMORY,
    "host_memory": EndCause.HOST_MEMORY,
}


@cache
def boot_id() -> str:
    """Return the kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What ``record.json`` holds. ``created_at`` is seconds since 1970.

    ``owner`` is the pid and start time of the process that made it. A sandbox with a heartbeat limit belongs
    to that process: once it is gone nobody sends heartbeats, and whoever cleans up need not wait.
    """

    spec: SandboxSpec
    image: PreparedImage
    created_at: float
    boot: str
    owner: tuple[int, int] | None = None
    version: int = VERSION

    def dump(self) -> bytes:
        """Return JSON. Raises InvalidInput for texts that are no UTF-8."""
        try:
            return _adapter().dump_json(self)
        except PydanticSerializationError as error:
            raise InvalidInput(f"the sandbox cannot be asked for: {error}") from error


@cache
def _adapter() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def parse(data: bytes) -> Record:
    """Return what ``dump`` wrote. Raises ValueError on anything else."""
    record = _adapter().validate_json(data)
    if record.version != VERSION:
        raise ValueError(f"a record of version {record.version}")
    return record


def this_process() -> tuple[int, int]:
    """Return what names the calling process for as long as the machine is up."""
    pid = os.getpid()
    return pid, _own_start_time(pid)


@cache
def _own_start_time(pid: int) -> int:
    """By pid: a forked copy of this process has another."""
    return process_start_time(pid) or 0


def process_start_time(pid: int) -> int | None:
    """Return field 22 of ``/proc/PID/stat``, which with the pid names a process; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class Folder:
    """One sandbox's run folder as it was found."""

    path: Path
    record: Record | None
    native: dict[str, int]
    end: dict[str, Any] | None
    paused_until_ms: int | None = None
    """Set while it is paused: the end of its ttl on CLOCK_BOOTTIME, 0 where there is none."""

    @property
    def overdue(self) -> bool:
        """Whether it is paused and its ttl is over: it is ended as soon as a spawner looks."""
        until_ms = self.paused_until_ms
        return bool(until_ms) and time.clock_gettime(time.CLOCK_BOOTTIME) * 1000 > (until_ms or 0)

    @property
    def id(self) -> str:
        """The sandbox's name."""
        return self.path.name

    @property
    def pid(self) -> int | None:
        """Pid of the guest, if it lives."""
        pid = self.native.get("pid")
        if pid is None or process_start_time(pid) != self.native.get("start"):
            return None
        return pid

    @property
    def abandoned(self) -> bool:
        """Whether it belongs to a process that is gone."""
        record = self.record
        if record is None or record.owner is None or record.spec.lease.heartbeat_s is None:
            return False
        pid, start = record.owner
        return process_start_time(pid) != start

    @property
    def reason(self) -> str:
        """Why it ended, in words; empty if it has not, or nobody saw it."""
        if self.end is None:
            return ""
        kind = str(self.end.get("reason", "lost"))
        code = self.end.get("exit_code")
        return _REASONS.get((kind, code if isinstance(code, int) else -1)) or _REASONS.get(kind, kind)

    @property
    def cause(self) -> EndCause:
        """Why it ended, from the closed list."""
        end = self.end or {}
        kind, code = str(end.get("reason")), end.get("exit_code")
        status = code if isinstance(code, int) else -1
        return _CAUSES.get((kind, status)) or _CAUSES.get(kind) or EndCause.GUEST_LOST

    def info(self) -> SandboxInfo:
        """Return the row of a listing."""
        pid = self.pid
        cause = None
        if self.end is not None or (self.native and pid is None):
            state, reason, cause = SandboxState.ENDED, self.reason or "its guest is gone", self.cause
        elif pid is not None and self.overdue:
            state, reason, cause = SandboxState.ENDED, _REASONS["guest_exit", 10], EndCause.TTL
        elif pid is not None and self.paused_until_ms is not None:
            state, reason = SandboxState.PAUSED, ""
        elif pid is not None:
            state, reason = SandboxState.READY, ""
        else:
            state, reason = SandboxState.STARTING, ""
        record = self.record
        return SandboxInfo(
            id=self.id,
            state=state,
            created_at=record.created_at if record else self.path.stat().st_mtime,
            image=record.image.name if record else "",
            labels=record.spec.labels if record else {},
            pid=pid,
            reason=reason,
            cause=cause,
            spec=record.spec if record else None,
            digest=record.image.digest if record else "",
        )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _native(data: bytes | None) -> dict[str, int]:
    pairs = (line.split() for line in (data or b"").decode("ascii", "replace").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _json(data: bytes | None) -> dict[str, Any] | None:
    try:
        value = json.loads(data) if data else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else None


def read_folder(path: Path) -> Folder | None:
    """Return what a run folder holds, None if there is no folder. A broken record is as good as none."""
    data = _read(path / "record.json")
    if data is None and not path.is_dir():
        return None
    try:
        record = parse(data) if data else None
    except ValueError:
        record = None
    paused = _read(path / "paused")
    return Folder(
        path,
        record,
        _native(_read(path / "native")),
        _json(_read(path / "end.json")),
        None if paused is None else _native(paused).get("until", 0),
    )


def read_folders(sandboxes_dir: Path) -> list[Folder]:
    """Return all run folders, in order of their names."""
    try:
        paths = sorted(path for path in sandboxes_dir.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    return [folder for folder in map(read_folder, paths) if folder is not None]


def ended(sandboxes_dir: Path, ids: Collection[str]) -> dict[str, SandboxInfo | None]:
    """Return those of these sandboxes that are over; reads nothing of the others but whether they live."""
    found: dict[str, SandboxInfo | None] = {}
    for name in ids:
        path = sandboxes_dir / name
        try:
            native = (path / "native").read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            native = b""
        facts = _native(native)
        alive = "pid" in facts and process_start_time(facts["pid"]) == facts.get("start")
        if alive and not (path / "paused").exists():
            continue
        folder = read_folder(path)
        info = folder.info() if folder else None
        if info is None or info.state is SandboxState.ENDED:
            found[name] = info
    return found
