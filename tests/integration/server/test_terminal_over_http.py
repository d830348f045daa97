"""Terminals by WebSocket."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest


async def _until(socket: aiohttp.ClientWebSocketResponse, wanted: bytes) -> bytes:
    seen = b""
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY:
            seen += message.data
            if wanted in seen:
                return seen
    raise AssertionError(seen)


async def _end(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async for message in socket:
        if message.type is aiohttp.WSMsgType.TEXT:
            found = json.loads(message.data)
    return found


async def test_a_terminal_is_typed_at_and_resized(api: Any, box: str) -> None:
    address = f"{api.base}/v1/sandboxes/{box}/terminal?columns=90&rows=30&shell=sh&id=t"
    async with api.http.ws_connect(address) as socket:
        assert json.loads((await socket.receive()).data) == {"type": "started", "id": "t"}
        await socket.send_bytes(b"stty size\n")
        await _until(socket, b"30 90")
        await socket.send_json({"type": "resize", "columns": 100, "rows": 40})
        await socket.send_bytes(b"stty size\n")
        await _until(socket, b"40 100")
        await socket.send_bytes(b"exit 7\n")
        end = await _end(socket)
    assert (end["type"], end["command"]["exit_code"]) == ("ended", 7)
    assert socket.close_code == 1000


async def test_one_leaves_and_joins_again(api: Any, box: str) -> None:
    async with api.http.ws_connect(f"{api.base}/v1/sandboxes/{box}/terminal?shell=sh&id=t") as socket:
        await socket.send_bytes(b"x=kept; echo se''en\n")
        await _until(socket, b"seen")
    async with api.http.ws_connect(f"{api.base}/v1/sandboxes/{box}/commands/t/terminal") as socket:
        await _until(socket, b"seen")  # what was said is said again
        await socket.send_bytes(b"echo $x-on\n")
        await _until(socket, b"kept-on")
        await socket.send_json({"type": "signal", "signal": 9})
        assert (await _end(socket))["command"]["signal"] == 9


@pytest.mark.fault("terminal-garbage")
async def test_a_control_message_that_is_none_ends_the_line_not_the_command(api: Any, box: str) -> None:
    async with api.http.ws_connect(f"{api.base}/v1/sandboxes/{box}/terminal?shell=cat&id=t") as socket:
        await socket.send_str('{"type":"explode"}')
        await _end(socket)
        assert socket.close_code == 1008
    _, view, _ = await api.ask("GET", f"/v1/sandboxes/{box}/commands/t")
    assert view["running"]


async def test_without_an_upgrade_it_says_what_it_wants(api: Any, box: str) -> None:
    _, body, _ = await api.ask("GET", f"/v1/sandboxes/{box}/terminal", status=422)
    assert body["error"]["where"] == "Upgrade"
    _, page, _ = await api.ask("GET", f"/v1/sandboxes/{box}/commands")
    assert page["items"] == []
