"""Bringing an attempt's files out of its sandbox: the agent's logs and the artifacts, within bounds.

What cannot be fetched is said in the manifest and is not fatal. Must never follow a name that the sandbox
gave out of the trial's folder, and never fetch more than the bounds allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cloche.core.errors import ClocheError, NotFound, SandboxLost
from cloche.experiment.record.files import make_folder, write_json
from cloche.experiment.record.shapes import ArtifactEntry
from cloche.experiment.record.trial import TrialFolder
from cloche.sandbox.handle import FileKind, Sandbox
from cloche.tasks.verify import AGENT_LOGS, ARTIFACTS

BYTES_MAX = 256 << 20
FILES_MAX = 10_000
DEPTH_MAX = 32

Status = Literal["ok", "failed", "empty", "skipped"]


class TooMuch(Exception):
    """A folder of the sandbox holds more than is fetched."""


async def measure(sandbox: Sandbox, folder: str) -> tuple[int, int]:
    """Return (files, bytes) below a folder; raises TooMuch as soon as a bound is passed."""
    files = size_bytes = 0
    pending = [(folder, 0)]
    while pending:
        path, depth = pending.pop()
        if depth > DEPTH_MAX:
            raise TooMuch(f"{folder} has folders more than {DEPTH_MAX} deep")
        for entry in await sandbox.list_dir(path):
            files += 1
            if entry.is_folder:
                pending.append((entry.path, depth + 1))
            elif entry.kind is FileKind.FILE:
                size_bytes += entry.size_bytes
            if files > FILES_MAX or size_bytes > BYTES_MAX:
                raise TooMuch(
                    f"{folder} holds more than {FILES_MAX:,} files or {BYTES_MAX >> 20} MiB and was left"
                )
    return files, size_bytes


async def fetch(sandbox: Sandbox, source: str, target: Path, log: Callable[[str], None]) -> Status:
    """Bring a folder out and say how that went. Raises SandboxLost alone."""
    try:
        files, _ = await measure(sandbox, source)
        if not files:
            return "empty"
        await asyncio.to_thread(make_folder, target)
        skipped = await sandbox.download(source, target)
    except SandboxLost:
        raise
    except NotFound:
        return "empty"
    except TooMuch as error:
        log(str(error))
        return "skipped"
    except (ClocheError, OSError) as error:
        log(f"{source} could not be fetched: {error}")
        return "failed"
    for item in skipped:
        log(f"{item.path} is neither a file nor a folder and was left")
    return "ok"


async def collect(sandbox: Sandbox, folder: TrialFolder, log: Callable[[str], None]) -> None:
    """Fetch ``/logs/agent`` and ``/logs/artifacts``, and list what there was. Raises SandboxLost."""
    await fetch(sandbox, AGENT_LOGS, folder.agent_dir, log)
    relative = ARTIFACTS.lstrip("/")
    status = await fetch(sandbox, ARTIFACTS, folder.artifacts_dir / relative, log)
    entry = ArtifactEntry(
        source=ARTIFACTS,
        destination=f"artifacts/{relative}",
        type="directory",
        status=status,
        exclude=[],
    )
    manifest = folder.artifacts_dir / "manifest.json"
    await asyncio.to_thread(write_json, manifest, [entry.model_dump(mode="json")])
