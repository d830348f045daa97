"""``docker-compose.yaml`` of a task whose environment is one container, read into what it means here.

What the one service ``main`` says about its image, environment, user, working directory and limits is taken
over; settings that Harbor replaces or that a sandbox has anyway are passed by; all else is refused by name
with its line, so that nothing is left out in silence. Must never read another file that it names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cloche.sandbox.native.check import CPUS_MIN, MEMORY_BYTES_MIN
from cloche.tasks.yaml import Node

MAIN = "main"

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
    """What the service ``main`` says. ``env`` has (text, line); paths are relative to ``environment/``."""

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
    for name, node in services.value.items():
        if name != MAIN:
            found.unmapped.append(Unmapped(f"the service `{name}` beside `main`", node.line))
    _service(services.value[MAIN], found)
    return found


def _service(service: Node, found: Composed) -> None:
    if not isinstance(service.value, dict):
        found.unmapped.append(Unmapped(f"the service `main` is {service.kind}", service.line))
        return
    readers = {
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
            found.unmapped.append(Unmapped(f"`{key}` of `main`", node.line))


def _text(node: Node, what: str, found: Composed) -> str | None:
    """Return a text with Harbor's variables gone; a text that needs another variable is unmapped."""
    if node.value is None:
        return None
    if not isinstance(node.value, str):
        found.unmapped.append(Unmapped(f"`{what}` of `main` is {node.kind}", node.line))
        return None
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if match[2] is None and not _HARBOR_VARIABLE.fullmatch(name):
            missing.append(name)
        return match[2] or ""

    text = _VARIABLE.sub(value, node.value.replace("$$", "\0")).replace("\0", "$")
    if missing:
        found.unmapped.append(Unmapped(f"the variable `{missing[0]}` in `{what}` of `main`", node.line))
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
        found.unmapped.append(Unmapped(f"`{what}` of `main` outside environment/", node.line))
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
            found.unmapped.append(Unmapped(f"`build.{key}` of `main`", inner.line))


def _pairs(node: Node, what: str, found: Composed) -> Iterator[tuple[str, str, int]]:
    """Yield (name, text, line) of a mapping or of a list of ``NAME=text``."""
    if isinstance(node.value, dict):
        for name, inner in node.value.items():
            if inner.value is not None and not isinstance(inner.value, str):
                found.unmapped.append(Unmapped(f"`{what}.{name}` of `main` is {inner.kind}", inner.line))
            else:
                yield name, inner.value or "", inner.line
    elif isinstance(node.value, list):
        for inner in node.value:
            name, equals, text = inner.value.partition("=") if isinstance(inner.value, str) else ("", "", "")
            if not name or not equals:
                found.unmapped.append(Unmapped(f"an entry of `{what}` of `main` without a value", inner.line))
            else:
                yield name, text, inner.line
    elif node.value is not None:
        found.unmapped.append(Unmapped(f"`{what}` of `main` is {node.kind}", node.line))


def _environment(node: Node, found: Composed) -> None:
    for name, text, line in _pairs(node, "environment", found):
        whole = _VARIABLE.fullmatch(text)
        if whole is None and _VARIABLE.search(text.replace("$$", "")):
            found.unmapped.append(Unmapped(f"a variable inside `environment.{name}` of `main`", line))
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
        found.unmapped.append(Unmapped("`working_dir` of `main` that is not absolute", node.line))
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
        found.unmapped.append(Unmapped("`cpus` of `main` that is no number", node.line))
    elif found.cpus < CPUS_MIN:
        found.unmapped.append(Unmapped(f"`cpus` of `main` below {CPUS_MIN:g}", node.line))


def _memory(node: Node, found: Composed) -> None:
    text = _text(node, "mem_limit", found)
    if text is None:
        return
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _SIZES[match[2].lower()]) if match else 0
    if size < 1:
        found.unmapped.append(Unmapped("`mem_limit` of `main` that is no size", node.line))
        return
    if size < MEMORY_BYTES_MIN:
        least = f"`mem_limit` of `main` below {MEMORY_BYTES_MIN >> 20} MiB"
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
            found.unmapped.append(Unmapped(f"`deploy.resources.limits.{key}` of `main`", inner.line))


def _only(node: Node, path: tuple[str, ...], name: str, found: Composed) -> Mapping[str, Node]:
    for wanted in path:
        if not isinstance(node.value, dict):
            found.unmapped.append(Unmapped(f"`{name}` of `main` is {node.kind}", node.line))
            return {}
        for key, inner in node.value.items():
            if key != wanted:
                found.unmapped.append(Unmapped(f"`{name}.{key}` of `main`", inner.line))
        if wanted not in node.value:
            return {}
        node, name = node.value[wanted], f"{name}.{wanted}"
    return node.value if isinstance(node.value, dict) else {}


def _network(node: Node, found: Composed) -> None:
    mode = _text(node, "network_mode", found)
    if mode == "none":
        found.no_network = True
    elif mode not in {None, "bridge", "default"}:
        found.unmapped.append(Unmapped(f"`network_mode: {mode}` of `main`", node.line))


def _volumes(node: Node, found: Composed) -> None:
    """Pass by the mounts of the folders for logs, which are there in every sandbox."""
    for inner in node.value if isinstance(node.value, list) else [node]:
        if not isinstance(inner.value, str) or not _LOGS_MOUNT.fullmatch(inner.value):
            found.unmapped.append(Unmapped("a volume of `main`", inner.line))
