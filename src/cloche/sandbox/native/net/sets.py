"""The sets of the installation's table: what their keys are made of. The rules are in ``native/network.py``.

``generation`` says by its link which policy a sandbox has; every other set is keyed by that number, which is
never used again: to change a policy is to change one number, and nothing of the old one counts any more.
Pure. Must never know a name.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise

from cloche.core.errors import InvalidInput
from cloche.sandbox.allow import Entry
from cloche.sandbox.native.net.nfnetlink import Change, Element

INTERVALS_MAX = 8192
"""Of one sandbox, in the set whose every change costs the kernel time by its size."""


def number(value: int) -> bytes:
    """Return a mark or the index of a link as the kernel keeps it: in the machine's order."""
    return struct.pack("=I", value)


def _port(value: int) -> bytes:
    return struct.pack("!HH", value, 0)


def _address(value: str) -> bytes:
    return ipaddress.IPv4Address(value).packed


def generation_element(link: int, generation: int) -> Element:
    """Return the element that gives a link its policy."""
    return Element(number(link), data=number(generation))


def current_element(link: int, generation: int) -> Element:
    """Return the element by which connections of a policy go on."""
    return Element(number(link) + number(generation))


def host_elements(
    generation: int, address: str, ports: tuple[int, int] | None, timeout_ms: int = 0
) -> list[tuple[str, Element]]:
    """Return (set, element) that open an address that a name led to, for some time."""
    key = number(generation) + _address(address)
    if ports is None:
        return [("hosts", Element(key, timeout_ms=timeout_ms))]
    first, last = ports
    return [("ports", Element(key + _port(n), timeout_ms=timeout_ms)) for n in range(first, last + 1)]


def network_elements(generation: int, entries: Iterable[Entry]) -> list[tuple[str, Element]]:
    """Return (set, element) that open the networks of a list, in parts that do not overlap.

    The kernel refuses overlapping intervals, so all are cut at every first and last port, and networks that
    share such a piece are joined. Raises InvalidInput for IPv6, and where it becomes too much.
    """
    found = [
        ("nets", _interval(generation, network, low, high))
        for network, low, high in disjoint_intervals(entries)
    ]
    if len(found) > INTERVALS_MAX:
        raise InvalidInput("an allow list has too many networks with different ports")
    return found


def disjoint_intervals(entries: Iterable[Entry]) -> list[tuple[ipaddress.IPv4Network, int, int]]:
    """Return networks with their first and last ports that open the same and do not overlap."""
    ranges = [
        (first, last, _ipv4(entry)) for entry in entries if entry.network for first, last in entry.port_ranges
    ]
    cuts = sorted({first for first, _, _ in ranges} | {last + 1 for _, last, _ in ranges})
    found = []
    for low, after in pairwise(cuts):
        covering = [network for first, last, network in ranges if first <= low and after - 1 <= last]
        found += [(network, low, after - 1) for network in ipaddress.collapse_addresses(covering)]
    return found


def _interval(generation: int, network: ipaddress.IPv4Network, low: int, high: int) -> Element:
    mark = struct.pack("!I", generation)  # in sets of intervals nft has every part in network order
    first = mark + network.network_address.packed + _port(low)
    return Element(first, mark + network.broadcast_address.packed + _port(high))


def _ipv4(entry: Entry) -> ipaddress.IPv4Network:
    if isinstance(entry.network, ipaddress.IPv4Network):
        return entry.network
    raise InvalidInput(f"`{entry.text}`: no IPv6 leads out of a native sandbox", hint="leave it out")


def grouped(pairs: Iterable[tuple[str, Element]], *, remove: bool = False) -> Iterator[Change]:
    """Return the changes that add or remove elements, one per set."""
    by_set: dict[str, dict[Element, None]] = {}
    for name, element in pairs:
        by_set.setdefault(name, {})[element] = None
    for name, elements in by_set.items():
        yield Change(name, tuple(elements), remove=remove)
