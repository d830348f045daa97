"""The two network modes: nothing at all, and public addresses only."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
import functools
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cloche.core.errors import EnvironmentUnusable
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native import network
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, NetworkMode, NetworkPolicy, PreparedImage, SandboxSpec

PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)
IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@pytest.fixture
def forwarding() -> Iterator[None]:
    """Let the host forward packets, as ``cloche doctor --fix`` does."""
    before = IP_FORWARD.read_text()
    if before.strip() != "1":
        IP_FORWARD.write_text("1")
    yield
    if before.strip() != "1":
        IP_FORWARD.write_text(before)


@pytest.fixture
async def public(
    driver: LocalDriver, busybox_image: PreparedImage, forwarding: None
) -> AsyncIterator[Sandbox]:
    async with await driver.create(SandboxSpec(network=PUBLIC), busybox_image) as sandbox:
        yield sandbox


async def output(sandbox: Sandbox, line: str) -> str:
    completed = await sandbox.run(Command(shell=line, timeout_s=30))
    return completed.stdout.text + completed.stderr.text


async def connects(sandbox: Sandbox, address: str, port: int) -> bool:
    completed = await sandbox.run(Command(shell=f"nc -w 2 {address} {port} </dev/null", timeout_s=10))
    return completed.ok


def mirror() -> str:
    """Return the host name of the machine's own Debian mirror."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    pattern = re.compile(r"^(?:URIs: |deb (?:\[.*\] )?)https?://([^/\s:]+)", re.MULTILINE)
    for name in (found[1] for file in files for found in pattern.finditer(_text(file))):
        if _resolves(name):
            return name
    raise AssertionError("this machine has no apt source that it can reach")


@functools.cache
def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, 80, socket.AF_INET))
    except socket.gaierror:
        return False


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


@pytest.fixture
def listener() -> Iterator[int]:
    """A server of the host's on every address; yields its port."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server.getsockname()[1]


def host_address() -> str:
    """Return the address by which the host reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


async def test_none_has_a_loopback_and_nothing_else(
    driver: LocalDriver, busybox_image: PreparedImage, listener: int
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        assert re.findall(r"^\d+: (\w+)", await output(sandbox, "ip link"), re.MULTILINE) == ["lo"]
        assert "1 packets received" in await output(sandbox, "ping -c 1 -W 1 127.0.0.1 || true")
        assert await output(sandbox, "ip route") == ""
        assert not await connects(sandbox, host_address(), listener)


async def test_a_public_name_resolves_and_answers(public: Sandbox) -> None:
    name = mirror()
    assert name in await output(public, f"nslookup {name}")
    assert await connects(public, name, 80)


async def test_names_are_logged(public: Sandbox, settings: Settings) -> None:
    await output(public, f"nslookup {mirror()}; nslookup nothing.invalid")
    lines = [json.loads(line) for line in (settings.run_dir / "names.jsonl").read_text().splitlines()]
    seen = {(line["name"], line["type"], line["status"]) for line in lines}
    assert (mirror(), "A", "noerror") in seen
    assert ("nothing.invalid", "A", "nxdomain") in seen


async def test_the_host_is_out_of_reach(public: Sandbox, listener: int, settings: Settings) -> None:
    gateway = str(network.plan(settings).gateway)
    with socket.create_connection((host_address(), listener), timeout=2):
        pass  # the server is there
    assert not await connects(public, host_address(), listener)
    assert not await connects(public, gateway, listener)
    assert not await connects(public, "127.0.0.1", listener)


@pytest.mark.fault("sandbox-reaches-private-network")
@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "192.0.0.192", "224.0.0.1"],
)
async def test_private_addresses_are_out_of_reach(public: Sandbox, address: str) -> None:
    said = await output(public, f"nc -w 2 {address} 80 </dev/null")
    assert re.search("No route|unreachable|prohibited|timed out|not permitted", said)


async def test_the_hosts_own_name_server_is_out_of_reach(public: Sandbox) -> None:
    found = re.search(r"^nameserver ([\d.]+)", Path("/etc/resolv.conf").read_text(), re.MULTILINE)
    assert found is not None
    assert not await connects(public, found[1], 53)


async def test_another_sandbox_is_out_of_reach(
    public: Sandbox, driver: LocalDriver, busybox_image: PreparedImage
) -> None:
    async with await driver.create(SandboxSpec(network=PUBLIC), busybox_image) as other:
        await other.start(Command(shell="nc -l -p 8000 -e true"))
        address = (await output(other, "ip -o -4 addr show eth0")).split()[3].split("/")[0]
        assert not await connects(public, address, 8000)
        assert await connects(other, address, 8000)


@pytest.mark.fault("sandbox-spoofs-address")
async def test_a_borrowed_source_address_gets_nowhere(
    public: Sandbox, driver: LocalDriver, busybox_image: PreparedImage, settings: Settings
) -> None:
    """Root inside has raw sockets: what leaves with another's address is dropped at the host."""
    async with await driver.create(SandboxSpec(network=PUBLIC), busybox_image) as other:
        address = (await output(other, "ip -o -4 addr show eth0")).split()[3].split("/")[0]
        plan = network.plan(settings)
        said = await output(public, f"ip addr add {address}/32 dev eth0; nslookup -timeout=1 {mirror()}")
        assert "not permitted" in said  # without CAP_NET_ADMIN, to begin with
        rules = await asyncio.create_subprocess_exec(
            *("nft", "list", "table", "inet", plan.table), stdout=asyncio.subprocess.PIPE
        )
        text, _ = await rules.communicate()
        assert text.count(b"fib saddr . iif oif missing drop") == 2


async def test_ipv6_leads_nowhere(public: Sandbox) -> None:
    assert "inet6" not in await output(public, "ip -6 addr show eth0")
    assert "::" not in (await output(public, f"nslookup -type=AAAA {mirror()}")).replace("::1", "")


@pytest.mark.fault("no-ip-forward")
async def test_a_host_that_does_not_forward_says_so(
    driver: LocalDriver, busybox_image: PreparedImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ip_forward").write_text("0\n")
    monkeypatch.setattr(network, "_IP_FORWARD", tmp_path / "ip_forward")
    with pytest.raises(EnvironmentUnusable, match="ip_forward") as caught:
        await driver.create(SandboxSpec(network=PUBLIC), busybox_image)
    assert caught.value.hint == "cloche doctor --fix"
    assert await driver.list() == []


async def test_many_public_sandboxes_leave_no_link(
    driver: LocalDriver, busybox_image: PreparedImage, forwarding: None, settings: Settings
) -> None:
    async def one() -> str:
        async with await driver.create(SandboxSpec(network=PUBLIC), busybox_image) as sandbox:
            return await output(sandbox, "ip -o -4 addr show eth0")

    addresses = await asyncio.gather(*(one() for _ in range(12)))
    assert len(set(addresses)) == 12
    prefix = network.plan(settings).links
    assert not [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(prefix)]
