"""Handlers for whole trees as tar, both ways, and for patches. Must never hold a tree in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from cloche.api.models import ChangeView, DiffView
from cloche.api.queries import PatchQuery, TreeQuery
from cloche.sandbox.guest.patch import apply_patch
from cloche.sandbox.guest.tar import tar_in, tar_out
from cloche.server.call import Call
from cloche.server.shapes import path_text


async def get(call: Call) -> web.StreamResponse:
    """``GET …/tree``."""
    query = call.query(TreeQuery)
    pieces = tar_out(await call.handle(), query.path)
    first = await anext(pieces)  # what is not there is told before the answer begins
    response = await call.stream("application/x-tar")
    await response.write(first)
    async for piece in pieces:
        await response.write(piece)
        call.context.metrics.bytes_out += len(piece)
    await response.write_eof()
    return response


async def put(call: Call) -> web.StreamResponse:
    """``PUT …/tree``."""
    query = call.query(TreeQuery)

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in call.request.content.iter_any():
            call.context.metrics.bytes_in += len(piece)
            yield piece

    call.more["entries"] = await tar_in(await call.handle(), query.path, pieces())
    return call.nothing()


async def patch(call: Call) -> web.StreamResponse:
    """``POST …/patch``: all of it, or nothing."""
    query = call.query(PatchQuery)
    data = await call.raw(call.context.settings.patch_max_bytes)
    done = await apply_patch(await call.handle(), query.path, data, strip=query.strip)
    return call.json(
        DiffView(
            items=tuple(
                ChangeView.model_validate({"path": path_text(one.path), "kind": one.kind, "type": "file"})
                for one in done
            )
        )
    )
