"""Requests to a service: typed answers, typed errors, and which of them may be sent again.

A request is sent again when it cannot have been heard (nobody listened, or the service said that it did
nothing), or when hearing it twice changes nothing. Must never set a limit on how long an answer may take:
how long a command runs is the command's business.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from cloche import __version__
from cloche.api.models import ErrorBody
from cloche.client.errors import error_of, transport_error
from cloche.client.target import Service
from cloche.core.errors import ClocheError, InfraError

CONNECTIONS_MAX = 128
CONNECT_TIMEOUT_S = 15.0
LOOK_TIMEOUT_S = 60.0
"""How long an answer to a mere look may take before it is asked again; it never ends what goes on."""

_KEEP_ALIVE_S = 15.0  # less than the service's, so that it does not close one that is just being used
_FIRST_WAIT_S = 0.1
_WAIT_MAX_S = 2.0
_NOT_HEARD = {"infra/stopping", "user/rate"}
_GATEWAY = {502, 503, 504}
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))

A = TypeVar("A", bound=BaseModel)
Query = Mapping[str, str] | list[tuple[str, str]]


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice that the other machine is gone, within about 35 seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _socket(info: Any) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    keep_alive(made)
    return made


def headers_of(service: Service) -> dict[str, str]:
    """Return what every request says about its sender."""
    headers = {"User-Agent": f"cloche/{__version__}"}
    if service.key:
        headers["Authorization"] = f"Bearer {service.key}"
    return headers


class Refused(Exception):
    """The answer is an error. ``unheard``: the service did nothing. ``gateway``: it never spoke itself."""

    def __init__(
        self,
        error: ClocheError,
        *,
        unheard: bool = False,
        gateway: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.unheard = unheard
        self.gateway = gateway
        self.retry_after_s = retry_after_s


class Session:
    """One pool of connections to one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.base = (service.url or "").rstrip("/")
        connector = aiohttp.TCPConnector(
            limit=CONNECTIONS_MAX, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=_socket
        )
        self._http = aiohttp.ClientSession(
            connector=connector,
            headers=headers_of(service),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            trust_env=False,  # a sandbox's service is reached directly; a proxy would see the key
        )

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[A],
        *,
        body: BaseModel | None = None,
        query: Query | None = None,
        again: bool = False,
    ) -> A:
        """Send a request and return the answer; ``again`` says that it may be heard twice."""
        data = await self.send(method, path, body=body, query=query, again=again)
        try:
            return answer.model_validate_json(data)
        except ValidationError as error:
            raise InfraError(f"{method} {path}: the answer makes no sense", code="infra/protocol") from error

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | None = None,
        query: Query | None = None,
        again: bool = False,
    ) -> bytes:
        """Like ``ask``, for an answer of any kind."""
        began, wait_s = time.monotonic(), _FIRST_WAIT_S
        error: ClocheError
        while True:
            try:
                return await self._once(method, path, body, query, again=again)
            except Refused as refused:
                error, least_s = refused.error, refused.retry_after_s or 0.0
                repeat = refused.unheard or (again and refused.gateway)
            except aiohttp.ClientConnectorError as failed:
                error, least_s = transport_error(f"{self.base} cannot be reached", failed), 0.0
                repeat = True
            except (aiohttp.ClientError, TimeoutError, OSError) as failed:
                error, least_s = transport_error(f"{method} {path} was not answered", failed), 0.0
                repeat = again
            wait_s = max(wait_s, least_s)
            if not repeat or time.monotonic() - began + wait_s > self.service.patience_s:
                raise error
            await asyncio.sleep(wait_s * (0.75 + random.random() / 2))  # noqa: S311  # spreads, hides nothing
            wait_s = min(wait_s * 2, _WAIT_MAX_S)

    async def _once(
        self, method: str, path: str, body: BaseModel | None, query: Query | None, *, again: bool
    ) -> bytes:
        data = None if body is None else body.model_dump_json(exclude_unset=True).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        async with (
            asyncio.timeout(LOOK_TIMEOUT_S if again and method == "GET" else None),
            self._http.request(
                method, self.base + path, data=data, params=query, headers=headers, allow_redirects=False
            ) as response,
        ):
            payload = await response.read()
            if response.status >= 300:
                raise refusal(response.status, response.headers, payload)
            return payload

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query, headers: Mapping[str, str], quiet_s: float
    ) -> AsyncGenerator[aiohttp.StreamReader]:
        """Open an answer that goes on; TimeoutError when nothing at all comes for ``quiet_s``."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=quiet_s)
        async with self._http.get(
            self.base + path, params=query, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status >= 300:
                raise refusal(response.status, response.headers, await response.read())
            yield response.content

    async def close(self) -> None:
        """Let go of all connections."""
        await self._http.close()


def refusal(status: int, headers: Mapping[str, str], payload: bytes) -> Refused:
    """Return what an answer that is an error says."""
    after = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    after_s = float(after) if after.isdecimal() else None
    try:
        body = ErrorBody.model_validate(json.loads(payload)["error"])
    except (ValueError, KeyError, TypeError):
        error = InfraError(f"the answer is {status}, and not from cloche", code="infra/transport")
        return Refused(error, gateway=status in _GATEWAY, retry_after_s=after_s)
    return Refused(error_of(body, after_s), unheard=body.code in _NOT_HEARD, retry_after_s=after_s)
