"""``docker-compose.yaml`` of a task: the agent's service ``main`` and the services beside it.

What a service says about its image, environment, user, working directory, limits, health and order is taken
over, and of those beside ``main`` what they run; settings that Harbor replaces or that a sandbox has anyway
are passed by; all else is refused by name with its line, so that nothing is left out in silence. Must never
read another file that it names.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloche.sandbox.native.check import CPUS_MIN, MEMORY_BYTES_MIN
from cloche.tasks.model import Healthcheck
from cloche.tasks.yaml import Node

MAIN = "main"
SERVICE_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?")
_CONDITIONS_NOT_HAD = frozenset({"service_completed_successfully"})
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")
_TIMES = {
    "interval": "interval_s",
    "timeout": "timeout_s",
    "start_period": "start_period_s",
    "start_interval": "start_interval_s",
}

# set by Harbor's own files, or what a sandbox is anyway
_PASSED_BY = frozenset(
    {
        *("command", "entrypoint", "container_name", "hostname", "init", "labels", "platform", "restart"),
        *("expose", "pull_policy", "stdin_open", "stop_grace_period", "tty"),
    }
)
_HARBOR_VARIABLE = re.compile(
    r"CONTEXT_DIR|MAIN_IMAGE_NAME|PREBUILT_IMAGE_NAME|CPUS|MEMORY|TEST_DIR"
    r"|(?:HOST|ENV)_(?:VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH"
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmg]?)i?b?", re.IGNORECASE)
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LOGS_MOUNT = re.compile(r"\$\{HOST_\w+_PATH\}:\$\{ENV_\w+_PATH\}")


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Something in the file that has no meaning here, and its line."""

    message: str
    line: int


