"""Requests to a service that answers badly: what is sent again, what never, and what the caller is told."""

from __future__ import annotations

import asyncio
import json as codec
from collections.abc import Awaitable
from typing import Any

import pytest
from aiohttp import web

from cloche.api.models import ForkBody, NetworkBody, SnapshotBody, State
from cloche.client.errors import class_of
from cloche.client.http import guest
from cloche.client.http.backend import HttpBackend
from cloche.client.request import request
from cloche.client.target import Service
from cloche.core.errors import (
    ClocheError,
    EnvironmentUnusable,
    ImageError,
    InfraError,
    InvalidInput,
    NotFound,
    PlanRefused,
    SandboxLost,
)

from .conftest import Scripted, error, hang_up, json


@pytest.mark.fault("answer-lost")
@pytest.mark.parametrize(
    "act",
    [
        lambda backend: backend.pause("sb-1"),
        lambda backend: backend.resume("sb-1"),
        lambda backend: backend.fork("sb-1", ForkBody(count=2)),
        lambda backend: backend.snapshot("sb-1", SnapshotBody()),
    ],
)
async def test_what_could_act_twice_is_sent_once(server: Scripted, backend: HttpBackend, act: Any) -> None:
    server.says(hang_up)
    with pytest.raises(InfraError) as caught:
        await act(backend)
    assert caught.value.code == "infra/transport"
    assert len(server.asked) == 1


@pytest.mark.fault("create-answer-lost")
async def test_a_create_is_sent_again_with_its_key(
    server: Scripted, backend: HttpBackend, view: dict[str, Any]
) -> None:
    server.says(hang_up, json(view, 202))
    body = request("busybox:1")
    made = await backend.create(body)
    creates = [codec.loads(data) for method, path, _, data in server.asked if path == "/v1/sandboxes"]
    assert made.id == "sb-1"
    assert [item["idempotency_key"] for item in creates] == [body.idempotency_key] * 2
    assert creates[0] == creates[1]


async def test_a_create_without_a_key_is_sent_once(server: Scripted, backend: HttpBackend) -> None:
    server.says(hang_up)
    with pytest.raises(InfraError):
        await backend.create(request("busybox:1").model_copy(update={"idempotency_key": None}))
    assert sum(path == "/v1/sandboxes" for _, path, _, _ in server.asked) == 1


@pytest.mark.fault("service-stopping")
async def test_what_was_not_heard_is_sent_again_whatever_it_is(
    server: Scripted, backend: HttpBackend, view: dict[str, Any]
) -> None:
    server.says(error(503, "infra/stopping"), error(429, "user/rate"), json(view))
    assert (await backend.pause("sb-1")).id == "sb-1"
    assert len(server.asked) == 3


async def test_a_look_is_repeated_over_lost_answers_and_gateways(
    server: Scripted, backend: HttpBackend, view: dict[str, Any]
) -> None:
    async def gateway(_: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>")

    server.says(hang_up, gateway, json(view))
    assert (await backend.get("sb-1")).state is State.READY


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "user/not_found", NotFound),
        (422, "user/invalid_input", InvalidInput),
        (422, "plan/capability_missing", PlanRefused),
        (503, "doctor/unusable", EnvironmentUnusable),
        (502, "infra/sandbox_lost", SandboxLost),
        (502, "infra/image_pull_timeout", ImageError),
        (502, "infra/disk_full", InfraError),
        (418, "other/thing", ClocheError),
    ],
)
async def test_errors_are_the_same_classes_as_here(
    server: Scripted, backend: HttpBackend, status: int, code: str, kind: type[ClocheError]
) -> None:
    server.says(error(status, code, hint="do that", where="network.allow.0"))
    with pytest.raises(ClocheError) as caught:
        await backend.get("sb-1")
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.hint, caught.value.where) == (code, "do that", "network.allow.0")
    assert caught.value.message == "it is so"
    assert len(server.asked) == 1, "cloche itself has spoken: asking again changes nothing"


def test_a_code_has_the_class_of_what_it_refines() -> None:
    assert class_of("infra/sandbox_lost") is SandboxLost
    assert class_of("infra/image_digest") is ImageError
    assert class_of("") is ClocheError


@pytest.mark.fault("service-away")
async def test_a_service_that_nobody_runs_is_said_with_its_address() -> None:
    backend = HttpBackend(Service("http://127.0.0.1:9", patience_s=0.2))
    with pytest.raises(InfraError, match=r"http://127\.0\.0\.1:9 cannot be reached") as caught:
        await backend.pause("sb-1")
    assert caught.value.hint is not None
    await backend.close()


@pytest.mark.fault("redirect-with-key")
async def test_no_redirect_is_followed(server: Scripted, backend: HttpBackend) -> None:
    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(server.url + "/elsewhere")

    server.says(elsewhere)
    with pytest.raises(InfraError, match="307"):
        await backend.get("sb-1")
    assert [path for _, path, _, _ in server.asked] == ["/v1/sandboxes/sb-1"]


