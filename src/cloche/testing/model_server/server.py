"""The HTTP side of the scripted model: which script, which turn, which fault.

The turn is the number of answers that the request's conversation holds already, so the same request gets
the same answer however often it comes. Must never keep a conversation; what it keeps is the ledger, and how
often a fault that happens a limited number of times has happened.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from cloche.testing.model_server import wire
from cloche.testing.model_server.delivery import Delivery
from cloche.testing.model_server.ledger import Entry, Ledger
from cloche.testing.model_server.script import Fault, Script, find_script
from cloche.testing.model_server.tokens import cached_tokens, prompt_tokens

REQUEST_LIMIT_BYTES = 64 << 20
_BACKLOG = 4096
_SHUTDOWN_S = 0.25


class _Refused(Exception):
    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


class ScriptedModelServer:
    """Serves scripts over HTTP while it is entered.

    ``port`` 0 takes a free one. With ``api_key`` every request needs it as its bearer token.
    """

    def __init__(
        self,
        scripts: Iterable[Script],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
    ) -> None:
        self._scripts = tuple(scripts)
        self._host = host
        self._port = port
        self._api_key = api_key
        self._faults_done: Counter[tuple[str, str, int]] = Counter()
        self._runner: web.AppRunner | None = None
        self.ledger = Ledger()

    @property
    def base_url(self) -> str:
        """What a client appends ``/chat/completions`` to."""
        return f"{self.url}/v1"

    @property
    def url(self) -> str:
        """Where ``/ledger`` is."""
        if self._runner is None:
            raise RuntimeError("the server is used outside its `async with`")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._runner.addresses[0][1]}"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=REQUEST_LIMIT_BYTES)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/ledger", self._show_ledger)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, backlog=_BACKLOG).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        models = sorted({script.model for script in self._scripts})
        rows = [
            {"id": name, "object": "model", "created": wire.CREATED, "owned_by": "script"} for name in models
        ]
        return web.json_response({"object": "list", "data": rows})

    async def _show_ledger(self, request: web.Request) -> web.Response:
        return web.json_response(self.ledger.as_dict())

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked: Mapping[str, Any] = {}
        try:
            asked = await self._read(request)
            script, number = self._place(asked)
        except _Refused as refused:
            finish = self.ledger.begin(str(asked.get("model", "")), "")
            finish(
                Entry(
                    model=str(asked.get("model", "")),
                    conversation="",
                    turn=0,
                    status=refused.status,
                    reported=False,
                )
            )
            value = wire.error_object(refused.message, refused.code, "invalid_request_error")
            return web.json_response(value, status=refused.status)
        turn = script.turns[number]
        delivery = Delivery(
            request=request,
            model=script.model,
            conversation=script.name,
            turn=turn,
            turn_number=number,
            streamed=bool(asked.get("stream")),
            counts=(prompt_tokens(asked), wire.completion_tokens(turn), cached_tokens(asked)),
            finish=self.ledger.begin(script.model, script.name),
            fault=self._fault(script, number),
        )
        return await delivery.deliver()

    async def _read(self, request: web.Request) -> Mapping[str, Any]:
        if self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            raise _Refused(401, "the key is missing or wrong", "invalid_api_key")
        try:
            asked = json.loads(await request.read())
        except (ValueError, RecursionError) as error:
            raise _Refused(400, f"the request is not JSON: {error}", "invalid_json") from error
        if not isinstance(asked, dict) or not isinstance(asked.get("model"), str):
            raise _Refused(400, "`model` is missing or is not text", "invalid_model")
        messages = asked.get("messages")
        if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
            raise _Refused(400, "`messages` is missing or is not a list of objects", "invalid_messages")
        return asked

    def _place(self, asked: Mapping[str, Any]) -> tuple[Script, int]:
        model, messages = asked["model"], asked["messages"]
        if all(script.model != model for script in self._scripts):
            raise _Refused(404, f"the model `{model}` does not exist", "model_not_found")
        users = [item.get("content") for item in messages if item.get("role") == "user"]
        first = users[0] if users else None
        text = first if isinstance(first, str) else json.dumps(first, ensure_ascii=False)
        try:
            script = find_script(self._scripts, model, text)
        except LookupError as error:
            raise _Refused(422, str(error), "no_script") from error
        _check_pairs(messages)
        number = sum(item.get("role") == "assistant" for item in messages)
        if number >= len(script.turns):
            raise _Refused(422, f"the script {script.name} ends after {number} turns", "script_ended")
        return script, number

    def _fault(self, script: Script, number: int) -> Fault | None:
        fault = script.turns[number].fault
        key = (script.model, script.name, number)
        if fault is None or (fault.times and self._faults_done[key] >= fault.times):
            return None
        self._faults_done[key] += 1
        return fault


def _check_pairs(messages: list[dict[str, Any]]) -> None:
    """Refuse, as real endpoints do, a conversation whose calls and results do not belong together."""
    open_calls: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in open_calls:
                raise _Refused(400, f"no call before it has the id {call_id!r}", "invalid_tool_message")
            open_calls.discard(call_id)
            continue
        if open_calls:
            raise _Refused(400, f"calls without a result: {sorted(open_calls)}", "missing_tool_message")
        for call in message.get("tool_calls") or ():
            try:
                json.loads(call["function"]["arguments"])
                open_calls.add(str(call["id"]))
            except (KeyError, TypeError, ValueError) as error:
                raise _Refused(400, f"invalid function arguments: {error}", "invalid_tool_call") from error
    if open_calls:
        raise _Refused(400, f"calls without a result: {sorted(open_calls)}", "missing_tool_message")