@dataclass(slots=True, kw_only=True)
class Composed:
    """What a service says. ``env`` has (text, line); paths are relative to ``environment/``.

    ``services`` are those beside ``main``, each after those that it waits for. ``entrypoint`` and
    ``command`` are ``None`` where the image's hold, which they always do for ``main``.
    """

    name: str = MAIN
    services: tuple[Composed, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    healthcheck: Healthcheck | None = None
    after: tuple[str, ...] = ()
    image: str | None = None
    context: str | None = None
    dockerfile: str | None = None
    build_args: dict[str, str] = field(default_factory=dict)
    env: dict[str, tuple[str, int]] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    no_network: bool = False
    unmapped: list[Unmapped] = field(default_factory=list)


def read_compose(document: Node) -> Composed:
    """Return what the file means; everything that cannot be mapped is in ``unmapped``."""
    found = Composed()
    if not isinstance(document.value, dict):
        found.unmapped.append(Unmapped(f"it holds {document.kind}, not a mapping", document.line))
        return found
    for key, node in document.value.items():
        if key not in {"version", "name", "services"} and not key.startswith("x-"):
            found.unmapped.append(Unmapped(f"`{key}`", node.line))
    services = document.value.get("services")
    if services is None or not isinstance(services.value, dict) or MAIN not in services.value:
        line = services.line if services else document.line
        found.unmapped.append(Unmapped("it has no service `main`", line))
        return found
    others = [_beside(name, node, found) for name, node in services.value.items() if name != MAIN]
    _service(services.value[MAIN], found)
    found.services = _in_order(others, services.line, found)
    return found


def _beside(name: str, node: Node, main: Composed) -> Composed:
    """Read a service beside ``main``; what cannot be mapped is noted with ``main``."""
    service = Composed(name=name, unmapped=main.unmapped)
    if not SERVICE_NAME.fullmatch(name):
        main.unmapped.append(Unmapped(f"the service `{name}`, whose name no host can have", node.line))
    _service(node, service)
    if service.no_network:
        main.unmapped.append(
            Unmapped(f"`network_mode: none` of `{name}`, which nobody could reach", node.line)
        )
    if service.image is None and service.context is None and isinstance(node.value, dict):
        main.unmapped.append(Unmapped(f"neither `image` nor `build` of `{name}`", node.line))
    return service


def _in_order(others: list[Composed], line: int, main: Composed) -> tuple[Composed, ...]:
    """Return the services, each after those it waits for; ``main`` is last of all anyway."""
    names = {service.name for service in others}
    for service in (main, *others):
        for name in sorted(set(service.after) - names):
            main.unmapped.append(Unmapped(f"`depends_on: {name}` of `{service.name}`", line))
    ordered: list[Composed] = []
    while len(ordered) < len(others):
        done = {service.name for service in ordered}
        ready = [s for s in others if s.name not in done and not (set(s.after) & names) - done]
        if not ready:
            main.unmapped.append(Unmapped("services that wait for each other", line))
            break
        ordered += ready
    return tuple(ordered)


def _service(service: Node, found: Composed) -> None:
    if not isinstance(service.value, dict):
        found.unmapped.append(Unmapped(f"the service `{found.name}` is {service.kind}", service.line))
        return
    own = {"entrypoint": _entrypoint, "command": _command} if found.name != MAIN else {}
    readers = {
        **own,
        "healthcheck": _healthcheck,
        "depends_on": _depends,
        "image": _image,
        "build": _build,
        "environment": _environment,
        "user": _user,
        "working_dir": _workdir,
        "cpus": _cpus,
        "mem_limit": _memory,
        "deploy": _deploy,
        "network_mode": _network,
        "volumes": _volumes,
    }
    for key, node in service.value.items():
        if key in readers:
            readers[key](node, found)
        elif key not in _PASSED_BY and not key.startswith("x-"):
            found.unmapped.append(Unmapped(f"`{key}` of `{found.name}`", node.line))


def _text(node: Node, what: str, found: Composed) -> str | None:
    """Return a text with Harbor's variables gone; a text that needs another variable is unmapped."""
    if node.value is None:
        return None
    if not isinstance(node.value, str):
        found.unmapped.append(Unmapped(f"`{what}` of `{found.name}` is {node.kind}", node.line))
        return None
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if match[2] is None and not _HARBOR_VARIABLE.fullmatch(name):
            missing.append(name)
        return match[2] or ""

    text = _VARIABLE.sub(value, node.value.replace("$$", "\0")).replace("\0", "$")
    if missing:
        found.unmapped.append(
            Unmapped(f"the variable `{missing[0]}` in `{what}` of `{found.name}`", node.line)
        )
        return None
    return text or None


def _image(node: Node, found: Composed) -> None:
    found.image = _text(node, "image", found)


def _inner_path(node: Node, what: str, found: Composed) -> str | None:
    text = _text(node, what, found)
    if text is None:
        return None
    path = posixpath.normpath(text)
    if path.startswith(("/", "..")) or "://" in text:
        found.unmapped.append(Unmapped(f"`{what}` of `{found.name}` outside environment/", node.line))
        return None
    return path


def _build(node: Node, found: Composed) -> None:
    found.context, found.dockerfile = ".", "Dockerfile"
    if not isinstance(node.value, dict):
        found.context = _inner_path(node, "build", found) or "."
        return
    for key, inner in node.value.items():
        if key == "context":
            found.context = _inner_path(inner, "build.context", found) or "."
        elif key == "dockerfile":
            found.dockerfile = _inner_path(inner, "build.dockerfile", found) or "Dockerfile"
        elif key == "args":
            pairs = _pairs(inner, "build.args", found)
            found.build_args = {name: text for name, text, _ in pairs}
        elif key not in {"platforms", "tags", "labels", "pull"}:
            found.unmapped.append(Unmapped(f"`build.{key}` of `{found.name}`", inner.line))


def _pairs(node: Node, what: str, found: Composed) -> Iterator[tuple[str, str, int]]:
    """Yield (name, text, line) of a mapping or of a list of ``NAME=text``."""
    if isinstance(node.value, dict):
        for name, inner in node.value.items():
            if inner.value is not None and not isinstance(inner.value, str):
                found.unmapped.append(
                    Unmapped(f"`{what}.{name}` of `{found.name}` is {inner.kind}", inner.line)
                )
            else:
                yield name, inner.value or "", inner.line
    elif isinstance(node.value, list):
        for inner in node.value:
            name, equals, text = inner.value.partition("=") if isinstance(inner.value, str) else ("", "", "")
            if not name or not equals:
                found.unmapped.append(
                    Unmapped(f"an entry of `{what}` of `{found.name}` without a value", inner.line)
                )
            else:
                yield name, text, inner.line
    elif node.value is not None:
        found.unmapped.append(Unmapped(f"`{what}` of `{found.name}` is {node.kind}", node.line))


def _environment(node: Node, found: Composed) -> None:
    for name, text, line in _pairs(node, "environment", found):
        whole = _VARIABLE.fullmatch(text)
        if whole is None and _VARIABLE.search(text.replace("$$", "")):
            found.unmapped.append(Unmapped(f"a variable inside `environment.{name}` of `{found.name}`", line))
            continue
        value = text.replace("$$", "$")
        if whole is not None and (whole[3] or "${" in text):
            default = "" if whole[2] is None else f":-{whole[2]}"
            value = f"${{{whole[1] or whole[3]}{default}}}"
        found.env[name] = (value, line)


def _user(node: Node, found: Composed) -> None:
    found.user = _text(node, "user", found)


def _workdir(node: Node, found: Composed) -> None:
    found.workdir = _text(node, "working_dir", found)
    if found.workdir is not None and not found.workdir.startswith("/"):
        found.unmapped.append(Unmapped(f"`working_dir` of `{found.name}` that is not absolute", node.line))
        found.workdir = None


def _cpus(node: Node, found: Composed) -> None:
    text = _text(node, "cpus", found)
    if text is None:
        return
    try:
        found.cpus = float(text)
    except ValueError:
        found.cpus = None
    if found.cpus is None or not 0 < found.cpus < 1e6:
        found.cpus = None
        found.unmapped.append(Unmapped(f"`cpus` of `{found.name}` that is no number", node.line))
    elif found.cpus < CPUS_MIN:
        found.unmapped.append(Unmapped(f"`cpus` of `{found.name}` below {CPUS_MIN:g}", node.line))


def _memory(node: Node, found: Composed) -> None:
    text = _text(node, "mem_limit", found)
    if text is None:
        return
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _SIZES[match[2].lower()]) if match else 0
    if size < 1:
        found.unmapped.append(Unmapped(f"`mem_limit` of `{found.name}` that is no size", node.line))
        return
    if size < MEMORY_BYTES_MIN:
        least = f"`mem_limit` of `{found.name}` below {MEMORY_BYTES_MIN >> 20} MiB"
        found.unmapped.append(Unmapped(least, node.line))
        return
    found.memory_bytes = size


