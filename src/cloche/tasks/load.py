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
    strip_canary,
)
from cloche.tasks.model import (
    BrokenTask,
    Doubt,
    Environment,
    Finding,
    Solution,
    Task,
    TaskInvalid,
    VerifierPhase,
)
from cloche.tasks.schema import Config, EnvironmentFields, read_config
from cloche.tasks.toml import TomlError, parse


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

    A path is a task's folder or a folder of such folders. Raises NotFound for a path that is neither.
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
    try:
        return load_task(folder)
    except TaskInvalid as error:
        return BrokenTask(name=error.name, path=Path(os.path.realpath(folder)), findings=error.findings)


def _has_config(folder: Path) -> bool:
    return os.path.lexists(folder / CONFIG)


def _task_folders(path: Path) -> list[Path]:
    if path.name == CONFIG and path.is_file():
        path = path.parent
    try:
        if _has_config(path):
            return [path]
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise NotFound(f"`{path}` cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise NotFound(f"{str(path)!r} is not a path") from error
    folders = [path / name for name in names if _has_config(path / name)]
    if not folders:
        raise NotFound(
            f"there is no task in `{path}`",
            hint=f"a task is a folder with a {CONFIG}; name one, or a folder of such folders",
        )
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
    findings.refused += refused_files(folder)
    findings.doubts += doubtful_files(folder)
    instruction = _instruction(folder, config, findings.broken)
    environment = _environment(folder, config, findings)
    verifier = _verifier(folder, config, findings.broken)
    solution = _solution(folder, config)
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


def _instruction(folder: Folder, config: Config, broken: list[Finding]) -> str:
    if config.steps:
        return ""
    text = folder.text(INSTRUCTION)
    if text is None:
        message = f"it has no {INSTRUCTION}"
        hint = f"write what the agent is to do into {INSTRUCTION}"
        broken.append(folder.broken(INSTRUCTION, "task/no_instruction", message, hint))
        return ""
    instruction = strip_canary(text.replace("\r", "\n"))
    if not instruction.strip():
        broken.append(folder.broken(INSTRUCTION, "task/no_instruction", f"its {INSTRUCTION} is empty"))
    return instruction


def _environment(folder: Folder, config: Config, findings: Findings) -> Environment:
    fields: EnvironmentFields = config.environment
    dockerfile = folder.file("environment/Dockerfile")
    compose = folder.inside("environment/docker-compose.yaml")
    upload = None
    if fields.docker_image is None:
        if dockerfile is None and compose is None:
            message = "it names no image: neither environment/Dockerfile nor environment.docker_image"
            hint = "write environment/Dockerfile, or set docker_image in [environment]"
            findings.broken.append(folder.broken("environment", "task/no_image", message, hint))
    elif dockerfile is not None:
        message = "environment/Dockerfile is not used, because environment.docker_image names an image"
        findings.doubts.append(
            Doubt(code="task/no_effect", message=message, where=folder.where("environment/Dockerfile"))
        )
        dockerfile = None
    elif folder.entries("environment"):
        folder.check_tree("environment")
        upload = folder.root / "environment"
    return Environment(
        docker_image=fields.docker_image,
        dockerfile=dockerfile,
        upload_dir=upload,
        build_timeout_s=fields.build_timeout_s,
        cpus=fields.cpus,
        memory_bytes=fields.memory_bytes,
        storage_bytes=fields.storage_bytes,
        env=fields.env,
        workdir=fields.workdir,
        network=fields.network,
        network_stated=fields.network_stated,
    )


def _verifier(folder: Folder, config: Config, broken: list[Finding]) -> VerifierPhase:
    folder.check_tree("tests")
    script = folder.file("tests/test.sh")
    elsewhere = config.steps or config.environment.windows or config.verifier.separate
    if script is None and not elsewhere:
        message = "it has no verifier: tests/test.sh is missing"
        hint = "write tests/test.sh; it leaves its verdict in /logs/verifier/reward.txt"
        broken.append(folder.broken("tests/test.sh", "task/no_verifier", message, hint))
    return VerifierPhase(
        tests_dir=folder.root / "tests",
        script=script or folder.root / "tests" / "test.sh",
        timeout_s=config.verifier.timeout_s,
        user=config.verifier.user,
        env=config.verifier.env,
    )


def _solution(folder: Folder, config: Config) -> Solution:
    folder.check_tree("solution")
    present = folder.inside("solution")
    return Solution(
        solution_dir=present if present is not None and present.is_dir() else None,
        script=folder.file("solution/solve.sh"),
        env=config.solution_env,
    )
