"""Allow lists, their names and addresses, and policies that change while a sandbox lives."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cloche.core.errors import InfraError, InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native import network
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, NetworkMode, NetworkPolicy, PreparedImage, SandboxSpec
from cloche.testing.networks import FIRST, SECOND, THIRD, Names, World, forwarding, name_server
from cloche.testing.sandboxes import is_clean, make_busybox_image, processes_of, stop_spawner

NONE = NetworkPolicy()
PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)
METADATA = "169.254.169.254"


def allow(*entries: str) -> NetworkPolicy:
    return NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow=entries)


@dataclass
class Net:
    """A driver whose installation asks the test's name server, and a world that its sandboxes may reach."""

    driver: LocalDriver
    settings: Settings
    image: PreparedImage
    world: World
    names: Names

    async def make(self, policy: NetworkPolicy) -> Sandbox:
        return await self.driver.create(SandboxSpec(network=policy), self.image)


@pytest.fixture
async def net(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Net]:
    base = Path(tempfile.mkdtemp(prefix="clt-", dir="/var/tmp"))
    settings = Settings(state_dir=base / "s", run_dir=base / "r")
    async with World() as world, name_server() as (names, address):
        monkeypatch.setenv("CLOCHE_NAME_SERVERS", address)
        names.zone = {
            "one.example": [FIRST],
            "two.example": [SECOND],
            "deep.two.example": [SECOND],
            "alias.example": "one.example",
            "inside.example": ["10.0.0.1", METADATA],
            "mixed.example": ["10.0.0.1", THIRD],
        }
        driver = LocalDriver(settings)
        with forwarding():
            yield Net(driver, settings, make_busybox_image(settings), world, names)
            assert is_clean(settings) == []
            await driver.close()
            await stop_spawner(settings)
        assert processes_of(settings) == []
    shutil.rmtree(base)


async def connects(sandbox: Sandbox, address: str, port: int = 80) -> bool:
    line = f"nc -w 2 {address} {port} </dev/null | grep -q ."
    return (await sandbox.run(Command(shell=line, timeout_s=15))).ok


async def resolves(sandbox: Sandbox, name: str) -> bool:
    return (await sandbox.run(Command(shell=f"nslookup -type=a {name}", timeout_s=30))).ok


async def test_only_what_the_list_names_is_reached(net: Net) -> None:
    async with await net.make(allow("one.example", "*.two.example:80", f"{THIRD}:8000")) as sandbox:
        assert await connects(sandbox, "one.example", 80)
        assert await connects(sandbox, "one.example", 443)
        assert await connects(sandbox, "deep.two.example", 80)
        assert not await connects(sandbox, "deep.two.example", 443)
        assert not await resolves(sandbox, "two.example")  # the wildcard is what is below it
        assert await connects(sandbox, THIRD, 8000)
        assert not await connects(sandbox, THIRD, 80)
        assert not await resolves(sandbox, "mixed.example")
    assert set(net.names.asked) == {"one.example", "deep.two.example"}  # nothing else was asked for


@pytest.mark.fault("address-without-name")
async def test_an_address_is_closed_until_its_name_was_asked_for(net: Net) -> None:
    async with await net.make(allow("one.example:80")) as sandbox:
        assert not await connects(sandbox, FIRST, 80)
        assert await resolves(sandbox, "one.example")
        assert await connects(sandbox, FIRST, 80)


async def test_an_alias_is_judged_by_the_name_that_was_asked(net: Net) -> None:
    async with await net.make(allow("alias.example")) as sandbox:
        assert await connects(sandbox, "alias.example", 80)
        assert not await resolves(sandbox, "one.example")


async def test_networks_open_their_addresses_and_ports(net: Net) -> None:
    policy = allow("192.175.48.0/29:80", f"{FIRST}/32:443-450", "192.175.48.2/31")
    async with await net.make(policy) as sandbox:
        assert [await connects(sandbox, FIRST, port) for port in (80, 443, 8000)] == [True, True, True]
        assert [await connects(sandbox, THIRD, port) for port in (80, 443, 8000)] == [True, False, False]


