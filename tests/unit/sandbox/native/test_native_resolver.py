"""The name server of public networks, against an upstream of the test's own."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from cloche.sandbox.allow import parse_entries
from cloche.sandbox.native.net.members import Member
from cloche.sandbox.native.net.warden import Warden
from cloche.sandbox.native.resolver import NameLog, Resolver, has_links, is_blocked, without_blocked
from cloche.sandbox.spec import NetworkMode, NetworkPolicy

ZONE = {
    "good.example.": ["203.0.113.7"],
    "evil.example.": ["169.254.169.254"],
    "mixed.example.": ["10.0.0.1", "198.51.100.1"],
}


class Upstream(asyncio.DatagramProtocol):
    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr) -> None:
        query = dns.message.from_wire(data)
        response = dns.message.make_response(query)
        name = query.question[0].name.to_text().lower()
        if name in ZONE:
            response.answer.append(dns.rrset.from_text(name, 60, "IN", "A", *ZONE[name]))
        elif name != "silent.example.":
            response.set_rcode(dns.rcode.NXDOMAIN)
        if name != "silent.example.":
            self.transport.sendto(response.to_wire(), addr)


PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)


class OneSandbox(Warden):
    """A warden that knows one sandbox, and opens nothing."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.member = Member("one", "10.210.1.1", 1, policy, parse_entries(policy.allow))
        self.opened: list[tuple[str, list[str], int]] = []

    def by_address(self, address: str) -> Member | None:
        return self.member if address == self.member.address else None

    def learn(self, member: Member, name: str, found: Iterable[str], life_s: int) -> int:
        self.opened.append((name, sorted(found), life_s))
        return life_s


@pytest.fixture
async def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Resolver]:
    monkeypatch.setattr("cloche.sandbox.native.resolver._UPSTREAM_TIMEOUT_S", 0.2)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Upstream, local_addr=("127.0.0.1", 0))
    log = NameLog(tmp_path / "names.jsonl")
    port = transport.get_extra_info("sockname")[1]
    yield Resolver([f"127.0.0.1:{port}"], log, OneSandbox(PUBLIC))
    transport.close()
    log.close()


async def ask(resolver: Resolver, name: str, kind: str = "A") -> dns.message.Message:
    query = dns.message.make_query(name, kind)
    wire = await resolver.answer(query.to_wire(), "10.210.1.1")
    assert wire is not None
    response = dns.message.from_wire(wire)
    assert response.id == query.id
    assert response.flags & dns.flags.QR
    return response


def addresses(response: dns.message.Message) -> list[str]:
    return [record.address for rrset in response.answer for record in rrset]


async def test_answers_come_from_upstream(resolver: Resolver) -> None:
    assert addresses(await ask(resolver, "good.example")) == ["203.0.113.7"]
    assert (await ask(resolver, "nothing.example")).rcode() == dns.rcode.NXDOMAIN


@pytest.mark.fault("name-points-inside")
async def test_a_name_that_points_into_a_blocked_range_is_refused(resolver: Resolver) -> None:
    response = await ask(resolver, "evil.example")
    assert response.rcode() == dns.rcode.REFUSED
    assert addresses(response) == []
    assert addresses(await ask(resolver, "mixed.example")) == ["198.51.100.1"]


async def test_ipv6_has_no_addresses(resolver: Resolver) -> None:
    response = await ask(resolver, "good.example", "AAAA")
    assert (response.rcode(), response.answer) == (dns.rcode.NOERROR, [])


@pytest.mark.fault("name-server-silent")
async def test_a_silent_upstream_is_a_failure_not_a_hang(resolver: Resolver) -> None:
    assert (await ask(resolver, "silent.example")).rcode() == dns.rcode.SERVFAIL


@pytest.mark.parametrize("wire", [b"", b"\0" * 5, b"\xff" * 600])
async def test_nonsense_gets_no_answer(resolver: Resolver, wire: bytes) -> None:
    assert await resolver.answer(wire, "10.210.1.1") is None


