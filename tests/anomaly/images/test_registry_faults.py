"""Registries that fail, lie or want what is not theirs: one error that says what, and nothing is left."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import ssl
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import aiohttp.connector
import pytest
from aiohttp import web

from cloche.core.errors import ClocheError, ImageError, InvalidInput, NotFound
from cloche.core.failures import classify
from cloche.sandbox.images import ImageStore, RegistryError, RegistrySettings, build, prepare, pull
from cloche.sandbox.images.registry import client as client_module
from cloche.sandbox.images.registry import errors
from cloche.sandbox.images.registry import reference as reference_module
from cloche.sandbox.images.registry.manifests import Platform
from cloche.sandbox.images.tree import Limits
from cloche.sandbox.settings import Settings
from cloche.testing.registries import (
    OCI_INDEX_TYPE,
    OCI_MANIFEST_TYPE,
    PASSWORD,
    USER,
    FakeRegistry,
    Made,
    auth_file,
    docker_registry,
    entry,
    free_port,
    make_image,
    make_index,
    sha256,
    tar_of,
)

HERE = Platform.here().architecture
LAYER = tar_of(entry("etc/"), entry("etc/motd", "welcome\n" * 1000))
PLAIN = RegistrySettings()
Answer = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def made_of(*layers: bytes, **more: object) -> Made:
    return make_image(*(layers or (LAYER,)), architecture=HERE, **more)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.0)


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as running:
        yield running


def nothing_is_left(store: ImageStore) -> None:
    assert store.list() == ()
    assert list(store.manifests()) == []
    staging = store.settings.state_dir / "staging"
    assert not staging.exists() or list(staging.iterdir()) == []
    assert not store.settings.layers_dir.exists() or list(store.settings.layers_dir.iterdir()) == []


async def refused(store: ImageStore, name: str, code: str, **more: object) -> ClocheError:
    """Pull what cannot be had; return the error, whose code the table of failures knows."""
    with pytest.raises(ImageError) as caught:
        await pull(store, name, **{"settings": PLAIN, **more})
    assert caught.value.code == code
    assert classify(caught.value).code == code
    nothing_is_left(store)
    return caught.value


def on(part: str, answer: Callable[[web.Request], web.StreamResponse | None]) -> Answer:
    async def instead(request: web.Request) -> web.StreamResponse | None:
        return answer(request) if part in request.path else None

    return instead


@pytest.mark.fault("image-not-in-registry")
async def test_an_image_that_the_registry_does_not_have_is_not_found(
    store: ImageStore, registry: FakeRegistry
) -> None:
    registry.add("team/tool:1", made_of())
    error = await refused(store, f"{registry.host}/team/tool:2", errors.NOT_FOUND)
    assert f"{registry.host}/team/tool:2 is not in registry" in error.message
    with pytest.raises(RegistryError):
        await prepare(store, f"{registry.host}/team/other@{sha256(b'x')}")


@pytest.mark.fault("registry-refuses")
@pytest.mark.parametrize("password", [None, "wrong"])
async def test_a_registry_that_refuses_is_told_apart(
    store: ImageStore, tmp_path: Path, password: str | None
) -> None:
    with docker_registry(tmp_path) as real:
        name = real.push("secret/tool:1", made_of())
        file = auth_file(tmp_path / "auth", real.host, password=password) if password else None
        error = await refused(store, name, errors.UNAUTHORISED, settings=RegistrySettings(auth_file=file))
    assert ("with these credentials" if password else "without credentials") in error.message
    assert bool(error.hint) is (password is None)


@pytest.mark.fault("image-for-another-platform")
@pytest.mark.parametrize("indexed", [True, False])
async def test_an_image_for_another_platform_is_refused_with_what_there_is(
    store: ImageStore, registry: FakeRegistry, indexed: bool
) -> None:
    made = make_image(LAYER, architecture="riscv64")
    name = registry.add("tool:1", made)
    if indexed:
        registry.put("/v2/tool/manifests/1", make_index({"linux/riscv64": made}), OCI_INDEX_TYPE)
    error = await refused(store, name, errors.PLATFORM)
    assert error.message == f"{name} is not there for linux/{HERE}"
    assert error.hint == "it is for linux/riscv64"
    assert registry.count(made.layers[0]) == 0


@pytest.mark.fault("registry-digest-mismatch")
@pytest.mark.parametrize("what", ["layer", "longer", "config", "manifest", "header", "diff"])
async def test_content_that_is_not_what_its_digest_says_is_refused(
    store: ImageStore, registry: FakeRegistry, what: str
) -> None:
    made = made_of() if what != "diff" else made_of(diff_ids=[sha256(b"something else")])
    name = registry.add("tool:1", made)
    layer = made.layers[0]
    config = json.loads(made.manifest)["config"]["digest"]
    if what == "layer":
        other = gzip.compress(LAYER[::-1], 1)
        data = (other + bytes(len(made.blobs[layer])))[: len(made.blobs[layer])]
        registry.put(f"/v2/tool/blobs/{layer}", data, "application/octet-stream")
    elif what == "longer":
        registry.put(f"/v2/tool/blobs/{layer}", made.blobs[layer] + b"more", "application/octet-stream")
    elif what == "config":
        registry.put(f"/v2/tool/blobs/{config}", made.blobs[config][:-1] + b" ", "application/json")
    elif what == "manifest":
        registry.put(f"/v2/tool/manifests/{made.digest}", made.manifest + b" ", OCI_MANIFEST_TYPE)
        name = f"{registry.host}/tool@{made.digest}"
    elif what == "header":
        headers = {"Docker-Content-Digest": sha256(b"x"), "Content-Type": OCI_MANIFEST_TYPE}
        registry.instead = on("manifests", lambda _: web.Response(body=made.manifest, headers=headers))
    await refused(store, name, errors.DIGEST)


@pytest.mark.fault("registry-blob-truncated")
@pytest.mark.parametrize("how", ["short", "broken-off"])
async def test_a_blob_that_ends_early_is_asked_for_again_and_then_refused(
    store: ImageStore, registry: FakeRegistry, how: str
) -> None:
    made = made_of()
    name = registry.add("tool:1", made)
    layer, data = made.layers[0], made.blobs[made.layers[0]]

    async def instead(request: web.Request) -> web.StreamResponse | None:
        if layer not in request.path:
            return None
        if how == "short":
            return web.Response(body=data[:-10])
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[:50])
        assert request.transport is not None
        request.transport.close()
        return response

    registry.instead = instead
    await refused(store, name, errors.TRUNCATED)
    assert registry.count(layer) == client_module.TRIES


@pytest.mark.fault("registry-down")
@pytest.mark.parametrize("how", ["nobody-listens", "status", "hangs-up", "silent"])
async def test_a_registry_that_is_down_is_said(
    store: ImageStore, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    name = registry.add("tool:1", made_of())
    never = asyncio.Event()

    async def instead(request: web.Request) -> web.StreamResponse | None:
        if how == "status":
            return web.Response(status=503)
        if how == "silent":
            await never.wait()
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    registry.instead = instead
    if how == "nobody-listens":
        name = f"127.0.0.1:{free_port()}/tool:1"
    if how == "silent":
        defaults = client_module.RegistryClient.__init__.__kwdefaults__
        monkeypatch.setitem(defaults, "silence_timeout_s", 0.2)
    error = await refused(store, name, errors.UNAVAILABLE)
    never.set()
    assert name.partition("/")[0] in error.message
    assert classify(error).kind.retried


async def test_a_registry_that_comes_back_is_enough(store: ImageStore, registry: FakeRegistry) -> None:
    name = registry.add("tool:1", made_of())
    answers = iter([503, 502])

    async def instead(_: web.Request) -> web.StreamResponse | None:
        status = next(answers, None)
        return None if status is None else web.Response(status=status)

    registry.instead = instead
    assert (await pull(store, name, settings=PLAIN)).origin == "pulled"


@pytest.mark.fault("registry-rate-limit")
async def test_too_many_requests_are_passed_on_with_how_long_to_wait(
    store: ImageStore, registry: FakeRegistry
) -> None:
    name = registry.add("tool:1", made_of())
    registry.instead = on("manifests", lambda _: web.Response(status=429, headers={"Retry-After": "37"}))
    error = await refused(store, name, errors.RATE_LIMIT)
    assert "it asks to wait 37 s" in error.message
    assert classify(error).retry_after_s == 37
    assert registry.count("manifests") == 1


@pytest.mark.fault("pull-timeout")
async def test_a_pull_that_takes_too_long_is_ended(store: ImageStore, registry: FakeRegistry) -> None:
    made = made_of()
    name = registry.add("tool:1", made)
    never = asyncio.Event()

    async def instead(request: web.Request) -> web.StreamResponse | None:
        if made.layers[0] in request.path:
            await never.wait()
        return None

    registry.instead = instead
    error = await refused(store, name, errors.TIMEOUT, timeout_s=0.5)
    never.set()
    assert "took longer than 0.5 s" in error.message


@pytest.mark.fault("pull-cancelled")
async def test_a_cancelled_pull_leaves_nothing(store: ImageStore, registry: FakeRegistry) -> None:
    made = made_of()
    name = registry.add("tool:1", made)
    asked, never = asyncio.Event(), asyncio.Event()

    async def instead(request: web.Request) -> web.StreamResponse | None:
        if made.layers[0] in request.path:
            asked.set()
            await never.wait()
        return None

    registry.instead = instead
    task = asyncio.ensure_future(pull(store, name, settings=PLAIN))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    nothing_is_left(store)
    registry.instead = None
    never.set()
    assert (await pull(store, name, settings=PLAIN)).origin == "pulled"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[ImageStore]:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
    yield ImageStore(Settings(state_dir=place / "state", run_dir=place / "run"))
    subprocess.run(["umount", place], check=True)


@pytest.mark.fault("disk-full-pull")
@pytest.mark.parametrize("when", ["download", "unpack"])
async def test_a_full_disk_ends_a_pull_and_leaves_nothing(
    small_disk: ImageStore, registry: FakeRegistry, when: str
) -> None:
    content = os.urandom(2 << 20) if when == "download" else b"much of it\n" * 200_000
    name = registry.add("tool:1", made_of(tar_of(entry("big", content))))
    error = await refused(small_disk, name, "infra/disk_full")
    assert "no space left for images" in error.message
    assert "cloche image rm" in str(error.hint)


@pytest.mark.fault("pull-fails-for-many")
async def test_many_who_wait_for_one_pull_share_its_failure(
    store: ImageStore, registry: FakeRegistry
) -> None:
    name = f"{registry.host}/team/tool:1"
    waiting = asyncio.Event()

    async def instead(_: web.Request) -> web.StreamResponse | None:
        await waiting.wait()
        return web.Response(status=429, headers={"Retry-After": "5"})

    registry.instead = instead
    tasks = [asyncio.ensure_future(prepare(store, name)) for _ in range(20)]
    while not registry.asked:  # noqa: ASYNC110  # the registry's own doing
        await asyncio.sleep(0.01)
    waiting.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {str(result) for result in results} == {str(results[0])}
    assert {result.retry_after_s for result in results if isinstance(result, RegistryError)} == {5.0}
    assert len(registry.asked) == 1
    registry.instead = None
    registry.add("team/tool:1", made_of())
    assert (await prepare(store, name)).origin == "pulled"  # who asks later tries again


@pytest.mark.fault("name-without-registry")
@pytest.mark.parametrize("name", ["tool:1", "team/tool", "localhost/tool:1", f"tool@{sha256(b'x')}"])
async def test_a_name_without_registry_is_sent_nowhere(
    store: ImageStore, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("CLOCHE_REGISTRY", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", f"http://{registry.host}")  # would see whatever is sent
    with pytest.raises(NotFound, match="there is no image"):
        await prepare(store, name)
    with pytest.raises(InvalidInput, match="has no registry"):
        await pull(store, name)
    (tmp_path / "Dockerfile").write_text(f"FROM {name}\n")
    with pytest.raises(ImageError, match="is not here"):
        await build(store, tmp_path)
    assert registry.asked == []


@pytest.mark.fault("dockerfile-base-not-in-registry")
async def test_a_base_that_no_registry_gives_is_said_with_its_line(
    store: ImageStore, registry: FakeRegistry, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"# a comment\nFROM {registry.host}/tool:1\n")
    with pytest.raises(ImageError, match="is not in registry") as caught:
        await build(store, tmp_path)
    assert caught.value.where == f"{tmp_path}/Dockerfile:2"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for the loopback that nobody trusts, with its key in the same file."""
    file = tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    make += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", file]
    made = subprocess.run([*make, "-out", "-"], capture_output=True, check=True)
    file.write_bytes(file.read_bytes() + made.stdout)
    return file


