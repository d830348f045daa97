"""The environment service: what anyone does with sandboxes, for several owners, over any driver.

The driver's record is the truth about sandboxes; this process may be killed at any moment, and the next one
finds everything again. Must never delete what it was not asked to delete, nor answer for what is another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from cloche.api.models import (
    CapabilitiesView,
    ChangeView,
    CreateBody,
    DenialPage,
    DenialView,
    DiffView,
    EventView,
    ExtendBody,
    FitView,
    ForkBody,
    ImageView,
    NetworkBody,
    SandboxPage,
    SandboxView,
    SnapshotBody,
    State,
)
from cloche.core.errors import ClocheError, Conflict, NotFound, SandboxLost
from cloche.core.ids import new_id
from cloche.sandbox.driver import Driver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Lease, SandboxSpec
from cloche.service.caller import LOCAL, Caller
from cloche.service.images import ImageResolver
from cloche.service.keeper import Keeper
from cloche.service.life import Life
from cloche.service.pending import Pending
from cloche.service.settings import ServiceSettings
from cloche.service.shapes import network_of
from cloche.service.specs import (
    body_digest,
    demand,
    granted_lease,
    matches,
    members,
    policy_for,
    share,
)


class SandboxService:
    """See the module. Use it as a context manager, or call ``start`` and ``close``."""

    def __init__(
        self,
        driver: Driver,
        images: ImageResolver,
        settings: ServiceSettings | None = None,
        *,
        pending: Pending | None = None,
    ) -> None:
        """``pending`` keeps accepted creates over a restart; ``None``: they end with the process."""
        self._driver = driver
        self._settings = settings or ServiceSettings()
        self._keeper = Keeper(driver, images, self._settings, pending)

    @property
    def driver(self) -> Driver:
        """The driver below."""
        return self._driver

    async def start(self) -> None:
        """Adopt everything that lives and everything that was accepted, and begin to look after it."""
        await self._keeper.start()

    async def close(self) -> None:
        """Let go of everything; ends no sandbox."""
        await self._keeper.close()
        await self._driver.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- making ----

    async def create(self, body: CreateBody, caller: Caller = LOCAL) -> SandboxView:
        """Accept a sandbox and return at once: it is queued, or starting.

        Raises InvalidInput, PlanRefused, QuotaExceeded when too many wait, and Conflict when its id is taken
        or its idempotency key was used for something else; the same key and body give the same sandbox.
        """
        (found,) = await self.create_many([body], caller)
        if isinstance(found, ClocheError):
            raise found
        return found

    async def create_many(
        self, bodies: Sequence[CreateBody], caller: Caller = LOCAL
    ) -> list[SandboxView | ClocheError]:
        """Accept many; each is answered for itself, in order."""
        results: list[SandboxView | ClocheError | str] = []
        accepted: list[str] = []
        for body in bodies:
            try:
                life, new = self._accept(body, caller)
            except ClocheError as error:
                results.append(error)
                continue
            results.append(life.id)
            if new:
                accepted.append(life.id)
        await self._keeper.persist(accepted)
        self._keeper.pump()
        return [
            self._view(self._keeper.lives[found]) if isinstance(found, str) else found for found in results
        ]

    def _accept(self, body: CreateBody, caller: Caller) -> tuple[Life, bool]:
        if body.idempotency_key is not None:
            known = self._keeper.by_key(caller.owner, body.idempotency_key)
            if known is not None:
                if known.spec.request_digest != body_digest(body):
                    raise Conflict(
                        f"the idempotency key {body.idempotency_key} was used for another request",
                        hint="use a new key for a new request",
                    )
                return known, False
        unit = members(body, caller, self._settings)
        life = self._keeper.accept(body, unit, demand(unit, caller.key), share(caller))
        return life, True

    async def would_fit(self, body: CreateBody, caller: Caller = LOCAL) -> FitView:
        """Return what would become of a create, without making anything."""
        unit = members(body, caller, self._settings)
        fit = self._keeper.admission.would_fit(demand(unit, caller.key), share(caller), time.monotonic())
        return FitView(fits=fit.fits, ever=fit.ever, waiting_for=fit.waiting_for, position=fit.position)

    # ---- looking ----

    def _mine(self, sandbox_id: str, caller: Caller) -> Life:
        life = self._keeper.lives.get(sandbox_id)
        if life is None or not self._may_see(life, caller):
            raise NotFound(f"there is no sandbox {sandbox_id}")
        return life

    @staticmethod
    def _may_see(life: Life, caller: Caller) -> bool:
        if caller.sandbox is not None and caller.sandbox not in {life.id, life.unit}:
            return False
        return caller.admin or life.spec.owner == caller.owner

    def _view(self, life: Life) -> SandboxView:
        if life.state is not State.QUEUED:
            return life.view()
        fit = self._keeper.position(life)
        return life.view(position=fit.position if fit else None, waiting_for=fit.waiting_for if fit else None)

    async def get(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """Return a sandbox. Raises NotFound, for what is another's too."""
        return self._view(self._mine(sandbox_id, caller))

    async def find(self, idempotency_key: str, caller: Caller = LOCAL) -> SandboxView:
        """Return the sandbox that was asked for under this key. Raises NotFound."""
        life = self._keeper.by_key(caller.owner, idempotency_key)
        if life is None or not self._may_see(life, caller):
            raise NotFound(f"nothing was asked for under the key {idempotency_key}")
        return self._view(life)

    async def wait(
        self, sandbox_id: str, states: Collection[State], timeout_s: float, caller: Caller = LOCAL
    ) -> SandboxView:
        """Return once it is in one of the states, or over, or after ``timeout_s``."""
        life = self._mine(sandbox_id, caller)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._until(life, states)
        return self._view(life)

    async def _until(self, life: Life, states: Collection[State]) -> None:
        while life.state not in states and not life.over:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            life.waiters.add(waiter)
            try:
                await waiter
            finally:
                life.waiters.discard(waiter)

    async def events(
        self,
        caller: Caller = LOCAL,
        *,
        ids: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        after: int | None = None,
    ) -> AsyncIterator[EventView]:
        """Yield changes of state as they come, from behind ``after``; without it, from now on.

        Raises Conflict when what came behind ``after`` is no longer kept.
        """

        def wanted(name: str, owner: str, has: Mapping[str, str]) -> bool:
            if not (caller.admin or owner == caller.owner) or caller.sandbox not in {None, name}:
                return False
            return (not ids or name in ids) and matches(has, labels or {})

        log = self._keeper.log
        seen = log.last if after is None else after
        if after is not None and not log.holds(after):
            raise Conflict(
                f"the events behind {after} are no longer kept",
                hint="list the sandboxes, and follow from now on",
            )
        while True:
            for event in log.since(seen):
                seen = event.view.seq
                if wanted(event.view.id, event.owner, event.labels):
                    yield event.view
            if seen >= log.last:
                await log.wait()

    def capabilities(self) -> CapabilitiesView:
        """Return what the driver can do."""
        default = str(getattr(self._driver, "isolation", "native"))
        able = tuple(sorted(item.value for item in self._driver.capabilities()))
        return CapabilitiesView(driver=self._driver.name, default=default, isolation={default: able})

    def counts(self) -> Mapping[State, int]:
        """Return how many sandboxes there are in each state, those that have ended and are remembered too."""
        return Counter(life.state for life in self._keeper.lives.values())

    @property
    def healthy(self) -> bool:
        """Whether the driver answers and sandboxes are looked after."""
        return self._keeper.healthy

    @property
    def has_room(self) -> bool:
        """Whether the store has room for more."""
        return self._keeper.admission.room

    # ---- ending ----

    async def delete(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """End a sandbox, its whole unit; return once nothing of it is left. Repeated: the same end.

        Raises NotFound, or InfraError when it could not be deleted in time.
        """
        life = self._mine(sandbox_id, caller)
        await self._keeper.delete(life)
        return life.view()

    async def delete_many(
        self, ids: Sequence[str], caller: Caller = LOCAL
    ) -> list[SandboxView | ClocheError]:
        """End many at once; each is answered for itself, in order."""

        async def one(name: str) -> SandboxView | ClocheError:
            try:
                return await self.delete(name, caller)
            except ClocheError as error:
                return error

        return list(await asyncio.gather(*map(one, ids)))

    # ---- using ----

    async def handle(self, sandbox_id: str, caller: Caller = LOCAL) -> Sandbox:
        """Return the live sandbox. Raises NotFound, SandboxLost once over, Conflict before it is ready."""
        life = self._mine(sandbox_id, caller)
        self._check_live(life)
        if life.state is State.PAUSED:
            raise Conflict(f"sandbox {sandbox_id} is paused", hint="resume it first")
        return await self._keeper.handles.get(sandbox_id)

    @staticmethod
    def _check_live(life: Life) -> None:
        if life.state in {State.ENDED, State.STOPPING}:
            why = life.end.value if life.end else "it is being deleted"
            raise SandboxLost(f"sandbox {life.id} has ended: {why}")
        if life.state in {State.QUEUED, State.STARTING}:
            raise Conflict(f"sandbox {life.id} is {life.state.value}", hint="wait until it is ready")

    def _live(self, sandbox_id: str, caller: Caller) -> Life:
        life = self._mine(sandbox_id, caller)
        self._check_live(life)
        return life

    async def pause(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """Freeze it; twice is no error. Its time goes on."""
        life = self._live(sandbox_id, caller)
        await self._driver.pause(sandbox_id)
        if life.state is State.READY:
            self._keeper.go(life, State.PAUSED)
        return life.view()

    async def resume(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """Let it go on; of one that is not paused is no error."""
        life = self._live(sandbox_id, caller)
        await self._driver.resume(sandbox_id)
        if life.state is State.PAUSED:
            self._keeper.go(life, State.READY)
        return life.view()

    async def fork(self, sandbox_id: str, body: ForkBody, caller: Caller = LOCAL) -> list[SandboxView]:
        """Make sandboxes whose file systems begin as this one's is now; they are admitted like any other.

        Returns at once; they start together when there is room for all of them.
        """
        source = self._live(sandbox_id, caller)
        specs = [self._fork_spec(source.spec, body, caller) for _ in range(body.count)]
        lives = self._keeper.accept_forks(source, specs, caller.key, share(caller))
        self._keeper.pump()
        return [self._view(life) for life in lives]

    def _fork_spec(self, source: SandboxSpec, body: ForkBody, caller: Caller) -> SandboxSpec:
        return SandboxSpec(
            id=new_id("sb"),
            resources=source.resources,
            network=source.network if body.network is None else policy_for(body.network),
            env=source.env,
            user=source.user,
            workdir=source.workdir,
            hostname=source.hostname,
            labels={**source.labels, **body.labels},
            lease=granted_lease(body.lease, caller),
            no_new_privileges=source.no_new_privileges,
            isolation=source.isolation,
            volumes=source.volumes,
            owner=caller.owner,
            priority=source.priority,
            ports=source.ports,
        )

    async def snapshot(self, sandbox_id: str, body: SnapshotBody, caller: Caller = LOCAL) -> ImageView:
        """Make an image of the file system as it is now."""
        self._live(sandbox_id, caller)
        image = await self._driver.snapshot(sandbox_id, body.name or "")
        return ImageView(name=image.name, digest=image.digest, origin=image.origin)

    async def diff(self, sandbox_id: str, caller: Caller = LOCAL) -> DiffView:
        """Return how the file system differs from the image."""
        self._live(sandbox_id, caller)
        changes = await self._driver.diff(sandbox_id)
        return DiffView(
            items=tuple(
                ChangeView(
                    path=change.path, kind=change.kind.value, type=change.type, size_bytes=change.size_bytes
                )
                for change in changes
            )
        )

    async def set_network(self, sandbox_id: str, body: NetworkBody, caller: Caller = LOCAL) -> NetworkBody:
        """Change what it may reach, and return what holds now, as it was read back."""
        life = self._live(sandbox_id, caller)
        policy = await self._driver.set_network(sandbox_id, policy_for(body))
        self._keeper.note_network(life, policy)
        return network_of(policy)

    async def denials(self, sandbox_id: str, caller: Caller = LOCAL) -> DenialPage:
        """Return what its network policy has refused."""
        self._live(sandbox_id, caller)
        found = await self._driver.denials(sandbox_id)
        return DenialPage(
            items=tuple(
                DenialView(
                    at=one.at, name=one.name, address=one.address, port=one.port, protocol=one.protocol
                )
                for one in found
            )
        )

    # ---- its lease ----

    async def heartbeat(self, sandbox_id: str, caller: Caller = LOCAL) -> None:
        """Push the heartbeat limit on, of every member of its unit."""
        life = self._mine(sandbox_id, caller)
        for name in (life.id, *life.sidecars.values()):
            member = self._keeper.lives.get(name)
            if member is not None and member.state is State.READY:
                await (await self._keeper.handles.get(name)).heartbeat()

    async def extend(self, sandbox_id: str, body: ExtendBody, caller: Caller = LOCAL) -> SandboxView:
        """Let it, and its unit, live so long from now on, as far as the key allows."""
        life = self._live(sandbox_id, caller)
        most_s = caller.quota.ttl_s
        ttl_s = body.ttl_s
        if most_s is not None:
            ttl_s = most_s if ttl_s is None else min(ttl_s, most_s)
        for name in (life.id, *life.sidecars.values()):
            member = self._keeper.lives.get(name)
            if member is not None and member.state is State.READY:
                await (await self._keeper.handles.get(name)).extend(ttl_s)
                self._keeper.note_lease(
                    member, _with_ttl(member.spec.lease, ttl_s, member.times[State.READY])
                )
        return life.view()

    # stands last: in a class body the name `list` means this method from here on
    async def list(
        self,
        caller: Caller = LOCAL,
        *,
        labels: Mapping[str, str] | None = None,
        states: Collection[State] = (),
        after: str | None = None,
        limit: int = 1000,
    ) -> SandboxPage:
        """Return a page in order of the ids; ``after`` is the last id of the page before."""
        found = [
            life
            for name, life in self._keeper.lives.items()
            if (after is None or name > after)
            and self._may_see(life, caller)
            and (not states or life.state in states)
            and matches(life.spec.labels, labels or {})
        ]
        found.sort(key=lambda life: life.id)
        items = tuple(self._view(life) for life in found[:limit])
        return SandboxPage(items=items, next=items[-1].id if len(found) > limit else None)


def _with_ttl(lease: Lease, ttl_s: float | None, ready_at: float) -> Lease:
    """Return the lease as it stands after an extension: its time counts from the start."""
    whole_s = None if ttl_s is None else time.time() - ready_at + ttl_s
    return Lease(ttl_s=whole_s, idle_s=lease.idle_s, heartbeat_s=lease.heartbeat_s)
