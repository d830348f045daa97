"""What an installation has left on its host: everything of ours that no live sandbox owns.

Looks at run folders, writable layers, control groups, links, rules, mounts and processes. A spawner that
runs, and its name server, are not left behind: they go by themselves. Must never touch what another
installation owns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from cloche.sandbox.driver import Leftover, SandboxState
from cloche.sandbox.native import launch, network
from cloche.sandbox.native.cgroups import Cgroups
from cloche.sandbox.native.record import process_start_time, read_folders
from cloche.sandbox.settings import Settings

_BIRTH_S = 60.0  # a run folder without a process may be a sandbox that is being made
_LINKS = Path("/sys/class/net")
_OWN_FILES = {
    "spawner.sock",
    "spawner.lock",
    "spawner.log",
    "network.nft",
    "network.sock",
    "network.log",
    "names.jsonl",
    "resolver.pid",
}


def live_ids(settings: Settings) -> set[str]:
    """Return the sandboxes that are alive, or being made, and not abandoned by their owner."""
    alive = set()
    for folder in read_folders(settings.sandboxes_dir):
        info = folder.info()
        born = info.state is SandboxState.STARTING and time.time() - info.created_at < _BIRTH_S
        if folder.abandoned:
            continue
        if info.state in (SandboxState.READY, SandboxState.PAUSED) or (
            born and launch.lock_is_held(settings)
        ):
            alive.add(folder.id)
    return alive


def _folder_ids(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)}
    except FileNotFoundError:
        return set()


def dead_ids(settings: Settings) -> set[str]:
    """Return the sandboxes of which something is there though they are not alive."""
    traces = _folder_ids(settings.sandboxes_dir) | _folder_ids(settings.uppers_dir) | Cgroups(settings).ids()
    return traces - live_ids(settings)


def _sandbox_leftovers(settings: Settings) -> Iterator[Leftover]:
    groups = Cgroups(settings)
    for sandbox_id in sorted(dead_ids(settings)):
        for folder in (settings.sandboxes_dir, settings.uppers_dir):
            if (folder / sandbox_id).is_dir():
                yield Leftover(kind="file", name=str(folder / sandbox_id))
        for group in groups.of(sandbox_id):
            yield Leftover(kind="cgroup", name=str(group))
            yield from _members(group)
    yield from _links(settings)


def _members(group: Path) -> Iterator[Leftover]:
    try:
        for text in (group / "cgroup.procs").read_text().split():
            yield Leftover(kind="process", name=text)
    except OSError:
        return  # it went while we looked


def _links(settings: Settings) -> Iterator[Leftover]:
    prefix = network.plan(settings).links
    # listed before its owners are: a link is made after its sandbox's folder, so it has an owner by then
    names = sorted(path.name for path in _LINKS.iterdir() if path.name.startswith(prefix))
    if not names:
        return
    alive = live_ids(settings)
    owned = {
        f"{prefix}{folder.native['slot']:x}"
        for folder in read_folders(settings.sandboxes_dir)
        if folder.id in alive and "slot" in folder.native
    }
    starting = any(f.id in alive and not f.native for f in read_folders(settings.sandboxes_dir))
    for name in names:
        if name not in owned and not starting:
            yield Leftover(kind="network", name=name)


def tables() -> list[str]:
    """Return the names of all nft tables of ours, of any installation; none where there is no nft."""
    if shutil.which("nft") is None:
        return []
    listed = subprocess.run(
        ["nft", "--json", "list", "tables", "inet"], capture_output=True, check=False, timeout=30
    )
    if listed.returncode != 0:
        return []
    entries = json.loads(listed.stdout or b"{}").get("nftables", [])
    names = [entry["table"]["name"] for entry in entries if "table" in entry]
    return [name for name in names if name.startswith("cloche_")]


def _resolver(settings: Settings) -> int | None:
    """Return the pid of this installation's name server, if it lives."""
    try:
        pid, start = (settings.run_dir / "resolver.pid").read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if process_start_time(int(pid)) == int(start) else None


def _installation_leftovers(settings: Settings) -> Iterator[Leftover]:
    """What the spawner keeps while it runs, and removes when it leaves."""
    if launch.lock_is_held(settings):
        return
    alive = bool(live_ids(settings))
    if not alive:
        for folder in Cgroups(settings).own():
            yield Leftover(kind="cgroup", name=str(folder))
        resolver = _resolver(settings)
        if resolver is not None:
            yield Leftover(kind="process", name=f"{resolver} (name server)")
        if network.plan(settings).table in tables():
            yield Leftover(kind="rule", name=network.plan(settings).table)
    if not alive and (settings.run_dir / "spawner.sock").exists():
        yield Leftover(kind="file", name=str(settings.run_dir / "spawner.sock"))


def _mounts(settings: Settings) -> Iterator[Leftover]:
    """Sandboxes' mounts live in namespaces of their own; one that shows here is a leak."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if any(point.startswith(f"{folder}/") for folder in (settings.uppers_dir, settings.sandboxes_dir)):
            yield Leftover(kind="mount", name=point)


def find_leftovers(settings: Settings) -> list[Leftover]:
    """Return everything of this installation that no live sandbox owns. Changes nothing."""
    found = [*_sandbox_leftovers(settings), *_installation_leftovers(settings), *_mounts(settings)]
    return list(dict.fromkeys(found))


def remove_rest(settings: Settings) -> None:
    """Remove what the spawner does not: links without a sandbox, groups and rules of a killed spawner."""
    for leftover in find_leftovers(settings):
        if leftover.kind == "network":
            subprocess.run(
                ["ip", "link", "delete", leftover.name], capture_output=True, check=False, timeout=30
            )
        elif leftover.kind == "cgroup":
            _remove_group(Path(leftover.name))
        elif leftover.kind == "rule":
            subprocess.run(
                ["nft", "delete", "table", "inet", leftover.name],
                capture_output=True,
                check=False,
                timeout=30,
            )


def _remove_group(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:
        return  # busy or gone: the next look will tell
