"""Asks the gateway's process for policies. Must never take an answer for more than it says."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloche.core.errors import ClocheError, InfraError, InvalidInput, NotFound
from cloche.sandbox.driver import Denial
from cloche.sandbox.native.net.control import LINE_BYTES_MAX, SOCKET
from cloche.sandbox.native.net.members import policy_json, read_policy
from cloche.sandbox.spec import NetworkPolicy, Unit

_TIMEOUT_S = 20.0
_RETRY_S = 0.05
_KINDS: dict[str, type[ClocheError]] = {"user/not_found": NotFound, "user/invalid_input": InvalidInput}


async def set_policy(
    run_dir: Path, sandbox_id: str, policy: NetworkPolicy, entries: Sequence[str], unit: Unit | None
) -> NetworkPolicy:
    """Give a sandbox a policy; return what the kernel holds. ``entries``: its list, presets spelled out."""
    said = await _ask(
        run_dir,
        {
            "do": "set",
            "id": sandbox_id,
            "policy": policy_json(policy),
            "entries": list(entries),
            "unit": unit and {"id": unit.id, "name": unit.name, "members": unit.members},
        },
    )
    return read_policy(said["policy"])


async def read_policy_of(run_dir: Path, sandbox_id: str) -> NetworkPolicy:
    """Return the policy that holds, once the kernel was looked at."""
    return read_policy((await _ask(run_dir, {"do": "get", "id": sandbox_id}))["policy"])


async def denials_of(run_dir: Path, sandbox_id: str) -> list[Denial]:
    """Return what was refused of late, the oldest first."""
    said = await _ask(run_dir, {"do": "denials", "id": sandbox_id})
    return [Denial(**denial) for denial in said["denials"]]


async def _ask(run_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Ask once; only connecting is tried again, for the process may be being replaced."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await _connect(run_dir)
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                line = await reader.readline()
            finally:
                writer.close()
    except TimeoutError as error:
        raise InfraError("the gateway of networks does not answer", code="infra/network_policy") from error
    if not line:
        raise InfraError("the gateway of networks ended meanwhile", code="infra/network_policy")
    said: dict[str, Any] = json.loads(line)
    if "error" in said:
        raise _KINDS.get(said["code"], InfraError)(said["error"], hint=said["hint"], code=said["code"])
    return said


async def _connect(run_dir: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        folder = os.open(run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return await asyncio.open_unix_connection(
                f"/proc/self/fd/{folder}/{SOCKET}", limit=LINE_BYTES_MAX
            )
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(_RETRY_S)
        finally:
            os.close(folder)
