"""What this machine can do, and the few host settings that are worth changing.

``check`` must never change anything. ``fix`` changes settings of the running kernel only (a reboot forgets
them) and keeps what they were, so that ``unfix`` can put them back.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from cloche.core.errors import ClocheError, EnvironmentUnusable, InvalidInput
from cloche.sandbox import binaries
from cloche.sandbox.native import firewall, network
from cloche.sandbox.native.host import ARCHITECTURES, KERNEL_MIN, Host, lacks
from cloche.sandbox.settings import Settings
from cloche.sandbox.walls import walls

DISK_LOW_BYTES = 5 << 30
_PIDS_PER_SANDBOX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report. ``blocking``: without it no sandbox can be made here."""

    name: str
    status: str
    detail: str
    fix: str = ""
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class HostSetting:
    """A setting of the kernel that is often too low: what it must be at least, and what ``fix`` makes it."""

    name: str
    path: str
    least: int
    wanted: int
    meaning: str


SETTINGS = (
    HostSetting("pid_max", "/proc/sys/kernel/pid_max", 131072, 4194304, "processes on this machine"),
    HostSetting("inotify", "/proc/sys/fs/inotify/max_user_instances", 512, 1024, "watchers per sandbox"),
    HostSetting("ip_forward", "/proc/sys/net/ipv4/ip_forward", 1, 1, "public networks"),
)

_TOOLS = (
    ("nft", "nftables", "public networks"),
    ("ip", "iproute2", "cleaning up networks"),
    ("buildah", "buildah", "building Dockerfiles"),
    ("mmdebstrap", "mmdebstrap", "cloche image bootstrap"),
)


def _needed(host: Host) -> list[Row]:
    details = {
        "machine": f"{host.machine} (supported: {', '.join(ARCHITECTURES)})",
        "root": f"effective user {host.euid}",
        "kernel": f"Linux {host.release} (at least {KERNEL_MIN[0]}.{KERNEL_MIN[1]})",
        "user namespaces": f"{host.user_namespaces:,} allowed",
        "overlay": "id-mapped layers, trusted attributes",
        "cgroups": _cgroups(host),
    }
    missing = lacks(host)
    return [_row(name, detail, missing.get(name)) for name, detail in details.items()]


def _row(name: str, detail: str, error: ClocheError | None) -> Row:
    if error is None:
        return Row(name=name, status="ok", detail=detail)
    return Row(name=name, status="missing", detail=error.message, fix=error.hint or "", blocking=True)


def _cgroups(host: Host) -> str:
    layout = host.cgroups
    limits = ", ".join(sorted(layout.limits())) or "no limit"
    return {
        "pure": f"pure v2: {limits}",
        "hybrid": f"hybrid: {limits} by v1; kill and freeze by v2",
        "v1": f"v1: {limits}",
        "none": "none",
    }[layout.name]


def _host_setting(host: Host, setting: HostSetting) -> Row:
    value = host.number(setting.path)
    if value is None:
        return Row(name=setting.name, status="unknown", detail=f"no {setting.path}")
    detail = f"{value:,}: {setting.meaning}"
    if setting.name == "pid_max":
        detail = f"{value:,}: enough for about {value // _PIDS_PER_SANDBOX:,} sandboxes"
    if value >= setting.least:
        return Row(name=setting.name, status="ok", detail=detail)
    status = "off" if value == 0 else "low"
    return Row(name=setting.name, status=status, detail=detail, fix="cloche doctor --fix")


def _disk(settings: Settings) -> Row:
    folder = settings.state_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    status = "ok" if free >= DISK_LOW_BYTES else "low"
    fix = "" if status == "ok" else "free space, or set CLOCHE_STATE_DIR to a larger disk"
    return Row(name="disk", status=status, detail=f"{free / (1 << 30):,.1f} GiB free at {folder}", fix=fix)


def _programs() -> Row:
    try:
        binaries.guest_path()
        return Row(name="guest", status="ok", detail=str(binaries.spawner_path().parent))
    except EnvironmentUnusable as error:
        return Row(name="guest", status="missing", detail=error.message, fix=error.hint or "", blocking=True)


