"""Registries for tests: Debian's own on loopback, one that can be told to fail, and images for both.

Must never listen on anything but loopback, nor need a network.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import shutil
import socket
import ssl
import subprocess
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from cloche.core.errors import EnvironmentUnusable

USER = "tester"
PASSWORD = "pass word:1"  # noqa: S105  # of a registry that lives as long as a test
_HTPASSWD = (
    "tester:$2y$05$PiLmlG9AxuQQMan/4DS/ruLxknXzCRKasQVdU28fkD8QVY4.ZLrmK\n"  # bcrypt, which is all it takes
)
_START_TIMEOUT_S = 20.0

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_CONFIG_TYPES = {
    MANIFEST_TYPE: "application/vnd.docker.container.image.v1+json",
    OCI_MANIFEST_TYPE: "application/vnd.oci.image.config.v1+json",
}
_LAYER_TYPES = {
    (MANIFEST_TYPE, "gzip"): "application/vnd.docker.image.rootfs.diff.tar.gzip",
    (MANIFEST_TYPE, "zstd"): "application/vnd.oci.image.layer.v1.tar+zstd",
    (MANIFEST_TYPE, ""): "application/vnd.docker.image.rootfs.diff.tar",
    (OCI_MANIFEST_TYPE, "gzip"): "application/vnd.oci.image.layer.v1.tar+gzip",
    (OCI_MANIFEST_TYPE, "zstd"): "application/vnd.oci.image.layer.v1.tar+zstd",
    (OCI_MANIFEST_TYPE, ""): "application/vnd.oci.image.layer.v1.tar",
}


def sha256(data: bytes) -> str:
    """Return a digest as registries write it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


# --- images ---


def entry(path: str, content: bytes | str | None = None, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member: a folder if ``path`` ends in ``/``, a symlink with ``linkname``, else a file."""
    info = tarfile.TarInfo(path.rstrip("/"))
    info.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
    info.mode = 0o755 if path.endswith("/") else 0o644
    if "linkname" in more:
        info.type = tarfile.SYMTYPE
    for name, value in more.items():
        setattr(info, name, value)
    data = content.encode() if isinstance(content, str) else content or b""
    info.size = len(data)
    return info, data


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return an uncompressed archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def packed(plain: bytes, how: str) -> bytes:
    """Compress with ``gzip``, ``zstd`` or not at all."""
    if how == "gzip":
        return gzip.compress(plain, 1, mtime=0)
    if how == "zstd":
        return subprocess.run(["zstd", "-qc"], input=plain, stdout=subprocess.PIPE, check=True).stdout
    return plain


@dataclass(frozen=True, slots=True)
class Made:
    """An image in memory: its manifest and the blobs that this names."""

    manifest: bytes
    media_type: str
    blobs: Mapping[str, bytes]
    layers: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return sha256(self.manifest)


def make_image(
    *layers: bytes,
    config: Mapping[str, Any] | None = None,
    architecture: str = "amd64",
    pack: str = "gzip",
    media_type: str = OCI_MANIFEST_TYPE,
    diff_ids: Sequence[str] | None = None,
) -> Made:
    """Make an image of uncompressed layers, the lowest first. ``diff_ids`` may lie."""
    blobs = [packed(layer, pack) for layer in layers]
    said = {
        "os": "linux",
        "architecture": architecture,
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids or map(sha256, layers))},
    }
    text = json.dumps(said).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": _descriptor(_CONFIG_TYPES[media_type], text),
        "layers": [_descriptor(_LAYER_TYPES[media_type, pack], blob) for blob in blobs],
    }
    named = {sha256(blob): blob for blob in (text, *blobs)}
    return Made(json.dumps(manifest).encode(), media_type, named, tuple(map(sha256, blobs)))


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": sha256(data), "size": len(data)}


def make_index(images: Mapping[str, Made]) -> bytes:
    """Make an index: platform (``linux/arm64``) → image."""
    rows = []
    for platform, made in images.items():
        system, architecture, *variant = platform.split("/")
        said = {"os": system, "architecture": architecture, **({"variant": variant[0]} if variant else {})}
        rows.append({**_descriptor(made.media_type, made.manifest), "platform": said})
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX_TYPE, "manifests": rows}).encode()


# --- Debian's registry ---


@dataclass(frozen=True, slots=True)
class DockerRegistry:
    """A running ``docker-registry``. ``host`` is what names begin with; ``authorization`` opens it."""

    host: str
    authorization: str

    def push(self, name: str, made: Made) -> str:
        """Push an image as ``repository:tag``; return its whole name."""
        repository, _, tag = name.partition(":")
        for digest, data in made.blobs.items():
            self._push_blob(repository, digest, data)
        self.put_manifest(repository, tag, made.manifest, made.media_type)
        return f"{self.host}/{name}"

    def push_index(self, name: str, images: Mapping[str, Made]) -> str:
        """Push an index with its images; return the index's digest."""
        repository, _, tag = name.partition(":")
        for made in images.values():
            self.push(f"{repository}:{made.digest}", made)
        return self.put_manifest(repository, tag, make_index(images), OCI_INDEX_TYPE)

    def put_manifest(self, repository: str, version: str, data: bytes, media_type: str) -> str:
        """Push a manifest under a tag or its digest; return its digest."""
        self._request("PUT", f"/v2/{repository}/manifests/{version}", data, media_type, expected=201)
        return sha256(data)

    def _push_blob(self, repository: str, digest: str, data: bytes) -> None:
        place = self._request("POST", f"/v2/{repository}/blobs/uploads/", b"", "", expected=202)
        path = "/" + place.split("/", 3)[3] if "://" in place else place
        self._request("PUT", f"{path}&digest={digest}", data, "application/octet-stream", expected=201)

    def _request(self, method: str, path: str, data: bytes, media_type: str, *, expected: int) -> str:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            headers = {"Authorization": self.authorization, "Content-Type": media_type}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
            if response.status != expected:
                raise OSError(f"{method} {path}: {response.status} {text[:500]!r}")
            return response.headers.get("Location", "")
        finally:
            connection.close()


@contextmanager
def docker_registry(folder: Path) -> Iterator[DockerRegistry]:
    """Run Debian's registry with its data below ``folder``, behind USER and PASSWORD."""
    authorization = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    program = shutil.which("docker-registry")
    if program is None:
        raise EnvironmentUnusable("docker-registry is not installed", hint="apt-get install docker-registry")
    host = f"127.0.0.1:{free_port()}"
    (folder / "htpasswd").write_text(_HTPASSWD)
    (folder / "config.yml").write_text(_configuration(folder, host))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        _wait_for(host, process)
        yield DockerRegistry(host, authorization)
    finally:
        process.kill()
        process.wait()


def _configuration(folder: Path, host: str) -> str:
    value = {
        "version": "0.1",
        "log": {"accesslog": {"disabled": True}, "level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}},
    }
    return json.dumps(value)  # which is YAML too


def auth_file(path: Path, host: str, user: str = USER, password: str = PASSWORD) -> Path:
    """Write a file with credentials as Docker writes it."""
    secret = base64.b64encode(f"{user}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": secret}}}))
    return path