async def test_an_answer_is_no_question(resolver: Resolver) -> None:
    answer = dns.message.make_response(dns.message.make_query("good.example", "A"))
    assert await resolver.answer(answer.to_wire(), "10.210.1.1") is None


async def test_every_question_is_logged(resolver: Resolver, tmp_path: Path) -> None:
    await ask(resolver, "good.example")
    await ask(resolver, "evil.example")
    lines = [json.loads(line) for line in (tmp_path / "names.jsonl").read_text().splitlines()]
    assert [(line["name"], line["status"]) for line in lines] == [
        ("good.example", "noerror"),
        ("evil.example", "blocked"),
    ]
    assert lines[0]["client"] == "10.210.1.1"


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche.sandbox.native.resolver._LOG_BYTES_MAX", 1000)
    log = NameLog(tmp_path / "log")
    question = dns.message.make_query("good.example", "A").question[0]
    for _ in range(100):
        log.write("c", question, "noerror")
    log.close()
    assert (tmp_path / "log").stat().st_size < 1300


def test_is_blocked() -> None:
    assert is_blocked("10.0.0.1")
    assert is_blocked("2606:2800:220:1::1")  # there is no way out by IPv6
    assert not is_blocked("203.0.113.80")


def test_empty_answers_have_nothing_blocked() -> None:
    response = dns.message.make_response(dns.message.make_query("x.example", "A"))
    assert not without_blocked(response)


def test_links_are_known_by_their_prefix(tmp_path: Path) -> None:
    (tmp_path / "clabcdx1").touch()
    assert has_links("clabcdx", tmp_path)
    assert not has_links("clffffx", tmp_path)


def listed(resolver: Resolver, *allow: str) -> OneSandbox:
    resolver.warden = OneSandbox(NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow=allow))
    return resolver.warden


async def test_listed_names_are_opened_before_they_are_answered_and_others_refused(
    resolver: Resolver,
) -> None:
    sandbox = listed(resolver, "good.example:80")
    assert addresses(await ask(resolver, "GOOD.example")) == ["203.0.113.7"]
    assert sandbox.opened == [("good.example", ["203.0.113.7"], 60)]
    assert (await ask(resolver, "mixed.example")).rcode() == dns.rcode.REFUSED
    assert [(denial.name, denial.protocol) for denial in sandbox.member.denials] == [("mixed.example", "dns")]


async def test_of_a_listed_name_only_addresses_are_told(resolver: Resolver) -> None:
    listed(resolver, "good.example")
    for kind in ("TXT", "HTTPS", "AAAA"):
        response = await ask(resolver, "good.example", kind)
        assert (response.rcode(), response.answer) == (dns.rcode.NOERROR, [])


async def test_what_cannot_be_opened_is_not_answered(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = listed(resolver, "good.example")

    def refuse(*_: object) -> int:
        raise OSError(28, "full")

    monkeypatch.setattr(sandbox, "learn", refuse)
    assert (await ask(resolver, "good.example")).rcode() == dns.rcode.SERVFAIL


async def test_an_exception_of_the_operator_may_be_named(resolver: Resolver) -> None:
    sandbox = listed(resolver, "mixed.example")
    resolver.excepted = (ipaddress.IPv4Network("10.0.0.0/24"),)
    assert sorted(addresses(await ask(resolver, "mixed.example"))) == ["10.0.0.1", "198.51.100.1"]
    assert sandbox.opened == [("mixed.example", ["10.0.0.1", "198.51.100.1"], 60)]


async def test_who_has_no_policy_is_told_nothing(resolver: Resolver) -> None:
    resolver.warden = OneSandbox(NetworkPolicy())
    assert (await ask(resolver, "good.example")).rcode() == dns.rcode.REFUSED
    resolver.warden.member.address = "10.210.9.9"
    assert (await ask(resolver, "good.example")).rcode() == dns.rcode.REFUSED
