"""The service as a whole: sandboxes, events, errors, hostile bodies, document, figures, health."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cloche.server.openapi import document, table
from cloche.server.routes import ROUTES

ROOT = Path(__file__).resolve().parents[3]


async def test_a_sandbox_is_made_found_listed_and_ended(api: Any) -> None:
    body = {"image": "busybox", "labels": {"task": "a"}, "idempotency_key": "k/1"}
    _, view, response = await api.ask("POST", "/v1/sandboxes", json=body, status=202)
    box = view["id"]
    api.made.append(box)
    assert response.headers["Location"] == f"/v1/sandboxes/{box}"
    _, again, _ = await api.ask("POST", "/v1/sandboxes", json=body, status=202)
    assert again["id"] == box
    await api.ask("POST", "/v1/sandboxes", json={**body, "labels": {}}, status=409)
    assert (await api.ask("GET", "/v1/sandboxes/by-key/k%2F1", status=200))[1]["id"] == box
    await api.ask("GET", f"/v1/sandboxes/{box}/wait?state=ready&timeout_s=60", status=200)
    _, page, _ = await api.ask("GET", "/v1/sandboxes?label=task=a&state=ready", status=200)
    assert [item["id"] for item in page["items"]] == [box]
    assert (await api.ask("GET", "/v1/sandboxes?label=task=b", status=200))[1]["items"] == []
    _, gone, _ = await api.ask("DELETE", f"/v1/sandboxes/{box}", status=200)
    assert (gone["state"], gone["end"]) == ("ended", "deleted")
    _, same, _ = await api.ask("DELETE", f"/v1/sandboxes/{box}", status=200)
    assert same["end"] == "deleted"
    _, body, _ = await api.ask("POST", f"/v1/sandboxes/{box}/commands", json={"argv": ["true"]})
    assert body["error"]["code"] == "infra/sandbox_lost"


async def test_a_batch_answers_each_for_itself(api: Any) -> None:
    create = [{"image": "busybox"}, {"image": "none"}, {"image": "busybox"}]
    _, view, _ = await api.ask("POST", "/v1/sandboxes/batch", json={"create": create}, status=200)
    ids = [item["sandbox"]["id"] for item in view["created"]]
    api.made += ids
    found = [(await api.ask("GET", f"/v1/sandboxes/{one}/wait?timeout_s=60"))[1] for one in ids]
    assert [one["state"] for one in found] == ["ready", "ended", "ready"]
    assert found[1]["error"]["code"] == "user/not_found"
    _, view, _ = await api.ask("POST", "/v1/sandboxes/batch", json={"delete": [*ids, "sb-none"]}, status=200)
    assert view["deleted"][3]["error"]["code"] == "user/not_found"
    assert view["deleted"][0]["sandbox"]["state"] == "ended"


async def test_events_come_and_are_resumed(api: Any) -> None:
    async with api.http.get(f"{api.base}/v1/events") as response:
        box = await api.create()
        first = await _event(response, lambda event: event["id"] == box)
        ready = await _event(response, lambda event: event["id"] == box and event["state"] == "ready")
    headers = {"Last-Event-ID": str(first["seq"])}
    async with api.http.get(f"{api.base}/v1/events?id={box}", headers=headers) as response:
        again = await _event(response, lambda event: event["state"] == "ready")
    assert again == ready
    assert ready["seq"] > first["seq"]


async def _event(response: aiohttp.ClientResponse, wanted: Any) -> Any:
    while line := await response.content.readline():
        if line.startswith(b"data:"):
            event = json.loads(line[5:])
            if wanted(event):
                return event
    raise AssertionError("the stream ended")


async def test_what_commands_get_by_default_and_what_can_be_done(api: Any) -> None:
    box = await api.create(env={"A": "1"}, workdir="/opt", user="user")
    _, view, _ = await api.ask("GET", f"/v1/sandboxes/{box}/defaults", status=200)
    assert (view["env"]["A"], view["workdir"], view["user"]) == ("1", "/opt", "user")
    _, able, _ = await api.ask("GET", "/v1/capabilities", status=200)
    assert able["driver"] == "local"
    _, view, _ = await api.ask("POST", f"/v1/sandboxes/{box}/extend", json={"ttl_s": 60}, status=200)
    await api.ask("POST", f"/v1/sandboxes/{box}/heartbeat", status=204)
    await api.ask("POST", f"/v1/sandboxes/{box}/pause", status=200)
    await api.ask("POST", f"/v1/sandboxes/{box}/resume", status=200)
    assert (await api.run(box, "pwd; id -un"))["stdout"]["data"] == "/opt\nuser\n"


@pytest.mark.fault("http-hostile-body")
@pytest.mark.parametrize(
    ("data", "kind", "status", "where"),
    [
        (b"{", "application/json", 422, None),
        (b"[]", "application/json", 422, None),
        (b"\xff\xfe", "application/json", 422, None),
        (b"", "application/json", 422, None),
        (b'{"image":"busybox","colour":1}', "application/json", 422, "colour"),
        (b'{"image":"busybox","resources":{"pids":0}}', "application/json", 422, "resources.pids"),
        (b'{"image":"busybox","sidecars":{"a":{"image":7}}}', "application/json", 422, "sidecars.a.image"),
        (b'{"image":"busybox"}', "text/plain", 415, None),
        (b'{"image":"busybox"}', "", 415, None),
        (b" " * 4096, "application/json", 413, None),
        (b"[" * 2000, "application/json", 422, None),
    ],
)
async def test_a_body_that_is_not_one_is_refused_with_its_field(
    serve: Any, data: bytes, kind: str, status: int, where: str | None
) -> None:
    async with serve(body_max_bytes=2048) as api:
        headers = {"Content-Type": kind}
        _, body, _ = await api.ask("POST", "/v1/sandboxes", data=data, headers=headers, status=status)
        assert body["error"]["where"] == where
        assert body["error"]["code"].startswith("user/")
        assert (await api.ask("GET", "/v1/sandboxes", status=200))[1]["items"] == []


async def test_a_body_without_an_end_is_cut_off(serve: Any) -> None:
    async def endless() -> Any:
        while True:
            yield b" " * 65536

    async with serve(body_max_bytes=1 << 20) as api:
        headers = {"Content-Type": "application/json"}
        try:
            status, _, _ = await api.ask("POST", "/v1/sandboxes", data=endless(), headers=headers)
            assert status == 413
        except aiohttp.ClientConnectionError:
            pass  # the line was closed before the answer could be read
        await api.ask("GET", "/healthz", status=200)


async def test_paths_and_methods_that_are_not_there(api: Any) -> None:
    _, body, _ = await api.ask("GET", "/v2/nothing", status=404)
    assert body["error"]["hint"] == "GET /openapi.json"
    _, body, response = await api.ask("PATCH", "/v1/sandboxes", status=405)
    assert body["error"]["code"] == "user/method"
    assert response.headers["Allow"] == "GET, POST"


async def test_a_requests_id_is_kept_where_it_is_one(api: Any) -> None:
    _, _, response = await api.ask("GET", "/healthz", headers={"X-Request-ID": "abc-1"})
    assert response.headers["X-Request-ID"] == "abc-1"
    _, _, response = await api.ask("GET", "/healthz", headers={"X-Request-ID": "a b\tc"})
    assert response.headers["X-Request-ID"].startswith("r-")


async def test_the_document_is_the_tables(api: Any) -> None:
    _, served, _ = await api.ask("GET", "/openapi.json", status=200)
    assert served == json.loads(json.dumps(document(ROUTES)))
    operations = {(method.upper(), path) for path, item in served["paths"].items() for method in item}
    assert operations == {(route.method, route.path) for route in ROUTES}


def test_the_page_of_the_api_is_the_tables() -> None:
    assert table(ROUTES) in (ROOT / "docs" / "api.md").read_text()


async def test_figures_are_prometheus_text_with_bounded_labels(api: Any, box: str) -> None:
    await api.run(box, "true")
    for number in range(20):
        await api.ask("GET", f"/v1/sandboxes/sb-{number}", status=404)
    _, data, response = await api.ask("GET", "/metrics", status=200)
    lines = data.decode().splitlines()
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'cloche_sandboxes{state="ready"} 1' in lines
    assert "cloche_commands_total 1" in lines
    assert 'cloche_errors_total{code="user/not_found"} 20' in lines
    assert 'cloche_request_seconds_count{operation="start_command"} 1' in lines
    assert "sb-" not in data.decode()


@pytest.mark.fault("service-not-ready")
@pytest.mark.parametrize("broken", ["driver", "audit", "store", "running"])
async def test_ready_fails_when_a_part_is_broken_and_names_it(
    api: Any, broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, view, _ = await api.ask("GET", "/readyz", status=200)
    assert view["ready"]
    context = api.running.context
    if broken == "driver":
        context.service._keeper._watching.cancel()
        await asyncio.wait([context.service._keeper._watching])
    elif broken == "audit":
        context.audit.close()
        context.audit._path = Path("/proc/no/audit.jsonl")
        await api.ask("POST", "/v1/sandboxes", json={"image": 1}, status=422)
    elif broken == "store":
        monkeypatch.setattr("cloche.server.health._FREE_MIN", 1.1)
    else:
        context.stopping.begin()
    _, view, _ = await api.ask("GET", "/readyz", status=503)
    assert [name for name, good in view["checks"].items() if not good] == [broken]
    await api.ask("GET", "/healthz", status=200)


@pytest.mark.fault("service-stops-while-asked")
async def test_a_stop_hands_back_what_waits(api: Any, box: str) -> None:
    command = asyncio.create_task(
        api.ask("POST", f"/v1/sandboxes/{box}/commands", json={"argv": ["sleep", "600"], "id": "s"})
    )
    waiting = asyncio.create_task(api.ask("GET", f"/v1/sandboxes/{box}/wait?state=paused&timeout_s=600"))
    async with (
        api.http.get(f"{api.base}/v1/events") as events,
        api.http.ws_connect(f"{api.base}/v1/sandboxes/{box}/terminal?shell=cat") as terminal,
    ):
        await terminal.receive()
        await api.run(box, "true")
        api.running.context.stopping.begin()
        assert (await command)[0] == 202
        assert (await waiting)[1]["state"] == "ready"
        assert b"event: closing" in await events.content.read()
        while not terminal.closed:
            await terminal.receive()
        assert terminal.close_code == 1001
    _, body, response = await api.ask("GET", "/v1/sandboxes", status=503)
    assert (body["error"]["code"], response.headers["Retry-After"]) == ("infra/stopping", "1")
