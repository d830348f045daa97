"""``task.toml``, table by table: what each field of Harbor's format "1.0" to "1.4" becomes.

A field is read into the task, or refused by name because it cannot be executed, or doubted; none is
passed over. Must never touch the file system: the folder is :mod:`cloche.tasks.folder`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloche.tasks.fields import Findings, Table
from cloche.tasks.model import AgentPhase, Env, TaskNetwork

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")

_MIB = 1 << 20
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([GMK])", re.IGNORECASE)
_SIZE_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NETWORKS = tuple(mode.value for mode in TaskNetwork)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFields:
    """The fields of ``[environment]``, before the folder has been looked at."""

    docker_image: str | None = None
    build_timeout_s: float = 600.0
    cpus: float | None = None
    memory_bytes: int | None = None
    storage_bytes: int | None = None
    env: Env = field(default_factory=dict)
    workdir: str | None = None
    network: TaskNetwork = TaskNetwork.PUBLIC
    network_stated: bool = False
    windows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFields:
    """The fields of ``[verifier]``."""

    timeout_s: float = 600.0
    user: str | None = None
    env: Env = field(default_factory=dict)
    separate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole ``task.toml``."""

    schema_version: str
    package: str | None
    description: str
    keywords: tuple[str, ...]
    source: str | None
    metadata: Mapping[str, Any]
    agent: AgentPhase
    verifier: VerifierFields
    environment: EnvironmentFields
    solution_env: Env
    steps: int


def read_config(findings: Findings) -> Config:
    """Read the whole document; what is wrong, refused or doubtful is noted in ``findings``."""
    root = Table(findings, findings.document.data)
    environment = root.table("environment", _environment)
    package, description, keywords = root.table("task", _package)
    config = Config(
        schema_version=_version(root),
        package=package,
        description=description,
        keywords=keywords,
        source=root.text("source"),
        metadata=root.raw("metadata"),
        agent=root.table("agent", lambda table: _agent(table, environment.network)),
        verifier=root.table("verifier", lambda table: _verifier(table, environment.network)),
        environment=environment,
        solution_env=root.table("solution", lambda table: table.env("env")),
        steps=_steps(root),
    )
    if root.items("artifacts", (str, dict), "paths or tables"):
        root.refuse("artifacts", "plan/artifacts", "it declares artifacts, which are not collected yet")
    root.finish()
    return config


def _version(root: Table) -> str:
    old = root.text("version")
    version = root.text("schema_version") or old or VERSIONS[-1]
    if version not in VERSIONS:
        key = "schema_version" if "schema_version" in root else "version"
        message = f"its schema version is `{version[:20]}`; known are {VERSIONS[0]} to {VERSIONS[-1]}"
        root.refuse(key, "plan/schema_version", message)
    return version


def _package(table: Table) -> tuple[str | None, str, tuple[str, ...]]:
    name = table.text("name")
    if name is not None and not _PACKAGE.fullmatch(name):
        table.broken("name", "task/value", "must be `organisation/name` of letters, digits, `.`, `_` and `-`")
        name = None
    if name is not None and ".." in name:
        table.broken("name", "task/value", "must not hold `..`")
        name = None
    table.text("version")
    table.items("authors", (dict,), "tables")
    return name, table.text("description") or "", table.texts("keywords")


def _steps(root: Table) -> int:
    steps = root.items("steps", (dict,), "tables")
    if steps:
        count = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
        root.refuse("steps", "plan/multi_step", f"it has {count}, and tasks in steps are not executed yet")
    strategy = root.choice("multi_step_reward_strategy", ("mean", "final"))
    if strategy and not steps:
        message = "`multi_step_reward_strategy` has no effect on a task without steps"
        root.doubt("multi_step_reward_strategy", "task/no_effect", message)
    return len(steps)


def _agent(table: Table, network: TaskNetwork) -> AgentPhase:
    _phase_network(table, network)
    return AgentPhase(timeout_s=table.number("timeout_sec"), user=table.user("user"))


def _phase_network(table: Table, network: TaskNetwork) -> None:
    """A phase may only repeat what the environment says: the network of a sandbox is fixed."""
    mode = table.choice("network_mode", _NETWORKS)
    hosts = table.texts("allowed_hosts")
    if mode is not None and mode != network:
        message = (
            f"`{table.name('network_mode')}` is `{mode}` while its environment is `{network}`,"
            " and a network that changes between phases is not built yet"
        )
        table.refuse("network_mode", "plan/phase_network", message)
    elif hosts and mode != TaskNetwork.ALLOWLIST:
        table.broken("allowed_hosts", "task/value", "is only valid with network_mode = `allowlist`")


