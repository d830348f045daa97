"""One request on its way through the service: who asks, for what, and how it is answered.

Must never be kept beyond its request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from aiohttp import web
from pydantic import BaseModel

from cloche.api.models import Request
from cloche.sandbox.handle import Sandbox
from cloche.server.audit import Audit
from cloche.server.errors import TooLarge, WrongMediaType
from cloche.server.gate import Gate
from cloche.server.metrics import Metrics
from cloche.server.secrets import Signer
from cloche.server.settings import ServerSettings
from cloche.server.stopping import Stopping
from cloche.service.caller import LOCAL, Caller, Scope
from cloche.service.service import SandboxService

B = TypeVar("B", bound=BaseModel)
Q = TypeVar("Q", bound=Request)


@dataclass(slots=True, kw_only=True)
class Context:
    """What all requests of a service share."""

    service: SandboxService
    settings: ServerSettings
    gate: Gate
    links: Signer
    audit: Audit
    metrics: Metrics
    stopping: Stopping
    document: bytes = b""
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation: the row that routing, the document and the page of the API are all made from.

    ``scope`` None asks for no key. ``body`` is a model, or the media type of raw bytes; so is ``answer``.
    ``holds``: it goes on when its client leaves. ``quiet``: it is not in the audit log.
    """

    method: str
    path: str
    name: str
    says: str
    handler: Callable[[Call], Awaitable[web.StreamResponse]]
    scope: Scope | None = Scope.WRITE
    query: type[Request] | None = None
    body: type[BaseModel] | str | None = None
    body_optional: bool = False
    answer: type[BaseModel] | str | None = None
    status: int = 200
    also: Mapping[int, str] = field(default_factory=dict)
    holds: bool = False
    quiet: bool = False


class Call:
    """See the module."""

    __slots__ = ("caller", "context", "labels", "more", "request", "request_id", "route", "started")

    def __init__(self, context: Context, route: Route, request: web.Request, request_id: str) -> None:
        self.context = context
        self.route = route
        self.request = request
        self.request_id = request_id
        self.caller: Caller = LOCAL
        self.labels: Mapping[str, str] = {}
        self.more: dict[str, str | int] = {}
        self.started = False

    # ---- what is asked ----

    @property
    def service(self) -> SandboxService:
        """The service."""
        return self.context.service

    @property
    def id(self) -> str:
        """The sandbox's id in the path."""
        return self.request.match_info["id"]

    @property
    def cid(self) -> str:
        """The command's id in the path."""
        return self.request.match_info["cid"]

    async def handle(self) -> Sandbox:
        """Return the live sandbox of the path."""
        sandbox = await self.context.service.handle(self.id, self.caller)
        self.labels = sandbox.spec.labels
        return sandbox

    def query(self, model: type[Q]) -> Q:
        """Return what stands behind the ``?``. Raises ValidationError."""
        raw = self.request.rel_url.raw_query_string
        values: dict[str, Any] = {}
        for name, value in parse_qsl(raw, keep_blank_values=True, errors="surrogateescape") if raw else ():
            if _is_many(model, name):
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
        return model.model_validate(values)

    async def body(self, model: type[B]) -> B:
        """Return the JSON body. Raises ValidationError, TooLarge or WrongMediaType."""
        if self.request.body_exists:
            self.check_type("application/json")
            data = await self.raw(self.context.settings.body_max_bytes)
        else:
            data = b""
        if not data and self.route.body_optional:
            return model.model_validate({})
        return model.model_validate_json(data)

    def check_type(self, wanted: str) -> None:
        """Raise WrongMediaType unless the body is of this type."""
        given = self.request.headers.get("Content-Type", "")
        kind = given.partition(";")[0].strip().lower()
        if kind != wanted:
            raise WrongMediaType(f"the body is {kind or 'of no type'}, and {wanted} is wanted")

    async def raw(self, limit: int) -> bytes:
        """Return a small body. Raises TooLarge."""
        length = self.request.content_length
        data = bytearray()
        if length is None or length <= limit:
            async for piece in self.request.content.iter_any():
                data += piece
                if len(data) > limit:
                    break
            else:
                return bytes(data)
        # nobody reads the rest: what it is part of ends with this answer
        raise TooLarge(f"the body has more than {limit} bytes", hint="send less, or as raw bytes of a file")

    # ---- the answer ----

    def json(self, answer: BaseModel, status: int | None = None) -> web.Response:
        """Return a model as the answer."""
        return web.Response(
            status=status or self.route.status,
            body=answer.__pydantic_serializer__.to_json(answer),
            headers={"Content-Type": "application/json", "X-Request-ID": self.request_id},
        )

    def nothing(self) -> web.Response:
        """Return an answer without a body."""
        return web.Response(status=204, headers={"X-Request-ID": self.request_id})

    async def stream(
        self,
        media: str,
        *,
        status: int = 200,
        length: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> web.StreamResponse:
        """Begin an answer that is sent piece by piece; from here on an error can only cut it off."""
        response = web.StreamResponse(
            status=status,
            headers={"Content-Type": media, "X-Request-ID": self.request_id, **(headers or {})},
        )
        if length is not None:
            response.content_length = length
        self.started = True
        await response.prepare(self.request)
        return response


_MANY: dict[tuple[type[Request], str], bool] = {}


def _is_many(model: type[Request], name: str) -> bool:
    known = _MANY.get((model, name))
    if known is None:
        field_ = model.model_fields.get(name)
        if field_ is None:
            return False  # refused below, and not remembered: clients choose these
        known = _MANY[model, name] = getattr(field_.annotation, "__origin__", None) is tuple
    return known
