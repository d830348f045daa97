"""Server-sent events as the service sends them. Must never hold more than one event's bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import aiohttp

from cloche.api.models import EventView

EVENT_BYTES_MAX = 65536


async def read_events(content: aiohttp.StreamReader) -> AsyncGenerator[EventView]:
    """Yield each event; comments, which only say that the stream lives, are left out."""
    data: list[str] = []
    while line := await content.readline():
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith("data:"):
            data.append(text[5:].strip())
            if sum(map(len, data)) > EVENT_BYTES_MAX:
                raise ConnectionError("an event is too long")
        elif not text and data:
            yield EventView.model_validate_json("\n".join(data))
            data.clear()
