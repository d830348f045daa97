"""The gateway's socket (``network.sock`` in the run folder): policies set and read by the processes of root.

One JSON object a line each way. The folder lets nobody else in. Must never answer before the kernel was
asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloche.core.errors import ClocheError
from cloche.sandbox.native.net.members import policy_json, read_policy, read_unit
from cloche.sandbox.native.net.warden import Warden

SOCKET = "network.sock"
LINE_BYTES_MAX = 4 << 20


def answer(warden: Warden, request: dict[str, Any]) -> dict[str, Any]:
    """Do what one request asks for. Raises ClocheError."""
    handlers: dict[str, Callable[[Warden, dict[str, Any]], dict[str, Any]]] = {
        "set": _set,
        "get": _get,
        "denials": _denials,
    }
    return handlers[request["do"]](warden, request)


def _set(warden: Warden, request: dict[str, Any]) -> dict[str, Any]:
    policy = warden.set(
        request["id"], read_policy(request["policy"]), request["entries"], read_unit(request["unit"])
    )
    return {"policy": policy_json(policy)}


def _get(warden: Warden, request: dict[str, Any]) -> dict[str, Any]:
    return {"policy": policy_json(warden.verified(request["id"]))}


def _denials(warden: Warden, request: dict[str, Any]) -> dict[str, Any]:
    return {"denials": [asdict(denial) for denial in warden.by_id(request["id"]).denials]}


async def serve_client(warden: Warden, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            try:
                said = answer(warden, json.loads(line))
            except ClocheError as error:
                said = {"error": error.message, "code": error.code, "hint": error.hint}
            except (ValueError, KeyError, TypeError, OSError) as error:
                said = {"error": f"{type(error).__name__}: {error}", "code": "infra/internal", "hint": ""}
            writer.write(json.dumps(said).encode() + b"\n")
            await writer.drain()
    writer.close()


def listener(run_dir: Path) -> socket.socket:
    """Return the listening socket; its path may be longer than an address can be."""
    folder = os.open(run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (run_dir / SOCKET).unlink(missing_ok=True)
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.bind(f"/proc/self/fd/{folder}/{SOCKET}")
    finally:
        os.close(folder)
    opened.listen(512)
    opened.setblocking(False)
    return opened
