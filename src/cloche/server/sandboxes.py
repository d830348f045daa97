"""Handlers for sandboxes as wholes: made, looked at, waited for, changed, ended.

Each asks the service once. Must never hold anything of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from aiohttp import web

from cloche.api.models import (
    BatchBody,
    BatchItem,
    BatchView,
    CreateBody,
    DefaultsView,
    ExtendBody,
    ForkBody,
    NetworkBody,
    SandboxPage,
    SandboxView,
    SnapshotBody,
    TokenView,
)
from cloche.api.queries import ListQuery, WaitQuery
from cloche.core.errors import ClocheError
from cloche.server.call import Call
from cloche.server.errors import body_of


def pairs(items: tuple[str, ...]) -> dict[str, str]:
    """Return ``name=value`` items as a mapping."""
    return dict(item.split("=", 1) for item in items)


def _seen(call: Call, view: SandboxView) -> SandboxView:
    call.labels = view.labels
    return view


def _item(found: SandboxView | ClocheError) -> BatchItem:
    if isinstance(found, ClocheError):
        return BatchItem(error=body_of(found))
    return BatchItem(sandbox=found)


async def create(call: Call) -> web.StreamResponse:
    """``POST /v1/sandboxes``."""
    body = await call.body(CreateBody)
    view = _seen(call, await call.service.create(body, call.caller))
    call.context.metrics.creates += 1
    call.more["made"] = view.id
    response = call.json(view)
    response.headers["Location"] = f"/v1/sandboxes/{view.id}"
    return response


async def batch(call: Call) -> web.StreamResponse:
    """``POST /v1/sandboxes/batch``."""
    body = await call.body(BatchBody)
    created = await call.service.create_many(body.create, call.caller) if body.create else []
    deleted = await call.service.delete_many(body.delete, call.caller) if body.delete else []
    call.context.metrics.creates += len(created)
    call.more |= {"created": len(created), "deleted": len(deleted)}
    return call.json(BatchView(created=tuple(map(_item, created)), deleted=tuple(map(_item, deleted))))


async def would_fit(call: Call) -> web.StreamResponse:
    """``POST /v1/sandboxes/would-fit``."""
    return call.json(await call.service.would_fit(await call.body(CreateBody), call.caller))


async def list_(call: Call) -> web.StreamResponse:
    """``GET /v1/sandboxes``."""
    query = call.query(ListQuery)
    return call.json(
        await call.service.list(
            call.caller, labels=pairs(query.label), states=query.state, after=query.after, limit=query.limit
        )
    )


async def by_key(call: Call) -> web.StreamResponse:
    """``GET /v1/sandboxes/by-key/{key}``."""
    return call.json(await call.service.find(call.request.match_info["key"], call.caller))


async def get(call: Call) -> web.StreamResponse:
    """``GET …``."""
    return call.json(await call.service.get(call.id, call.caller))


async def delete(call: Call) -> web.StreamResponse:
    """``DELETE …``."""
    return call.json(_seen(call, await call.service.delete(call.id, call.caller)))


async def wait(call: Call) -> web.StreamResponse:
    """``GET …/wait``; a service that is stopping answers at once with how things are."""
    query = call.query(WaitQuery)
    with contextlib.suppress(TimeoutError):
        async with call.context.stopping.within(query.timeout_s + 1):
            return call.json(await call.service.wait(call.id, query.state, query.timeout_s, call.caller))
    return call.json(await call.service.get(call.id, call.caller))


async def pause(call: Call) -> web.StreamResponse:
    """``POST …/pause``."""
    return call.json(_seen(call, await call.service.pause(call.id, call.caller)))


async def resume(call: Call) -> web.StreamResponse:
    """``POST …/resume``."""
    return call.json(_seen(call, await call.service.resume(call.id, call.caller)))


async def fork(call: Call) -> web.StreamResponse:
    """``POST …/fork``."""
    made = await call.service.fork(call.id, await call.body(ForkBody), call.caller)
    call.context.metrics.creates += len(made)
    return call.json(SandboxPage(items=tuple(made)))


async def snapshot(call: Call) -> web.StreamResponse:
    """``POST …/snapshot``."""
    return call.json(await call.service.snapshot(call.id, await call.body(SnapshotBody), call.caller))


async def heartbeat(call: Call) -> web.StreamResponse:
    """``POST …/heartbeat``."""
    await call.service.heartbeat(call.id, call.caller)
    return call.nothing()


async def extend(call: Call) -> web.StreamResponse:
    """``POST …/extend``."""
    return call.json(
        _seen(call, await call.service.extend(call.id, await call.body(ExtendBody), call.caller))
    )


async def token(call: Call) -> web.StreamResponse:
    """``POST …/token``."""
    _seen(call, await call.service.get(call.id, call.caller))
    return call.json(TokenView(token=call.context.gate.token(call.caller, call.id)))


async def diff(call: Call) -> web.StreamResponse:
    """``GET …/diff``."""
    return call.json(await call.service.diff(call.id, call.caller))


async def get_network(call: Call) -> web.StreamResponse:
    """``GET …/network``."""
    return call.json((await call.service.get(call.id, call.caller)).network)


async def put_network(call: Call) -> web.StreamResponse:
    """``PUT …/network``."""
    return call.json(await call.service.set_network(call.id, await call.body(NetworkBody), call.caller))


async def denials(call: Call) -> web.StreamResponse:
    """``GET …/denials``."""
    return call.json(await call.service.denials(call.id, call.caller))


async def defaults(call: Call) -> web.StreamResponse:
    """``GET …/defaults``."""
    sandbox = await call.handle()
    image, spec = sandbox.image, sandbox.spec
    env: Mapping[str, str] = {**image.env, **spec.env}
    return call.json(
        DefaultsView(
            env=dict(env),
            user=spec.user if spec.user is not None else image.user,
            workdir=spec.workdir or image.workdir or "/",
            oom_kills=await sandbox.oom_kills(),
        )
    )


async def capabilities(call: Call) -> web.StreamResponse:
    """``GET /v1/capabilities``."""
    return call.json(await asyncio.to_thread(call.service.capabilities))