@pytest.mark.fault("registry-certificate-not-trusted")
async def test_a_certificate_that_is_not_trusted_is_said(
    store: ImageStore, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_module, "is_loopback", lambda _: False)  # as any other host
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with FakeRegistry(tls=context) as registry:
        name = registry.add("tool:1", made_of())
        error = await refused(store, name, errors.UNAVAILABLE)
        assert "is not trusted here" in error.message
        assert registry.asked == []
        trusting = ssl.create_default_context(cafile=certificate)
        monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
        assert (await pull(store, name, settings=PLAIN)).origin == "pulled"


# --- credentials ---


@pytest.mark.fault("registry-redirects-elsewhere")
async def test_a_redirect_does_not_take_the_credential_along(
    store: ImageStore, registry: FakeRegistry, tmp_path: Path
) -> None:
    made = made_of()
    name = registry.add("tool:1", made)
    async with FakeRegistry() as elsewhere:
        elsewhere.add("tool:1", made)

        async def instead(request: web.Request) -> web.StreamResponse | None:
            if "Authorization" not in request.headers:
                return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            if "blobs" in request.path:
                location = f"http://user:pw@{elsewhere.host}{request.path}?signature=a%2Fb"
                headers = {"Location": location, "Set-Cookie": "session=secret"}
                return web.Response(status=307, headers=headers)
            return None

        registry.instead = instead
        access = RegistrySettings(auth_file=auth_file(tmp_path / "auth", registry.host))
        await pull(store, name, settings=access)
        assert {asked.path.partition("?")[2] for asked in elsewhere.asked} == {"signature=a%2Fb"}
        for asked in elsewhere.asked:
            assert not {"Authorization", "Cookie", "Proxy-Authorization"} & set(asked.headers)
    assert any("Authorization" in asked.headers for asked in registry.asked)


