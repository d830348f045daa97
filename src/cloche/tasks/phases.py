"""The tables of the phases: ``[agent]``, ``[verifier]``, the artifacts and the commands that collect them.

A step has the same tables as the task, and what it leaves out it inherits. Must never touch the file system.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

from cloche.sandbox.spec import NetworkPolicy
from cloche.tasks.environment import NETWORKS, EnvironmentFields, read_environment, read_hosts
from cloche.tasks.fields import Table
from cloche.tasks.model import AgentPhase, Artifact, CollectCommand, Env, TaskNetwork

VERIFIER_TIMEOUT_S = 600.0
COLLECT_TIMEOUT_S = 60.0
MAIN_SERVICE = "main"
ARTIFACTS_FOLDER = "/logs/artifacts"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFields:
    """The fields of a ``[verifier]``; ``None`` where it says nothing."""

    timeout_s: float | None = None
    user: str | None = None
    env: Env = field(default_factory=dict)
    separate: bool | None = None
    environment: EnvironmentFields | None = None
    collect: tuple[CollectCommand, ...] = ()
    network: NetworkPolicy | None = None


def read_agent(table: Table) -> AgentPhase:
    """Read ``[agent]`` of a task or a step."""
    network = _phase_network(table)
    return AgentPhase(timeout_s=table.number("timeout_sec"), user=table.user("user"), network=network)


def _phase_network(table: Table) -> NetworkPolicy | None:
    """Return what a phase says of its network, ``None`` where it is the environment's."""
    mode = table.choice("network_mode", NETWORKS)
    hosts = read_hosts(table, mode)
    return None if mode is None else TaskNetwork(mode).policy(hosts)


def read_verifier(table: Table) -> VerifierFields:
    """Read ``[verifier]`` of a task or a step."""
    mode = table.choice("environment_mode", ("shared", "separate"))
    environment = None
    if "environment" in table and mode != "shared":
        environment = table.table("environment", read_environment)
    elif table.raw("environment"):
        message = f"`{table.name('environment')}` has no effect with environment_mode = `shared`"
        table.doubt("environment", "task/no_effect", message)
    network = _phase_network(table)
    separate = True if environment is not None else None if mode is None else mode == "separate"
    return VerifierFields(
        timeout_s=table.number("timeout_sec"),
        user=table.user("user"),
        env=table.env("env"),
        separate=separate,
        environment=environment,
        collect=tuple(item for item in table.tables("collect", _collect) if item is not None),
        network=network,
    )


def _collect(table: Table) -> CollectCommand | None:
    command = table.text("command")
    timeout_s = table.number("timeout_sec") or COLLECT_TIMEOUT_S
    user = table.user("user")
    _only_main(table, "runs a command")
    if command is None or not command.strip():
        if "command" not in table or command is not None:
            table.broken("command", "task/value", "is missing: there is nothing to run")
        return None
    return CollectCommand(command=command, timeout_s=timeout_s, user=user)


def _only_main(table: Table, does: str) -> str | None:
    service = table.text("service")
    if service not in {None, MAIN_SERVICE}:
        message = f"`{table.name('service')}` {does} in the service `{service}`, and there is only `main`"
        table.refuse("service", "plan/service", message)
    return service


def read_artifacts(table: Table) -> tuple[Artifact, ...]:
    """Read the list ``artifacts`` of a task or a step: paths, or tables with a path."""
    items = table.items("artifacts", (str, dict), "paths or tables")
    found = []
    for index, item in enumerate(items):
        inner = table.item("artifacts", index, {"source": item} if isinstance(item, str) else item)
        artifact = _artifact(inner)
        inner.finish()
        if artifact is not None:
            found.append(artifact)
    return tuple(found)


def _artifact(table: Table) -> Artifact | None:
    source = table.text("source")
    exclude = table.texts("exclude")
    service = _only_main(table, "is taken")
    destination, fits = _destination(table)
    if source is None:
        if "source" not in table:
            table.broken("source", "task/value", "is missing: an artifact needs a path")
        return None
    if ".." in source.split("/"):
        table.broken("source", "task/path_escape", "must not hold `..`")
        return None
    if not source.strip("/ "):
        table.broken("source", "task/value", "is not a file or folder to keep")
        return None
    if not fits:
        return None
    clean = posixpath.normpath(source)
    source = f"/{clean.lstrip('/')}" if clean.startswith("/") else clean
    return Artifact(source=source, destination=destination, exclude=exclude, service=service)


def _destination(table: Table) -> tuple[str | None, bool]:
    """Return the destination, and whether it can be used."""
    destination = table.text("destination")
    if not destination:
        return None, True
    problem = ""
    if destination.startswith("/") or ".." in destination.split("/"):
        table.broken("destination", "task/path_escape", "must be a relative path without `..`")
        return None, False
    if "\\" in destination:
        problem = "must have `/` between its parts"
    elif posixpath.normpath(destination) in {".", "manifest.json"}:
        problem = "must name a place below artifacts/ other than manifest.json"
    if problem:
        table.broken("destination", "task/value", problem)
        return None, False
    return posixpath.normpath(destination), True


def with_convention(artifacts: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    """Return the artifacts with ``/logs/artifacts`` in front, unless it is there already."""
    if any(artifact.source == ARTIFACTS_FOLDER for artifact in artifacts):
        return artifacts
    return (Artifact(source=ARTIFACTS_FOLDER), *artifacts)


def overlaps(artifacts: tuple[Artifact, ...]) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield (kept, left out) for each artifact whose place is taken by an earlier one."""
    taken: list[Artifact] = []
    for artifact in with_convention(artifacts):
        near = [other for other in taken if _overlap(other.target, artifact.target)]
        first = next((other for other in near if not _covers(other, artifact)), None)
        if first is None:
            taken.append(artifact)
        else:
            yield first, artifact


def _covers(other: Artifact, artifact: Artifact) -> bool:
    """Whether an artifact is a part of another one that comes to the same place anyway."""
    if other.source == artifact.source and other.target == artifact.target:
        return other.exclude == artifact.exclude
    inner = posixpath.relpath(artifact.source, other.source)
    within = not inner.startswith("..") and not other.exclude
    return within and artifact.target == posixpath.normpath(f"{other.target}/{inner}")


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