@pytest.mark.fault("client-side-ceiling")
async def test_no_request_has_a_limit_of_the_clients_own(backend: HttpBackend) -> None:
    """A client library's own default (five minutes) must not end what may take longer."""
    timeout = backend._session._http.timeout
    assert (timeout.total, timeout.sock_read) == (None, None)


async def test_an_answer_that_makes_no_sense_is_an_error(server: Scripted, backend: HttpBackend) -> None:
    server.says(json({"id": 3}))
    with pytest.raises(InfraError) as caught:
        await backend.get("sb-1")
    assert caught.value.code == "infra/protocol"


async def test_the_key_goes_along_and_unsaid_fields_do_not(server: Scripted, backend: HttpBackend) -> None:
    server.says(json({"mode": "none"}))
    await backend.set_network("../x", NetworkBody(mode="none"))
    method, path, headers, data = server.asked[0]
    assert (method, path, headers["Authorization"]) == (
        "PUT",
        "/v1/sandboxes/../x/network",
        "Bearer clk_secret",
    )
    assert codec.loads(data) == {"mode": "none"}


# ---- events and waiting ----


def _stream(*events: dict[str, Any], then: Awaitable[object] | None = None) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": it lives\n\n")
        for event in events:
            text = f"id: {event['seq']}\nevent: state\ndata: {codec.dumps(event)}\n\n"
            await response.write(text.encode())
        if then is not None:
            await then
        return response

    return answer


def _event(seq: int, state: str, sandbox_id: str = "sb-1") -> dict[str, Any]:
    return {"seq": seq, "at": 1.0, "id": sandbox_id, "state": state}


@pytest.mark.fault("event-stream-breaks")
async def test_a_stream_that_breaks_goes_on_behind_the_last_event(
    server: Scripted, backend: HttpBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloche.client.http.backend._AGAIN_S", 0.01)
    server.says(_stream(_event(1, "queued"), _event(2, "starting")), hang_up, _stream(_event(3, "ready")))
    seen = []
    events = backend.events(ids=["sb-1"])
    async for event in events:
        seen.append(event.state.value)
        if event.state is State.READY:
            break
    await events.aclose()
    assert seen == ["queued", "starting", "ready"]
    assert [headers.get("Last-Event-ID") for _, _, headers, _ in server.asked] == [None, "2", "2"]


@pytest.mark.fault("event-lost")
async def test_a_wait_ends_though_its_event_never_came(
    server: Scripted, backend: HttpBackend, view: dict[str, Any]
) -> None:
    looks = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal looks
        if request.path == "/v1/events":
            return await _stream(then=asyncio.Event().wait())(request)
        looks += 1
        return web.json_response({**view, "state": "starting" if looks < 4 else "ready"})

    server.says(answer)
    assert (await backend.wait("sb-1", {State.READY})).state is State.READY
    assert looks == 4


async def test_many_waits_share_one_stream(
    server: Scripted, backend: HttpBackend, view: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloche.client.http.watch.FIRST_LOOK_S", 60.0)
    ready, asked = asyncio.Event(), asyncio.Event()
    looked: set[str] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/events":
            response = web.StreamResponse()
            await response.prepare(request)
            await asked.wait()
            ready.set()
            for seq in range(200):
                await response.write(f"data: {codec.dumps(_event(seq, 'ready', f'sb-{seq}'))}\n\n".encode())
            await asyncio.Event().wait()
        looked.add(request.path)
        if len(looked) == 200:
            asked.set()
        state = "ready" if ready.is_set() else "queued"
        return web.json_response({**view, "id": request.path.rpartition("/")[2], "state": state})

    server.says(answer)
    views = await asyncio.gather(*(backend.wait(f"sb-{seq}", {State.READY}) for seq in range(200)))
    assert {item.state for item in views} == {State.READY}
    assert sum(path == "/v1/events" for _, path, _, _ in server.asked) == 1


# ---- the way to a guest ----


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(404, "user/not_found"), NotFound),
        (error(502, "infra/sandbox_lost"), SandboxLost),
        (json({}, 200), InfraError),
        (hang_up, InfraError),
    ],
)
async def test_a_guest_that_cannot_be_reached_is_told_as_the_service_tells_it(
    server: Scripted, answer: Any, kind: type[ClocheError]
) -> None:
    server.says(answer)
    with pytest.raises(kind):
        await guest.connect(Service(server.url, "clk_secret"), "sb-1")
    assert server.asked[0][2]["Upgrade"] == "cloche-guest"


@pytest.mark.fault("guest-upgrade-garbage")
@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\0" * 70000, b""])
async def test_what_is_no_http_is_an_error_and_no_hang(said: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    with pytest.raises(InfraError) as caught:
        await guest.connect(Service(f"http://127.0.0.1:{port}"), "sb-1")
    assert caught.value.code == "infra/transport"
    other.close()
    await other.wait_closed()
