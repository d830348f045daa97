"""A service over HTTP. Must never hold more than its pool, one stream, and a connection for each guest."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import quote

import aiohttp

from cloche.api.models import (
    BatchBody,
    BatchItem,
    BatchView,
    CapabilitiesView,
    CreateBody,
    DefaultsView,
    DenialPage,
    DiffView,
    EventView,
    ExtendBody,
    FitView,
    ForkBody,
    ImageView,
    LinkBody,
    LinkView,
    NetworkBody,
    SandboxPage,
    SandboxView,
    SnapshotBody,
    State,
)
from cloche.client.errors import error_of, transport_error
from cloche.client.http import guest
from cloche.client.http.events import read_events
from cloche.client.http.session import Refused, Session
from cloche.client.http.watch import Watch
from cloche.client.target import Service
from cloche.core.errors import ClocheError
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import ImageConfig, SandboxSpec

QUIET_S = 90.0
"""A stream of events that says nothing for so long, not even that it lives, is opened anew."""
BATCH_MAX = 1000
_AGAIN_S = 0.5


class HttpBackend:
    """Implements :class:`cloche.client.backend.Backend`; see there for what each method does."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._session = Session(service)
        self._watch = Watch(self.events)

    async def create(self, body: CreateBody) -> SandboxView:
        """``POST /v1/sandboxes``; sent again only with its idempotency key."""
        self._watch.follow()
        again = body.idempotency_key is not None
        return await self._session.ask("POST", "/v1/sandboxes", SandboxView, body=body, again=again)

    async def create_many(self, bodies: Sequence[CreateBody]) -> builtins.list[SandboxView | ClocheError]:
        """``POST /v1/sandboxes/batch``, in parts of a thousand."""
        self._watch.follow()
        found: builtins.list[SandboxView | ClocheError] = []
        for at in range(0, len(bodies), BATCH_MAX):
            part = tuple(bodies[at : at + BATCH_MAX])
            again = all(body.idempotency_key for body in part)
            view = await self._batch(BatchBody(create=part), again=again)
            found += [_item(item) for item in view.created]
        return found

    async def delete_many(self, ids: Sequence[str]) -> builtins.list[SandboxView | ClocheError]:
        """``POST /v1/sandboxes/batch``; ending one twice is no error."""
        found: builtins.list[SandboxView | ClocheError] = []
        for at in range(0, len(ids), BATCH_MAX):
            view = await self._batch(BatchBody(delete=tuple(ids[at : at + BATCH_MAX])), again=True)
            found += [_item(item) for item in view.deleted]
        return found

    async def _batch(self, body: BatchBody, *, again: bool) -> BatchView:
        return await self._session.ask("POST", "/v1/sandboxes/batch", BatchView, body=body, again=again)

    async def get(self, sandbox_id: str) -> SandboxView:
        """``GET /v1/sandboxes/{id}``."""
        return await self._session.ask("GET", _path(sandbox_id), SandboxView, again=True)

    async def wait(self, sandbox_id: str, states: Collection[State]) -> SandboxView:
        """Wait by the stream of events, see :mod:`cloche.client.http.watch`."""
        return await self._watch.wait(sandbox_id, states, lambda: self.get(sandbox_id))

    async def events(
        self, *, ids: Collection[str] = (), labels: Mapping[str, str] | None = None, after: int | None = None
    ) -> AsyncGenerator[EventView]:
        """``GET /v1/events``; goes on behind the last event where the stream breaks."""
        query = [("id", item) for item in ids]
        query += [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        failed_s = 0.0
        while True:
            headers = {"Accept": "text/event-stream"}
            if after is not None:
                headers["Last-Event-ID"] = str(after)
            try:
                async with (
                    self._session.stream(
                        "/v1/events", query=query, headers=headers, quiet_s=QUIET_S
                    ) as content,
                    aclosing(read_events(content)) as events,
                ):
                    async for event in events:
                        after, failed_s = event.seq, 0.0
                        yield event
            except Refused as refused:
                if not (refused.unheard or refused.gateway):
                    raise refused.error from refused
                failed_s += _AGAIN_S
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failed_s += _AGAIN_S
                if failed_s > self._service.patience_s:
                    raise transport_error("the stream of events broke", error) from error
            await asyncio.sleep(_AGAIN_S)

    async def delete(self, sandbox_id: str) -> SandboxView:
        """``DELETE /v1/sandboxes/{id}``; ending one twice is no error, so it may be sent again."""
        return await self._session.ask("DELETE", _path(sandbox_id), SandboxView, again=True)

    async def handle(self, sandbox_id: str) -> Sandbox:
        """``GET …/guest``, upgraded: the guest's own protocol."""
        ask = self._session.ask("GET", _path(sandbox_id, "defaults"), DefaultsView, again=True)
        asked = asyncio.ensure_future(ask)
        try:
            connection = await guest.connect(self._service, sandbox_id)
        except BaseException:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            raise
        try:
            defaults = await asked
        except BaseException:
            await connection.close()
            raise
        return Sandbox(
            spec=SandboxSpec(id=sandbox_id),
            config=ImageConfig(env=defaults.env, user=defaults.user, workdir=defaults.workdir),
            connection=connection,
            deleter=self._delete_for_handle,
            oom_kills=None if defaults.oom_kills is None else lambda: self._oom_kills(sandbox_id),
        )

    async def _oom_kills(self, sandbox_id: str) -> int:
        view = await self._session.ask("GET", _path(sandbox_id, "defaults"), DefaultsView, again=True)
        return view.oom_kills or 0

    async def _delete_for_handle(self, sandbox_id: str) -> bool:
        await self.delete(sandbox_id)
        return True

    async def release(self, handle: Sandbox) -> None:
        """Close the connection: it was made for one line."""
        await handle.close()

    async def pause(self, sandbox_id: str) -> SandboxView:
        """``POST …/pause``."""
        return await self._session.ask("POST", _path(sandbox_id, "pause"), SandboxView)

    async def resume(self, sandbox_id: str) -> SandboxView:
        """``POST …/resume``."""
        return await self._session.ask("POST", _path(sandbox_id, "resume"), SandboxView)

    async def fork(self, sandbox_id: str, body: ForkBody) -> builtins.list[SandboxView]:
        """``POST …/fork``."""
        page = await self._session.ask("POST", _path(sandbox_id, "fork"), SandboxPage, body=body)
        return [*page.items]

    async def snapshot(self, sandbox_id: str, body: SnapshotBody) -> ImageView:
        """``POST …/snapshot``."""
        return await self._session.ask("POST", _path(sandbox_id, "snapshot"), ImageView, body=body)

    async def diff(self, sandbox_id: str) -> DiffView:
        """``GET …/diff``."""
        return await self._session.ask("GET", _path(sandbox_id, "diff"), DiffView, again=True)

    async def set_network(self, sandbox_id: str, body: NetworkBody) -> NetworkBody:
        """``PUT …/network``; the same twice is the same."""
        path = _path(sandbox_id, "network")
        return await self._session.ask("PUT", path, NetworkBody, body=body, again=True)

    async def denials(self, sandbox_id: str) -> DenialPage:
        """``GET …/denials``."""
        return await self._session.ask("GET", _path(sandbox_id, "denials"), DenialPage, again=True)

    async def link(self, sandbox_id: str, port: int, ttl_s: float) -> LinkView:
        """``POST …/ports/{port}/link``: a second one harms nobody."""
        path = _path(sandbox_id, f"ports/{port}/link")
        return await self._session.ask("POST", path, LinkView, body=LinkBody(ttl_s=ttl_s), again=True)

    async def heartbeat(self, sandbox_id: str) -> None:
        """``POST …/heartbeat``: twice is as good as once."""
        await self._session.send("POST", _path(sandbox_id, "heartbeat"), again=True)

    async def extend(self, sandbox_id: str, body: ExtendBody) -> SandboxView:
        """``POST …/extend``."""
        return await self._session.ask("POST", _path(sandbox_id, "extend"), SandboxView, body=body)

    async def would_fit(self, body: CreateBody) -> FitView:
        """``POST /v1/sandboxes/would-fit``: asks only."""
        return await self._session.ask("POST", "/v1/sandboxes/would-fit", FitView, body=body, again=True)

    async def capabilities(self) -> CapabilitiesView:
        """``GET /v1/capabilities``."""
        return await self._session.ask("GET", "/v1/capabilities", CapabilitiesView, again=True)

    async def close(self) -> None:
        """Let go of every connection."""
        await self._watch.close()
        await self._session.close()

    # stands last: in a class body the name `list` means this method from here on
    async def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        states: Collection[State] = (),
        after: str | None = None,
        limit: int = 1000,
    ) -> SandboxPage:
        """``GET /v1/sandboxes``."""
        query = [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        query += [("state", state.value) for state in states]
        query += [("limit", str(limit)), *([("after", after)] if after else [])]
        return await self._session.ask("GET", "/v1/sandboxes", SandboxPage, query=query, again=True)


def _path(sandbox_id: str, rest: str = "") -> str:
    quoted = quote(sandbox_id, safe="")
    return f"/v1/sandboxes/{quoted}/{rest}" if rest else f"/v1/sandboxes/{quoted}"


def _item(item: BatchItem) -> SandboxView | ClocheError:
    if item.sandbox is not None:
        return item.sandbox
    if item.error is not None:
        return error_of(item.error)
    return ClocheError("an empty item in the answer to a batch", code="infra/protocol")
