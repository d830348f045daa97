"""What looks after all sandboxes: accepts, starts, watches and ends them. One per service.

Must never hold a sandbox's truth: what the driver lists is what there is; this remembers what the driver does
not know (that something waits, when it changed, why it ended).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cloche.api.models import CreateBody, End, EventView, State
from cloche.core.admission import Admission, Demand, Fit, QueueFull, Rules, Share
from cloche.core.errors import ClocheError, Conflict, InfraError, NotFound, PlanRefused, QuotaExceeded
from cloche.core.failures import classify
from cloche.sandbox.driver import Driver, EndCause, SandboxInfo, SandboxState
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, Lease, NetworkPolicy, PreparedImage, SandboxSpec
from cloche.service.events import EventLog, Logged
from cloche.service.handles import Handles
from cloche.service.images import ImageResolver, OnceAtATime
from cloche.service.life import Life
from cloche.service.pending import Accepted, Pending
from cloche.service.settings import ServiceSettings
from cloche.service.shapes import error_body
from cloche.service.specs import Member, amount, demand, members, share
from cloche.service.store_guard import store_has_room

T = TypeVar("T")

_LIVE = {SandboxState.READY: State.READY, SandboxState.PAUSED: State.PAUSED}
_SILENT_S = 10.0
_SERVER = "server"
"""Id of the command that a sandbox starts by itself."""


class Keeper:
    """See the module."""

    def __init__(
        self,
        driver: Driver,
        images: ImageResolver,
        settings: ServiceSettings,
        pending: Pending | None,
    ) -> None:
        self.lives: dict[str, Life] = {}
        self.log = EventLog(settings.events_max)
        self.admission = Admission(
            Rules(
                capacity=settings.host_capacity(),
                starts=settings.starts,
                start_interval_s=settings.start_interval_s,
                queue_max=settings.queue_max,
                seed=settings.seed,
            )
        )
        self.handles = Handles(driver, settings.handles_max, settings.handle_idle_s)
        self._watching: asyncio.Task[None] | None = None
        self._looked_s = -float("inf")
        self._driver = driver
        self._images = OnceAtATime(images, settings)
        self._settings = settings
        self._pending = pending
        self._keys: dict[tuple[str, str], str] = {}
        self._units: dict[str, list[Member]] = {}
        self._forks: dict[str, tuple[str, list[SandboxSpec]]] = {}
        self._accepted: dict[str, Accepted] = {}
        self._ended: dict[str, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deletes = asyncio.Semaphore(settings.deletes)
        self._listed_s = -float("inf")
        self._timer: asyncio.TimerHandle | None = None

    # ---- start and end of the service ----

    async def start(self) -> None:
        """Adopt what is there, then look after it until ``close``."""
        await self._adopt()
        self._looked_s = time.monotonic()
        self._watching = self._spawn(self._watch())
        self.pump()

    async def close(self) -> None:
        """Stop looking; ends no sandbox. What is being started is left to the next service."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._images.close()
        await self.handles.close()

    @property
    def healthy(self) -> bool:
        """Whether the driver has answered lately, and what lives is being watched."""
        watched = self._watching is not None and not self._watching.done()
        return watched and time.monotonic() - self._looked_s < _SILENT_S + self._settings.poll_s

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_up(self) -> set[str]:
        """Adopt what the driver lists and is not known; return all that it lists."""
        infos = await self._driver.list()
        self._listed_s = time.monotonic()
        for info in infos:
            if info.spec is not None and info.id not in self.lives:
                self._adopt_one(info, info.spec)
        return {info.id for info in infos}

    async def _adopt(self) -> None:
        known = await self._take_up()
        for life in self.lives.values():
            unit = life.spec.unit
            if unit is not None:
                self._link(life, unit.id)
        accepted = await asyncio.to_thread(self._pending.load) if self._pending else []
        for item in accepted:
            if item.id in known:
                await self._forget_pending([item.id])
            else:
                self._accept_again(item)

    def _adopt_one(self, info: SandboxInfo, spec: SandboxSpec) -> None:
        life = Life(spec=spec, image=info.image, digest=info.digest or None)
        life.times[State.QUEUED] = info.created_at
        self.lives[info.id] = life
        self._note_key(life)
        self.admission.hold(_alone(spec), Share())
        self.admission.started(spec.id)
        life.go(State.STARTING, info.created_at)
        if info.state in _LIVE:
            life.go(State.READY, info.created_at)
            if info.state is SandboxState.PAUSED:
                life.go(State.PAUSED, time.time())
            self._tell(life)
        elif info.state is SandboxState.ENDED:
            if spec.owner:  # nobody else clears away what a service made
                self._spawn(self._clear_away(life, info))
            else:
                self._over(life, _end_of(info))
        else:
            self._spawn(self._half_made(life))

    def _link(self, life: Life, main_id: str) -> None:
        main = self.lives.get(main_id)
        life.unit = main_id
        if main is not None and main is not life and life.spec.unit is not None:
            main.sidecars[life.spec.unit.name] = life.id

    async def _half_made(self, life: Life) -> None:
        """One whose making was cut off: it comes up within the time that a start has, or it is removed."""
        deadline_s = time.monotonic() + self._settings.start_timeout_s
        while time.monotonic() < deadline_s:
            try:
                await self.handles.get(life.id)
            except NotFound:
                break
            except ClocheError:
                await asyncio.sleep(self._settings.poll_s)
                continue
            self.go(life, State.READY)
            return
        await self._remove(life, End.START_FAILED)

    def _accept_again(self, item: Accepted) -> None:
        from cloche.service.caller import Caller  # noqa: PLC0415  # only here is one made

        caller = Caller(owner=item.owner, key=item.key)
        try:
            unit = members(item.body, caller, self._settings, sandbox_id=item.id)
            life = self.accept(item.body, unit, demand(unit, item.key), share(caller), at=item.accepted_at)
        except ClocheError:
            if self._pending is not None:
                self._pending.remove(item.id)
            return
        self._accepted[life.id] = item

    # ---- accepting ----

    def by_key(self, owner: str, key: str) -> Life | None:
        """Return what was asked for under an idempotency key."""
        name = self._keys.get((owner, key))
        return self.lives.get(name) if name else None

    def _note_key(self, life: Life) -> None:
        if life.spec.idempotency_key is not None:
            self._keys[life.spec.owner, life.spec.idempotency_key] = life.id

    def accept(
        self, body: CreateBody, unit: list[Member], wanted: Demand, part: Share, *, at: float | None = None
    ) -> Life:
        """Queue a unit and return its main sandbox. Raises Conflict, QuotaExceeded, PlanRefused."""
        for member in unit:
            if member.spec.id in self.lives:
                raise Conflict(f"the id {member.spec.id} is taken", hint="leave `id` out, and one is made")
        self._check_ever(wanted, part)
        main_id = unit[0].spec.id
        self._offer(wanted, part)
        now = time.time() if at is None else at
        for member in unit:
            life = Life(spec=member.spec, image=member.image)
            life.times[State.QUEUED] = now
            life.unit = main_id if len(unit) > 1 else None
            self.lives[life.id] = life
            self._note_key(life)
            self._tell(life)
        main = self.lives[main_id]
        main.sidecars = {member.name: member.spec.id for member in unit[1:]}
        self._units[main_id] = unit
        self._accepted[main_id] = Accepted(
            id=main_id,
            owner=main.spec.owner,
            key=wanted.key,
            accepted_at=now,
            body=body,
            digest=main.spec.request_digest,
        )
        return main

    def _check_ever(self, wanted: Demand, part: Share) -> None:
        if not part.limits.holds(wanted.amount):
            raise PlanRefused(
                "it asks for more than the key's whole quota", where="resources", hint="ask for less"
            )
        if not self.admission.rules.capacity.holds(wanted.amount):
            raise PlanRefused(
                "it asks for more than this service has in all", where="resources", hint="ask for less"
            )

    def _offer(self, wanted: Demand, part: Share) -> None:
        try:
            self.admission.offer(wanted, part, time.monotonic())
        except QueueFull as error:
            raise QuotaExceeded("too many sandboxes wait already", retry_after_s=10.0) from error

    def accept_forks(self, source: Life, specs: Sequence[SandboxSpec], key: str, part: Share) -> list[Life]:
        """Queue forks of a sandbox, as one."""
        total = amount(specs[0].resources)
        for spec in specs[1:]:
            total = total.plus(amount(spec.resources))
        wanted = replace(_alone(specs[0]), key=key, amount=total)
        self._check_ever(wanted, part)
        self._offer(wanted, part)
        lives = []
        for spec in specs:
            life = Life(spec=spec, image=source.image, digest=source.digest)
            life.times[State.QUEUED] = time.time()
            self.lives[spec.id] = life
            self._tell(life)
            lives.append(life)
        self._forks[specs[0].id] = (source.id, list(specs))
        return lives

    async def persist(self, ids: Iterable[str]) -> None:
        """Write accepted creates to the disk before they are answered."""
        items = [self._accepted[name] for name in ids if name in self._accepted]
        if self._pending is not None and items:
            await asyncio.to_thread(self._pending.save, items)

    async def _forget_pending(self, ids: Iterable[str]) -> None:
        for name in ids:
            if self._accepted.pop(name, None) is not None and self._pending is not None:
                self._pending.remove(name)

    def position(self, life: Life) -> Fit | None:
        """Return where a queued sandbox stands."""
        name = life.unit or life.id
        try:
            return self.admission.position(name, time.monotonic())
        except KeyError:
            return None

    # ---- starting ----

    def pump(self) -> None:
        """Start what may start now, and come back when something is due."""
        now_s = time.monotonic()
        for wanted in self.admission.admit(now_s):
            if wanted.id in self._forks:
                source, specs = self._forks.pop(wanted.id)
                self._start(wanted.id, [spec.id for spec in specs], self._make_forks(source, specs))
            else:
                unit = self._units.pop(wanted.id)
                self._start(wanted.id, [member.spec.id for member in unit], self._make_unit(unit))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.admission.next_due_s(now_s)
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, due_s - now_s), self.pump)

    def _start(self, admitted: str, ids: list[str], work: Coroutine[Any, Any, None]) -> None:
        for name in ids:
            self.go(self.lives[name], State.STARTING)
        task = self._spawn(self._bring_up(admitted, ids, work))
        for name in ids:
            self.lives[name].task = task

    async def _bring_up(self, admitted: str, ids: list[str], work: Coroutine[Any, Any, None]) -> None:
        lives = [self.lives[name] for name in ids]
        limit = asyncio.timeout(self._settings.start_timeout_s)
        try:
            async with limit:
                await work
        except Exception as error:  # noqa: BLE001  # boundary: driver
            problem = _as_cloche_error(error, late=limit.expired())
            await self._fail(lives, problem)
        finally:
            for life in lives:
                life.task = None
            self.admission.started(admitted)
            self.pump()
        await self._forget_pending([admitted])

    async def _make_unit(self, unit: list[Member]) -> None:
        images = await asyncio.gather(*(self._images.resolve(member.image) for member in unit))
        async with asyncio.TaskGroup() as group:
            for member, image in zip(unit, images, strict=True):
                group.create_task(self._make(member, image))
        for member in unit:
            self._ready(self.lives[member.spec.id])

    async def _make(self, member: Member, image: PreparedImage) -> None:
        life = self.lives[member.spec.id]
        life.digest = image.digest
        sandbox = await self._driver.create(member.spec, image)
        self._hold(sandbox)
        if member.command is not None:
            await sandbox.start(Command(argv=member.command, id=_SERVER))

    async def _make_forks(self, source: str, specs: list[SandboxSpec]) -> None:
        for sandbox in await self._driver.fork(source, specs):
            self._hold(sandbox)
            self._ready(self.lives[sandbox.id])

    def _hold(self, sandbox: Sandbox) -> None:
        self.lives[sandbox.id].isolation = getattr(self._driver, "isolation", None) or sandbox.spec.isolation
        self.handles.keep(sandbox)

    def _ready(self, life: Life) -> None:
        if life.state is State.STARTING:
            self.go(life, State.READY)

    async def _fail(self, lives: list[Life], error: ClocheError) -> None:
        for life in lives:
            life.error = error_body(error)
        for life in lives:
            await self._remove(life, End.START_FAILED)

    # ---- ending ----

    async def delete(self, life: Life) -> None:
        """End a sandbox with all of its unit; returns when it is gone."""
        main = self.lives.get(life.unit or life.id, life)
        names = [main.id, *main.sidecars.values()]
        unit = [self.lives[name] for name in dict.fromkeys(names) if name in self.lives]
        if main.state is State.QUEUED:
            self.admission.withdraw(main.id)
            self._units.pop(main.id, None)
            await self._forget_pending([main.id])
            for one in unit:
                self._over(one, End.CANCELLED)
            self.pump()
            return
        task = main.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._forget_pending([main.id])
        await asyncio.gather(*(self._remove(one, End.DELETED if one is life else End.UNIT) for one in unit))

    async def _remove(self, life: Life, end: End) -> None:
        """Delete what there is of a sandbox, once, and note its end."""
        if life.over:
            return
        if life.state is State.QUEUED:
            self._over(life, End.CANCELLED)
            return
        if life.state is not State.STOPPING:
            self.go(life, State.STOPPING)
        self.handles.drop(life.id)
        async with self._deletes:
            try:
                async with asyncio.timeout(self._settings.delete_timeout_s):
                    await self._driver.delete(life.id)
            except TimeoutError as error:
                raise InfraError(
                    f"sandbox {life.id} could not be deleted in time", code="infra/request_timeout"
                ) from error
        self._over(life, end)
        self.pump()

    async def _clear_away(self, life: Life, info: SandboxInfo | None) -> None:
        """Remove what is left of one that ended by itself, and its unit with it."""
        end = _end_of(info)
        with contextlib.suppress(ClocheError):  # the next look tries again
            await self._remove(life, end)
        if life.unit is not None:
            main = self.lives.get(life.unit)
            for name in [life.unit, *(main.sidecars.values() if main else ())]:
                other = self.lives.get(name)
                if other is not None and other is not life:
                    with contextlib.suppress(ClocheError):
                        await self._remove(other, End.UNIT)

    def _over(self, life: Life, end: End) -> None:
        if life.over:
            return
        life.end = end
        self.admission.release(life.id)
        self.go(life, State.ENDED)
        self._ended[life.id] = None
        while len(self._ended) > self._settings.ended_max:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            gone = self.lives.pop(oldest)
            if gone.spec.idempotency_key is not None:
                self._keys.pop((gone.spec.owner, gone.spec.idempotency_key), None)

    # ---- watching ----

    async def _watch(self) -> None:
        """Notice ends, close idle connections and look at the store, again and again."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            self.handles.sweep()
            with contextlib.suppress(ClocheError, OSError):  # a look that failed shows nothing; the next may
                await self._look()
                self._looked_s = time.monotonic()

    async def _look(self) -> None:
        if time.monotonic() - self._listed_s >= self._settings.list_s:
            await self._take_up()
        self.admission.room = await asyncio.to_thread(store_has_room, self._driver, self._settings.store_full)
        live = [name for name, life in self.lives.items() if life.state in {State.READY, State.PAUSED}]
        for name, info in (await self._driver.ended(live)).items():
            life = self.lives.get(name)
            if life is not None and life.state in {State.READY, State.PAUSED}:
                self._spawn(self._clear_away(life, info))
        self.pump()

    # ---- telling ----

    def go(self, life: Life, state: State) -> None:
        """Change a sandbox's state and tell those who follow."""
        life.go(state, time.time())
        self._tell(life)

    def _tell(self, life: Life) -> None:
        event = self.event_of(life, self.log.next_number())
        self.log.add(Logged(event, life.spec.owner, dict(life.spec.labels)))

    def event_of(self, life: Life, number: int) -> EventView:
        """Return a sandbox's state as an event."""
        return EventView.model_construct(
            seq=number, at=life.times[life.state], id=life.id, state=life.state, position=None, end=life.end
        )

    def note_network(self, life: Life, policy: NetworkPolicy) -> None:
        """Keep a policy that was changed."""
        life.spec = replace(life.spec, network=policy)

    def note_lease(self, life: Life, lease: Lease) -> None:
        """Keep a lease that was extended."""
        life.spec = replace(life.spec, lease=lease)


def _alone(spec: SandboxSpec) -> Demand:
    return Demand(id=spec.id, key=spec.owner, amount=amount(spec.resources), label="")


def _end_of(info: SandboxInfo | None) -> End:
    if info is None or info.cause is None:
        return End.GUEST_LOST
    return End.DELETED if info.cause is EndCause.DELETED else End(info.cause.value)


def _as_cloche_error(error: BaseException, *, late: bool) -> ClocheError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if late and isinstance(error, TimeoutError):
        return InfraError("it did not come up in time", code="infra/sandbox_start_timeout")
    if isinstance(error, ClocheError):
        return error
    found = classify(error)
    return InfraError(found.message, code=found.code)
