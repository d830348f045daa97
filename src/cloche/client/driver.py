"""A service as a driver, so that whatever runs over a driver runs over a service unchanged.

Ids are the specs' own, so that a create whose answer was lost can still be deleted. Must never do for a
service what is the service's business: leftovers and their removal are its own.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Collection, Mapping, Sequence

from cloche.api.models import (
    CapabilitiesView,
    CreateBody,
    SandboxView,
    SnapshotBody,
    State,
    VolumeBody,
)
from cloche.client.backend import Backend
from cloche.client.errors import error_of
from cloche.core.errors import InfraError, NotFound, PlanRefused, SandboxLost
from cloche.sandbox.driver import (
    Capability,
    Change,
    ChangeKind,
    Denial,
    Leftover,
    SandboxInfo,
    SandboxState,
)
from cloche.sandbox.drivers.base import refuse
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import NetworkPolicy, PreparedImage, SandboxSpec
from cloche.service.shapes import lease_of, network_of, policy_of, resources_of

_STATES = {
    State.QUEUED: SandboxState.STARTING,
    State.STARTING: SandboxState.STARTING,
    State.READY: SandboxState.READY,
    State.PAUSED: SandboxState.PAUSED,
}


def body_of(spec: SandboxSpec, image: PreparedImage) -> CreateBody:
    """Return the request for a sandbox. The image goes by its digest: what was prepared is what is run."""
    return CreateBody(
        id=spec.id,
        idempotency_key=spec.id,
        image=image.digest,
        resources=resources_of(spec.resources),
        env=dict(spec.env),
        user=spec.user,
        workdir=spec.workdir,
        volumes=tuple(VolumeBody(source=str(item.source), target=item.target) for item in spec.volumes),
        labels=dict(spec.labels),
        network=network_of(spec.network),
        lease=lease_of(spec.lease),
        priority=spec.priority,
        isolation=spec.isolation,
        no_new_privileges=spec.no_new_privileges,
    )


class ServiceDriver:
    """Implements :class:`cloche.sandbox.driver.Driver`; made by ``open``. ``close`` closes the backend."""

    name = "service"

    def __init__(self, backend: Backend, view: CapabilitiesView) -> None:
        self._backend = backend
        self._view = view
        self._beats: dict[str, asyncio.Task[None]] = {}

    @classmethod
    async def open(cls, backend: Backend) -> ServiceDriver:
        """Ask the service what it can do."""
        return cls(backend, await backend.capabilities())

    @property
    def isolation(self) -> str:
        """How sandboxes are kept apart that ask for nothing else."""
        return self._view.default

    def capabilities(self, isolation: str | None = None) -> frozenset[Capability]:
        """See :meth:`cloche.sandbox.driver.Driver.capabilities`; units and forks have other ways."""
        known = {item.value for item in Capability} - {Capability.UNIT.value, Capability.FORK.value}
        able = self._view.isolation.get(isolation or self._view.default, ())
        return frozenset(Capability(name) for name in able if name in known)

    async def create(self, spec: SandboxSpec, image: PreparedImage) -> Sandbox:
        """See :meth:`cloche.sandbox.driver.Driver.create`, however long the queue is."""
        if spec.unit is not None:
            refuse(self.name, Capability.UNIT)
        try:
            view = await self._backend.create(body_of(spec, image))
        except NotFound as error:
            raise InfraError(
                f"the service has no image {image.name}: {error.message}",
                hint="images are prepared here: the service must use this machine's store",
                code="infra/image",
            ) from error
        if view.state is not State.READY:
            view = await self._backend.wait(spec.id, {State.READY})
        if view.state is not State.READY:
            raise (
                error_of(view.error)
                if view.error
                else InfraError(f"sandbox {spec.id} did not come up", code="infra/sandbox_start")
            )
        if spec.lease.heartbeat_s is not None:
            beat = asyncio.get_running_loop().create_task(self._beat(spec.id, spec.lease.heartbeat_s))
            self._beats[spec.id] = beat
        return await self._backend.handle(spec.id)

    async def _beat(self, sandbox_id: str, limit_s: float) -> None:
        while True:
            await asyncio.sleep(limit_s / 3)
            with contextlib.suppress(InfraError):  # the next one may get through
                await self._backend.heartbeat(sandbox_id)

    async def attach(self, sandbox_id: str) -> Sandbox:
        """See :meth:`cloche.sandbox.driver.Driver.attach`."""
        view = await self._backend.get(sandbox_id)
        if view.state is State.ENDED:
            raise SandboxLost(f"sandbox {sandbox_id} is over: {view.end}")
        return await self._backend.handle(sandbox_id)

    async def delete(self, sandbox_id: str) -> bool:
        """See :meth:`cloche.sandbox.driver.Driver.delete`."""
        beat = self._beats.pop(sandbox_id, None)
        if beat is not None:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
        try:
            before = await self._backend.get(sandbox_id)
            await self._backend.delete(sandbox_id)
        except NotFound:
            return False
        return before.state is not State.ENDED

    async def pause(self, sandbox_id: str) -> None:
        """See :meth:`cloche.sandbox.driver.Driver.pause`."""
        await self._backend.pause(sandbox_id)

    async def resume(self, sandbox_id: str) -> None:
        """See :meth:`cloche.sandbox.driver.Driver.resume`."""
        await self._backend.resume(sandbox_id)

    async def fork(self, sandbox_id: str, specs: Sequence[SandboxSpec]) -> builtins.list[Sandbox]:
        """Refuse: a service chooses the names of forks itself; the SDK's ``fork`` has them."""
        refuse(self.name, Capability.FORK)

    async def snapshot(self, sandbox_id: str, name: str) -> PreparedImage:
        """See :meth:`cloche.sandbox.driver.Driver.snapshot`; its layers are the service's own."""
        view = await self._backend.snapshot(sandbox_id, SnapshotBody(name=name))
        return PreparedImage(name=view.name, digest=view.digest, layers=(), origin=view.origin)

    async def diff(self, sandbox_id: str) -> builtins.list[Change]:
        """See :meth:`cloche.sandbox.driver.Driver.diff`."""
        view = await self._backend.diff(sandbox_id)
        return [
            Change(path=item.path, kind=ChangeKind(item.kind), type=item.type, size_bytes=item.size_bytes)
            for item in view.items
        ]

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> NetworkPolicy:
        """See :meth:`cloche.sandbox.driver.Driver.set_network`."""
        now = await self._backend.set_network(sandbox_id, network_of(policy))
        return policy_of(now)

    async def network(self, sandbox_id: str) -> NetworkPolicy:
        """Return the policy of a sandbox as the service tells it."""
        return policy_of((await self._backend.get(sandbox_id)).network)

    async def denials(self, sandbox_id: str) -> builtins.list[Denial]:
        """See :meth:`cloche.sandbox.driver.Driver.denials`."""
        page = await self._backend.denials(sandbox_id)
        return [Denial(**item.model_dump()) for item in page.items]

    async def leftovers(self) -> builtins.list[Leftover]:
        """Return nothing: the service looks after its own host."""
        return []

    async def reap(self) -> builtins.list[Leftover]:
        """Refuse: the service looks after its own host."""
        raise PlanRefused(
            "what is left on a service's host is removed there", hint="cloche sandbox reap, there"
        )

    async def close(self) -> None:
        """See :meth:`cloche.sandbox.driver.Driver.close`."""
        for beat in self._beats.values():
            beat.cancel()
        await asyncio.gather(*self._beats.values(), return_exceptions=True)
        await self._backend.close()

    async def ended(self, ids: Collection[str]) -> Mapping[str, SandboxInfo | None]:
        """See :meth:`cloche.sandbox.driver.Driver.ended`."""
        alive = {info.id for info in await self.list() if info.state is not SandboxState.ENDED}
        return dict.fromkeys(name for name in ids if name not in alive)

    # stands last: in a class body the name `list` means this method from here on
    async def list(self) -> builtins.list[SandboxInfo]:
        """See :meth:`cloche.sandbox.driver.Driver.list`."""
        found: builtins.list[SandboxInfo] = []
        after: str | None = None
        while True:
            page = await self._backend.list(states=LIVE, after=after)
            found += [_info(view) for view in page.items]
            after = page.next
            if after is None:
                return found


LIVE: Collection[State] = (*_STATES, State.STOPPING)


def _info(view: SandboxView) -> SandboxInfo:
    return SandboxInfo(
        id=view.id,
        state=_STATES.get(view.state, SandboxState.ENDED),
        image=view.image,
        created_at=min(view.times.values(), default=0.0),
        labels=view.labels,
        reason=view.end.value if view.end else "",
    )
