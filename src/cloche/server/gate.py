"""Who may come in: keys, tokens of one sandbox, scopes, rate limits, and the rule for a service without keys.

Must never tell whether a key exists, nor let a browser's page reach a service that asks for no key.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping

from cloche.core.errors import NotFound
from cloche.server.errors import Forbidden, TooFast, Unauthorised
from cloche.server.keys import Keyring
from cloche.server.secrets import Signer
from cloche.service.caller import LOCAL, Caller, Scope

TOKEN_PREFIX = "clt_"  # noqa: S105  # what tokens begin with
_BUCKETS_MAX = 10_000


class Bucket:
    """A token bucket: ``rate`` a second, as many at once as a second holds, one at least."""

    __slots__ = ("_at", "_left", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._at = now
        self._left = max(1.0, rate)

    def take(self, now: float) -> float:
        """Take one; returns 0, or the seconds until there is one again."""
        self._left = min(max(1.0, self.rate), self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self.rate


class Gate:
    """Finds the caller of a request, or refuses it."""

    def __init__(
        self,
        keys: Keyring,
        tokens: Signer,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._clock = clock
        self._wall = wall
        self._buckets: dict[str, Bucket] = {}

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return who asks. Raises Unauthorised or TooFast, and Forbidden for a page in a browser."""
        authorization = headers.get("Authorization")
        if authorization is None:
            if len(self._keys):
                raise Unauthorised(
                    hint="send the header `Authorization: Bearer KEY`; cloche key create makes one"
                )
            _refuse_pages(headers)
            return LOCAL
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip()
        found = None
        if scheme.lower() == "bearer":
            token = credential.startswith(TOKEN_PREFIX)
            found = self._of_token(credential) if token else self._of_key(credential)
        if found is None:
            raise Unauthorised("this key is not known, or has ended")
        self._pace(found)
        return found

    def _of_key(self, credential: str) -> Caller | None:
        key = self._keys.find(credential, self._wall())
        return None if key is None else key.caller()

    def _of_token(self, credential: str) -> Caller | None:
        value = self._tokens.read(credential.removeprefix(TOKEN_PREFIX))
        if value is None:
            return None
        if value["k"] == LOCAL.key:
            # made by a service that asked for no key; it is no way around one that does
            scopes = LOCAL.scopes - {Scope.ADMIN}
            return None if len(self._keys) else Caller(scopes=scopes, sandbox=value["s"])
        key = self._keys.get(value["k"], self._wall())
        return None if key is None else key.caller(value["s"])

    def token(self, caller: Caller, sandbox_id: str) -> str:
        """Return a secret that works as this caller's key for one sandbox only."""
        return TOKEN_PREFIX + self._tokens.sign({"k": caller.key, "s": sandbox_id})

    def _pace(self, caller: Caller) -> None:
        rate = caller.quota.requests_per_s
        if rate is None:
            return
        now = self._clock()
        bucket = self._buckets.get(caller.key)
        if bucket is None or bucket.rate != rate:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._buckets.clear()
            bucket = self._buckets[caller.key] = Bucket(rate, now)
        wait_s = bucket.take(now)
        if wait_s > 0:
            raise TooFast(f"this key may make {rate:g} requests a second", retry_after_s=wait_s)


def check_scope(caller: Caller, scope: Scope, sandbox_id: str | None) -> None:
    """Raise Forbidden for what the key may not do, NotFound for a sandbox that its token is not for."""
    if scope not in caller.scopes and not caller.admin:
        raise Forbidden(f"this key lacks the scope `{scope.value}`")
    if caller.sandbox is not None and caller.sandbox != sandbox_id:
        if sandbox_id is None:
            raise Forbidden("this token is for one sandbox only")
        raise NotFound(f"there is no sandbox {sandbox_id}")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refuse_pages(headers: Mapping[str, str]) -> None:
    """Without keys whoever reaches the port is trusted; what a web page makes a browser send is not.

    A page may name this service by a host of its own (DNS rebinding), and what a sandbox serves through a
    link is a page too.
    """
    host = headers.get("Host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    if (
        (host and not is_loopback(name))
        or "Origin" in headers
        or headers.get("Sec-Fetch-Site", "none") != "none"
    ):
        raise Forbidden(
            "a service without keys answers no web page, and to no name but localhost",
            hint="make a key: cloche key create OWNER",
        )