@pytest.mark.parametrize(
    "location",
    ["http://host.example/blob", "ftp://host.example/x", "file:///etc/passwd", "", "http://["],
)
async def test_a_redirect_to_plain_http_elsewhere_or_to_nowhere_is_refused(
    store: ImageStore, registry: FakeRegistry, location: str
) -> None:
    name = registry.add("tool:1", made_of())
    headers = {"Location": location}
    registry.instead = on("blobs", lambda _: web.Response(status=302, headers=headers))
    error = await refused(store, name, errors.NOT_UNDERSTOOD)
    assert "redirects to" in error.message


@pytest.mark.fault("registry-redirect-loop")
async def test_redirects_without_end_are_ended(store: ImageStore, registry: FakeRegistry) -> None:
    name = registry.add("tool:1", made_of())
    registry.instead = on(
        "blobs", lambda request: web.Response(status=302, headers={"Location": request.path})
    )
    error = await refused(store, name, errors.NOT_UNDERSTOOD)
    assert "redirects" in error.message


async def test_a_token_server_gets_the_credential_and_the_registry_the_token(
    store: ImageStore, registry: FakeRegistry, tmp_path: Path
) -> None:
    name = registry.add("team/tool:1", made_of())
    async with FakeRegistry() as tokens:
        tokens.put("/token", json.dumps({"token": "t0ken"}).encode(), "application/json")
        challenge = f'Bearer realm="http://{tokens.host}/token",service="reg, istry",scope="x"'

        async def instead(request: web.Request) -> web.StreamResponse | None:
            if request.headers.get("Authorization") != "Bearer t0ken":
                return web.Response(status=401, headers={"WWW-Authenticate": challenge})
            return None

        registry.instead = instead
        access = RegistrySettings(auth_file=auth_file(tmp_path / "auth", registry.host))
        await pull(store, name, settings=access)
        assert [asked.path for asked in tokens.asked] == [
            "/token?service=reg,+istry&scope=repository:team/tool:pull"
        ]
        assert tokens.asked[0].headers["Authorization"].startswith("Basic ")
    assert not any(asked.headers.get("Authorization", "").startswith("Basic") for asked in registry.asked)


