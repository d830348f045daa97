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
from cloche.sandbox.spec import NetworkMode, NetworkPolicy


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

    def policy(self, hosts: Sequence[str] = ()) -> NetworkPolicy:
        """Return what a sandbox is told; ``hosts`` count for ``allowlist`` alone."""
        if self is TaskNetwork.ALLOWLIST:
            return NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow=tuple(hosts))
        return NetworkPolicy(mode=NetworkMode.PUBLIC if self is TaskNetwork.PUBLIC else NetworkMode.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvValue:
    """A value of an environment table: a text, or ``${VAR}`` or ``${VAR:-default}`` from the host."""

    text: str
    where: str


Env = Mapping[str, EnvValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthcheck:
    """A command that must exit with 0 before the agent starts, with the meaning of Docker's HEALTHCHECK.

    A failure within ``start_period_s`` of the beginning does not count and is followed by another try
    after ``start_interval_s``; later ones count, ``interval_s`` apart, and ``retries`` in a row are a
    failure. A try that takes longer than ``timeout_s`` is ended and has failed.
    """

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file or folder to keep: an absolute path inside, and where it goes below ``artifacts/``.

    ``exclude`` holds patterns as ``tar --exclude`` has them; they count for folders only.
    """

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @property
    def target(self) -> str:
        """The path below ``artifacts/``: the destination, or the source without its first slash."""
        return self.destination or self.source.strip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectCommand:
    """A shell line that gathers evidence before the artifacts are taken; its failure is only noted."""

    command: str
    timeout_s: float = 60.0
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where the task, or its verifier, takes place.

    Either ``docker_image`` is set or ``dockerfile``, which is built in ``context_dir`` (default: its own
    folder) with ``build_args``; with an image, ``upload_dir`` holds files that belong in the working
    directory once the sandbox is there. ``network_stated`` is false where the format's default
    (``public``) holds because the task says nothing. ``storage_bytes`` is what the task asks for; it is
    recorded and not enforced. ``skills_dir`` is a folder inside the image.
    """

    docker_image: str | None = None
    dockerfile: Path | None = None
    context_dir: Path | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    upload_dir: Path | None = None
    user: str | None = None
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    build_timeout_s: float = 600.0
    cpus: float | None = None
    memory_bytes: int | None = None
    storage_bytes: int | None = None
    env: Env = field(default_factory=dict)
    workdir: str | None = None
    network: TaskNetwork = TaskNetwork.PUBLIC
    network_stated: bool = False
    allowed_hosts: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()

    @property
    def context(self) -> Path | None:
        """The folder that the Dockerfile is built in."""
        if self.dockerfile is None:
            return None
        return self.context_dir or self.dockerfile.parent

    @property
    def policy(self) -> NetworkPolicy:
        """What the sandbox may reach, unless a phase says otherwise."""
        return self.network.policy(self.allowed_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A sandbox beside the agent's, in one unit with it and reached by ``name``.

    It has the network of the task's environment. ``None`` for ``entrypoint`` and ``command``: the image's.
    """

    name: str
    environment: Environment
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPhase:
    """Limits of the agent's work. ``timeout_s=None`` means no limit; ``user=None`` the image's user.

    ``network=None`` means the environment's.
    """

    timeout_s: float | None = None
    user: str | None = None
    network: NetworkPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierPhase:
    """How the task, or a step of it, is graded.

    ``script`` lies in ``tests_dir``, which becomes ``/tests``, laid over ``shared_tests_dir`` where a step
    has tests of its own. ``environment`` is a sandbox of the verifier's own, made from an image of its own
    or from the task's; with ``bundled`` its image holds the tests already. ``network=None`` means that of the
    environment it runs in.
    """

    tests_dir: Path
    script: Path
    shared_tests_dir: Path | None = None
    timeout_s: float = 600.0
    user: str | None = None
    env: Env = field(default_factory=dict)
    collect: tuple[CollectCommand, ...] = ()
    environment: Environment | None = None
    bundled: bool = False
    network: NetworkPolicy | None = None

    @property
    def separate(self) -> bool:
        """Whether it runs in a sandbox of its own."""
        return self.environment is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The reference solution, used by the oracle alone; ``script`` is ``None`` where there is none."""

    solution_dir: Path | None = None
    script: Path | None = None
    env: Env = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a task, with all that it inherits filled in; a task without steps is one without name.

    ``workdir_dir`` is uploaded to the working directory, and ``setup`` (its ``setup.sh``) run, before the
    agent starts. ``artifacts`` holds the task's and then the step's own. ``min_reward`` are thresholds by
    the name of a reward: when one is missed, the steps after this one are left out.
    """

    name: str
    instruction: str
    agent: AgentPhase
    verifier: VerifierPhase
    solution: Solution
    workdir_dir: Path | None = None
    setup: Path | None = None
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()
    min_reward: Mapping[str, float] = field(default_factory=dict)


class RewardStrategy(StrEnum):
    """How the rewards of the steps make the reward of the task."""

    MEAN = "mean"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. ``name`` is one path component; ``full_name`` may carry an organisation before a ``/``.

    ``digest`` is ``sha256:`` and the content digest of the files that make the task. ``instruction``
    is what the agent is told. A task in steps has no instruction of its own; ``stages`` gives what is to
    be done one after the other in either case. ``refused`` holds what the files ask for that cannot be
    executed; :func:`cloche.tasks.refusals` adds what this host lacks. ``not_enforced`` names limits that
    are recorded and not held.
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
    steps: tuple[Step, ...] = ()
    strategy: RewardStrategy = RewardStrategy.MEAN
    artifacts: tuple[Artifact, ...] = ()
    source: str | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    doubts: tuple[Doubt, ...] = ()

    @property
    def stages(self) -> tuple[Step, ...]:
        """The steps, or the whole task as the only one, which then has no name."""
        if self.steps:
            return self.steps
        whole = Step(
            name="",
            instruction=self.instruction,
            agent=self.agent,
            verifier=self.verifier,
            solution=self.solution,
            artifacts=self.artifacts,
        )
        return (whole,)

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The limits of the task that hold nobody back where the driver has none such, by their names."""
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
