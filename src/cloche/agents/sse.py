"""Server-sent events, read from bytes as they come: the ``data`` of each event, nothing else.

Rules: https://html.spec.whatwg.org/multipage/server-sent-events.html. Must never hold more than
``LINE_LIMIT_BYTES`` of an event that does not end.
"""

from __future__ import annotations

import re

LINE_LIMIT_BYTES = 16 << 20
_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventTooLong(ValueError):
    """An event is longer than anything a model says."""


class EventDecoder:
    """Feed it bytes, cut anywhere; it gives back the data of the events that are complete."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of each event that ``chunk`` completes. Raises EventTooLong."""
        self._rest += chunk
        events = []
        start = 0
        for end in _LINE_END.finditer(self._rest):
            if end.group() == b"\r" and end.end() == len(self._rest):
                break  # its line feed may be on the way
            event = self._line(bytes(self._rest[start : end.start()]))
            start = end.end()
            if event is not None:
                events.append(event)
        del self._rest[:start]
        if len(self._rest) + self._data_bytes > LINE_LIMIT_BYTES:
            raise EventTooLong(f"an event of the stream is longer than {LINE_LIMIT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> str | None:
        if not line:
            data, self._data, self._data_bytes = self._data, [], 0
            return b"\n".join(data).decode("utf-8", "replace") if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value)
        return None
