"""Bringing an attempt's files out of its sandbox: the agent's logs and the artifacts, within bounds.

What cannot be fetched is said in the manifest and is not fatal. Must never follow a name that the sandbox
gave out of the trial's folder, and never fetch more than the bounds allow.
"""

from __future__ import annotations

import asyncio
import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cloche.core.errors import ClocheError, NotFound, SandboxLost
from cloche.experiment.record.files import make_folder, write_json
from cloche.experiment.record.shapes import ArtifactEntry
from cloche.experiment.record.trial import TrialFolder
from cloche.sandbox.handle import FileInfo, FileKind, Sandbox
from cloche.sandbox.spec import Command, EndReason
from cloche.tasks.model import Artifact, CollectCommand
from cloche.tasks.phases import ARTIFACTS_FOLDER, overlaps, with_convention
from cloche.tasks.verify import AGENT_LOGS

BYTES_MAX = 256 << 20
FILES_MAX = 10_000
DEPTH_MAX = 32
MANIFEST = "manifest.json"

Status = Literal["ok", "failed", "empty", "skipped"]
Log = Callable[[str], None]


class TooMuch(Exception):
    """A folder of the sandbox holds more than is fetched."""


class Excluded:
    """Patterns as ``tar --exclude`` has them: ``*`` crosses slashes, and a match may begin at any part."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Read the patterns; what they leave out of a folder is left out with all that is below."""
        self._patterns = [re.compile(fnmatch.translate(_plain(pattern))) for pattern in patterns]
        self._anchored = [pattern.startswith("./") for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, path: str) -> bool:
        """Whether a path relative to the folder is left out."""
        parts = path.split("/")
        ends = ["/".join(parts[start:]) for start in range(len(parts))]
        return any(
            pattern.match(end)
            for pattern, anchored in zip(self._patterns, self._anchored, strict=True)
            for end in (ends[:1] if anchored else ends)
        )


def _plain(pattern: str) -> str:
    return pattern.removeprefix("./").rstrip("/")


async def measure(sandbox: Sandbox, folder: str, excluded: Excluded | None = None) -> list[FileInfo]:
    """Return what lies below a folder, folders first; raises TooMuch as soon as a bound is passed."""
    found: list[FileInfo] = []
    size_bytes = 0
    pending = [(folder, 0)]
    while pending:
        path, depth = pending.pop()
        if depth > DEPTH_MAX:
            raise TooMuch(f"{folder} has folders more than {DEPTH_MAX} deep")
        for entry in await sandbox.list_dir(path):
            if excluded and excluded.matches(posixpath.relpath(entry.path, folder)):
                continue
            found.append(entry)
            if entry.is_folder:
                pending.append((entry.path, depth + 1))
            elif entry.kind is FileKind.FILE:
                size_bytes += entry.size_bytes
            if len(found) > FILES_MAX or size_bytes > BYTES_MAX:
                raise TooMuch(
                    f"{folder} holds more than {FILES_MAX:,} files or {BYTES_MAX >> 20} MiB and was left"
                )
    return found


async def fetch(
    sandbox: Sandbox, source: str, target: Path, log: Log, excluded: Excluded | None = None
) -> Status:
    """Bring a folder out and say how that went. Raises SandboxLost alone."""
    try:
        found = await measure(sandbox, source, excluded)
        if not found:
            return "empty"
        await asyncio.to_thread(make_folder, target)
        if excluded:
            skipped = await _download_each(sandbox, source, target, found)
        else:
            skipped = await sandbox.download(source, target, limit_bytes=BYTES_MAX)
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