@pytest.mark.fault("token-server-fails")
@pytest.mark.parametrize(
    ("realm", "body", "code"),
    [
        ("http://host.example/token", b"", errors.NOT_UNDERSTOOD),
        ("", b"", errors.NOT_UNDERSTOOD),
        ("{here}/token", b"no json", errors.NOT_UNDERSTOOD),
        ("{here}/token", b'{"token": 5}', errors.NOT_UNDERSTOOD),
        ("{here}/token", b'{"token": "a\\r\\nX-Evil: 1"}', errors.NOT_UNDERSTOOD),
        ("{here}/none", b"", errors.NOT_FOUND),
    ],
)
async def test_a_token_server_that_fails_is_said(
    store: ImageStore, registry: FakeRegistry, realm: str, body: bytes, code: str
) -> None:
    name = registry.add("tool:1", made_of())
    registry.put("/token", body, "application/json")
    challenge = f'Bearer realm="{realm.format(here=f"http://{registry.host}")}"'
    registry.instead = on(
        "manifests", lambda _: web.Response(status=401, headers={"WWW-Authenticate": challenge})
    )
    error = await refused(store, name, code)
    assert "a token for" in error.message


async def test_no_credential_is_logged_shown_or_written(
    store: ImageStore, registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    name = registry.add("tool:1", made_of())
    access = RegistrySettings(auth_file=auth_file(tmp_path / "auth", registry.host))
    secret = json.loads((tmp_path / "auth").read_text())["auths"][registry.host]["auth"]

    async def instead(request: web.Request) -> web.StreamResponse | None:
        shown = request.headers.get("Authorization")
        if shown is None:
            return web.Response(status=401, headers={"WWW-Authenticate": "Basic"})
        if "blobs" in request.path and len(registry.asked) < 5:
            return web.Response(status=403, text=shown)  # says back what it was told
        return None

    registry.instead = instead
    with pytest.raises(RegistryError) as caught:
        await pull(store, name, settings=access)
    await pull(store, name, settings=access)
    failure = classify(caught.value)
    written = b"".join(path.read_bytes() for path in store.settings.state_dir.rglob("*") if path.is_file())
    for word in (secret, PASSWORD, USER):
        assert word not in caplog.text + failure.detail + failure.message + repr(access)
        assert word.encode() not in written


@pytest.mark.fault("registry-credentials-unreadable")
@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", '{"auths": 5}', '{"auths": {"HOST": 1}}', '{"auths": {"HOST": {"auth": "?"}}}'],
)
async def test_a_file_with_credentials_that_is_damaged_is_named_and_not_shown(
    store: ImageStore, registry: FakeRegistry, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "auth"
    file.write_text(text.replace("HOST", registry.host))
    for path, message in ((file, "is not understood"), (tmp_path / "none", "is not there")):
        with pytest.raises(InvalidInput, match=message) as caught:
            await pull(store, f"{registry.host}/tool:1", settings=RegistrySettings(auth_file=path))
        assert caught.value.where == str(path)
    assert registry.asked == []


# --- answers that make no sense, and hostile layers ---


@pytest.mark.fault("registry-answers-nonsense")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[" * 100_000,
        b"{}",
        b'{"schemaVersion": 1, "fsLayers": []}',
        b'{"schemaVersion": 2, "manifests": [], "layers": []}',
        b'{"schemaVersion": 2, "layers": []}',
        b'{"schemaVersion": 2, "layers": [5], "config": {}}',
        b'{"schemaVersion": 2, "layers": [{"mediaType": "tar", "digest": "sha256:../../x", "size": 1}]}',
        b'{"schemaVersion": 2, "layers": [{"mediaType": "tar", "digest": 1, "size": 1}]}',
        b" " * ((4 << 20) + 1),
    ],
)
async def test_a_manifest_that_makes_no_sense_is_refused(
    store: ImageStore, registry: FakeRegistry, body: bytes
) -> None:
    registry.put("/v2/tool/manifests/1", body, OCI_MANIFEST_TYPE)
    await refused(store, f"{registry.host}/tool:1", errors.NOT_UNDERSTOOD)


