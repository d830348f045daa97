"""A service over real sandboxes, spoken to over HTTP as a client would."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from cloche.core.errors import NotFound
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import PreparedImage
from cloche.server.run import Listen, Running, open_service
from cloche.server.settings import ServerSettings
from cloche.service.service import SandboxService
from cloche.testing.sandboxes import busybox_image, driver, nothing_is_left, settings

__all__ = ["busybox_image", "driver", "nothing_is_left", "settings"]


@dataclass
class OneImage:
    """Knows one image by the name ``busybox``."""

    image: PreparedImage

    async def resolve(self, name: str) -> PreparedImage:
        if name != "busybox":
            raise NotFound(f"there is no image {name}")
        return self.image


@dataclass
class Api:
    """A client of the service; deletes at the end what it made."""

    http: aiohttp.ClientSession
    running: Running
    made: list[str] = field(default_factory=list)

    @property
    def base(self) -> str:
        return self.running.addresses[-1]

    async def ask(
        self, method: str, path: str, *, status: int | None = None, **more: Any
    ) -> tuple[int, Any, aiohttp.ClientResponse]:
        async with self.http.request(method, self.base + path, **more) as response:
            data = await response.read()
            if status is not None:
                assert response.status == status, (response.status, data[:2000])
            kind = response.headers.get("Content-Type", "")
            value = await response.json() if "json" in kind and data else data
            assert response.headers["X-Request-ID"]
            return response.status, value, response

    async def create(self, **body: Any) -> str:
        _, view, _ = await self.ask("POST", "/v1/sandboxes", json={"image": "busybox", **body}, status=202)
        self.made.append(view["id"])
        _, view, _ = await self.ask("GET", f"/v1/sandboxes/{view['id']}/wait?timeout_s=60", status=200)
        assert view["state"] == "ready", view
        return str(view["id"])

    async def run(self, box: str, shell: str, **more: Any) -> Any:
        body = {"shell": shell, **more}
        return (await self.ask("POST", f"/v1/sandboxes/{box}/commands", json=body))[1]


Open = Callable[..., Any]


@pytest_asyncio.fixture
async def serve(settings: Settings, busybox_image: PreparedImage, tmp_path: Path) -> AsyncIterator[Open]:
    """Open services, each as a context that is left before the fixture ends."""

    @contextlib.asynccontextmanager
    async def open_(*, key: str | None = None, **more: Any) -> AsyncIterator[Api]:
        local = LocalDriver(settings)
        service = SandboxService(local, OneImage(busybox_image))
        own = ServerSettings(state_dir=tmp_path / "server", **more)
        running = await open_service(service, own, Listen(port=0))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with aiohttp.ClientSession(headers=headers, auto_decompress=False) as http:
                api = Api(http, running)
                try:
                    yield api
                finally:
                    for box in api.made:
                        await local.delete(box)
        finally:
            await running.stop()
            await local.close()

    yield open_


@pytest_asyncio.fixture
async def api(serve: Open) -> AsyncIterator[Api]:
    """A service without keys, and a client of it."""
    async with serve() as opened:
        yield opened


@pytest_asyncio.fixture
async def box(api: Api) -> str:
    """A sandbox that is ready."""
    return await api.create()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The folder of the service's own files."""
    return tmp_path / "server"
