"""What no sandbox can be asked for: refused as the caller's mistake, before anything is made. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloche.core.errors import InvalidInput
from cloche.core.ids import is_name
from cloche.sandbox.spec import Lease, Resources, SandboxSpec

MEMORY_BYTES_MIN = 8 << 20
_MEMORY_BYTES_MAX = 1 << 50
DISK_BYTES_MIN = 1 << 20
CPUS_MIN = 0.01
_CPUS_MAX = 8192  # the most that Linux is built for
_PIDS_MAX = 4_194_304  # PID_MAX_LIMIT of the kernel
_LEASE_S_MAX = 100 * 365 * 86400.0
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")  # RFC 1123, and underscores in use


def _of_resources(limits: Resources) -> Iterator[str]:
    memory = limits.memory_bytes
    if memory is not None and not MEMORY_BYTES_MIN <= memory <= _MEMORY_BYTES_MAX:
        yield f"a memory limit of {memory} bytes is not between {MEMORY_BYTES_MIN} and {_MEMORY_BYTES_MAX}"
    if limits.cpus is not None and not CPUS_MIN <= limits.cpus <= _CPUS_MAX:
        yield f"{limits.cpus} CPUs: {CPUS_MIN} is the least, {_CPUS_MAX} the most"
    if limits.disk_bytes is not None and not DISK_BYTES_MIN <= limits.disk_bytes <= _MEMORY_BYTES_MAX:
        yield f"a disk limit of {limits.disk_bytes} bytes: {DISK_BYTES_MIN} is the least"
    if not 1 <= limits.pids <= _PIDS_MAX:
        yield f"{limits.pids} processes: 1 is the least, {_PIDS_MAX} the most"


def _of_lease(lease: Lease) -> Iterator[str]:
    limits = {"ttl": lease.ttl_s, "idle time": lease.idle_s, "heartbeat": lease.heartbeat_s}
    for name, seconds in limits.items():
        if seconds is not None and not 0 < seconds <= _LEASE_S_MAX:
            yield f"a {name} of {seconds} s: it must be more than 0 and less than a hundred years"


def _of_texts(spec: SandboxSpec) -> Iterator[str]:
    if spec.hostname and not _HOSTNAME.fullmatch(spec.hostname):
        yield f"{spec.hostname!r} cannot be a host name"
    for what, text in (("user", spec.user), ("folder", spec.workdir)):
        if text is not None and "\0" in text:
            yield f"{text!r} cannot be a {what}"
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            yield f"{name!r} cannot be set in an environment"


def check(spec: SandboxSpec) -> None:
    """Raise InvalidInput for a spec that no sandbox can have."""
    if not is_name(spec.id):
        raise InvalidInput(f"{spec.id!r} cannot name a sandbox: lower-case letters, digits, ._-, at most 63")
    for problem in (*_of_resources(spec.resources), *_of_lease(spec.lease), *_of_texts(spec)):
        raise InvalidInput(problem)
