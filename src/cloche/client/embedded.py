"""Sandboxes of this process's own machine, as a backend: a driver and an image store, nothing between.

There is no queue and no tenant here; what needs them is refused by name. Must never end a sandbox when the
process goes: leases do that.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import NoReturn

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
    LinkView,
    NetworkBody,
    SandboxPage,
    SandboxView,
    SnapshotBody,
    State,
)
from cloche.core.errors import ClocheError, InvalidInput, NotFound, PlanRefused
from cloche.core.ids import new_id
from cloche.sandbox.driver import Driver, SandboxInfo, SandboxState
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.images import ImageStore, ensure_image
from cloche.sandbox.settings import Settings
from cloche.service.shapes import forked, network_of, policy_of, spec_of, view_of

LOOK_S = 0.2
STARTS_AT_ONCE = 32


def _needs_service(what: str) -> NoReturn:
    raise PlanRefused(
        f"{what} needs a service", hint="cloche serve, then CLOCHE_URL", code="plan/capability_missing"
    )


class Embedded:
    """Implements :class:`cloche.client.backend.Backend`; see there for what each method does."""

    def __init__(self, driver: Driver, images: ImageStore) -> None:
        """Take over a driver; ``close`` closes it."""
        self._driver = driver
        self._images = images
        self._handles: dict[str, Sandbox] = {}
        self._asked: dict[str, tuple[CreateBody, asyncio.Future[SandboxView]]] = {}
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)

    async def create(self, body: CreateBody) -> SandboxView:
        """Make a sandbox; returns when it is ready. The same key and body again: the same sandbox."""
        key = body.idempotency_key
        if key is None:
            return await self._create(body)
        if key not in self._asked:
            self._asked[key] = (body, asyncio.ensure_future(self._create(body)))
        first, making = self._asked[key]
        if first != body:
            raise InvalidInput(f"the key {key} stands for another request")
        try:
            return await making
        except BaseException:
            self._asked.pop(key, None)
            raise

    async def _create(self, body: CreateBody) -> SandboxView:
        if body.sidecars:
            _needs_service("a sandbox with sidecars")
        if body.command is not None:
            _needs_service("a command that is started with its sandbox")
        image = await ensure_image(self._images, body.image)
        async with self._starts:
            handle = await self._driver.create(spec_of(body), image)
        self._handles[handle.id] = handle
        return view_of(
            SandboxInfo(
                id=handle.id,
                state=SandboxState.READY,
                created_at=time.time(),
                image=image.name,
                labels=handle.spec.labels,
                spec=handle.spec,
                digest=image.digest,
            )
        )

    async def create_many(self, bodies: Sequence[CreateBody]) -> builtins.list[SandboxView | ClocheError]:
        """See :meth:`cloche.client.backend.Backend.create_many`."""

        async def one(body: CreateBody) -> SandboxView | ClocheError:
            try:
                return await self.create(body)
            except ClocheError as error:
                return error

        return await asyncio.gather(*map(one, bodies))

    async def get(self, sandbox_id: str) -> SandboxView:
        """See :meth:`cloche.client.backend.Backend.get`."""
        for info in await self._driver.list():
            if info.id == sandbox_id:
                return view_of(info)
        raise NotFound(f"there is no sandbox {sandbox_id}", hint="cloche sandbox ls")

    async def wait(self, sandbox_id: str, states: Collection[State]) -> SandboxView:
        """See :meth:`cloche.client.backend.Backend.wait`; one that is gone has ended."""
        view = await self.get(sandbox_id)
        while view.state not in states and view.state is not State.ENDED:
            await asyncio.sleep(LOOK_S)
            try:
                view = await self.get(sandbox_id)
            except NotFound:
                return view.model_copy(update={"state": State.ENDED, "end": End.DELETED})
        return view

    async def events(
        self, *, ids: Collection[str] = (), labels: Mapping[str, str] | None = None, after: int | None = None
    ) -> AsyncGenerator[EventView]:
        """Refuse: nobody here sees what other processes do."""
        _needs_service("a stream of events")
        yield  # type: ignore[unreachable]  # makes it a generator, as the seam says

    async def delete(self, sandbox_id: str) -> SandboxView:
        """See :meth:`cloche.client.backend.Backend.delete`."""
        view = SandboxView(id=sandbox_id, state=State.ENDED, times={}, image="", end=End.DELETED)
        handle = self._handles.pop(sandbox_id, None)
        if handle is not None:
            await handle.close()
        if not await self._driver.delete(sandbox_id) and handle is None:
            raise NotFound(f"there is no sandbox {sandbox_id}", hint="cloche sandbox ls")
        return view

    async def delete_many(self, ids: Sequence[str]) -> builtins.list[SandboxView | ClocheError]:
        """See :meth:`cloche.client.backend.Backend.delete_many`."""

        async def one(sandbox_id: str) -> SandboxView | ClocheError:
            try:
                return await self.delete(sandbox_id)
            except ClocheError as error:
                return error

        return await asyncio.gather(*map(one, ids))

    async def handle(self, sandbox_id: str) -> Sandbox:
        """See :meth:`cloche.client.backend.Backend.handle`; one connection is shared by all."""
        handle = self._handles.get(sandbox_id)
        if handle is None or handle.lost:
            handle = self._handles[sandbox_id] = await self._driver.attach(sandbox_id)
        return handle

    async def release(self, handle: Sandbox) -> None:
        """Do nothing: the connection is shared, and goes with the sandbox or the backend."""

    async def pause(self, sandbox_id: str) -> SandboxView:
        """See :meth:`cloche.client.backend.Backend.pause`."""
        await self._driver.pause(sandbox_id)
        return await self.get(sandbox_id)

    async def resume(self, sandbox_id: str) -> SandboxView:
        """See :meth:`cloche.client.backend.Backend.resume`."""
        await self._driver.resume(sandbox_id)
        return await self.get(sandbox_id)

    async def fork(self, sandbox_id: str, body: ForkBody) -> builtins.list[SandboxView]:
        """See :meth:`cloche.client.backend.Backend.fork`."""
        source = next((info.spec for info in await self._driver.list() if info.id == sandbox_id), None)
        if source is None:
            raise NotFound(f"there is no sandbox {sandbox_id}", hint="cloche sandbox ls")
        specs = [forked(source, body) for _ in range(body.count)]
        for handle in await self._driver.fork(sandbox_id, specs):
            self._handles[handle.id] = handle
        return [await self.get(spec.id) for spec in specs]

    async def snapshot(self, sandbox_id: str, body: SnapshotBody) -> ImageView:
        """See :meth:`cloche.client.backend.Backend.snapshot`."""
        made = await self._driver.snapshot(sandbox_id, body.name or f"snapshot/{new_id('s')}")
        return ImageView(name=made.name, digest=made.digest, origin=made.origin)

    async def diff(self, sandbox_id: str) -> DiffView:
        """See :meth:`cloche.client.backend.Backend.diff`."""
        changes = await self._driver.diff(sandbox_id)
        return DiffView(
            items=tuple(
                ChangeView(path=item.path, kind=item.kind.value, type=item.type, size_bytes=item.size_bytes)
                for item in changes
            )
        )

    async def set_network(self, sandbox_id: str, body: NetworkBody) -> NetworkBody:
        """See :meth:`cloche.client.backend.Backend.set_network`."""
        return network_of(await self._driver.set_network(sandbox_id, policy_of(body)))

    async def denials(self, sandbox_id: str) -> DenialPage:
        """See :meth:`cloche.client.backend.Backend.denials`."""
        found = await self._driver.denials(sandbox_id)
        return DenialPage(
            items=tuple(
                DenialView(
                    at=item.at, name=item.name, address=item.address, port=item.port, protocol=item.protocol
                )
                for item in found
            )
        )

    async def link(self, sandbox_id: str, port: int, ttl_s: float) -> LinkView:
        """Refuse: there is nobody here to serve it."""
        _needs_service("the URL of a port")

    async def heartbeat(self, sandbox_id: str) -> None:
        """See :meth:`cloche.client.backend.Backend.heartbeat`."""
        await (await self.handle(sandbox_id)).heartbeat()

    async def extend(self, sandbox_id: str, body: ExtendBody) -> SandboxView:
        """See :meth:`cloche.client.backend.Backend.extend`."""
        await (await self.handle(sandbox_id)).extend(body.ttl_s)
        return await self.get(sandbox_id)

    async def would_fit(self, body: CreateBody) -> FitView:
        """Refuse: nothing is counted here."""
        _needs_service("asking whether a sandbox would fit")

    async def capabilities(self) -> CapabilitiesView:
        """See :meth:`cloche.client.backend.Backend.capabilities`."""
        default = str(getattr(self._driver, "isolation", "native"))
        able = tuple(sorted(item.value for item in self._driver.capabilities()))
        return CapabilitiesView(driver=self._driver.name, default=default, isolation={default: able})

    async def close(self) -> None:
        """See :meth:`cloche.client.backend.Backend.close`."""
        handles, self._handles = list(self._handles.values()), {}
        await asyncio.gather(*(handle.close() for handle in handles), return_exceptions=True)
        await self._driver.close()

    # stands last: in a class body the name `list` means this method from here on
    async def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        states: Collection[State] = (),
        after: str | None = None,
        limit: int = 1000,
    ) -> SandboxPage:
        """See :meth:`cloche.client.backend.Backend.list`; all of them are one page."""
        wanted = (labels or {}).items()
        views = [view_of(info) for info in await self._driver.list() if wanted <= info.labels.items()]
        return SandboxPage(items=tuple(view for view in views if not states or view.state in states))


def open_embedded() -> Embedded:
    """Return a backend over this machine's local driver."""
    settings = Settings()
    return Embedded(LocalDriver(settings), ImageStore(settings))
