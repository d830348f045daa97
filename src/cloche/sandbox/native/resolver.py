"""The gateway of networks: one process per installation, which answers names and keeps policies.

``python -m cloche.sandbox.native.resolver --listen ADDRESS --log FILE --links PREFIX --lock FILE
--sandboxes DIR --table NAME --log-group N [--private CIDR:FIRST-LAST]… [--upstream ADDRESS[:PORT]]…``

It answers the names that the asking sandbox's policy has, and those of its unit; the addresses of a listed
name are open (``net.warden``) before the answer is sent. Others are refused. Questions go to the host's own
name servers (``/etc/resolv.conf``); no answer points into blocked ranges (an attacker's name must not lead to
the host or a private network); a line per name is kept in a log. There is no IPv6 way out of a sandbox, so
AAAA questions get an empty answer. Started and ended by the spawner; should that have died it goes by itself
once no sandbox has a link any more. Must never resolve from anything but the upstream servers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import ipaddress
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, cast

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.resolver
import dns.rrset

from cloche.sandbox.native import network
from cloche.sandbox.native.net import control
from cloche.sandbox.native.net.members import Member
from cloche.sandbox.native.net.nfnetlink import Table
from cloche.sandbox.native.net.refusals import RefusalLog
from cloche.sandbox.native.net.warden import Warden
from cloche.sandbox.native.network import BLOCKED
from cloche.sandbox.spec import NetworkMode, Unit

_UPSTREAM_TIMEOUT_S = 4.0
_UNDER_WAY_MAX = 512
_TCP_IDLE_S = 10.0
_UDP_BYTES_MAX = 1232
_LOG_BYTES_MAX = 16 << 20
_LOOK_S = 5.0
_UNIT_TTL_S = 5
_FREEBIND = 15  # IP_FREEBIND of linux/in.h: the address appears with the first link
_BLOCKED = tuple(ipaddress.IPv4Network(text) for text in BLOCKED)


def is_blocked(address: str, excepted: Sequence[ipaddress.IPv4Network] = ()) -> bool:
    """Whether an A or AAAA record points where a sandbox may not go. All of IPv6 is such a place."""
    parsed = ipaddress.ip_address(address)
    if not isinstance(parsed, ipaddress.IPv4Address):
        return True
    return any(parsed in net for net in _BLOCKED) and not any(parsed in net for net in excepted)


def without_blocked(answer: dns.message.Message, excepted: Sequence[ipaddress.IPv4Network] = ()) -> bool:
    """Remove the addresses that may not be reached from an answer; return whether there were any."""
    found = False
    for section in (answer.answer, answer.additional):
        kept: list[dns.rrset.RRset] = []
        for rrset in section:
            if rrset.rdtype in {dns.rdatatype.A, dns.rdatatype.AAAA}:
                bad = [record for record in rrset if is_blocked(record.address, excepted)]
                found = found or bool(bad)
                for record in bad:
                    rrset.discard(record)  # type: ignore[no-untyped-call]
            if len(rrset) or rrset.rdtype == dns.rdatatype.OPT:
                kept.append(rrset)
        section[:] = kept
    return found


class NameLog:
    """One JSON object per question; starts anew when it has grown too large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, client: str, question: dns.rrset.RRset, status: str) -> None:
        """Note who asked for what, and what became of it."""
        if self._file.tell() > _LOG_BYTES_MAX:
            self._file.seek(0)
            self._file.truncate()
        line = {
            "time": round(time.time(), 3),
            "client": client,
            "name": question.name.to_text(omit_final_dot=True),
            "type": dns.rdatatype.to_text(question.rdtype),
            "status": status,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class Resolver:
    """Answers questions by asking the upstream servers, as far as the asking sandbox's policy goes."""

    upstream: list[str]
    log: NameLog
    warden: Warden
    excepted: tuple[ipaddress.IPv4Network, ...] = ()
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_UNDER_WAY_MAX))

    async def answer(self, wire: bytes, client: str) -> bytes | None:
        """Return the answer to one message as bytes, None for what is no question."""
        try:
            query = dns.message.from_wire(wire)
        except dns.exception.DNSException:
            return None
        if query.flags & dns.flags.QR or len(query.question) != 1:
            return None
        async with self._room:
            response, status = await self._respond(query, client)
        self.log.write(client, query.question[0], status)
        response.id = query.id
        return response.to_wire()

    async def _respond(self, query: dns.message.Message, client: str) -> tuple[dns.message.Message, str]:
        member = self.warden.by_address(client)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        if member is None:
            return _error(query, dns.rcode.REFUSED), "no_policy"
        if member.unit is not None and name in member.unit.members:
            return self._of_unit(query, member.unit, name)
        listed = member.policy.mode is NetworkMode.ALLOWLIST
        if member.policy.mode is not NetworkMode.PUBLIC and not (listed and member.opens(name)):
            member.refused(name=name, protocol="dns", port=53)
            return _error(query, dns.rcode.REFUSED), "not_allowed"
        if question.rdtype == dns.rdatatype.AAAA or (listed and question.rdtype != dns.rdatatype.A):
            empty = dns.message.make_response(query, recursion_available=True)
            return empty, "no_ipv6" if question.rdtype == dns.rdatatype.AAAA else "only_addresses"
        return await self._from_upstream(query, member, name)

    async def _from_upstream(
        self, query: dns.message.Message, member: Member, name: str
    ) -> tuple[dns.message.Message, str]:
        answer = await self._ask(query)
        if answer is None:
            return _error(query, dns.rcode.SERVFAIL), "servfail"
        if without_blocked(answer, self.excepted) and not _addresses(answer):
            member.refused(name=name, protocol="dns", port=53)
            return _error(query, dns.rcode.REFUSED), "blocked"
        if not self._learn(answer, member, name):
            return _error(query, dns.rcode.SERVFAIL), "not_opened"
        return answer, dns.rcode.to_text(answer.rcode()).lower()

    def _learn(self, answer: dns.message.Message, member: Member, name: str) -> bool:
        """Open what the answer leads to before it is sent, and let nobody keep it for longer than that."""
        found = _addresses(answer)
        if member.policy.mode is NetworkMode.PUBLIC:
            for address in found:
                member.remember(address, name)
            return True
        try:
            life_s = self.warden.learn(
                member, name, found, min((rrset.ttl for rrset in answer.answer), default=0)
            )
        except OSError:
            return False
        for rrset in answer.answer:
            rrset.ttl = min(rrset.ttl, life_s)
        return True

    def _of_unit(self, query: dns.message.Message, unit: Unit, name: str) -> tuple[dns.message.Message, str]:
        """Answer with the address of a member; one that is not there yet is worth asking for again."""
        peer = self.warden.peer(unit, name)
        if peer is None:
            return _error(query, dns.rcode.SERVFAIL), "unit_not_there"
        response = dns.message.make_response(query, recursion_available=True)
        if query.question[0].rdtype == dns.rdatatype.A:
            owner = query.question[0].name
            response.answer.append(dns.rrset.from_text(owner, _UNIT_TTL_S, "IN", "A", peer.address))
        return response, "unit"

    async def _ask(self, query: dns.message.Message) -> dns.message.Message | None:
        for server in self.upstream:
            address, _, port = server.partition(":") if server.count(":") == 1 else (server, "", "")
            try:
                answer, _ = await dns.asyncquery.udp_with_fallback(
                    query,
                    address,
                    timeout=_UPSTREAM_TIMEOUT_S,
                    port=int(port or 53),
                    ignore_unexpected=True,
                )
            except (dns.exception.DNSException, OSError):
                continue  # the next server may do better
            return answer
        return None