@pytest.mark.parametrize(
    "config",
    [
        {"Env": "A=b"},
        {"Env": [1]},
        {"Cmd": {"a": 1}},
        {"User": 5},
        {"WorkingDir": "relative"},
        {"WorkingDir": ["/"]},
        {"Entrypoint": ["a\0b"]},
    ],
)
async def test_a_configuration_that_makes_no_sense_is_refused(
    store: ImageStore, registry: FakeRegistry, config: dict[str, object]
) -> None:
    await refused(store, registry.add("tool:1", made_of(config=config)), errors.NOT_UNDERSTOOD)


async def test_a_layer_for_which_no_diff_digest_is_told_is_refused(
    store: ImageStore, registry: FakeRegistry
) -> None:
    made = made_of(LAYER, LAYER, diff_ids=[sha256(LAYER)])
    await refused(store, registry.add("tool:1", made), errors.NOT_UNDERSTOOD)


def link(path: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(path, linkname=target, type=kind)


HOSTILE = {
    "dot-dot": (tar_of(entry("../victim", "x")), "leads out"),
    "absolute": (tar_of(entry("/victim", "x")), "absolute path"),
    "through-symlink": (tar_of(link("out", "/etc"), entry("out/victim", "x")), "goes through 'out'"),
    "hard-link-out": (tar_of(link("h", "../../etc/passwd", tarfile.LNKTYPE)), "leads out"),
    "device": (tar_of(entry("disk", type=tarfile.BLKTYPE)), "device node"),
    "owner": (tar_of(entry("f", uid=70_000)), "65,536 ids"),
    "whiteout-through-symlink": (tar_of(link("out", "/etc"), entry("out/.wh.passwd")), "goes through 'out'"),
    "opaque-through-symlink": (
        tar_of(link("out", "/etc"), entry("out/.wh..wh..opq")),
        "goes through 'out'",
    ),
    "whiteout-of-parent": (tar_of(entry("d/"), entry("d/.wh...")), "whiteout of nothing"),
    "whiteout-of-itself": (tar_of(entry(".wh..")), "whiteout of nothing"),
    "whiteout-without-name": (tar_of(entry(".wh.")), "whiteout of nothing"),
    "whiteout-leading-out": (tar_of(entry("../.wh.victim")), "leads out"),
    "below-a-whiteout": (tar_of(entry(".wh.d/f", "x")), "whiteout of nothing"),
    "overlay-mark": (
        tar_of(entry("d/", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})),
        "may not set",
    ),
    "no-archive": (b"x" * 4096, "not a readable archive"),
    "empty": (b"", "not a readable archive"),
    "cut-short": (LAYER[:1536], "not a readable archive|ends early"),
    "packed-twice": (gzip.compress(LAYER), "not a readable archive"),
    "long-tail": (LAYER + bytes(20 << 20), "bytes follow the archive's end"),
}