@pytest.mark.fault("name-server-elsewhere")
async def test_no_other_name_server_is_reached(net: Net) -> None:
    async with await net.make(allow(FIRST, "one.example")) as sandbox:
        assert await connects(sandbox, FIRST, 8000)
        ask = Command(shell=f"nslookup -timeout=1 -retry=1 one.example {FIRST}", timeout_s=20)
        assert not (await sandbox.run(ask)).ok
        assert net.world.events.empty()
        await net.driver.set_network(sandbox.id, allow(f"{FIRST}:53"))
        await sandbox.run(replace(ask, id="again"))
        assert net.world.events.get_nowait() == "asked"  # an entry that names the port opens it
        assert not (await sandbox.run(Command(shell=f"ping -c 1 -W 1 {FIRST}", timeout_s=10))).ok


@pytest.mark.fault("name-rebound")
@pytest.mark.parametrize("policy", [allow("*.example", "*.example:80"), PUBLIC], ids=["allowlist", "public"])
async def test_a_name_that_leads_inside_opens_nothing(net: Net, policy: NetworkPolicy) -> None:
    async with await net.make(policy) as sandbox:
        assert not await resolves(sandbox, "inside.example")
        assert await connects(sandbox, "mixed.example", 80)
        assert not await connects(sandbox, METADATA)


@pytest.mark.fault("blocked-in-every-mode")
@pytest.mark.parametrize(
    "policy",
    [allow("0.0.0.0/0", "*.example"), PUBLIC, NONE],
    ids=["allowlist", "public", "none"],
)
async def test_host_private_and_metadata_addresses_are_blocked_in_every_mode(
    net: Net, policy: NetworkPolicy
) -> None:
    gateway = str(network.plan(net.settings).gateway)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    async with await net.make(PUBLIC) as sandbox, await net.make(PUBLIC) as other:
        assert await net.driver.set_network(sandbox.id, policy) == policy
        assert await connects(sandbox, FIRST) is (policy != NONE)
        address = (
            (await other.run(Command(shell="ip -o -4 addr show eth0"))).stdout.text.split()[3].split("/")[0]
        )
        await other.start(Command(shell="nc -ll -p 8000 -e echo hi"))
        for place, at in (
            (METADATA, 80),
            ("10.0.0.1", 80),
            ("192.168.0.1", 80),
            ("100.64.0.1", 80),
            (gateway, port),
            ("192.175.48.1", port),  # the host, by another of its addresses
            (address, 8000),
        ):
            assert not await connects(sandbox, place, at), place
        assert not (
            await sandbox.run(Command(shell="ip -6 route | grep -v '^unreachable' | grep default"))
        ).ok
        assert "inet6" not in (await sandbox.run(Command(shell="ip -6 addr show eth0"))).stdout.text
    server.close()
    await server.wait_closed()


async def test_a_sandbox_made_without_a_network_can_get_one_and_lose_it(net: Net) -> None:
    async with await net.make(NONE) as sandbox:
        assert await net.driver.network(sandbox.id) == NONE
        assert not await connects(sandbox, FIRST)
        listed = allow("one.example:80")
        assert await net.driver.set_network(sandbox.id, listed) == listed
        assert await connects(sandbox, "one.example")
        assert not await connects(sandbox, "one.example", 443)
        assert await net.driver.set_network(sandbox.id, PUBLIC) == PUBLIC
        assert await connects(sandbox, SECOND, 443)
        assert await net.driver.set_network(sandbox.id, NONE) == NONE
        assert not await connects(sandbox, FIRST)
        assert not await resolves(sandbox, "one.example")
        assert await net.driver.network(sandbox.id) == NONE