def _addresses(answer: dns.message.Message) -> list[str]:
    return [record.address for rrset in answer.answer if rrset.rdtype == dns.rdatatype.A for record in rrset]


def _error(query: dns.message.Message, code: dns.rcode.Rcode) -> dns.message.Message:
    response = dns.message.make_response(query, recursion_available=True)
    response.set_rcode(code)
    return response


class UdpServer(asyncio.DatagramProtocol):
    """Questions by UDP; what is too long for a datagram is cut, and asked for again by TCP."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.DatagramTransport", transport)  # 3.11's is none by class

    def datagram_received(self, data: bytes, addr: tuple[str | int, int]) -> None:
        """Answer one question, unless too many are under way: then it is dropped, and asked again."""
        if len(self._tasks) >= _UNDER_WAY_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._serve(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, data: bytes, address: tuple[str | int, int]) -> None:
        wire = await self._resolver.answer(data, str(address[0]))
        if wire is None or self._transport is None:
            return
        if len(wire) > _UDP_BYTES_MAX:
            cut = dns.message.make_response(dns.message.from_wire(data), recursion_available=True)
            cut.flags |= dns.flags.TC
            wire = cut.to_wire()
        self._transport.sendto(wire, address)


async def serve_tcp(resolver: Resolver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the questions of one TCP connection."""
    client = str(writer.get_extra_info("peername")[0])
    try:
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            while True:
                async with asyncio.timeout(_TCP_IDLE_S):
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    wire = await resolver.answer(await reader.readexactly(size), client)
                    if wire is None:
                        return
                    writer.write(len(wire).to_bytes(2, "big") + wire)
                    await writer.drain()
    finally:
        writer.close()


