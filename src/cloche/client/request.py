"""What a sandbox is asked to be, as keyword arguments. Pure; must never guess what was not said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict, Unpack

from pydantic import ValidationError

from cloche.api.models import (
    CreateBody,
    LeaseBody,
    NetworkBody,
    ResourcesBody,
    SandboxBody,
    VolumeBody,
)
from cloche.core.errors import InvalidInput
from cloche.core.ids import new_id

HEARTBEAT_S = 300.0
"""Without a sign of life from its client for so long a sandbox ends."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_RESOURCES = ("cpus", "memory", "pids", "disk", "cpus_request", "memory_request")
_LEASE = ("ttl_s", "idle_s", "heartbeat_s")

Network = Literal["none", "allowlist", "public"]


class Options(TypedDict, total=False):
    """What ``create`` takes beside the image; whatever is left out has the service's default.

    ``cpus`` (a number), ``memory`` and ``disk`` (bytes, or text such as ``"512m"``) and ``pids`` are limits;
    ``cpus_request`` and ``memory_request`` what admission counts, where that is less. ``network`` is
    ``none``, ``allowlist`` or ``public``; ``allow`` and ``presets`` say what an allowlist names (and mean
    one, where ``network`` is left out). ``ttl_s``, ``idle_s`` and ``heartbeat_s`` are the lease: ``None``
    switches one off; the heartbeat is 300 seconds unless said otherwise, and is sent by itself.
    ``volumes`` maps a folder of the service's host to where it is seen. ``sidecars`` are more sandboxes on
    the same private network, by name; each is made with ``request``. ``id`` is a name of one's own.
    ``idempotency_key`` is made anew for each call: give one to come back to a call whose answer was lost.
    """

    cpus: float
    memory: int | str
    disk: int | str
    pids: int
    cpus_request: float
    memory_request: int | str
    env: Mapping[str, str]
    user: str
    workdir: str
    labels: Mapping[str, str]
    network: Network
    allow: Sequence[str]
    presets: Sequence[str]
    ports: Sequence[int]
    volumes: Mapping[str, str]
    sidecars: Mapping[str, SandboxBody]
    command: Sequence[str]
    ttl_s: float | None
    idle_s: float | None
    heartbeat_s: float | None
    priority: int
    isolation: str
    no_new_privileges: bool
    id: str
    idempotency_key: str


def size(value: int | str) -> int:
    """Return bytes: a number as it is, ``"512m"`` with units that are powers of 1024."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", value.strip().lower())
    if match is None:
        raise InvalidInput(f"{value!r} is not a size", hint='write for example "512m" or "2g"')
    return int(float(match[1]) * _UNITS[match[2]])


def request(image: str, **options: Unpack[Options]) -> CreateBody:
    """Return the body of a create. Raises InvalidInput that names the field which is wrong."""
    given = dict(options)
    fields: dict[str, object] = {"image": image, "idempotency_key": new_id("k")}
    fields["resources"] = _part(given, _RESOURCES, ("memory", "disk", "memory_request"))
    fields["lease"] = {"heartbeat_s": HEARTBEAT_S, **_part(given, _LEASE)}
    policy = _part(given, ("allow", "presets"))
    fields["network"] = {"mode": given.pop("network", "allowlist" if policy else "none"), **policy}
    if "volumes" in given:
        pairs = options["volumes"].items()
        given["volumes"] = [VolumeBody(source=source, target=target) for source, target in pairs]
    if "sidecars" in given:
        given["sidecars"] = {name: _sidecar(body) for name, body in options["sidecars"].items()}
    try:
        return CreateBody.model_validate({**fields, **given})
    except ValidationError as error:
        raise invalid(error) from error


def _part(given: dict[str, object], names: tuple[str, ...], sizes: tuple[str, ...] = ()) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in names:
        if name in given:
            value = given.pop(name)
            if name in sizes and isinstance(value, int | str):
                found[f"{name}_bytes"] = size(value)
            else:
                found[name] = value
    return found


def _sidecar(body: SandboxBody) -> SandboxBody:
    """Return what of a request is a sidecar's own."""
    return SandboxBody(**{name: getattr(body, name) for name in SandboxBody.model_fields})


def invalid(error: ValidationError) -> InvalidInput:
    """Return the first thing that is wrong, with its field's path."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return InvalidInput(f"{where}: {first['msg']}", where=where)


def network_body(mode: Network | None, allow: Sequence[str], presets: Sequence[str]) -> NetworkBody:
    """Return a network policy. Raises InvalidInput."""
    try:
        return NetworkBody.model_validate(
            {
                "mode": mode or ("allowlist" if allow or presets else "none"),
                "allow": tuple(allow),
                "presets": tuple(presets),
            }
        )
    except ValidationError as error:
        raise invalid(error) from error


__all__ = [
    "HEARTBEAT_S",
    "LeaseBody",
    "Network",
    "Options",
    "ResourcesBody",
    "network_body",
    "request",
    "size",
]
