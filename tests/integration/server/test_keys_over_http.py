"""Who may do what: keys, scopes, tenants, tokens, rates, browsers, and what never shows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cloche.core.errors import InvalidInput
from cloche.server.keys import Keyring
from cloche.server.run import Listen, check_exposure
from cloche.server.settings import ServerSettings
from cloche.service.caller import Quota, Scope

BOTH = frozenset({Scope.READ, Scope.WRITE})


@pytest.fixture
def keys(state: Path) -> Keyring:
    return Keyring(state / "keys.json")


async def _code(api: Any, method: str, path: str, status: int, key: str | None, **more: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {"Authorization": ""}
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, api.base + path, headers=headers if key else None, **more) as response,
    ):
        assert response.status == status, await response.text()
        return await response.json()


@pytest.mark.fault("http-no-key")
async def test_with_keys_nobody_comes_in_without(serve: Any, keys: Keyring) -> None:
    key, made = keys.create("ada", scopes=BOTH)
    async with serve(key=key) as api:
        await api.ask("GET", "/v1/sandboxes", status=200)
        for wrong in (None, "clk_", f"clk_{made.id}_wrong", f"x{key}", "clt_abc.def", key + "A"):
            body = await _code(api, "GET", "/v1/sandboxes", 401, wrong)
            assert body["error"]["code"] == "user/unauthorised"
        await _code(api, "GET", "/healthz", 200, None)
        keys.revoke(made.id)
        keys.create("bob", scopes=BOTH)
        await api.ask("GET", "/v1/sandboxes", status=401)


async def test_a_key_that_has_run_out_is_none(serve: Any, keys: Keyring) -> None:
    key, _ = keys.create("ada", scopes=BOTH, expires_at=time.time() - 1)
    async with serve(key=key) as api:
        await api.ask("GET", "/v1/sandboxes", status=401)


@pytest.mark.fault("http-scope")
async def test_a_reading_key_changes_nothing(serve: Any, keys: Keyring) -> None:
    key, _ = keys.create("ada", scopes=BOTH)
    reader, _ = keys.create("ada", scopes=frozenset({Scope.READ}))
    async with serve(key=key) as api:
        box = await api.create()
        assert (await _code(api, "GET", f"/v1/sandboxes/{box}", 200, reader))["id"] == box
        for method, path in (
            ("POST", "/v1/sandboxes"),
            ("DELETE", f"/v1/sandboxes/{box}"),
            ("PUT", f"/v1/sandboxes/{box}/files?path=/f"),
            ("POST", f"/v1/sandboxes/{box}/commands"),
            ("POST", f"/v1/sandboxes/{box}/token"),
        ):
            body = await _code(api, method, path, 403, reader, json={})
            assert body["error"]["code"] == "user/forbidden"


@pytest.mark.fault("http-other-tenant")
async def test_what_is_anothers_is_not_there(serve: Any, keys: Keyring) -> None:
    key, _ = keys.create("ada", scopes=BOTH)
    other, _ = keys.create("bob", scopes=BOTH)
    admin, _ = keys.create("root", scopes=BOTH | {Scope.ADMIN})
    async with serve(key=key) as api:
        box = await api.create(idempotency_key="mine")
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/files?path=/etc/passwd"),
            ("GET", "/commands"),
            ("POST", "/pause"),
            ("POST", "/token"),
            ("GET", "/defaults"),
        ):
            body = await _code(api, method, f"/v1/sandboxes/{box}{path}", 404, other)
            assert body["error"]["code"] == "user/not_found"
        await _code(api, "GET", "/v1/sandboxes/by-key/mine", 404, other)
        assert (await _code(api, "GET", "/v1/sandboxes", 200, other))["items"] == []
        assert (await _code(api, "GET", f"/v1/sandboxes/{box}", 200, admin))["id"] == box


async def test_a_token_is_for_one_sandbox(serve: Any, keys: Keyring) -> None:
    key, made = keys.create("ada", scopes=BOTH)
    async with serve(key=key) as api:
        box, other = await api.create(), await api.create()
        _, view, _ = await api.ask("POST", f"/v1/sandboxes/{box}/token", status=200)
        token = view["token"]
        body = {"argv": ["echo", "hi"]}
        done = await _code(api, "POST", f"/v1/sandboxes/{box}/commands", 200, token, json=body)
        assert done["stdout"]["data"] == "hi\n"
        await _code(api, "POST", f"/v1/sandboxes/{other}/commands", 404, token, json=body)
        await _code(api, "GET", "/v1/sandboxes", 403, token)
        await _code(api, "POST", "/v1/sandboxes", 403, token, json={"image": "busybox"})
        keys.revoke(made.id)
        await _code(api, "GET", f"/v1/sandboxes/{box}", 401, token)


@pytest.mark.fault("http-too-fast")
async def test_a_key_that_asks_too_fast_is_told_when_to_ask_again(serve: Any, keys: Keyring) -> None:
    key, _ = keys.create("ada", scopes=BOTH, quota=Quota(requests_per_s=0.001))
    async with serve(key=key) as api:
        await api.ask("GET", "/v1/sandboxes", status=200)
        _, body, response = await api.ask("GET", "/v1/sandboxes", status=429)
        assert body["error"]["code"] == "user/rate"
        assert 900 <= int(response.headers["Retry-After"]) <= 1000
        await api.ask("GET", "/healthz", status=200)


@pytest.mark.fault("http-web-page")
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-origin"}, {"Host": "evil.example"}],
)
async def test_a_page_in_a_browser_does_not_reach_a_service_without_keys(
    api: Any, headers: dict[str, str]
) -> None:
    _, body, _ = await api.ask("GET", "/v1/sandboxes", headers=headers, status=403)
    assert body["error"]["code"] == "user/forbidden"


@pytest.mark.fault("serve-exposed")
def test_beyond_this_machine_only_with_a_key(state: Path, keys: Keyring) -> None:
    settings = ServerSettings(state_dir=state)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(InvalidInput) as caught:
            check_exposure(Listen(host=host), settings)
        assert "cloche key create" in str(caught.value.hint)
    for host in ("127.0.0.1", "::1", "localhost", None):
        check_exposure(Listen(host=host, unix=Path("/x") if host is None else None), settings)
    keys.create("ada", scopes=BOTH)
    check_exposure(Listen(host="0.0.0.0"), settings)


def _kept(state: Path) -> bytes:
    """Return what the service has written, but for the secret that it signs with."""
    return b"".join(
        path.read_bytes()
        for path in state.rglob("*")  # nothing else runs meanwhile
        if path.is_file() and path.name != "secret"
    )


def _audit(state: Path) -> str:
    return (state / "audit.jsonl").read_text()


def _open_to_others(state: Path) -> list[Path]:
    return [path for path in state.rglob("*") if path.stat().st_mode & 0o077]


async def test_no_secret_is_in_any_file_or_log(
    serve: Any,
    keys: Keyring,
    state: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    canary = "canary-7f3a9"
    key, _ = keys.create("ada", scopes=BOTH)
    async with serve(key=key) as api:
        box = await api.create(env={"SECRET": canary})
        _, view, _ = await api.ask("POST", f"/v1/sandboxes/{box}/token", status=200)
        await api.run(box, f"echo {canary}", env={"MORE": canary}, stdin="")
        await api.ask("PUT", f"/v1/sandboxes/{box}/files?path=/{canary}", data=canary.encode(), status=200)
        await api.ask("POST", f"/v1/sandboxes/{box}/commands", json={"shell": canary, "x": 1}, status=422)
        await api.ask("GET", f"/v1/sandboxes/{box}/nothing/{canary}", status=404)
        await api.ask("GET", f"/v1/sandboxes/{box}", status=401, headers={"Authorization": f"Bearer {key}x"})
        _, metrics, _ = await api.ask("GET", "/metrics", status=200)
    kept = b"".join(
        path.read_bytes()
        for path in state.rglob("*")  # noqa: ASYNC240  # nothing else runs meanwhile
        if path.is_file() and path.name != "secret"
    )
    out, err = capfd.readouterr()
    said = kept + metrics + out.encode() + err.encode() + caplog.text.encode()
    assert b"create_sandbox" in said
    for secret in (canary, key, key.rpartition("_")[2], view["token"]):
        assert secret.encode() not in said
    assert _open_to_others(state) == []


async def test_the_audit_log_says_who_did_what(serve: Any, keys: Keyring, state: Path) -> None:
    key, made = keys.create("ada", scopes=BOTH)
    async with serve(key=key) as api:
        box = await api.create(labels={"task": "fix", "private": "x"})
        await api.ask(
            "POST",
            f"/v1/sandboxes/{box}/commands",
            json={"argv": ["true"], "id": "c1"},
            headers={"X-Request-ID": "mine-1"},
            status=200,
        )
        await api.ask("DELETE", "/v1/sandboxes/sb-none", status=404)
    lines = [json.loads(line) for line in _audit(state).splitlines()]
    assert [(line["what"], line["status"]) for line in lines] == [
        ("create_sandbox", 202),
        ("start_command", 200),
        ("delete_sandbox", 404),
    ]
    assert {line["key"] for line in lines} == {made.id}
    assert (lines[1]["request"], lines[1]["command"], lines[1]["labels"]) == ("mine-1", "c1", {"task": "fix"})
    assert lines[2]["code"] == "user/not_found"
