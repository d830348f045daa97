"""The entries of an allow list: names, wildcards, addresses and networks, each with ports.

Pure. Must never look a name up.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cloche.core.errors import InvalidInput

ENTRIES_MAX = 1024
"""Of one sandbox. What they become in the kernel is bounded by it."""

HOST_PORTS_MAX = 64
"""Behind a name: its addresses come and go, and each port of each is an element of its own."""

NAME_PORTS = (53, 853)
"""Ports of name servers: an entry must name them to open them, or a sandbox could ask whom it likes."""

_HINT = "for example example.org, *.example.org:443, 203.0.113.7 or 203.0.113.0/24:8000-8010"
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry: a name (``host``, for a wildcard what is behind ``*.``) or a network.

    ``ports`` is first and last; ``None`` is every port but those of name servers.
    """

    text: str
    host: str = ""
    wildcard: bool = False
    network: Network | None = None
    ports: tuple[int, int] | None = None

    def covers(self, name: str) -> bool:
        """Whether a name, in lower case and without the last dot, is this entry's."""
        if self.network is not None:
            return False
        return name.endswith(f".{self.host}") if self.wildcard else name == self.host

    @property
    def port_ranges(self) -> tuple[tuple[int, int], ...]:
        """All ports that it opens, as ranges."""
        if self.ports is not None:
            return (self.ports,)
        first, second = NAME_PORTS
        return ((0, first - 1), (first + 1, second - 1), (second + 1, 65535))


def parse_entries(texts: Iterable[str]) -> tuple[Entry, ...]:
    """Return the entries, each once. Raises InvalidInput for one that cannot be, and for too many."""
    entries = tuple(parse_entry(text) for text in dict.fromkeys(texts))
    if len(entries) > ENTRIES_MAX:
        raise InvalidInput(f"an allow list has {len(entries)} entries, more than {ENTRIES_MAX}")
    return entries


def parse_entry(text: str) -> Entry:
    """Return one entry. Raises InvalidInput that names it."""
    rest, ports = _split(text)
    network = _network(rest)
    if network is not None:
        return Entry(text=text, network=network, ports=ports)
    name = rest.rstrip(".").lower()
    wildcard = name.startswith("*.")
    host = _ascii(name.removeprefix("*."), text)
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise InvalidInput(f"`{text}` is no host, address or network", hint=_HINT)
    if ports is not None and ports[1] - ports[0] >= HOST_PORTS_MAX:
        raise InvalidInput(f"`{text}` has more than {HOST_PORTS_MAX} ports", hint="leave the ports out")
    return Entry(text=text, host=host, wildcard=wildcard, ports=ports)


def _ascii(name: str, text: str) -> str:
    try:
        return name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise InvalidInput(f"`{text}` is no host: {error}", hint=_HINT) from error


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _split(text: str) -> tuple[str, tuple[int, int] | None]:
    """Part an entry from its ports; IPv6 stands in brackets where ports follow."""
    if text.startswith("["):
        inner, bracket, ports = text[1:].partition("]")
        if not bracket or (ports and not ports.startswith(":")):
            raise InvalidInput(f"`{text}` is no host, address or network", hint=_HINT)
        return inner, _ports(ports[1:], text) if ports else None
    if text.count(":") != 1:
        return text, None
    rest, _, ports = text.partition(":")
    return rest, _ports(ports, text)


def _ports(ports: str, text: str) -> tuple[int, int]:
    match = _PORTS.fullmatch(ports)
    first = int(match[1]) if match else 0
    last = int(match[2]) if match and match[2] else first
    if not 1 <= first <= last <= 65535:
        raise InvalidInput(f"`{text}` has no port between 1 and 65535 behind its `:`", hint=_HINT)
    return first, last
