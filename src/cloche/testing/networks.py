"""A small internet for tests: servers in a network namespace, and a name server whose zone is a dict.

Needs root. Must never use an address that the machine itself can reach: the network is one that no host
has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import cast

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

NETWORK = "192.175.48.0/28"  # of AS112 (RFC 7534), whose servers nobody needs in a test
HOST, FIRST, SECOND, THIRD = (f"192.175.48.{number}" for number in (1, 2, 3, 4))
TCP_PORTS = (80, 443, 7000, 8000)
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_LINK = "cltw0"

_SERVER = """
import asyncio, sys

async def serve(reader, writer):
    port = writer.get_extra_info("sockname")[1]
    try:
        while True:
            writer.write(b"tick\\n" if port == 7000 else b"hello\\n")
            await writer.drain()
            if port != 7000:
                break
            await asyncio.sleep(0.02)
    except ConnectionError:
        print("cut", flush=True)
    writer.close()

class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, peer):
        print("asked", flush=True)
        self.transport.sendto(data, peer)

async def main():
    for port in map(int, sys.argv[1:]):
        await asyncio.start_server(serve, "0.0.0.0", port)
    await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=("0.0.0.0", 53))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30)


@contextlib.contextmanager
def forwarding() -> Iterator[None]:
    """Let the host forward packets meanwhile, as ``cloche doctor --fix`` does for good."""
    before = _IP_FORWARD.read_text()
    if before.strip() != "1":
        _IP_FORWARD.write_text("1")
    try:
        yield
    finally:
        if before.strip() != "1":
            _IP_FORWARD.write_text(before)


class World:
    """Servers at ``FIRST``, ``SECOND`` and ``THIRD``.

    ``TCP_PORTS`` say hello (7000 without end), UDP 53 echoes. ``events`` has the line ``cut`` for every
    connection that was broken from outside, ``asked`` for every datagram.
    """

    def __init__(self) -> None:
        self._name = f"clt-world-{os.getpid()}"
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> World:
        """Make the namespace, its links and its servers."""
        _ip("netns", "add", self._name)
        try:
            await self._fill()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def _fill(self) -> None:
        _ip("link", "add", _LINK, "type", "veth", "peer", "name", "w0", "netns", self._name)
        _ip("address", "add", f"{HOST}/28", "dev", _LINK)
        _ip("link", "set", _LINK, "up")
        for address in (FIRST, SECOND, THIRD):
            _ip("-n", self._name, "address", "add", f"{address}/28", "dev", "w0")
        _ip("-n", self._name, "link", "set", "w0", "up")
        _ip("-n", self._name, "link", "set", "lo", "up")
        self._process = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", self._name, sys.executable, "-c", _SERVER, *map(str, TCP_PORTS)),
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(20):
            if await self.events.get() != "ready":
                raise RuntimeError("the servers of the test network did not start")

    async def _read(self) -> None:
        output = self._process.stdout if self._process else None
        while output and (line := await output.readline()):
            self.events.put_nowait(line.decode().strip())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the servers and remove the namespace; its link goes with it."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        with contextlib.suppress(subprocess.CalledProcessError):  # it may not have been made
            _ip("link", "delete", _LINK)
        _ip("netns", "delete", self._name)


class Names(asyncio.DatagramProtocol):
    """An upstream name server. ``zone`` maps a name to addresses, or to the name that it stands for."""

    def __init__(self) -> None:
        self.zone: dict[str, list[str] | str] = {}
        self.ttl_s = 60
        self.asked: list[str] = []
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | int, int]) -> None:
        """Answer from the zone."""
        query = dns.message.from_wire(data)
        response = dns.message.make_response(query)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        self.asked.append(name)
        if name not in self.zone:
            response.set_rcode(dns.rcode.NXDOMAIN)
        while isinstance(found := self.zone.get(name), str):
            response.answer.append(dns.rrset.from_text(f"{name}.", self.ttl_s, "IN", "CNAME", f"{found}."))
            name = found
        if found and question.rdtype == dns.rdatatype.A:
            response.answer.append(dns.rrset.from_text(f"{name}.", self.ttl_s, "IN", "A", *found))
        if self._transport is not None:
            self._transport.sendto(response.to_wire(), addr)


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[tuple[Names, str]]:
    """Serve names on a port of the loopback; yields the server and its address with the port."""
    transport, names = await asyncio.get_running_loop().create_datagram_endpoint(
        Names, local_addr=("127.0.0.1", 0)
    )
    try:
        yield names, f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"
    finally:
        transport.close()
