"""The tables ``[environment]`` and ``[verifier.environment]``: image, limits, network, health.

What is asked for and cannot be had is refused by name. Must never touch the file system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cloche.core.errors import InvalidInput
from cloche.sandbox.allow import parse_entry
from cloche.sandbox.native.check import CPUS_MIN, MEMORY_BYTES_MIN
from cloche.tasks.fields import Table
from cloche.tasks.model import Env, Healthcheck, TaskNetwork

BUILD_TIMEOUT_S = 600.0
NETWORKS = tuple(mode.value for mode in TaskNetwork)

_MIB = 1 << 20
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([GMK])", re.IGNORECASE)
_SIZE_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_TRANSPORTS = ("stdio", "sse", "streamable-http", "http")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFields:
    """The fields of an environment, before the folder has been looked at."""

    docker_image: str | None = None
    build_timeout_s: float = BUILD_TIMEOUT_S
    cpus: float | None = None
    memory_bytes: int | None = None
    storage_bytes: int | None = None
    env: Env = field(default_factory=dict)
    workdir: str | None = None
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    network: TaskNetwork = TaskNetwork.PUBLIC
    network_stated: bool = False
    allowed_hosts: tuple[str, ...] = ()
    windows: bool = False


def read_environment(table: Table) -> EnvironmentFields:
    """Read one environment."""
    network, hosts, stated = _network(table)
    _refuse_devices(table)
    _refuse_servers(table)
    storage = _megabytes(table, "storage_mb", "storage")
    if storage is not None:
        key = "storage_mb" if "storage_mb" in table else "storage"
        message = (
            f"`{table.name(key)}` holds where the store has disk limits (cloche store show); "
            "else it is recorded as not enforced"
        )
        table.doubt(key, "plan/storage_not_enforced", message)
    build_timeout_s = table.number("build_timeout_sec") or BUILD_TIMEOUT_S
    return EnvironmentFields(
        docker_image=_image(table),
        build_timeout_s=build_timeout_s,
        cpus=_cpus(table),
        memory_bytes=_memory(table),
        storage_bytes=storage,
        env=table.env("env"),
        workdir=_workdir(table),
        skills_dir=_skills(table),
        healthcheck=read_healthcheck(table, build_timeout_s),
        network=network,
        network_stated=stated,
        allowed_hosts=hosts,
        windows=_windows(table),
    )


def read_healthcheck(table: Table, limit_s: float) -> Healthcheck | None:
    """Read ``healthcheck`` of an environment or a step, which has to be ready within ``limit_s``."""
    if not table.raw("healthcheck"):
        return None
    check = table.table("healthcheck", _healthcheck)
    if check is None:
        return None
    path = f"{table.name('healthcheck')}.start_period_sec"
    if check.start_period_s >= limit_s:
        message = (
            f"`{path}` is {check.start_period_s:g} s, but all of it must be ready within {limit_s:g} s"
            " (`build_timeout_sec`)"
        )
        hint = "raise build_timeout_sec, or shorten the start period"
        table.refuse("healthcheck", "plan/deadlines", message, hint)
    else:
        longest_s = check.start_period_s + check.retries * (check.timeout_s + check.interval_s)
        if longest_s > limit_s:
            message = (
                f"a healthcheck that fails takes up to {longest_s:g} s and is cut off after {limit_s:g} s"
            )
            table.doubt("healthcheck", "task/deadlines", message, "raise build_timeout_sec")
    return check


def _healthcheck(table: Table) -> Healthcheck | None:
    command = table.text("command")
    retries = table.integer("retries", most=1_000_000)
    start_period_s = table.number("start_period_sec", above=0.0, or_equal=True)
    times = {
        "interval_s": table.number("interval_sec"),
        "timeout_s": table.number("timeout_sec"),
        "start_interval_s": table.number("start_interval_sec"),
    }
    if command is None or not command.strip():
        if "command" not in table or command is not None:
            table.broken("command", "task/value", "is missing: a healthcheck needs a command")
        return None
    known = {name: value for name, value in times.items() if value is not None}
    return Healthcheck(
        command=command,
        start_period_s=start_period_s or 0.0,
        retries=retries or 3,
        where=table.file,
        **known,
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


def _skills(table: Table) -> str | None:
    folder = table.text("skills_dir")
    if folder is not None and not folder.strip("/ "):
        table.broken("skills_dir", "task/value", "is not a folder of skills")
        return None
    return folder


def read_hosts(table: Table, mode: str | None) -> tuple[str, ...]:
    """Read ``allowed_hosts`` beside a network mode: only what can be enforced, each entry by itself."""
    hosts = table.texts("allowed_hosts")
    if hosts and mode != TaskNetwork.ALLOWLIST:
        table.broken("allowed_hosts", "task/value", "is only valid with network_mode = `allowlist`")
        return ()
    for host in hosts:
        try:
            entry = parse_entry(host)
        except InvalidInput as error:
            table.broken("allowed_hosts", "task/value", f"holds what is no host, address or network: {error}")
            continue
        if entry.network is not None and entry.network.version != 4:
            message = f"`{table.name('allowed_hosts')}` has `{host}`, and no IPv6 leads out of a sandbox"
            table.refuse("allowed_hosts", "plan/network_allowlist", message, "leave it out")
    return hosts


def _network(table: Table) -> tuple[TaskNetwork, tuple[str, ...], bool]:
    """Return mode, hosts and whether the task states a mode; the old ``allow_internet`` states it too."""
    mode = table.choice("network_mode", NETWORKS)
    hosts = read_hosts(table, mode)
    internet = table.boolean("allow_internet")
    if mode is not None:
        return TaskNetwork(mode), hosts, True
    if internet is not None:
        return (TaskNetwork.PUBLIC if internet else TaskNetwork.NO_NETWORK), (), True
    return TaskNetwork.PUBLIC, (), False


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


def _refuse_servers(table: Table) -> None:
    names = table.tables("mcp_servers", _server)
    if names:
        shown = ", ".join(f"`{name}`" for name in names if name) or "without a name"
        message = f"it declares MCP servers ({shown}), which are not passed on to agents yet"
        table.refuse("mcp_servers", "plan/mcp_servers", message)


def _server(table: Table) -> str:
    name = table.text("name")
    if name is None and "name" not in table:
        table.broken("name", "task/value", "is missing: an MCP server needs a name")
    table.choice("transport", _TRANSPORTS)
    for key in ("url", "command"):
        table.text(key)
    table.texts("args")
    table.raw("headers")
    return name or ""


def _cpus(table: Table) -> float | None:
    cpus = table.number("cpus")
    if cpus is not None and cpus < CPUS_MIN:
        table.broken("cpus", "task/range", f"must be at least {CPUS_MIN:g}, not {cpus:g}")
    return cpus


def _memory(table: Table) -> int | None:
    size = _megabytes(table, "memory_mb", "memory")
    if size is not None and size < MEMORY_BYTES_MIN:
        key = "memory_mb" if "memory_mb" in table else "memory"
        least, given = MEMORY_BYTES_MIN // _MIB, size // _MIB
        table.broken(key, "task/range", f"must be at least {least} MB for a sandbox to start, not {given}")
    return size


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
