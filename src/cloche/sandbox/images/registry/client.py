"""Requests to one repository of one registry (OCI distribution specification 1.1, pull).

Must never send a credential anywhere but to the registry itself and the token server that it names, nor
follow a redirect from TLS to plain HTTP, nor hold more of a blob in memory than one piece.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

import cloche
from cloche.sandbox.images.registry import errors, manifests
from cloche.sandbox.images.registry.challenge import Challenge, challenges, wait_asked_s
from cloche.sandbox.images.registry.credentials import Credentials
from cloche.sandbox.images.registry.errors import RegistryError
from cloche.sandbox.images.registry.manifests import Descriptor
from cloche.sandbox.images.registry.reference import Reference, RegistrySettings, is_loopback, plain_allowed
from cloche.sandbox.images.tools import in_thread

T = TypeVar("T")

MANIFEST_BYTES_MAX = 4 << 20
CONFIG_BYTES_MAX = 16 << 20
TOKEN_BYTES_MAX = 1 << 20
CHUNK_BYTES = 1 << 20
REDIRECTS_MAX = 5
TRIES = 3
FIRST_WAIT_S = 0.5
CONNECT_TIMEOUT_S = 15.0
SILENCE_TIMEOUT_S = 60.0
CONNECTIONS_MAX = 8

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ACCEPT = ", ".join((*manifests.MANIFESTS, *manifests.INDEXES))


@dataclass(frozen=True, slots=True)
class Answer:
    """A manifest or index as it came: its bytes, what type the registry calls it, its digest."""

    data: bytes
    media_type: str
    digest: str


@dataclass(slots=True)
class Authorisation:
    """What the registry gets to see in ``Authorization``; never part of a text."""

    value: str = field(default="", repr=False)


class RegistryClient:
    """Reads manifests and blobs of one repository. An async context manager."""

    def __init__(
        self,
        reference: Reference,
        settings: RegistrySettings,
        credentials: Credentials | None,
        *,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._reference = reference
        self._credentials = credentials
        self._base = reference.base(settings)
        self._authorisation = Authorisation()
        self._authorising = asyncio.Lock()
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_timeout_s
        )
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RegistryClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            cookie_jar=aiohttp.DummyCookieJar(),  # else a redirect's host could be told what another set
            timeout=self._timeout,
            auto_decompress=False,  # digests are of what is sent
            headers={"User-Agent": f"cloche/{cloche.__version__}", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    # --- what is read ---

    async def manifest(self, version: str) -> Answer:
        """Return the manifest or index of a tag or digest, checked against every digest that is known."""
        what = str(self._reference) if version == self._reference.version else f"manifest {version[:19]}…"

        async def once() -> Answer:
            async with self._answered(f"manifests/{version}", what, _ACCEPT) as response:
                data = await self._small(response, MANIFEST_BYTES_MAX, what)
                told = response.headers.get("Docker-Content-Digest", "")
                media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
            for digest in (version, told):
                if digest.startswith("sha256:"):
                    manifests.check_digest(what, data, digest)
            return Answer(data, media_type, manifests.sha256(data))

        return await self._patiently(once)

    async def config(self, wanted: Descriptor) -> bytes:
        """Return an image's configuration, checked."""
        what = f"the configuration of {self._reference}"
        if wanted.size_bytes > CONFIG_BYTES_MAX:
            raise RegistryError(errors.NOT_UNDERSTOOD, f"{what} is larger than {CONFIG_BYTES_MAX} bytes")

        async def once() -> bytes:
            async with self._answered(f"blobs/{wanted.digest}", what) as response:
                data = await self._small(response, wanted.size_bytes, what)
            if len(data) != wanted.size_bytes:
                raise _truncated(what, len(data), wanted.size_bytes)
            manifests.check_digest(what, data, wanted.digest)
            return data

        return await self._patiently(once)

    async def blob(self, wanted: Descriptor, target: Path) -> None:
        """Write a blob to a new file, piece by piece; it is complete and checked when this returns.

        Raises RegistryError, and OSError when the disk is full.
        """
        what = f"blob {wanted.digest[:19]}… of {self._reference}"

        async def once() -> None:
            with target.open("wb") as file:
                async with self._answered(f"blobs/{wanted.digest}", what) as response:
                    await self._stream(response, file, wanted, what)

        await self._patiently(once)

    async def _stream(
        self, response: aiohttp.ClientResponse, file: BinaryIO, wanted: Descriptor, what: str
    ) -> None:
        digest = hashlib.sha256()
        received = 0

        def keep(pieces: list[bytes], check: Callable[[], None]) -> None:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
                check()

        async with aclosing(self._pieces(response, what)) as chunks:
            async for pieces in chunks:
                received += sum(map(len, pieces))
                if received > wanted.size_bytes:
                    raise RegistryError(
                        errors.DIGEST, f"{what} is larger than the {wanted.size_bytes} bytes told"
                    )
                await in_thread(partial(keep, pieces))
        if received != wanted.size_bytes:
            raise _truncated(what, received, wanted.size_bytes)
        file.flush()
        if digest.hexdigest() != wanted.digest.removeprefix("sha256:"):
            raise RegistryError(errors.DIGEST, f"{what} is not what its digest says")

    async def _pieces(self, response: aiohttp.ClientResponse, what: str) -> AsyncGenerator[list[bytes], None]:
        """Yield what came, gathered so that a thread is not started for each packet."""
        gathered: list[bytes] = []
        size = 0
        with self._trouble(what):
            async for piece in response.content.iter_any():
                gathered.append(piece)
                size += len(piece)
                if size >= CHUNK_BYTES:
                    yield gathered
                    gathered, size = [], 0
        if gathered:
            yield gathered

    async def _small(self, response: aiohttp.ClientResponse, limit_bytes: int, what: str) -> bytes:
        data = bytearray()
        async with aclosing(self._pieces(response, what)) as chunks:
            async for pieces in chunks:
                data += b"".join(pieces)
                if len(data) > limit_bytes:
                    raise RegistryError(errors.NOT_UNDERSTOOD, f"{what} is larger than {limit_bytes} bytes")
        return bytes(data)

    # --- requests ---

    async def _patiently(self, once: Callable[[], Awaitable[T]]) -> T:
        """Try again, a few times, where that may help."""
        for attempt in range(TRIES - 1):
            try:
                return await once()
            except RegistryError as error:
                if not error.passes:
                    raise
            await asyncio.sleep(FIRST_WAIT_S * 2**attempt)
        return await once()

    @asynccontextmanager
    async def _answered(
        self, path: str, what: str, accept: str = "*/*"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response of status 200, having shown the registry what it asks for."""
        url = self._base / "v2" / self._reference.repository / path
        shown = self._authorisation.value
        response = await self._follow(url, what, accept)
        try:
            if response.status == 401:
                asked = challenges(response.headers.getall("WWW-Authenticate", []))
                response.close()
                await self._authorise(asked, shown)
                response = await self._follow(url, what, accept)
            if response.status != 200:
                raise self._refused(response.status, response.headers, what)
            yield response
        finally:
            response.close()

    async def _follow(self, url: URL, what: str, accept: str) -> aiohttp.ClientResponse:
        """Follow redirects by hand: the credential is shown to the registry alone."""
        for _ in range(REDIRECTS_MAX + 1):
            own = url.origin() == self._base.origin()
            headers = {"Accept": accept}
            if own and self._authorisation.value:
                headers["Authorization"] = self._authorisation.value
            response = await self._send("GET", url, what, headers=headers)
            if response.status not in _REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            response.close()
            url = self._redirected(url, location, what)
        raise RegistryError(errors.NOT_UNDERSTOOD, f"{what}: more than {REDIRECTS_MAX} redirects")

    def _redirected(self, url: URL, location: str, what: str) -> URL:
        target = _address(location, url)
        if target is None or not self._may_speak_to(target):
            where = (target.host if target else None) or "nowhere"
            raise RegistryError(
                errors.NOT_UNDERSTOOD, f"{what}: the registry redirects to {where}, without TLS or not at all"
            )
        return target

    def _may_speak_to(self, url: URL) -> bool:
        if not url.host:
            return False
        if url.scheme == "https":
            return True
        return url.scheme == "http" and self._base.scheme == "http" and plain_allowed(url, self._settings)

    async def _send(self, method: str, url: URL, what: str, **more: Any) -> aiohttp.ClientResponse:
        assert self._session is not None, "not entered"  # noqa: S101  # a fault in cloche itself
        with self._trouble(what):
            return await self._session.request(method, url, allow_redirects=False, proxy=_proxy(url), **more)

    @contextmanager
    def _trouble(self, what: str) -> Any:
        """Say in our words what went wrong between us and the other side; an address may be signed."""
        registry = self._reference.registry
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise RegistryError(
                errors.UNAVAILABLE,
                f"{what}: the certificate of {registry} is not trusted here",
                hint="let the machine trust its authority, or name the registry in CLOCHE_REGISTRY_INSECURE",
            ) from error
        except aiohttp.ClientPayloadError:
            raise RegistryError(
                errors.TRUNCATED, f"{what}: the connection ended in the middle of it"
            ) from None
        except aiohttp.ServerTimeoutError:
            raise RegistryError(
                errors.UNAVAILABLE, f"{what}: registry {registry} stopped answering"
            ) from None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or "no such host, or no way there"
            raise RegistryError(
                errors.UNAVAILABLE, f"{what}: no connection to registry {registry}: {reason}"
            ) from None
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:
            raise RegistryError(
                errors.UNAVAILABLE, f"{what}: registry {registry} broke off: {type(error).__name__}"
            ) from None

    def _refused(self, status: int, headers: CIMultiDictProxy[str], what: str) -> RegistryError:
        registry = self._reference.registry
        wait_s = wait_asked_s(headers.get("Retry-After"))
        if status in {401, 403}:
            with_ = "with these credentials" if self._credentials else "without credentials"
            hint = None if self._credentials else "name a file with credentials: CLOCHE_REGISTRY_AUTH=FILE"
            return RegistryError(
                errors.UNAUTHORISED, f"{what}: registry {registry} refuses it {with_}", hint=hint
            )
        if status == 404:
            return RegistryError(errors.NOT_FOUND, f"{what} is not in registry {registry}")
        if status == 429:
            after = f"; it asks to wait {wait_s:g} s" if wait_s is not None else ""
            return RegistryError(
                errors.RATE_LIMIT,
                f"{what}: registry {registry} says: too many requests{after}",
                hint="credentials often raise the limit: CLOCHE_REGISTRY_AUTH=FILE",
                retry_after_s=wait_s,
            )
        code = errors.UNAVAILABLE if status >= 500 else errors.NOT_UNDERSTOOD
        return RegistryError(
            code, f"{what}: registry {registry} answers with status {status}", retry_after_s=wait_s
        )

    # --- authentication ---

    async def _authorise(self, asked: tuple[Challenge, ...], shown: str) -> None:
        """Get what the registry asks for; of requests that are refused at once, one does it for all."""
        async with self._authorising:
            if self._authorisation.value != shown:
                return
            by_scheme = {challenge.scheme: challenge for challenge in asked}
            if "bearer" in by_scheme:
                self._authorisation.value = f"Bearer {await self._token(by_scheme['bearer'])}"
            elif "basic" in by_scheme and self._credentials and self._credentials.user:
                self._authorisation.value = self._credentials.basic

    async def _token(self, challenge: Challenge) -> str:
        """Ask the token server that the registry names (distribution: auth/token, auth/oauth)."""
        what = f"a token for {self._reference}"
        realm = _address(challenge.parameters.get("realm", ""))
        if realm is None or not self._may_speak_to(realm):
            raise RegistryError(
                errors.NOT_UNDERSTOOD, f"{what}: the registry names no token server that may be spoken to"
            )
        query = {
            "service": challenge.parameters.get("service", ""),
            "scope": f"repository:{self._reference.repository}:pull",
        }
        credentials = self._credentials
        if credentials is not None and credentials.identity_token:
            secret = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token}
            form = {**query, **secret, "client_id": "cloche"}
            response = await self._send("POST", realm, what, data=form)
        else:
            headers = {"Authorization": credentials.basic} if credentials is not None else {}
            response = await self._send("GET", realm.update_query(query), what, headers=headers)
        try:
            if response.status != 200:
                raise self._refused(response.status, response.headers, what)
            return _token_in(await self._small(response, TOKEN_BYTES_MAX, what), what)
        finally:
            response.close()


def _address(text: str, base: URL | None = None) -> URL | None:
    """Read an absolute address, or one relative to ``base``; a user in it is left out."""
    try:
        url = URL(text, encoded=True)
        url = base.join(url) if base is not None and text else url
        return url.with_user(None) if url.absolute else None
    except ValueError:
        return None


def _token_in(data: bytes, what: str) -> str:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    found = (value.get("token") or value.get("access_token")) if isinstance(value, dict) else None
    if not isinstance(found, str) or not found.isascii() or not found.isprintable():
        raise RegistryError(errors.NOT_UNDERSTOOD, f"{what}: the token server gave none")
    return found


def _truncated(what: str, received: int, wanted: int) -> RegistryError:
    return RegistryError(errors.TRUNCATED, f"{what} ended after {received} of {wanted} bytes")


def _proxy(url: URL) -> str | None:
    """Return the proxy that the environment names for this address; never one for this machine itself."""
    host = url.host or ""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(url.scheme)
