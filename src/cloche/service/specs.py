"""From what a client asks for to the specs of a unit's sandboxes, and to what admission counts. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cloche.api.models import CreateBody, LeaseBody, NetworkBody, ResourcesBody, SandboxBody
from cloche.core.admission import Amount, Demand, Limits, Share
from cloche.core.errors import InvalidInput
from cloche.core.ids import new_id
from cloche.sandbox.spec import Lease, NetworkMode, NetworkPolicy, Resources, SandboxSpec, Unit, Volume
from cloche.service.caller import Caller
from cloche.service.settings import ServiceSettings

MAIN = "main"
GROUP_LABEL = "experiment"
"""The label by which sandboxes of one key share among themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One sandbox of a unit: ``name`` in it, its image, its spec and what it starts."""

    name: str
    image: str
    spec: SandboxSpec
    command: tuple[str, ...] | None = None


def body_digest(body: CreateBody) -> str:
    """Return what tells one request from another under the same idempotency key."""
    return hashlib.sha256(body.model_dump_json().encode()).hexdigest()


def members(
    body: CreateBody, caller: Caller, settings: ServiceSettings, *, sandbox_id: str | None = None
) -> list[Member]:
    """Return the sandboxes of a unit, the main one first. Raises InvalidInput with the field's path."""
    if MAIN in body.sidecars:
        raise InvalidInput("a sidecar cannot be called `main`", where="sidecars")
    main_id = sandbox_id or body.id or new_id("sb")
    names = (MAIN, *body.sidecars)
    digest = body_digest(body)

    def member(name: str, own: SandboxBody, own_id: str, where: str) -> Member:
        spec = SandboxSpec(
            id=own_id,
            resources=limits_of(own.resources),
            network=policy_for(body.network),
            env=dict(own.env),
            user=own.user,
            workdir=own.workdir,
            labels=dict(body.labels),
            lease=granted_lease(body.lease, caller),
            no_new_privileges=body.no_new_privileges,
            isolation=body.isolation,
            volumes=_volumes(own, settings, where),
            unit=Unit(id=main_id, name=name, members=names) if body.sidecars else None,
            owner=caller.owner,
            idempotency_key=body.idempotency_key if name == MAIN else None,
            request_digest=digest if name == MAIN else "",
            priority=body.priority,
            ports=own.ports,
        )
        return Member(name=name, image=own.image, spec=spec, command=own.command)

    found = [member(MAIN, body, main_id, "")]
    for name, own in body.sidecars.items():
        found.append(member(name, own, f"{main_id}-{name}", f"sidecars.{name}."))
    return found


def _volumes(body: SandboxBody, settings: ServiceSettings, where: str) -> tuple[Volume, ...]:
    found = []
    for index, volume in enumerate(body.volumes):
        source = PurePosixPath(volume.source)
        allowed = ".." not in source.parts and any(source.is_relative_to(top) for top in settings.volumes)
        if not allowed:
            raise InvalidInput(
                f"{volume.source} is below no folder that this service shares",
                where=f"{where}volumes[{index}].source",
                hint="its operator names them with --volumes DIR",
            )
        found.append(Volume(source=Path(source), target=volume.target))
    return tuple(found)


def limits_of(body: ResourcesBody) -> Resources:
    """Return limits and requests. Raises InvalidInput for a request above its limit."""
    for name in ("cpus", "memory"):
        limit = body.cpus if name == "cpus" else body.memory_bytes
        request = body.cpus_request if name == "cpus" else body.memory_request_bytes
        if limit is not None and request is not None and request > limit:
            raise InvalidInput(f"{name}: a request of {request:g} is above its limit", where="resources")
    return Resources(
        cpus=body.cpus,
        memory_bytes=body.memory_bytes,
        pids=body.pids,
        disk_bytes=body.disk_bytes,
        cpus_request=body.cpus_request,
        memory_request_bytes=body.memory_request_bytes,
    )


def policy_for(body: NetworkBody) -> NetworkPolicy:
    """Return a policy. Raises InvalidInput for a list that its mode does not use."""
    mode = NetworkMode(body.mode)
    if mode is not NetworkMode.ALLOWLIST and (body.allow or body.presets):
        raise InvalidInput("`allow` and `presets` need the mode `allowlist`", where="network.mode")
    return NetworkPolicy(mode=mode, allow=body.allow, presets=body.presets)


def granted_lease(body: LeaseBody, caller: Caller) -> Lease:
    """Return a lease no longer than the key allows."""
    ttl_s, most_s = body.ttl_s, caller.quota.ttl_s
    if most_s is not None:
        ttl_s = most_s if ttl_s is None else min(ttl_s, most_s)
    return Lease(ttl_s=ttl_s, idle_s=body.idle_s, heartbeat_s=body.heartbeat_s)


def amount(resources: Resources) -> Amount:
    """Return what admission counts of one sandbox: its requests."""
    cpus, memory_bytes = resources.cpus_request, resources.memory_request_bytes
    if cpus is None:
        cpus = resources.cpus
    if memory_bytes is None:
        memory_bytes = resources.memory_bytes
    return Amount(sandboxes=1, cpus=cpus or 0.0, memory_bytes=memory_bytes or 0)


def demand(unit: list[Member], caller_key: str) -> Demand:
    """Return what a unit asks of admission, as one."""
    total = Amount()
    for member in unit:
        total = total.plus(amount(member.spec.resources))
    main = unit[0].spec
    return Demand(
        id=main.id,
        key=caller_key,
        amount=total,
        label=main.labels.get(GROUP_LABEL, ""),
        priority=main.priority,
    )


def share(caller: Caller) -> Share:
    """Return what a caller may have."""
    quota = caller.quota
    return Share(
        limits=Limits(sandboxes=quota.sandboxes, cpus=quota.cpus, memory_bytes=quota.memory_bytes),
        creates_per_s=quota.creates_per_s,
        floor=quota.floor,
        weight=quota.weight,
    )


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all wanted labels are there with these values."""
    return all(labels.get(name) == value for name, value in wanted.items())
