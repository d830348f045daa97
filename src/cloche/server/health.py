"""What the service says of itself. Must never say that it is ready when it could not do its work."""

from __future__ import annotations

import json
import os
from pathlib import Path

from aiohttp import web

from cloche.api.models import State
from cloche.server.call import Call

_FREE_MIN = 0.01


def has_room(folder: Path) -> bool:
    """Whether the file system of the service, which is the store's, is not full for all purposes."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    blocks = found.f_bavail > found.f_blocks * _FREE_MIN
    return blocks and (found.f_files == 0 or found.f_favail > found.f_files * _FREE_MIN)


async def alive(call: Call) -> web.StreamResponse:
    """``GET /healthz``: that this is answered says that the loop turns."""
    return web.Response(text='{"alive":true}', content_type="application/json", headers=_id(call))


async def ready(call: Call) -> web.StreamResponse:
    """``GET /readyz``: 503 names what is broken."""
    context = call.context
    checks = {
        "driver": context.service.healthy,
        "store": has_room(context.settings.state_dir),
        "audit": context.audit.broken is None,
        "running": not context.stopping.begun.is_set(),
    }
    text = json.dumps({"ready": all(checks.values()), "checks": checks})
    status = 200 if all(checks.values()) else 503
    return web.Response(status=status, text=text, content_type="application/json", headers=_id(call))


async def metrics(call: Call) -> web.StreamResponse:
    """``GET /metrics``."""
    context = call.context
    counts = context.service.counts()
    states = {state.value: counts.get(state, 0) for state in State}
    gauges = {
        "cloche_queue_length": float(states[State.QUEUED.value]),
        "cloche_ready": float(context.service.healthy),
    }
    text = context.metrics.text(states, gauges)
    headers = {**_id(call), "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    return web.Response(body=text.encode(), headers=headers)


async def document(call: Call) -> web.StreamResponse:
    """``GET /openapi.json``."""
    return web.Response(body=call.context.document, content_type="application/json", headers=_id(call))


def _id(call: Call) -> dict[str, str]:
    return {"X-Request-ID": call.request_id}