@pytest.mark.fault("connection-outlives-policy")
async def test_connections_that_a_new_policy_forbids_are_cut_and_others_go_on(net: Net) -> None:
    async with await net.make(PUBLIC) as sandbox:
        await sandbox.start(Command(shell=f"nc {FIRST} 7000 </dev/zero >/tmp/first"))
        kept = await sandbox.start(Command(shell=f"nc {SECOND} 7000 >/tmp/second", interactive=True))
        await grows(sandbox, "first")
        await grows(sandbox, "second")
        await net.driver.set_network(sandbox.id, allow(f"{SECOND}:7000"))
        async with asyncio.timeout(20):
            assert await net.world.events.get() == "cut"
        before = await size(sandbox, "first")
        await grows(sandbox, "second")
        assert await size(sandbox, "first") == before
        await kept.signal(signal.SIGKILL)


async def size(sandbox: Sandbox, name: str) -> int:
    return int((await sandbox.run(Command(shell=f"stat -c %s /tmp/{name}"))).stdout.text or 0)


async def grows(sandbox: Sandbox, name: str) -> None:
    """Wait until a file has more bytes than it had."""
    size = f"$(stat -c %s /tmp/{name} || echo 0)"
    line = f"n={size}; while [ {size} -le $n ]; do usleep 10000; done"
    assert (await sandbox.run(Command(shell=line, timeout_s=20))).ok


async def test_a_policy_outlives_the_spawner_and_the_gateway(net: Net) -> None:
    policy = allow("one.example:80", f"{THIRD}:443")
    async with await net.make(policy) as sandbox:
        assert await connects(sandbox, "one.example")
        for name in ("native.resolver", "cloche-spawner"):
            pids = [
                int(line.split()[0]) for line in processes_of(net.settings) if name in line.split(" -- ")[0]
            ]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        assert await connects(sandbox, FIRST)  # what is open stays open
        assert not await connects(sandbox, FIRST, 443)
        async with await net.make(NONE):  # the next spawner comes, and its gateway
            assert await net.driver.network(sandbox.id) == policy
            assert await connects(sandbox, THIRD, 443)
            assert await connects(sandbox, "one.example")
            assert not await connects(sandbox, SECOND)


@pytest.mark.fault("policy-not-in-kernel")
async def test_a_policy_that_the_kernel_does_not_hold_closes_the_sandbox(net: Net) -> None:
    async with await net.make(PUBLIC) as sandbox:
        assert await connects(sandbox, FIRST)
        table = network.plan(net.settings).table
        gone = await asyncio.create_subprocess_exec("nft", "flush", "set", "inet", table, "open")
        assert await gone.wait() == 0
        with pytest.raises(InfraError, match="did not hold") as caught:
            await net.driver.network(sandbox.id)
        assert caught.value.code == "infra/network_policy"
        assert not await connects(sandbox, FIRST)
        assert await net.driver.set_network(sandbox.id, PUBLIC) == PUBLIC
        assert await connects(sandbox, FIRST)


@pytest.mark.parametrize("entry", ["no host", "*", "example.org:0", "2001:db8::/32", "a..b", "1.2.3"])
async def test_an_entry_that_cannot_be_is_refused_before_anything_is_made(net: Net, entry: str) -> None:
    with pytest.raises(InvalidInput):
        await net.make(allow(entry))
    assert await net.driver.list() == []


async def test_denials_have_names_and_are_bounded(net: Net) -> None:
    async with await net.make(allow("one.example:80")) as sandbox:
        await resolves(sandbox, "elsewhere.example")
        assert await connects(sandbox, "one.example")
        await connects(sandbox, "one.example", 443)
        await connects(sandbox, SECOND, 8000)
        found = {(d.name, d.address, d.port, d.protocol) for d in await net.driver.denials(sandbox.id)}
        assert ("elsewhere.example", "", 53, "dns") in found
        assert ("one.example", FIRST, 443, "tcp") in found
        assert ("", SECOND, 8000, "tcp") in found
        flood = "i=0; while [ $i -lt 3000 ]; do nslookup -type=a x$i.example >/dev/null; i=$((i+1)); done"
        await sandbox.run(Command(shell=flood, timeout_s=60))
        assert len(await net.driver.denials(sandbox.id)) == 1000
