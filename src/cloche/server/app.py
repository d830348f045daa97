"""The aiohttp application: every route of the table, and what is said of paths that are not in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from cloche.core.errors import NotFound
from cloche.server.audit import Audit
from cloche.server.call import Context
from cloche.server.dispatch import entry, request_id_of
from cloche.server.errors import WrongMethod, answer
from cloche.server.gate import Gate
from cloche.server.keys import Keyring
from cloche.server.metrics import Metrics
from cloche.server.openapi import encoded
from cloche.server.routes import ROUTES
from cloche.server.secrets import Signer, read_or_make_secret
from cloche.server.settings import ServerSettings
from cloche.server.stopping import Stopping
from cloche.service.service import SandboxService


def make_context(service: SandboxService, settings: ServerSettings) -> Context:
    """Return what the requests of a service share. Raises EnvironmentUnusable for an open secret."""
    secret = read_or_make_secret(settings.secret_file)
    audit = Audit(settings.audit_file, max_bytes=settings.audit_max_bytes, files=settings.audit_files)
    return Context(
        service=service,
        settings=settings,
        gate=Gate(Keyring(settings.keys_file), Signer(secret, "token")),
        links=Signer(secret, "link"),
        audit=audit,
        metrics=Metrics(),
        stopping=Stopping(),
        document=encoded(ROUTES),
    )


def make_app(context: Context) -> web.Application:
    """Return the application over a service that is started."""
    app = web.Application(client_max_size=context.settings.body_max_bytes)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, entry(context, route))
    app.router.add_route("*", "/{path:.*}", _unknown(app))
    return app


def _unknown(app: web.Application) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def enter(request: web.Request) -> web.StreamResponse:
        methods: set[str] = set()
        for resource in list(app.router.resources())[:-1]:
            _, some = await resource.resolve(request)
            methods |= some
        request_id = request_id_of(request)
        if not methods:
            return answer(
                NotFound(f"there is nothing at {request.path[:200]}", hint="GET /openapi.json"), request_id
            )
        response = answer(WrongMethod(f"{request.method} is not for {request.path[:200]}"), request_id)
        response.headers["Allow"] = ", ".join(sorted(methods))
        return response

    return enter