def _verifier(table: Table, network: TaskNetwork) -> VerifierFields:
    _phase_network(table, network)
    mode = table.choice("environment_mode", ("shared", "separate"))
    definition = table.raw("environment")
    separate = mode == "separate" or (mode is None and bool(definition))
    if separate:
        key = "environment" if definition else "environment_mode"
        message = "its verifier wants an environment of its own, which is not made yet"
        table.refuse(key, "plan/separate_verifier", message)
    elif definition:
        message = f"`{table.name('environment')}` has no effect with environment_mode = `shared`"
        table.doubt("environment", "task/no_effect", message)
    if table.items("collect", (dict,), "tables"):
        message = "it declares commands that collect evidence, which are not run yet"
        table.refuse("collect", "plan/collect", message)
    return VerifierFields(
        timeout_s=table.number("timeout_sec") or 600.0,
        user=table.user("user"),
        env=table.env("env"),
        separate=separate,
    )


def _environment(table: Table) -> EnvironmentFields:
    network, stated = _network(table)
    _refuse_devices(table)
    _refuse_extras(table)
    storage = _megabytes(table, "storage_mb", "storage")
    if storage is not None:
        key = "storage_mb" if "storage_mb" in table else "storage"
        message = f"`{table.name(key)}` is recorded and not enforced: there are no disk limits here yet"
        table.doubt(key, "plan/storage_not_enforced", message)
    return EnvironmentFields(
        docker_image=_image(table),
        build_timeout_s=table.number("build_timeout_sec") or 600.0,
        cpus=table.number("cpus"),
        memory_bytes=_megabytes(table, "memory_mb", "memory"),
        storage_bytes=storage,
        env=table.env("env"),
        workdir=_workdir(table),
        network=network,
        network_stated=stated,
        windows=_windows(table),
    )


def _image(table: Table) -> str | None:
    image = table.text("docker_image")
    if image is not None and (not image.strip() or image != "".join(image.split())):
        table.broken("docker_image", "task/value", "is not the name of an image")
        return None
    return image


def _workdir(table: Table) -> str | None:
    workdir = table.text("workdir")
    if workdir is not None and not workdir.startswith("/"):
        table.broken("workdir", "task/value", "must be an absolute path")
        return None
    return workdir


def _network(table: Table) -> tuple[TaskNetwork, bool]:
    """Return the network mode and whether the task states one; the old ``allow_internet`` states it too."""
    mode = table.choice("network_mode", _NETWORKS)
    hosts = table.texts("allowed_hosts")
    internet = table.boolean("allow_internet")
    if mode == TaskNetwork.ALLOWLIST:
        message = "its network mode is `allowlist`, which cannot be enforced yet"
        hint = 'set network_mode to "public" or "no-network" if the task can do with it'
        table.refuse("network_mode", "plan/network_allowlist", message, hint)
    elif hosts:
        table.broken("allowed_hosts", "task/value", "is only valid with network_mode = `allowlist`")
    if mode is not None:
        return TaskNetwork(mode), True
    if internet is not None:
        return (TaskNetwork.PUBLIC if internet else TaskNetwork.NO_NETWORK), True
    return TaskNetwork.PUBLIC, False


def _windows(table: Table) -> bool:
    windows = table.choice("os", ("linux", "windows"), fold=True) == "windows"
    if windows:
        table.refuse("os", "plan/windows", "it needs Windows, and sandboxes here are Linux")
    return windows


def _refuse_devices(table: Table) -> None:
    gpus = table.integer("gpus", least=0, most=1 << 20)
    kinds = table.texts("gpu_types")
    if gpus or kinds:
        message = "it asks for a GPU, which sandboxes do not have"
        table.refuse("gpus" if gpus else "gpu_types", "plan/gpu", message)
    if table.raw("tpu"):
        table.refuse("tpu", "plan/tpu", "it asks for a TPU, which sandboxes do not have")


def _refuse_extras(table: Table) -> None:
    if table.items("mcp_servers", (dict,), "tables"):
        message = "it declares MCP servers, which are not passed on to agents yet"
        table.refuse("mcp_servers", "plan/mcp_servers", message)
    if table.text("skills_dir") is not None:
        message = "it brings skills, which are not passed on to agents yet"
        table.refuse("skills_dir", "plan/skills", message)
    if table.raw("healthcheck"):
        message = "it has a healthcheck, which is not run yet"
        table.refuse("healthcheck", "plan/healthcheck", message)


def _megabytes(table: Table, key: str, old: str) -> int | None:
    """Return bytes from ``memory_mb = 512`` or the old ``memory = "2G"``; both must agree."""
    megabytes = table.integer(key)
    text = table.text(old)
    if text is None:
        return None if megabytes is None else megabytes * _MIB
    match = _SIZE.fullmatch(text.strip())
    if match is None or (size := int(float(match[1]) * _SIZE_MB[match[2].upper()])) < 1:
        table.broken(old, "task/value", "is not a size such as `512M` or `2G`")
        return None
    if megabytes not in {None, size}:
        table.broken(old, "task/value", f"is {size} MB, but `{table.name(key)}` is {megabytes}")
        return None
    return size * _MIB
