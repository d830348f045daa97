"""Entries of allow lists, and what they become for the kernel."""

from __future__ import annotations

import ipaddress
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import InvalidInput
from cloche.sandbox.allow import Entry, parse_entries, parse_entry
from cloche.sandbox.native.net.sets import disjoint_intervals


@pytest.mark.parametrize(
    ("text", "name", "covered"),
    [
        ("example.org", "example.org", True),
        ("Example.ORG.", "example.org", True),
        ("example.org", "www.example.org", False),
        ("*.example.org", "www.example.org", True),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "badexample.org", False),
        ("bücher.example", "xn--bcher-kva.example", True),
        ("203.0.113.7", "203.0.113.7", False),
    ],
)
def test_which_names_an_entry_covers(text: str, name: str, covered: bool) -> None:
    assert parse_entry(text).covers(name) is covered


@pytest.mark.parametrize(
    ("text", "network", "ports"),
    [
        ("203.0.113.7", "203.0.113.7/32", None),
        ("203.0.113.7/24:80", "203.0.113.0/24", (80, 80)),
        ("203.0.113.0/24:1-65535", "203.0.113.0/24", (1, 65535)),
        ("2001:db8::1", "2001:db8::1/128", None),
        ("[2001:db8::]/64", None, None),
        ("[2001:db8::1]:443", "2001:db8::1/128", (443, 443)),
    ],
)
def test_networks_and_ports(text: str, network: str | None, ports: tuple[int, int] | None) -> None:
    if network is None:
        with pytest.raises(InvalidInput):
            parse_entry(text)
        return
    entry = parse_entry(text)
    assert (str(entry.network), entry.ports) == (network, ports)


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "a b", "-a.org", "a..org", "1.2.3", "a.org:", "a.org:0", "a.org:9-8", "a.org:99999",
     "a.org:1-1000", "http://a.org", "a.*.org", "[::1", "x" * 64 + ".org"],
)  # fmt: skip
def test_what_is_no_entry(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_entry(text)


def test_a_list_has_a_bound() -> None:
    with pytest.raises(InvalidInput, match="1024"):
        parse_entries(f"n{number}.example" for number in range(1025))


ENTRIES = st.builds(
    lambda base, bits, first, width, every: Entry(
        text="",
        network=ipaddress.IPv4Network((base << 24 | 0xA0, bits), strict=False),
        ports=None if every else (first, first + width),
    ),
    st.integers(1, 3),
    st.integers(6, 32),
    st.integers(50, 60),
    st.integers(0, 5),
    st.booleans(),
)


@given(st.lists(ENTRIES, max_size=6), st.integers(1, 3), st.integers(0, 255), st.integers(49, 70))
def test_intervals_open_what_the_entries_say_and_do_not_overlap(
    entries: list[Entry], first: int, last: int, port: int
) -> None:
    parts = disjoint_intervals(entries)
    address = ipaddress.IPv4Address(first << 24 | last)
    wanted = any(
        address in entry.network and any(low <= port <= high for low, high in entry.port_ranges)
        for entry in entries
        if entry.network is not None
    )
    assert any(address in network and low <= port <= high for network, low, high in parts) is wanted
    for (one, low, high), (other, from_, to) in combinations(parts, 2):
        assert not (one.overlaps(other) and low <= to and from_ <= high)