def upstream_servers() -> list[str]:
    """Return the host's name servers."""
    return [str(server) for server in dns.resolver.Resolver().nameservers]


def _socket(address: str, kind: socket.SocketKind) -> socket.socket:
    opened = socket.socket(socket.AF_INET, kind)
    opened.setsockopt(socket.SOL_IP, _FREEBIND, 1)
    if kind is socket.SOCK_STREAM:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind((address, 53))
    opened.setblocking(False)
    return opened


def has_links(prefix: str, folder: Path = Path("/sys/class/net")) -> bool:
    """Whether a link of that prefix is there."""
    return any(path.name.startswith(prefix) for path in folder.iterdir())


async def wait_until_alone(links: str, lock: Path, warden: Warden) -> None:
    """Return when neither a spawner nor a sandbox with a network is left; forget those that are gone."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(OSError):  # the table is gone: so are we, in a moment
            warden.sweep()
        if has_links(links):
            continue
        with lock.open() as held:
            try:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
        return


def _note_refusals(log: RefusalLog, warden: Warden) -> None:
    for refusal in log.read():
        member = warden.by_link(refusal.link)
        if member is not None:
            member.refused(address=refusal.address, port=refusal.port, protocol=refusal.protocol)


async def serve(options: argparse.Namespace) -> None:
    """Serve until told to stop, or until nobody is left to serve."""
    loop = asyncio.get_running_loop()
    table = Table(options.table)
    warden = Warden(table, options.sandboxes, options.links)
    warden.adopt()
    excepted = tuple(each.network for each in network.allow_private(" ".join(options.private)))
    resolver = Resolver(options.upstream or upstream_servers(), NameLog(options.log), warden, excepted)
    refusals = RefusalLog(options.log_group)
    loop.add_reader(refusals, _note_refusals, refusals, warden)
    transport, _ = await loop.create_datagram_endpoint(
        lambda: UdpServer(resolver), sock=_socket(options.listen, socket.SOCK_DGRAM)
    )
    server = await asyncio.start_server(
        lambda reader, writer: serve_tcp(resolver, reader, writer),
        sock=_socket(options.listen, socket.SOCK_STREAM),
    )
    doors = await asyncio.start_unix_server(
        lambda reader, writer: control.serve_client(warden, reader, writer),
        sock=control.listener(options.log.parent),
        limit=control.LINE_BYTES_MAX,
    )
    alone = asyncio.ensure_future(wait_until_alone(options.links, options.lock, warden))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, alone.cancel)
    os.write(1, b"+")  # the spawner waits for this
    with contextlib.suppress(asyncio.CancelledError):
        await alone
    transport.close()
    server.close()
    doors.close()
    loop.remove_reader(refusals)
    refusals.close()
    table.close()
    resolver.log.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="gateway of cloche's networks")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--links", required=True)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--sandboxes", type=Path, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--log-group", type=int, required=True)
    parser.add_argument("--private", action="append", default=[])
    parser.add_argument("--upstream", action="append", default=[])
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