def _deploy(node: Node, found: Composed) -> None:
    """Take ``deploy.resources.limits`` with ``cpus`` and ``memory``, and nothing else."""
    limits = _only(node, ("resources", "limits"), "deploy", found)
    for key, inner in limits.items():
        if key == "cpus":
            _cpus(inner, found)
        elif key == "memory":
            _memory(inner, found)
        else:
            found.unmapped.append(Unmapped(f"`deploy.resources.limits.{key}` of `{found.name}`", inner.line))


def _only(node: Node, path: tuple[str, ...], name: str, found: Composed) -> Mapping[str, Node]:
    for wanted in path:
        if not isinstance(node.value, dict):
            found.unmapped.append(Unmapped(f"`{name}` of `{found.name}` is {node.kind}", node.line))
            return {}
        for key, inner in node.value.items():
            if key != wanted:
                found.unmapped.append(Unmapped(f"`{name}.{key}` of `{found.name}`", inner.line))
        if wanted not in node.value:
            return {}
        node, name = node.value[wanted], f"{name}.{wanted}"
    return node.value if isinstance(node.value, dict) else {}


def _network(node: Node, found: Composed) -> None:
    mode = _text(node, "network_mode", found)
    if mode == "none":
        found.no_network = True
    elif mode not in {None, "bridge", "default"}:
        found.unmapped.append(Unmapped(f"`network_mode: {mode}` of `{found.name}`", node.line))


