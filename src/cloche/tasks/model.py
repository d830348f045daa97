"""What a task is once it has been read: plain frozen data, and the findings about it.

Must never read a file or the environment. Times are seconds, sizes are bytes. The format is Harbor's
(``task.toml`` "1.0" to "1.4"); ``docs/tasks.md`` says for every field what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cloche.core.errors import InvalidInput
from cloche.sandbox.spec import NetworkMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to know about a task: a stable code, one line, where (``file:line``) and what to do."""

    code: str
    message: str
    where: str
    hint: str = ""


class Refusal(Finding):
    """The task says this clearly, but it cannot be executed: it is refused when the run is planned."""

    __slots__ = ()


class Doubt(Finding):
    """Perhaps not what the author meant; the task runs all the same."""

    __slots__ = ()


class TaskInvalid(InvalidInput):
    """The task cannot be understood. ``findings`` holds all that is wrong, the first is the message."""

    code = "task/invalid"

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        """Tell the first finding, and how many more there are."""
        first = findings[0]
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        super().__init__(
            f"task `{name}`: {first.message}{more}",
            hint=first.hint or None,
            where=first.where,
            code=first.code,
        )
        self.name = name
        self.findings = tuple(findings)


class TaskNetwork(StrEnum):
    """What the format says about the network of a task's environment."""

    PUBLIC = "public"
    NO_NETWORK = "no-network"
    ALLOWLIST = "allowlist"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvValue:
    """A value of an environment table: a text, or ``${VAR}`` or ``${VAR:-default}`` from the host."""

    text: str
    where: str


Env = Mapping[str, EnvValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where the task takes place.

    Either ``docker_image`` is set or ``dockerfile`` (its folder is the build context); with an image,
    ``upload_dir`` holds files that belong in the working directory once the sandbox is there.
    ``network_stated`` is false where the format's default (``public``) holds because the task says
    nothing. ``storage_bytes`` is what the task asks for; it is recorded and not enforced.
    """

    docker_image: str | None = None
    dockerfile: Path | None = None
    upload_dir: Path | None = None
    build_timeout_s: float = 600.0
    cpus: float | None = None
    memory_bytes: int | None = None
    storage_bytes: int | None = None
    env: Env = field(default_factory=dict)
    workdir: str | None = None
    network: TaskNetwork = TaskNetwork.PUBLIC
    network_stated: bool = False

    @property
    def context(self) -> Path | None:
        """The folder that the Dockerfile is built in."""
        return self.dockerfile.parent if self.dockerfile is not None else None

    @property
    def network_mode(self) -> NetworkMode:
        """The sandbox's network mode. Only for tasks that are not refused."""
        return NetworkMode.PUBLIC if self.network is TaskNetwork.PUBLIC else NetworkMode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPhase:
    """Limits of the agent's work. ``timeout_s=None`` means no limit; ``user=None`` the image's user."""

    timeout_s: float | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierPhase:
    """How the task is graded: ``script`` lies in ``tests_dir``, which becomes ``/tests``."""

    tests_dir: Path
    script: Path
    timeout_s: float = 600.0
    user: str | None = None
    env: Env = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The reference solution, used by the oracle alone; ``script`` is ``None`` where there is none."""

    solution_dir: Path | None = None
    script: Path | None = None
    env: Env = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. ``name`` is one path component; ``full_name`` may carry an organisation before a ``/``.

    ``digest`` is ``sha256:`` and the content digest of the files that make the task. ``instruction``
    is what the agent is told. ``refused`` holds what the files ask for that cannot be executed;
    :func:`cloche.tasks.refusals` adds what this host lacks. ``not_enforced`` names limits that are
    recorded and not held.
    """

    name: str
    full_name: str
    path: Path
    digest: str
    schema_version: str
    instruction: str
    environment: Environment
    agent: AgentPhase
    verifier: VerifierPhase
    solution: Solution
    source: str | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    doubts: tuple[Doubt, ...] = ()

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The limits of the task that hold nobody back, as they are called in ``task.toml``."""
        return ("storage_mb",) if self.environment.storage_bytes is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenTask:
    """A task that cannot be understood: one failed row of a dataset, not the end of it."""

    name: str
    path: Path
    findings: tuple[Finding, ...]

    @property
    def error(self) -> TaskInvalid:
        """The same as an error that can be raised and shown."""
        return TaskInvalid(self.name, self.findings)
