"""The stream of changes of state, resumed by ``Last-Event-ID``. Must never skip one that is kept."""

from __future__ import annotations

from aiohttp import web

from cloche.api.queries import EventsQuery
from cloche.core.errors import InvalidInput
from cloche.server.call import Call
from cloche.server.sandboxes import pairs
from cloche.server.sse import Sse


async def stream(call: Call) -> web.StreamResponse:
    """``GET /v1/events``."""
    query = call.query(EventsQuery)
    after = query.after
    last = call.request.headers.get("Last-Event-ID")
    if last is not None:
        if not last.isdecimal() or len(last) > 18:
            raise InvalidInput("Last-Event-ID is no number of an event", where="Last-Event-ID")
        after = int(last)
    source = call.service.events(call.caller, ids=query.id, labels=pairs(query.label), after=after)
    async with Sse(call, "events") as sse:
        async for event in sse.watched(source):
            await sse.send("state", event.model_dump_json(), str(event.seq))
    return sse.response
