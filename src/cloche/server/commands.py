"""Handlers for commands: started or joined by id, waited for, looked at, spoken to, ended.

A client that leaves never ends a command, and never has one run twice: the guest knows it by its id. Must
never hold more of a command's output than what an answer shows.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator

from aiohttp import web

from cloche.api.models import CommandBody, CommandPage, CommandView, ResizeBody, SignalBody
from cloche.api.queries import CommandQuery, OutputQuery, StdinQuery
from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.handle import Chunk, Process, Sandbox
from cloche.server.call import Call
from cloche.server.shapes import command_of, completed_view, status_view
from cloche.server.sse import Sse

INLINE_BYTES = 1 << 20
"""How much of each stream stands in a command's JSON, half from its beginning and half from its end."""


async def start(call: Call) -> web.StreamResponse:
    """``POST …/commands``."""
    body = await call.body(CommandBody)
    command = command_of(body)
    sandbox = await call.handle()
    call.context.metrics.commands += 1
    call.more["command"] = command.id
    process = sandbox.begin(command)
    if not body.wait:
        await process.started()
        return call.json(await _status(sandbox, command.id), 202)
    large = command.output_cap_bytes > INLINE_BYTES
    if large:
        await process.started()
        process = sandbox.process(command.id, cap_bytes=INLINE_BYTES)
    return await _waited(call, sandbox, process, body.wait_s, large=large)


async def _waited(
    call: Call, sandbox: Sandbox, process: Process, wait_s: float | None, *, large: bool
) -> web.StreamResponse:
    """Answer with the end, or with how things are after ``wait_s``. ``large``: take its output in pieces."""
    with contextlib.suppress(TimeoutError):
        async with call.context.stopping.within(wait_s):
            done = await process.wait(on_output=_pass if large else None)
            return call.json(completed_view(done), 200)
    return call.json(await _status(sandbox, process.id), 202)


def _pass(chunk: Chunk) -> None:
    """Take a piece that the command's handle keeps as far as it shows it."""


async def _status(sandbox: Sandbox, command_id: str) -> CommandView:
    for status in await sandbox.commands():
        if status.id == command_id:
            return status_view(status)
    raise NotFound(f"there is no command {command_id}")


async def list_(call: Call) -> web.StreamResponse:
    """``GET …/commands``."""
    found = await (await call.handle()).commands()
    return call.json(CommandPage(items=tuple(map(status_view, found))))


async def get(call: Call) -> web.StreamResponse:
    """``GET …/commands/{cid}``: with its output once it is over."""
    query = call.query(CommandQuery)
    sandbox = await call.handle()
    view = await _status(sandbox, call.cid)
    if view.running and not query.wait_s:
        return call.json(view, 202)
    large = view.running or any(
        kept and kept.total_bytes > INLINE_BYTES for kept in (view.stdout, view.stderr)
    )
    process = sandbox.process(call.cid, cap_bytes=INLINE_BYTES)
    return await _waited(call, sandbox, process, query.wait_s, large=large)


# ---- output ----


async def output(call: Call) -> web.StreamResponse:
    """``GET …/output``: raw bytes, or events where the client asks for them."""
    query = call.query(OutputQuery)
    sandbox = await call.handle()
    if "text/event-stream" in call.request.headers.get("Accept", ""):
        return await _events(call, sandbox, query)
    status = await _status(sandbox, call.cid)
    kept = status.stdout if query.stream == "stdout" else status.stderr
    until = None if query.follow or kept is None else kept.total_bytes
    chunks = _bounded(sandbox.process(call.cid).output(query.stream, query.offset), until)
    first = None if until is not None and until <= query.offset else await anext(chunks, None)
    at = query.offset if first is None else first.offset
    response = await call.stream("application/octet-stream", headers={"X-Output-Offset": str(at)})
    call.context.metrics.streams["output"] += 1
    try:
        if first is not None:
            await response.write(first.data)
            async for chunk in chunks:
                await response.write(chunk.data)
                call.context.metrics.bytes_out += len(chunk.data)
    finally:
        call.context.metrics.streams["output"] -= 1
        await chunks.aclose()  # type: ignore[attr-defined]  # it is a generator
    await response.write_eof()
    return response


async def _bounded(chunks: AsyncIterator[Chunk], until: int | None) -> AsyncIterator[Chunk]:
    """Yield chunks, small ones joined; none beyond the offset ``until``."""
    try:
        async for chunk in chunks:
            if until is not None and chunk.offset + len(chunk.data) >= until:
                yield Chunk(chunk.stream, chunk.offset, chunk.data[: max(0, until - chunk.offset)])
                return
            yield chunk
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]  # it is a generator


async def _events(call: Call, sandbox: Sandbox, query: OutputQuery) -> web.StreamResponse:
    offset = query.offset
    last = call.request.headers.get("Last-Event-ID")
    if last is not None:
        if not last.isdecimal():
            raise InvalidInput("Last-Event-ID is no offset of this stream", where="Last-Event-ID")
        offset = int(last)
    await _status(sandbox, call.cid)
    process = sandbox.process(call.cid, cap_bytes=INLINE_BYTES)
    async with Sse(call, "output") as sse:
        async for chunk in sse.watched(process.output(query.stream, offset)):
            data = {"offset": chunk.offset, "data": base64.b64encode(chunk.data).decode()}
            await sse.send("output", json.dumps(data), str(chunk.offset + len(chunk.data)))
        if not sse.stopped:
            end = await _status(sandbox, call.cid)
            await sse.send("end", end.model_dump_json())
    return sse.response


# ---- input and control ----


async def stdin(call: Call) -> web.StreamResponse:
    """``PUT …/stdin``: answered when the guest has taken all of it."""
    query = call.query(StdinQuery)
    sandbox = await call.handle()
    process = sandbox.process(call.cid)
    try:
        async for piece in call.request.content.iter_any():
            call.context.metrics.bytes_in += len(piece)
            await process.write(piece)
        if query.close:
            await process.close_stdin()
        elif call.request.body_exists:
            await process.settled()
    finally:
        process.leave_input()
    return call.nothing()


async def signal(call: Call) -> web.StreamResponse:
    """``POST …/signal``."""
    body = await call.body(SignalBody)
    await (await call.handle()).process(call.cid).signal(body.signal)
    return call.nothing()


async def resize(call: Call) -> web.StreamResponse:
    """``POST …/resize``."""
    body = await call.body(ResizeBody)
    await (await call.handle()).process(call.cid).resize(body.columns, body.rows)
    return call.nothing()


async def cancel(call: Call) -> web.StreamResponse:
    """``POST …/cancel``: answered when its whole tree is gone."""
    sandbox = await call.handle()
    process = sandbox.process(call.cid, cap_bytes=INLINE_BYTES)
    return call.json(completed_view(await process.cancel()))
