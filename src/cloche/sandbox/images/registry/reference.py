"""Which registry a name means, and how it may be spoken to.

Must never guess a registry: a name without a host belongs to none, unless the user set a default one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from yarl import URL

from cloche.core.errors import InvalidInput
from cloche.sandbox.images import names

_HUB_API = "registry-1.docker.io"
_HUB_CREDENTIALS = "index.docker.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How registries are used.

    ``default`` (``CLOCHE_REGISTRY``) is the host of the registry that names without one are looked for in.
    ``insecure`` (``CLOCHE_REGISTRY_INSECURE``, hosts with commas between) may be spoken to over plain HTTP,
    as any registry on this machine's loopback. ``auth_file`` (``CLOCHE_REGISTRY_AUTH``, or ``config.json``
    in the folder ``DOCKER_CONFIG``) holds credentials; none is used that is not named. ``mirrors``
    (``CLOCHE_REGISTRY_MIRRORS``, such as ``docker.io=mirror.example/hub``, commas between) are asked before
    the registry that a name says, in order.
    """

    default: str | None = None
    insecure: frozenset[str] = frozenset()
    auth_file: Path | None = None
    mirrors: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> RegistrySettings:
        """Read the variables. Raises InvalidInput for a default registry that is no host."""
        folder = environment.get("DOCKER_CONFIG")
        auth = environment.get("CLOCHE_REGISTRY_AUTH") or (f"{folder}/config.json" if folder else "")
        default = environment.get("CLOCHE_REGISTRY") or None
        if default is not None and _host_of(default) != default:
            raise InvalidInput(
                f"CLOCHE_REGISTRY is {default!r}, which is not the host of a registry",
                hint="such as host.example or host.example:5000, without https:// and without a path",
            )
        insecure = environment.get("CLOCHE_REGISTRY_INSECURE", "")
        return cls(
            default=default,
            insecure=frozenset(host.strip() for host in insecure.split(",") if host.strip()),
            auth_file=Path(auth) if auth else None,
            mirrors=_mirrors(environment.get("CLOCHE_REGISTRY_MIRRORS", "")),
        )


def _mirrors(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        host, _, place = pair.partition("=")
        if _host_of(host) != host or not _host_of(place):
            raise InvalidInput(
                f"CLOCHE_REGISTRY_MIRRORS has {pair!r}, which names no registry and its mirror",
                hint="such as docker.io=mirror.example:5000 or docker.io=mirror.example/hub",
            )
        found.append((host, place.rstrip("/")))
    return tuple(found)


def _host_of(text: str) -> str:
    try:
        return names.parts(f"{text}/x").host
    except InvalidInput:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image in a registry. ``version`` is a tag, or a digest (``sha256:…``)."""

    registry: str
    repository: str
    version: str

    @property
    def pinned(self) -> bool:
        """Whether the name says the digest itself."""
        return self.version.startswith("sha256:")

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}{'@' if self.pinned else ':'}{self.version}"

    @property
    def credentials_host(self) -> str:
        """The host under which credentials are kept."""
        return _HUB_CREDENTIALS if names.is_docker_hub(self.registry) else self.registry

    def base(self, settings: RegistrySettings) -> URL:
        """Return the registry's address: ``https``, but for loopback and registries named as insecure."""
        host = _HUB_API if names.is_docker_hub(self.registry) else self.registry
        scheme = "http" if plain_allowed(URL(f"http://{host}"), settings) else "https"
        return URL(f"{scheme}://{host}")


def plain_allowed(url: URL, settings: RegistrySettings) -> bool:
    """Whether this host and port may be spoken to without TLS."""
    host = url.host or ""
    return url.authority in settings.insecure or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its spelling alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_registry(name: str, settings: RegistrySettings) -> Reference | None:
    """Return where to pull a name from, or None if it names no registry and there is no default one.

    ``localhost/x`` (without a port) is a name of this machine's own. Raises InvalidInput for what is no name.
    """
    found = names.parts(name)
    registry = found.host or settings.default
    if registry is None or found.host == "localhost":
        return None
    repository = found.path
    if names.is_docker_hub(registry) and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(registry=registry, repository=repository, version=found.digest or found.tag or "latest")


def mirrors_of(reference: Reference, settings: RegistrySettings) -> list[Reference]:
    """Return where else to ask for this image, before its registry."""
    found = []
    for host, place in settings.mirrors:
        if host == reference.registry or (
            names.is_docker_hub(host) and names.is_docker_hub(reference.registry)
        ):
            mirror, _, prefix = place.partition("/")
            repository = f"{prefix}/{reference.repository}" if prefix else reference.repository
            found.append(Reference(registry=mirror, repository=repository, version=reference.version))
    return found