def free_port() -> int:
    """Return a port of the loopback that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for(host: str, process: subprocess.Popen[bytes]) -> None:
    name, _, port = host.partition(":")
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((name, int(port)), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


# --- a registry that can be told to fail ---


@dataclass(slots=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class FakeRegistry:
    """A registry in this process. ``instead`` may answer in its place; None lets it answer itself."""

    images: dict[str, Made] = field(default_factory=dict)
    documents: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    instead: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
    tls: ssl.SSLContext | None = None
    server: TestServer | None = None

    async def __aenter__(self) -> FakeRegistry:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.server = TestServer(app, host="127.0.0.1", scheme="https" if self.tls else "http")
        await self.server.start_server(ssl=self.tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.server is not None:
            await self.server.close()

    @property
    def host(self) -> str:
        """What names begin with."""
        port = None if self.server is None else self.server.port
        return f"127.0.0.1:{port}"

    def add(self, name: str, made: Made) -> str:
        """Have an image as ``repository:tag``; return its whole name."""
        repository, _, tag = name.partition(":")
        self.images[repository] = made
        for version in (tag, made.digest):
            self.documents[f"/v2/{repository}/manifests/{version}"] = (made.manifest, made.media_type)
        for digest, data in made.blobs.items():
            self.documents[f"/v2/{repository}/blobs/{digest}"] = (data, "application/octet-stream")
        return f"{self.host}/{name}"

    def put(self, path: str, data: bytes, media_type: str) -> None:
        """Have any document at a path."""
        self.documents[path] = (data, media_type)

    def count(self, part: str) -> int:
        """Return how many requests had this in their path."""
        return sum(part in asked.path for asked in self.asked)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request.method, request.path_qs, dict(request.headers)))
        if self.instead is not None:
            answer = await self.instead(request)
            if answer is not None:
                return answer
        found = self.documents.get(request.path)
        if found is None:
            return web.json_response({"errors": [{"code": "NOT_FOUND"}]}, status=404)
        return web.Response(body=found[0], content_type=found[1])
