"""How one answer goes out: as a body or as a stream, with its delays and its fault, and onto the ledger.

Must never put anything on the ledger but what was handed to the connection by then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from cloche.testing.model_server import wire
from cloche.testing.model_server.ledger import Entry
from cloche.testing.model_server.script import Fault, Turn

_GARBAGE = b"<!doctype html><title>It works!</title>\n\x00\xff\n"


class Broken(Exception):
    """The answer ends here: a fault says so."""


@dataclass(slots=True)
class Delivery:
    """One request that a script answers. ``finish`` is called exactly once, by ``deliver``."""

    request: web.Request
    model: str
    conversation: str
    turn: Turn
    turn_number: int
    streamed: bool
    counts: tuple[int, int, int]
    finish: Callable[[Entry], None]
    fault: Fault | None = None
    reported: bool = False
    finished: bool = False

    async def deliver(self) -> web.StreamResponse:
        """Send it and return the response, complete or as broken as its fault wants it."""
        try:
            if self.fault is not None and self.fault.kind == "status":
                return self._refuse(self.fault)
            await asyncio.sleep(self.turn.first_chunk_s)
            return await (self._stream() if self.streamed else self._body())
        finally:
            self._note(200)

    def _note(self, status: int) -> None:
        if self.finished:
            return
        self.finished = True
        prompt, completion, cached = self.counts
        self.finish(
            Entry(
                model=self.model,
                conversation=self.conversation,
                turn=self.turn_number,
                status=status,
                reported=self.reported,
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=cached,
                fault=self.fault.kind if self.fault else "",
            )
        )

    def _refuse(self, fault: Fault) -> web.Response:
        self._note(fault.status)
        headers = {} if fault.retry_after_s is None else {"Retry-After": _header(fault.retry_after_s)}
        value = wire.error_object(fault.message, fault.error_code)
        return web.json_response(value, status=fault.status, headers=headers)

    async def _body(self) -> web.StreamResponse:
        usage = None if self.turn.usage == "absent" else wire.usage_object(*self.counts)
        data = json.dumps(wire.body(self.model, self.turn, self.turn_number, usage)).encode()
        kind = self.fault.kind if self.fault else ""
        if kind == "hang":
            await asyncio.Event().wait()
        if kind == "malformed_json":
            data = data[: len(data) // 2]
        if kind == "error_body":
            data = self._error_data()
        if kind == "garbage":
            data = _GARBAGE
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(data)
        await response.prepare(self.request)
        if kind == "cut":
            await response.write(data[: len(data) // 2])
            return self._cut(response)
        await response.write(data)
        self._report(usage is not None and not kind)
        await response.write_eof()
        return response

    async def _stream(self) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        await response.prepare(self.request)
        try:
            await self._pieces(response)
        except Broken:
            return self._cut(response)
        await response.write_eof()
        return response

    async def _pieces(self, response: web.StreamResponse) -> None:
        for sent, data in enumerate(self._chunks()):
            if self.fault is not None and sent >= self.fault.after_chunks:
                await self._break(response, self.fault, data)
                return
            if sent:
                await asyncio.sleep(self.turn.per_chunk_s)
            await _event(response, json.dumps(data))
        usage = self.turn.usage
        if usage != "absent":
            await asyncio.sleep(self.turn.late_s if usage == "late" else 0)
            await _event(response, json.dumps(self._usage_chunk(self.counts)))
        self._report(usage != "absent")
        await _event(response, "[DONE]")

    def _chunks(self) -> Iterator[dict[str, Any]]:
        for index, delta in enumerate(wire.deltas(self.turn, self.turn_number)):
            yield wire.chunk(self.model, self.turn_number, delta)
            if index == 0 and self.turn.usage == "twice":
                prompt, _, cached = self.counts
                yield self._usage_chunk((prompt, 1, cached))
        yield wire.chunk(self.model, self.turn_number, {}, finish_reason=self.turn.ending)

    def _usage_chunk(self, counts: tuple[int, int, int]) -> dict[str, Any]:
        return wire.chunk(self.model, self.turn_number, None, usage=wire.usage_object(*counts))

    async def _break(self, response: web.StreamResponse, fault: Fault, data: dict[str, Any]) -> None:
        match fault.kind:
            case "hang":
                await asyncio.Event().wait()
            case "malformed_json":
                await _event(response, json.dumps(data)[:-9])
            case "error_body":
                await _event(response, self._error_data().decode())
            case "garbage":
                await response.write(_GARBAGE)
            case _:
                raise Broken

    def _error_data(self) -> bytes:
        if self.fault is None:
            raise AssertionError("an error is sent only for a fault")
        return json.dumps(wire.error_object(self.fault.message, self.fault.error_code)).encode()

    def _report(self, reported: bool) -> None:
        self.reported = reported
        self._note(200)

    def _cut(self, response: web.StreamResponse) -> web.StreamResponse:
        """Close the connection once what was written is out, without the end that the format asks for."""
        self._note(200)
        if self.request.transport is not None:
            self.request.transport.close()
        return response


async def _event(response: web.StreamResponse, data: str) -> None:
    await response.write(f"data: {data}\n\n".encode())


def _header(retry_after: float | str) -> str:
    return retry_after if isinstance(retry_after, str) else f"{retry_after:g}"
