"""Between the bodies of the API and the specs of drivers. Pure; must never drop what was asked for."""

from __future__ import annotations

from pathlib import Path

from cloche.api.models import (
    CreateBody,
    ErrorBody,
    ForkBody,
    LeaseBody,
    NetworkBody,
    ResourcesBody,
    SandboxView,
    State,
)
from cloche.core.errors import ClocheError
from cloche.core.ids import new_id
from cloche.sandbox.driver import SandboxInfo, SandboxState
from cloche.sandbox.spec import (
    Lease,
    NetworkMode,
    NetworkPolicy,
    Resources,
    SandboxSpec,
    Volume,
)

_STATES = {
    SandboxState.STARTING: State.STARTING,
    SandboxState.READY: State.READY,
    SandboxState.PAUSED: State.PAUSED,
    SandboxState.ENDED: State.ENDED,
}


def spec_of(body: CreateBody) -> SandboxSpec:
    """Return the spec of a request, apart from its sidecars and its command."""
    return SandboxSpec(
        id=body.id or new_id("sb"),
        resources=Resources(**body.resources.model_dump()),
        network=policy_of(body.network),
        env=body.env,
        user=body.user,
        workdir=body.workdir,
        labels=body.labels,
        lease=Lease(**body.lease.model_dump()),
        no_new_privileges=body.no_new_privileges,
        isolation=body.isolation,
        volumes=tuple(Volume(source=Path(item.source), target=item.target) for item in body.volumes),
        idempotency_key=body.idempotency_key,
        priority=body.priority,
    )


def forked(source: SandboxSpec, body: ForkBody) -> SandboxSpec:
    """Return the spec of one more sandbox like the source."""
    return SandboxSpec(
        resources=source.resources,
        network=source.network if body.network is None else policy_of(body.network),
        env=source.env,
        user=source.user,
        workdir=source.workdir,
        labels=body.labels,
        lease=Lease(**body.lease.model_dump()),
        no_new_privileges=source.no_new_privileges,
        isolation=source.isolation,
        volumes=source.volumes,
        priority=source.priority,
    )


def policy_of(body: NetworkBody) -> NetworkPolicy:
    """Return a network policy."""
    return NetworkPolicy(mode=NetworkMode(body.mode), allow=body.allow, presets=body.presets)


def network_of(policy: NetworkPolicy) -> NetworkBody:
    """Return the body of a network policy."""
    return NetworkBody(mode=policy.mode.value, allow=policy.allow, presets=policy.presets)


def resources_of(resources: Resources) -> ResourcesBody:
    """Return the body of limits."""
    return ResourcesBody(
        cpus=resources.cpus,
        memory_bytes=resources.memory_bytes,
        pids=resources.pids,
        disk_bytes=resources.disk_bytes,
        cpus_request=resources.cpus_request,
        memory_request_bytes=resources.memory_request_bytes,
    )


def lease_of(lease: Lease) -> LeaseBody:
    """Return the body of a lease."""
    return LeaseBody(ttl_s=lease.ttl_s, idle_s=lease.idle_s, heartbeat_s=lease.heartbeat_s)


def view_of(info: SandboxInfo) -> SandboxView:
    """Return what a driver tells of a sandbox, as the API tells it."""
    state = _STATES[info.state]
    spec = info.spec or SandboxSpec(id=info.id, labels=info.labels)
    error = None
    if state is State.ENDED:
        message = f"sandbox {info.id} is over: {info.reason}"
        error = ErrorBody(code="infra/sandbox_lost", domain="infra", message=message)
    return SandboxView(
        id=info.id,
        state=state,
        times={State.STARTING: info.created_at},
        image=info.image,
        digest=info.digest or None,
        labels=dict(info.labels),
        isolation=spec.isolation,
        network=network_of(spec.network),
        resources=resources_of(spec.resources),
        lease=lease_of(spec.lease),
        priority=spec.priority,
        idempotency_key=spec.idempotency_key,
        error=error,
    )


def error_body(error: ClocheError) -> ErrorBody:
    """Return an error as the API tells it."""
    return ErrorBody(
        code=error.code, domain=error.domain.value, message=error.message, hint=error.hint, where=error.where
    )