async def _download_each(
    sandbox: Sandbox, source: str, target: Path, found: Sequence[FileInfo]
) -> list[FileInfo]:
    skipped = []
    for entry in sorted(found, key=lambda entry: entry.path):
        place = target.joinpath(*posixpath.relpath(entry.path, source).split("/"))
        if entry.is_folder:
            await asyncio.to_thread(make_folder, place)
        elif entry.kind is FileKind.FILE:
            skipped += await sandbox.download(entry.path, place, limit_bytes=BYTES_MAX)
        else:
            skipped.append(entry)
    return skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is collected after the agent: commands first, then artifacts; ``user`` runs the commands."""

    workdir: str
    artifacts: tuple[Artifact, ...] = ()
    commands: tuple[CollectCommand, ...] = ()
    user: str | None = None

    def source(self, artifact: Artifact) -> str:
        """Return the absolute path of an artifact inside."""
        return posixpath.normpath(posixpath.join(self.workdir, artifact.source))


async def collect(sandbox: Sandbox, folder: TrialFolder, log: Log, evidence: Evidence) -> None:
    """Run the commands, fetch ``/logs/agent`` and the artifacts, and list them. Raises SandboxLost."""
    for command in evidence.commands:
        await _run(sandbox, command, log, evidence)
    await fetch(sandbox, AGENT_LOGS, folder.agent_dir, log)
    left_out = {left: kept for kept, left in overlaps(evidence.artifacts)}
    entries = []
    for artifact in with_convention(evidence.artifacts):
        if artifact in left_out:
            log(f"the artifact {artifact.source} was left: {left_out[artifact].source} has its place")
            kind: Literal["file", "directory"] = (
                "file" if posixpath.splitext(artifact.source)[1] else "directory"
            )
            entries.append(_entry(artifact, kind, "skipped"))
        else:
            entries.append(await _take(sandbox, folder, log, evidence, artifact))
    manifest = folder.artifacts_dir / MANIFEST
    await asyncio.to_thread(write_json, manifest, [entry.model_dump(mode="json") for entry in entries])


async def _run(sandbox: Sandbox, command: CollectCommand, log: Log, evidence: Evidence) -> None:
    completed = await sandbox.run(
        Command(
            shell=command.command,
            user=command.user or evidence.user,
            cwd=evidence.workdir,
            timeout_s=command.timeout_s,
        )
    )
    if completed.reason is EndReason.SANDBOX_LOST:
        raise SandboxLost(completed.message or None)
    if not completed.ok:
        said = (completed.stderr.text.strip() or completed.message or "it said nothing").split("\n")[-1]
        how = completed.reason.value if completed.exit_code is None else f"status {completed.exit_code}"
        log(f"the collect command `{command.command[:80]}` failed ({how}): {said[:200]}")


async def _take(
    sandbox: Sandbox, folder: TrialFolder, log: Log, evidence: Evidence, artifact: Artifact
) -> ArtifactEntry:
    source = evidence.source(artifact)
    target = folder.artifacts_dir.joinpath(*artifact.target.split("/"))
    try:
        found = await sandbox.stat(source)
    except SandboxLost:
        raise
    except NotFound:
        log(f"{source} is not there")
        convention = artifact.source == ARTIFACTS_FOLDER
        return _entry(artifact, "directory", "empty" if convention else "failed")
    except ClocheError as error:
        log(f"{source} could not be fetched: {error}")
        return _entry(artifact, "directory", "failed")
    if found.is_folder:
        status = await fetch(sandbox, source, target, log, Excluded(artifact.exclude))
        return _entry(artifact, "directory", status)
    return _entry(artifact, "file", await _fetch_file(sandbox, found, target, log))


async def _fetch_file(sandbox: Sandbox, found: FileInfo, target: Path, log: Log) -> Status:
    if found.kind is not FileKind.FILE:
        log(f"{found.path} is neither a file nor a folder and was left")
        return "skipped"
    if found.size_bytes > BYTES_MAX:
        log(f"{found.path} is larger than {BYTES_MAX >> 20} MiB and was left")
        return "skipped"
    try:
        await asyncio.to_thread(make_folder, target.parent)
        await sandbox.download(found.path, target, limit_bytes=BYTES_MAX)
    except SandboxLost:
        raise
    except (ClocheError, OSError) as error:
        log(f"{found.path} could not be fetched: {error}")
        return "failed"
    return "ok"


def _entry(artifact: Artifact, kind: Literal["file", "directory"], status: Status) -> ArtifactEntry:
    return ArtifactEntry(
        source=artifact.source,
        destination=f"artifacts/{artifact.target}",
        type=kind,
        status=status,
        service=artifact.service,
        exclude=list(artifact.exclude) if kind == "directory" else [],
    )


def present(folder: TrialFolder, evidence: Evidence) -> Iterator[tuple[Path, str]]:
    """Yield (place on the host, absolute path inside) of each artifact that was fetched."""
    left_out = {left for _, left in overlaps(evidence.artifacts)}
    for artifact in with_convention(evidence.artifacts):
        place = folder.artifacts_dir.joinpath(*artifact.target.split("/"))
        if artifact not in left_out and place.exists():
            yield place, evidence.source(artifact)