def _tool(program: str, package: str, purpose: str) -> Row:
    found = shutil.which(program)
    if found is not None:
        return Row(name=program, status="ok", detail=found)
    return Row(
        name=program, status="absent", detail=f"needed for {purpose}", fix=f"apt-get install {package}"
    )


def _pool(settings: Settings) -> Row:
    try:
        addresses = network.plan(settings)
    except InvalidInput as error:
        return Row(name="network pool", status="wrong", detail=error.message, fix=error.hint or "")
    return Row(name="network pool", status="ok", detail=f"{addresses.pool}, gateway {addresses.gateway}")


def _firewall() -> Row:
    chains = firewall.blocked_by()
    if chains is None:
        return Row(name="firewall", status="unknown", detail="nft does not say")
    if not chains:
        return Row(name="firewall", status="ok", detail="nobody's chain drops what public networks send on")
    return Row(
        name="firewall",
        status="blocks",
        detail=f"drops forwarded packets, so public networks reach nothing: {', '.join(chains)}",
        fix="accept there what comes from and goes to the network pool (Docker: chain DOCKER-USER)",
    )


def _walls(host: Host) -> list[Row]:
    rows = []
    for wall in walls(host):
        room = "" if wall.room is None else f": room for {wall.room:,} sandboxes"
        status = "low" if wall.low else "ok"
        rows.append(
            Row(
                name=f"room: {wall.name}",
                status=status,
                detail=f"{wall.value}{room}",
                fix=wall.fix if wall.low else "",
            )
        )
    return rows


def check(settings: Settings, host: Host | None = None) -> list[Row]:
    """Look at everything that sandboxes, images and networks need. Changes nothing."""
    host = host or Host()
    return [
        *_needed(host),
        _programs(),
        *(_host_setting(host, setting) for setting in SETTINGS),
        *_walls(host),
        _disk(settings),
        _pool(settings),
        _firewall(),
        *(_tool(*tool) for tool in _TOOLS),
    ]


def _memory_file(settings: Settings) -> Path:
    return settings.state_dir / "host-settings.json"


def _remembered(settings: Settings) -> dict[str, dict[str, int]]:
    try:
        data = json.loads(_memory_file(settings).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ClocheError(f"{_memory_file(settings)} is not readable: {error}") from error
    return data if isinstance(data, dict) else {}


def _write(host: Host, setting: HostSetting, value: int) -> None:
    try:
        (host.root / setting.path.lstrip("/")).write_text(str(value))
    except OSError as error:
        raise EnvironmentUnusable(
            f"{setting.path} cannot be changed: {error.strerror}", hint="run the command as root"
        ) from error


def fix(settings: Settings, host: Host | None = None) -> list[str]:
    """Raise host settings that are too low; return one line per change.

    What they were is written down first, so that even a crash between the two can be undone. Raises
    EnvironmentUnusable without the right to.
    """
    host = host or Host()
    remembered = _remembered(settings)
    lines = []
    for setting in SETTINGS:
        value = host.number(setting.path)
        if value is None or value >= setting.least:
            continue
        before = remembered.get(setting.name, {}).get("before", value)
        remembered[setting.name] = {"before": before, "set": setting.wanted}
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _memory_file(settings).write_text(json.dumps(remembered))
        _write(host, setting, setting.wanted)
        lines.append(f"{setting.path}: {value} → {setting.wanted}  (undo: cloche doctor --unfix)")
    return lines


def unfix(settings: Settings, host: Host | None = None) -> list[str]:
    """Put back what ``fix`` changed, except what somebody else changed since; return one line per setting."""
    host = host or Host()
    lines = []
    remembered = _remembered(settings)
    for setting in SETTINGS:
        entry = remembered.get(setting.name)
        if entry is None:
            continue
        value = host.number(setting.path)
        if value == entry["set"]:
            _write(host, setting, entry["before"])
            lines.append(f"{setting.path}: {value} → {entry['before']}")
        else:
            lines.append(f"{setting.path}: left at {value}, which is not what fix made it ({entry['set']})")
    _memory_file(settings).unlink(missing_ok=True)
    return lines
