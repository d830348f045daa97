"""What happens to every request: its id, who asks, the handler, the error, the audit log, the figures.

One function instead of layers of middleware, since it is on the path of every command. Must never let an
error out: what is not foreseen becomes a 500 that names the request's id and nothing else.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from cloche.server.call import Call, Context, Route
from cloche.server.errors import Stopping, answer, as_cloche_error, log, status_of
from cloche.server.gate import check_scope

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_held: set[asyncio.Task[web.StreamResponse]] = set()


def request_id_of(request: web.BaseRequest) -> str:
    """Return the id that came with the request, where it is one, else a new one."""
    given = request.headers.get("X-Request-ID")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"r-{secrets.token_hex(8)}"


def entry(context: Context, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return what the router calls for this row of the table."""

    async def enter(request: web.Request) -> web.StreamResponse:
        began = time.perf_counter()
        call = Call(context, route, request, request_id_of(request))
        error: BaseException | None = None
        response: web.StreamResponse | None = None
        try:
            response = await _answer(call)
        except asyncio.CancelledError as gone:
            error = gone
            raise
        except Exception as raised:  # noqa: BLE001  # boundary: request root
            error = raised
            response = _failed(call, raised)
        finally:
            status = response.status if response is not None else status_of(error or asyncio.CancelledError())
            _account(call, status, error, time.perf_counter() - began)
        return response

    return enter


async def _answer(call: Call) -> web.StreamResponse:
    route, context = call.route, call.context
    if route.scope is not None:
        call.caller = context.gate.caller(call.request.headers)
        check_scope(call.caller, route.scope, call.request.match_info.get("id"))
        if context.stopping.begun.is_set():
            raise Stopping
    if not route.holds:
        return await route.handler(call)
    task = asyncio.ensure_future(route.handler(call))
    _held.add(task)
    task.add_done_callback(_held.discard)
    return await asyncio.shield(task)


def _failed(call: Call, error: Exception) -> web.StreamResponse:
    if not call.started:
        response = answer(error, call.request_id)
        if response.status in {413, 415} or not call.request.content.is_eof():
            response.force_close()  # what is left of the body is nobody's request
        return response
    if not isinstance(error, ConnectionError):
        log.warning("an answer was cut off: %s", type(error).__name__, extra={"request_id": call.request_id})
    transport = call.request.transport
    if transport is not None:
        transport.abort() if hasattr(transport, "abort") else transport.close()
    return web.Response(status=500)


def _account(call: Call, status: int, error: BaseException | None, seconds: float) -> None:
    code = None
    if error is not None:
        code = (
            "user/interrupted" if isinstance(error, asyncio.CancelledError) else as_cloche_error(error).code
        )
    call.context.metrics.done(call.route.name, status, seconds, code)
    if call.route.quiet and status not in {401, 403}:
        return
    call.context.audit.write(
        key=call.caller.key,
        owner=call.caller.owner,
        what=call.route.name,
        sandbox=call.request.match_info.get("id"),
        labels=call.labels,
        status=status,
        code=code,
        duration_s=seconds,
        request_id=call.request_id,
        more=call.more,
    )
