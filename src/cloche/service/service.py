"""Creates, finds, follows and ends sandboxes for many callers, over one driver.

Must never end a sandbox that nobody asked it to end, nor show a caller what is another's. What lives is
what the driver lists: a service that starts again adopts it, with its owner and its idempotency key.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import NoReturn, Protocol, Self

from cloche.api.models import (
    CapabilitiesView,
    ChangeView,
    CreateBody,
    DenialPage,
    DenialView,
    DiffView,
    End,
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
from cloche.core.errors import ClocheError, Conflict, NotFound, PlanRefused, QuotaExceeded, SandboxLost
from cloche.sandbox.driver import Driver, SandboxInfo, SandboxState
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import PreparedImage
from cloche.service.caller import LOCAL, Caller
from cloche.service.entry import Entry, Events, end_of
from cloche.service.settings import ServiceSettings
from cloche.service.shapes import error_body, forked, network_of, policy_of, spec_of, view_of

_LIVE = (State.READY, State.PAUSED)
_DEFAULT = ServiceSettings()
_SILENT_S = 10.0


class ImageResolver(Protocol):
    """Turns the name of an image into one that is ready; see :mod:`cloche.sandbox.images.resolve`."""

    async def resolve(self, name: str) -> PreparedImage:
        """Return the image. Raises a ClocheError."""


def _refuse(what: str) -> NoReturn:
    raise PlanRefused(f"this service cannot do {what} yet", code="plan/capability_missing")


class SandboxService:
    """One per run directory. As a context manager it starts and closes; it ends no sandbox by that."""

    def __init__(self, driver: Driver, images: ImageResolver, settings: ServiceSettings = _DEFAULT) -> None:
        self._driver = driver
        self._images = images
        self._settings = settings
        self._entries: dict[str, Entry] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._events = Events(settings.events)
        self._starts = asyncio.Semaphore(settings.starts_at_once)
        self._handles: dict[str, asyncio.Task[Sandbox]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._looked_at = 0.0

    @property
    def driver(self) -> Driver:
        """The driver below."""
        return self._driver

    @property
    def healthy(self) -> bool:
        """Whether the driver has answered lately, and what lives is being watched."""
        watched = self._watching is not None and not self._watching.done()
        return watched and time.monotonic() - self._looked_at < _SILENT_S + self._settings.look_s

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Adopt what lives, and watch it from now on."""
        await self._look()
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Let go of everything. A sandbox that is still being made is given up, as a create that failed."""
        tasks = [entry.making for entry in self._entries.values() if entry.making is not None]
        for task in (*tasks, *([self._watching] if self._watching else [])):
            task.cancel()
        await asyncio.gather(*tasks, *self._ending.values(), return_exceptions=True)
        if self._watching is not None:
            await asyncio.gather(self._watching, return_exceptions=True)
        for sandbox_id in list(self._handles):
            await self._drop_handle(sandbox_id)
        await self._driver.close()

    # ---- what is known ----

    def _change(self, entry: Entry, state: State, **more: object) -> None:
        now = time.time()
        times = {**entry.view.times, state: now}
        entry.view = entry.view.model_copy(update={"state": state, "times": times, **more})
        self._events.add(entry, now)
        if state is State.ENDED:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        ended = [entry for entry in self._entries.values() if entry.view.state is State.ENDED]
        for entry in ended[: max(0, len(ended) - self._settings.remembered)]:
            del self._entries[entry.view.id]
            self._keys.pop((entry.owner, entry.view.idempotency_key or ""), None)

    def _know(self, entry: Entry) -> None:
        self._entries[entry.view.id] = entry
        if entry.view.idempotency_key is not None:
            self._keys[entry.owner, entry.view.idempotency_key] = entry.view.id
        self._events.add(entry, time.time())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.look_s)
            with contextlib.suppress(ClocheError, OSError):  # a look that failed shows nothing; the next may
                await self._look()

    async def _look(self) -> None:
        """Take up what the driver lists and is not known, and what has ended by itself."""
        watched = {key for key, entry in self._entries.items() if entry.view.state in _LIVE}
        found = {info.id: info for info in await self._driver.list()}
        self._looked_at = time.monotonic()
        for sandbox_id, info in found.items():
            if sandbox_id in self._entries or info.spec is None:
                continue
            if info.state is not SandboxState.ENDED:
                self._know(Entry(view_of(info), info.spec.owner or LOCAL.owner))
            elif info.spec.owner:  # one of a service's that nobody serves any more
                await self._driver.delete(sandbox_id)
        for sandbox_id in watched:
            row = found.get(sandbox_id)
            if row is None or row.state is SandboxState.ENDED:
                entry = self._entries.get(sandbox_id)
                if entry is not None:
                    await self._see_end(entry, row)

    async def _see_end(self, entry: Entry, row: SandboxInfo | None) -> None:
        """Record an end that nobody asked for here, once nothing of the sandbox is left."""
        if entry.view.state not in _LIVE:
            return
        await self._drop_handle(entry.view.id)
        if row is not None:
            await self._driver.delete(entry.view.id)
        if entry.view.state in _LIVE:
            self._change(entry, State.ENDED, end=End.DELETED if row is None else end_of(row.reason))

    def _entry(self, sandbox_id: str, caller: Caller) -> Entry:
        entry = self._entries.get(sandbox_id)
        theirs = entry is not None and (caller.admin or entry.owner == caller.owner)
        if entry is None or not theirs or caller.sandbox not in (None, sandbox_id):
            raise NotFound(f"there is no sandbox {sandbox_id}", hint="cloche sandbox ls")
        return entry

    def _live(self, sandbox_id: str, caller: Caller) -> Entry:
        entry = self._entry(sandbox_id, caller)
        if entry.view.state is State.ENDED:
            raise SandboxLost(f"sandbox {sandbox_id} is over: {entry.view.end}")
        if entry.view.state not in _LIVE:
            raise Conflict(f"sandbox {sandbox_id} is {entry.view.state.value}", hint="wait until it is ready")
        return entry

    # ---- create ----

    async def create(self, body: CreateBody, caller: Caller = LOCAL) -> SandboxView:
        """Accept a sandbox and return at once; the same key and body again give the same sandbox.

        Raises Conflict for a taken id or a key that stands for another body, QuotaExceeded when too many
        wait already, PlanRefused for what cannot be done.
        """
        if body.sidecars:
            _refuse("sidecars")
        if body.command is not None:
            _refuse("a command that starts with its sandbox")
        key = body.idempotency_key
        known = self._entries.get(self._keys.get((caller.owner, key), "")) if key is not None else None
        if known is not None:
            return self._same(known, body)
        return self._accept(body, caller).view

    def _same(self, known: Entry, body: CreateBody) -> SandboxView:
        """Return the sandbox of a key; one that was adopted is compared by what its record tells."""
        spec = spec_of(body)
        told = known.view
        same = (
            known.body == body
            if known.body is not None
            else (told.labels == spec.labels and told.network == body.network and told.lease == body.lease)
            and told.resources == body.resources
            and body.id in (None, told.id)
        )
        if not same:
            raise Conflict(f"the key {body.idempotency_key} stands for another request")
        return told

    def _accept(self, body: CreateBody, caller: Caller) -> Entry:
        waiting = sum(entry.view.state is State.QUEUED for entry in self._entries.values())
        if waiting >= self._settings.queued:
            raise QuotaExceeded(f"{waiting} sandboxes wait already", hint="ask for fewer at once")
        spec = replace(spec_of(body), owner=caller.owner)
        if spec.id in self._entries:
            raise Conflict(f"there is a sandbox {spec.id} already", hint="leave the id out, or take another")
        view = SandboxView(
            id=spec.id,
            state=State.QUEUED,
            times={State.QUEUED: time.time()},
            image=body.image,
            labels=body.labels,
            isolation=body.isolation,
            network=body.network,
            resources=body.resources,
            lease=body.lease,
            ports=body.ports,
            priority=body.priority,
            idempotency_key=body.idempotency_key,
        )
        entry = Entry(view, caller.owner, body)
        self._know(entry)
        entry.making = asyncio.create_task(self._make(entry, body))
        return entry

    async def _make(self, entry: Entry, body: CreateBody) -> None:
        spec = replace(spec_of(body), id=entry.view.id, owner=entry.owner)
        try:
            image = await self._images.resolve(body.image)
            async with self._starts:
                self._change(entry, State.STARTING, digest=image.digest)
                handle = await self._driver.create(spec, image)
            handle.stop_beating()  # whoever asked for it says whether it is still wanted
            await handle.close()
            self._change(entry, State.READY)
        except asyncio.CancelledError:
            self._change(entry, State.ENDED, end=End.CANCELLED)
            raise
        except ClocheError as error:
            self._change(entry, State.ENDED, end=End.START_FAILED, error=error_body(error))
        finally:
            entry.making = None

    async def create_many(
        self, bodies: Sequence[CreateBody], caller: Caller = LOCAL
    ) -> builtins.list[SandboxView | ClocheError]:
        """Accept many; each is answered for itself, in order."""
        return await self._each(self.create(body, caller) for body in bodies)

    async def _each(
        self, asked: Iterable[Awaitable[SandboxView]]
    ) -> builtins.list[SandboxView | ClocheError]:
        places = asyncio.Semaphore(self._settings.starts_at_once)

        async def one(awaitable: Awaitable[SandboxView]) -> SandboxView | ClocheError:
            async with places:
                try:
                    return await awaitable
                except ClocheError as error:
                    return error

        return await asyncio.gather(*map(one, asked))

    # ---- look ----

    async def get(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """Return a sandbox. Raises NotFound, also for what is another's."""
        return self._entry(sandbox_id, caller).view

    async def find(self, idempotency_key: str, caller: Caller = LOCAL) -> SandboxView:
        """Return the sandbox of one of the caller's keys. Raises NotFound."""
        sandbox_id = self._keys.get((caller.owner, idempotency_key))
        if sandbox_id is None:
            raise NotFound(f"no sandbox was asked for with the key {idempotency_key}")
        return self._entry(sandbox_id, caller).view

    async def wait(
        self, sandbox_id: str, states: Collection[State], timeout_s: float, caller: Caller = LOCAL
    ) -> SandboxView:
        """Return it once it is in one of the states or has ended, or after the time as it is then."""
        entry = self._entry(sandbox_id, caller)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while entry.view.state not in states and entry.view.state is not State.ENDED:
                    await self._events.changed()
        return entry.view

    def events(
        self,
        caller: Caller = LOCAL,
        *,
        ids: Collection[str] = (),
        labels: Mapping[str, str] | None = None,
        after: int | None = None,
    ) -> AsyncIterator[EventView]:
        """Yield changes of state behind ``after``. Raises Conflict when they are no longer kept."""

        def wanted(entry: Entry) -> bool:
            return self._shown(entry, caller, labels or {}) and (not ids or entry.view.id in ids)

        return self._events.follow(wanted, after)

    def _shown(self, entry: Entry, caller: Caller, labels: Mapping[str, str]) -> bool:
        theirs = caller.admin or entry.owner == caller.owner
        alone = caller.sandbox in (None, entry.view.id)
        return theirs and alone and labels.items() <= entry.view.labels.items()

    def counts(self) -> Mapping[State, int]:
        """Return how many sandboxes are in each state."""
        return Counter(entry.view.state for entry in self._entries.values())

    def capabilities(self) -> CapabilitiesView:
        """Return what the driver can do."""
        default = str(getattr(self._driver, "isolation", "native"))
        able = tuple(sorted(item.value for item in self._driver.capabilities()))
        return CapabilitiesView(driver=self._driver.name, default=default, isolation={default: able})

    async def would_fit(self, body: CreateBody, caller: Caller = LOCAL) -> FitView:
        """Refuse: resources are not counted yet."""
        _refuse("would-fit")

    # ---- end ----

    async def delete(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """End a sandbox and return once it is gone; again: the same end."""
        entry = self._entry(sandbox_id, caller)
        if entry.view.state is not State.ENDED:
            if sandbox_id not in self._ending:
                task = asyncio.create_task(self._end(entry))
                self._ending[sandbox_id] = task
                task.add_done_callback(lambda _task: self._ending.pop(sandbox_id, None))
            await asyncio.shield(self._ending[sandbox_id])
        return entry.view

    async def _end(self, entry: Entry) -> None:
        sandbox_id = entry.view.id
        if entry.making is not None:
            entry.making.cancel()
            await asyncio.gather(entry.making, return_exceptions=True)
            if entry.view.state is not State.ENDED:  # cancelled before its first step
                self._change(entry, State.ENDED, end=End.CANCELLED)
        if entry.view.state is State.ENDED:
            return
        self._change(entry, State.STOPPING)
        await self._drop_handle(sandbox_id)
        await self._driver.delete(sandbox_id)
        self._change(entry, State.ENDED, end=End.DELETED)

    async def delete_many(
        self, ids: Sequence[str], caller: Caller = LOCAL
    ) -> builtins.list[SandboxView | ClocheError]:
        """End many; each is answered for itself, in order."""
        return await self._each(self.delete(sandbox_id, caller) for sandbox_id in ids)

    # ---- use ----

    async def handle(self, sandbox_id: str, caller: Caller = LOCAL) -> Sandbox:
        """Return the live handle that all callers share. Raises NotFound, Conflict or SandboxLost."""
        self._live(sandbox_id, caller)
        task = self._handles.get(sandbox_id)
        if task is not None and task.done() and (task.exception() is not None or task.result().lost):
            await self._drop_handle(sandbox_id)
            task = self._handles.get(sandbox_id)
        if task is None:
            if len(self._handles) >= self._settings.handles:
                await self._drop_handle(next(iter(self._handles)))
            task = self._handles[sandbox_id] = asyncio.create_task(self._attach(sandbox_id))
        return await asyncio.shield(task)

    async def _attach(self, sandbox_id: str) -> Sandbox:
        handle = await self._driver.attach(sandbox_id)
        handle.stop_beating()
        return handle

    async def _drop_handle(self, sandbox_id: str) -> None:
        task = self._handles.pop(sandbox_id, None)
        if task is not None:
            (handle,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(handle, Sandbox):
                await handle.close()

    async def pause(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """Freeze it; twice is no error."""
        entry = self._live(sandbox_id, caller)
        await self._driver.pause(sandbox_id)
        if entry.view.state is State.READY:
            self._change(entry, State.PAUSED)
        return entry.view

    async def resume(self, sandbox_id: str, caller: Caller = LOCAL) -> SandboxView:
        """Let it go on; of one that is not paused is no error."""
        entry = self._live(sandbox_id, caller)
        await self._driver.resume(sandbox_id)
        if entry.view.state is State.PAUSED:
            self._change(entry, State.READY)
        return entry.view

    async def fork(
        self, sandbox_id: str, body: ForkBody, caller: Caller = LOCAL
    ) -> builtins.list[SandboxView]:
        """Make sandboxes from its file system as it is now; returns when they are ready."""
        self._live(sandbox_id, caller)
        source = next((info.spec for info in await self._driver.list() if info.id == sandbox_id), None)
        if source is None:
            raise SandboxLost(f"sandbox {sandbox_id} has ended meanwhile")
        specs = [replace(forked(source, body), owner=caller.owner) for _ in range(body.count)]
        for handle in await self._driver.fork(sandbox_id, specs):
            handle.stop_beating()
            await handle.close()
        await self._look()
        return [self._entry(spec.id, caller).view for spec in specs]

    async def snapshot(self, sandbox_id: str, body: SnapshotBody, caller: Caller = LOCAL) -> ImageView:
        """Make an image of its file system as it is now."""
        self._live(sandbox_id, caller)
        made = await self._driver.snapshot(sandbox_id, body.name or "")
        return ImageView(name=made.name, digest=made.digest, origin=made.origin)

    async def diff(self, sandbox_id: str, caller: Caller = LOCAL) -> DiffView:
        """Return how its file system differs from the image."""
        self._live(sandbox_id, caller)
        items = [
            ChangeView(path=item.path, kind=item.kind.value, type=item.type, size_bytes=item.size_bytes)
            for item in await self._driver.diff(sandbox_id)
        ]
        return DiffView(items=tuple(items))

    async def set_network(self, sandbox_id: str, body: NetworkBody, caller: Caller = LOCAL) -> NetworkBody:
        """Change what it may reach, and return what holds."""
        entry = self._live(sandbox_id, caller)
        held = network_of(await self._driver.set_network(sandbox_id, policy_of(body)))
        entry.view = entry.view.model_copy(update={"network": held})
        return held

    async def denials(self, sandbox_id: str, caller: Caller = LOCAL) -> DenialPage:
        """Return what its network policy refused of late."""
        self._live(sandbox_id, caller)
        items = [
            DenialView(
                at=item.at, name=item.name, address=item.address, port=item.port, protocol=item.protocol
            )
            for item in await self._driver.denials(sandbox_id)
        ]
        return DenialPage(items=tuple(items))

    async def heartbeat(self, sandbox_id: str, caller: Caller = LOCAL) -> None:
        """Pass on that its client still wants it."""
        await (await self.handle(sandbox_id, caller)).heartbeat()

    async def extend(self, sandbox_id: str, body: ExtendBody, caller: Caller = LOCAL) -> SandboxView:
        """Let it live so long from now."""
        entry = self._live(sandbox_id, caller)
        await (await self.handle(sandbox_id, caller)).extend(body.ttl_s)
        lease = entry.view.lease.model_copy(update={"ttl_s": body.ttl_s})
        entry.view = entry.view.model_copy(update={"lease": lease})
        return entry.view

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
        """Return the caller's sandboxes by id, a page at a time; ended ones that are remembered too."""
        views = sorted(
            (
                entry.view
                for entry in self._entries.values()
                if self._shown(entry, caller, labels or {})
                and (not states or entry.view.state in states)
                and (after is None or entry.view.id > after)
            ),
            key=lambda view: view.id,
        )
        page = views[:limit]
        return SandboxPage(items=tuple(page), next=page[-1].id if len(views) > limit else None)
