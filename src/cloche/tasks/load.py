"""Finding tasks and reading them. Must never raise for one broken task of many: it becomes a row."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cloche.core.errors import NotFound
from cloche.tasks.fields import Findings
from cloche.tasks.folder import (
    CONFIG,
    INSTRUCTION,
    Folder,
    FolderError,
    content_digest,
    doubtful_files,
    printable,
    refused_files,
)
from cloche.tasks.model import BrokenTask, Finding, Task, TaskInvalid
from cloche.tasks.parts import Parts
from cloche.tasks.schema import read_config
from cloche.tasks.toml import TomlError, parse

_HINT = f"a task is a folder with a {CONFIG}; name one, or a folder of such folders"


def load_task(path: str | Path) -> Task:
    """Read the task in a folder.

    Raises NotFound if there is no ``task.toml``, and TaskInvalid with all findings if the task cannot be
    understood. What is understood but cannot be executed is in ``Task.refused``.
    """
    folder = _open(Path(path))
    name = printable(folder.root.name)
    try:
        return _read(folder)
    except FolderError as error:
        raise TaskInvalid(name, [error.finding]) from error
    except OSError as error:
        message = f"it cannot be read: {error.strerror or error}"
        finding = Finding(code="task/unreadable", message=message, where=printable(folder.shown))
        raise TaskInvalid(name, [finding]) from error


def find_tasks(paths: Iterable[str | Path]) -> list[Task | BrokenTask]:
    """Read every task that the paths name, each once, sorted by folder name within each path.

    A path is a task's folder or a folder of such folders, of which those without ``task.toml`` are broken
    ones. Raises NotFound for a path that is neither.
    """
    found: list[Task | BrokenTask] = []
    seen: set[Path] = set()
    for path in paths:
        for folder in _task_folders(Path(path)):
            real = Path(os.path.realpath(folder))
            if real not in seen:
                seen.add(real)
                found.append(_load_or_broken(folder))
    return found


def _load_or_broken(folder: Path) -> Task | BrokenTask:
    if not _has_config(folder):
        shown = printable(str(folder))
        message = f"it looks like a task, but there is no {CONFIG} in it"
        hint = f"write {CONFIG} (cloche task new shows one), or move the folder away"
        finding = Finding(code="task/no_config", message=message, where=shown, hint=hint)
        real = Path(os.path.realpath(folder))
        return BrokenTask(name=printable(folder.name), path=real, findings=(finding,))
    try:
        return load_task(folder)
    except TaskInvalid as error:
        return BrokenTask(name=error.name, path=Path(os.path.realpath(folder)), findings=error.findings)


def _has_config(folder: Path) -> bool:
    return os.path.lexists(folder / CONFIG)


def _is_meant_as_task(folder: Path) -> bool:
    """Whether there is ``task.toml``, or what only a task has beside it: else one would be lost unsaid."""
    if _has_config(folder) or (folder / INSTRUCTION).is_file():
        return True
    return any((folder / name).is_dir() for name in ("tests", "environment"))


def _task_folders(path: Path) -> list[Path]:
    if path.name == CONFIG and path.is_file():
        path = path.parent
    try:
        if _has_config(path):
            return [path]
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise NotFound(f"`{path}` cannot be read: {error.strerror}", hint=_HINT) from error
    except ValueError as error:
        raise NotFound(f"{str(path)!r} is not a path") from error
    folders = [path / name for name in names if _is_meant_as_task(path / name)]
    if not folders:
        raise NotFound(f"there is no task in `{path}`", hint=_HINT)
    return folders


def _open(path: Path) -> Folder:
    if path.name == CONFIG and path.is_file():
        path = path.parent
    try:
        root = Path(os.path.realpath(path))
        if not _has_config(root):
            raise NotFound(f"there is no task in `{path}`", hint=f"a task is a folder with a {CONFIG}")
    except ValueError as error:
        raise NotFound(f"{str(path)!r} is not a path") from error
    return Folder(root, str(path))


def _read(folder: Folder) -> Task:
    if printable(folder.root.name) != folder.root.name:
        message = "the name of its folder holds characters that cannot be shown"
        raise FolderError(folder.broken("", "task/name", message, "rename the folder"))
    findings = _parse(folder)
    config = read_config(findings)
    names = [step.name for step in config.steps]
    findings.refused += refused_files(folder, names)
    findings.doubts += doubtful_files(folder, names)
    parts = Parts(folder, config, findings)
    instruction = "" if config.steps else parts.instruction(INSTRUCTION, "it")
    environment = parts.environment()
    verifier = parts.verifier(None)
    solution = parts.solution("solution")
    steps = tuple(parts.step(step) for step in config.steps)
    digest = content_digest(folder)
    if findings.broken:
        raise TaskInvalid(printable(folder.root.name), findings.broken)
    full_name = config.package or folder.root.name
    return Task(
        name=full_name.rpartition("/")[2],
        full_name=full_name,
        path=folder.root,
        digest=digest,
        schema_version=config.schema_version,
        instruction=instruction,
        environment=environment,
        agent=config.agent,
        verifier=verifier,
        solution=solution,
        steps=steps,
        strategy=config.strategy,
        artifacts=config.artifacts,
        source=config.source,
        description=config.description,
        keywords=config.keywords,
        metadata=config.metadata,
        refused=tuple(findings.refused),
        doubts=tuple(findings.doubts),
    )


def _parse(folder: Folder) -> Findings:
    text = folder.text(CONFIG)
    if text is None:
        raise FolderError(folder.broken(CONFIG, "task/unreadable", f"`{CONFIG}` is not a regular file"))
    try:
        document = parse(text)
    except TomlError as error:
        message = f"`{CONFIG}` is not valid TOML: {error}, line {error.line}, column {error.column}"
        raise FolderError(folder.broken(CONFIG, "task/toml", message, line=error.line)) from error
    return Findings(folder.where(CONFIG), document)
