"""Terminals by WebSocket: bytes as binary frames both ways, control as JSON in text frames.

From the client: ``{"type": "resize", "columns": 80, "rows": 24}``, ``{"type": "signal", "signal": 2}``,
``{"type": "eof"}``. To it: ``started`` and ``ended``. Codes of the close: 1000 the command is over, 1001 the
service is stopping (join again by the command's id), 1003 and 1008 what came is not understood. A client that
leaves does not end the command. Must never hold more than one piece for a client that does not read.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import Field, TypeAdapter, ValidationError

from cloche.api.models import Request, ResizeBody, SignalBody
from cloche.api.queries import AttachQuery, TerminalQuery
from cloche.core.errors import ClocheError, InvalidInput
from cloche.core.ids import new_id
from cloche.sandbox.handle import Process, Sandbox
from cloche.sandbox.spec import Command, Terminal
from cloche.server.call import Call
from cloche.server.commands import INLINE_BYTES
from cloche.server.shapes import completed_view

_MESSAGE_BYTES_MAX = 1 << 20
_HEARTBEAT_S = 30.0
_Close = tuple[WSCloseCode, bytes]
_SHELL = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi"


class _Resize(ResizeBody):
    type: Literal["resize"]


class _Signal(SignalBody):
    type: Literal["signal"]


class _Eof(Request):
    type: Literal["eof"]


_CONTROL: TypeAdapter[_Resize | _Signal | _Eof] = TypeAdapter(
    Annotated[_Resize | _Signal | _Eof, Field(discriminator="type")]
)


def _check_upgrade(call: Call) -> None:
    if not web.WebSocketResponse().can_prepare(call.request).ok:
        raise InvalidInput("this is a WebSocket", hint="connect with a WebSocket client", where="Upgrade")


async def start(call: Call) -> web.StreamResponse:
    """``GET …/terminal``, upgraded: a new command on a terminal."""
    query = call.query(TerminalQuery)
    _check_upgrade(call)
    command = Command(
        id=query.id or new_id("c"),
        shell=query.shell or _SHELL,
        user=query.user,
        cwd=query.cwd,
        env={"TERM": "xterm-256color"},
        interactive=True,
        terminal=Terminal(columns=query.columns, rows=query.rows),
    )
    sandbox = await call.handle()
    call.more["command"] = command.id
    call.context.metrics.commands += 1
    await sandbox.start(command)
    return await _converse(call, sandbox, command.id, 0)


async def attach(call: Call) -> web.StreamResponse:
    """``GET …/commands/{cid}/terminal``, upgraded: join one that runs, or look at one that is over."""
    query = call.query(AttachQuery)
    _check_upgrade(call)
    sandbox = await call.handle()
    return await _converse(call, sandbox, call.cid, query.offset)


async def _converse(call: Call, sandbox: Sandbox, command_id: str, offset: int) -> web.StreamResponse:
    socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, max_msg_size=_MESSAGE_BYTES_MAX, compress=False)
    socket.headers["X-Request-ID"] = call.request_id
    process = sandbox.process(command_id, cap_bytes=INLINE_BYTES)
    output = process.output("stdout", offset)
    call.started = True
    await socket.prepare(call.request)
    call.context.metrics.streams["terminal"] += 1

    async def outwards() -> _Close:
        async for chunk in output:
            await socket.send_bytes(chunk.data)
        view = completed_view(await process.wait(on_output=lambda _: None))
        shown = view.model_dump_json(exclude={"stdout", "stderr"})
        await socket.send_str(f'{{"type":"ended","command":{shown}}}')
        return WSCloseCode.OK, b"the command is over"

    async def stopping() -> _Close:
        await call.context.stopping.begun.wait()
        return WSCloseCode.GOING_AWAY, b"the service is stopping; join again"

    tasks = [asyncio.create_task(part) for part in (outwards(), _inwards(socket, process), stopping())]
    try:
        await socket.send_json({"type": "started", "id": command_id})
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        code, message = _reason(next(iter(done)))
    finally:
        call.context.metrics.streams["terminal"] -= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        process.leave_input()
    await socket.close(code=code, message=message)
    return socket


def _reason(done: asyncio.Task[_Close]) -> _Close:
    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, ValidationError):
        return WSCloseCode.POLICY_VIOLATION, b"this control message is not understood"
    if isinstance(error, ClocheError):
        return WSCloseCode.INTERNAL_ERROR, error.message.encode()[:120]
    raise error


async def _inwards(socket: web.WebSocketResponse, process: Process) -> _Close:
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            try:
                await process.write(message.data)
            except InvalidInput:
                continue  # its input is closed: what is left of it ends by itself, and that is told
        elif message.type is WSMsgType.TEXT:
            match _CONTROL.validate_json(message.data):
                case _Resize(columns=columns, rows=rows):
                    await process.resize(columns, rows)
                case _Signal(signal=number):
                    await process.signal(number)
                case _Eof():
                    await process.close_stdin()
    return WSCloseCode.OK, b""
