"""Where sandboxes come from: plain data. Must never read a file or a variable by itself."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cloche.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Service:
    """A service's address and key; without ``url``: this process itself.

    A key goes over https, or to this machine; ``allow_plain_http`` lets it go over http to another one.
    ``patience_s`` is how long a request that can be repeated is repeated while nothing answers.
    """

    url: str | None = None
    key: str | None = field(default=None, repr=False)
    allow_plain_http: bool = False
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise InvalidInput for an address that is none, or that the key must not go to."""
        if self.url is None:
            return
        host = checked_host(self.url)
        plain = urlsplit(self.url).scheme == "http"
        if self.key and plain and not self.allow_plain_http and not is_loopback(host):
            raise InvalidInput(
                f"the key would go to {host} unencrypted",
                hint="use https, or allow it: allow_plain_http = true (CLOCHE_ALLOW_PLAIN_HTTP=1)",
            )


def checked_host(url: str) -> str:
    """Return the host that an address names. Raises InvalidInput, showing no password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, 0
    if not host or port == 0 or parts.scheme not in {"http", "https"}:
        raise InvalidInput("the service's address is none", hint="such as http://127.0.0.1:8000")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(
            "the service's address holds a user, a password or a query",
            hint="give the key as CLOCHE_KEY, or with cloche context add",
        )
    return host


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
