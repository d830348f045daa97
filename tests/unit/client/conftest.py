"""A server that answers as a test says, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from cloche.client.http.backend import HttpBackend
from cloche.client.target import Service

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scripted:
    """Plays answers in turn, the last one for ever, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, dict(request.headers), await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    def says(self, *answers: Answer) -> None:
        self.answers = list(answers)


def json(body: Any, status: int = 200, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return answer


def error(status: int, code: str, **more: str) -> Answer:
    body = {"code": code, "domain": code.partition("/")[0], "message": "it is so", **more}
    return json({"error": body}, status, **({"Retry-After": "0"} if status in {429, 503} else {}))


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without a word: the request was heard, the answer is lost."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield scripted
    await runner.cleanup()


@pytest_asyncio.fixture
async def backend(server: Scripted) -> AsyncIterator[HttpBackend]:
    made = HttpBackend(Service(server.url, "clk_secret", patience_s=2.0))
    yield made
    await made.close()


@pytest.fixture
def view() -> dict[str, Any]:
    return {"id": "sb-1", "state": "ready", "times": {"queued": 1.0}, "image": "busybox:1"}