@pytest.mark.fault("hostile-layer")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_layer_that_wants_out_is_refused_by_member_and_nothing_is_left(
    store: ImageStore, registry: FakeRegistry, name: str
) -> None:
    layer, message = HOSTILE[name]
    error = await refused(store, registry.add("tool:1", made_of(layer)), "infra/image")
    assert error.message.startswith(f"layer 1 of {registry.host}/tool:1: ")
    with pytest.raises(ImageError, match=message):
        raise error
    assert not Path("/etc/victim").exists()  # noqa: ASYNC240


@pytest.mark.fault("image-too-large-to-pull")
async def test_the_layers_of_an_image_share_one_limit(store: ImageStore, registry: FakeRegistry) -> None:
    layers = [tar_of(entry(f"f{number}", bytes(600_000))) for number in range(3)]
    small = ImageStore(store.settings, limits=Limits(total_bytes=1_500_000))
    name = registry.add("tool:1", made_of(*layers))
    with pytest.raises(ImageError, match="larger than"):
        await pull(small, name, settings=PLAIN)
    assert store.list() == ()
    assert (await pull(store, name, settings=PLAIN)).origin == "pulled"


async def test_a_large_layer_is_pulled_in_little_memory(
    store: ImageStore, registry: FakeRegistry, tmp_path: Path
) -> None:
    """Both as it is sent and as it unpacks it is larger than the memory that the pull may take."""
    size = 192 << 20
    made = made_of(tar_of(entry("big", bytes(size))), pack="")
    name = registry.add("tool:1", made)
    program = (
        "import asyncio, sys\n"
        "from cloche.sandbox.images import ImageStore, pull\n"
        "from cloche.sandbox.settings import Settings\n"
        "asyncio.run(pull(ImageStore(Settings()), sys.argv[1]))\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"
    )
    env = {
        **os.environ,
        "CLOCHE_STATE_DIR": str(store.settings.state_dir),
        "CLOCHE_RUN_DIR": str(store.settings.run_dir),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, name), env=env, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    assert int(printed) << 10 < size // 2
    assert (store.resolve(name).layers[0] / "big").stat().st_size == size