def _volumes(node: Node, found: Composed) -> None:
    """Pass by the mounts of the folders for logs, which are there in every sandbox."""
    for inner in node.value if isinstance(node.value, list) else [node]:
        if not isinstance(inner.value, str) or not _LOGS_MOUNT.fullmatch(inner.value):
            found.unmapped.append(Unmapped(f"a volume of `{found.name}`", inner.line))


def _words(node: Node, what: str, found: Composed) -> tuple[str, ...] | None:
    """Return a command: a list of words, or a text that is parted as a shell would."""
    if isinstance(node.value, list):
        words = [_text(inner, what, found) for inner in node.value]
        return tuple(word or "" for word in words)
    text = _text(node, what, found)
    try:
        return None if text is None else tuple(shlex.split(text))
    except ValueError as error:
        found.unmapped.append(Unmapped(f"`{what}` of `{found.name}`: {error}", node.line))
        return None


def _entrypoint(node: Node, found: Composed) -> None:
    found.entrypoint = _words(node, "entrypoint", found)


def _command(node: Node, found: Composed) -> None:
    found.command = _words(node, "command", found)


def _depends(node: Node, found: Composed) -> None:
    """Take the names; everything with a healthcheck is waited for until it is healthy."""
    if isinstance(node.value, dict):
        for name, inner in node.value.items():
            for key, value in inner.value.items() if isinstance(inner.value, dict) else ():
                if key not in {"condition", "required", "restart"} or value.value in _CONDITIONS_NOT_HAD:
                    message = f"`depends_on.{name}.{key}: {value.value}` of `{found.name}`"
                    found.unmapped.append(Unmapped(message, value.line))
        found.after = tuple(node.value)
    else:
        found.after = _words(node, "depends_on", found) or ()


def _healthcheck(node: Node, found: Composed) -> None:
    if not isinstance(node.value, dict):
        found.unmapped.append(Unmapped(f"`healthcheck` of `{found.name}` is {node.kind}", node.line))
        return
    command = ""
    times: dict[str, float] = {}
    retries = 3
    for key, inner in node.value.items():
        text = inner.value if isinstance(inner.value, str) else ""
        if key == "test":
            command = _test(inner, found)
        elif key in _TIMES and (seconds := _seconds(text)) is not None:
            times[_TIMES[key]] = seconds
        elif key == "retries" and text.isdigit() and int(text) > 0:
            retries = int(text)
        elif key != "disable" or text not in {"true", "false"}:
            found.unmapped.append(Unmapped(f"`healthcheck.{key}` of `{found.name}`", inner.line))
    disabled = node.value.get("disable")
    if command and (disabled is None or disabled.value != "true"):
        times = {"interval_s": 30.0, "start_interval_s": 5.0, **times}  # Docker's own
        known: dict[str, Any] = {"retries": retries, **times}
        found.healthcheck = Healthcheck(command=command, **known)


def _test(node: Node, found: Composed) -> str:
    """Return the shell line of a healthcheck, empty for none."""
    words = _words(node, "healthcheck.test", found) if isinstance(node.value, list) else None
    if words is None:
        return _text(node, "healthcheck.test", found) or ""
    kind, *rest = words or ("NONE",)
    if kind == "CMD-SHELL" and len(rest) == 1:
        return rest[0]
    if kind == "CMD" and rest:
        return shlex.join(rest)
    if kind != "NONE":
        found.unmapped.append(Unmapped(f"`healthcheck.test` of `{found.name}`", node.line))
    return ""


def _seconds(text: str) -> float | None:
    """Return a duration such as ``1m30s`` or ``500ms``; ``None`` for what is none."""
    if not text or not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(text)) or None
