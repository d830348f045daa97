"""Units: named sandboxes on one private network."""

# ruff: noqa: ASYNC110, ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.native import network
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import Command, NetworkMode, NetworkPolicy, PreparedImage, SandboxSpec, Unit
from cloche.testing.networks import forwarding

NONE = NetworkPolicy()
PUBLIC = NetworkPolicy(mode=NetworkMode.PUBLIC)
ALLOW = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow=("0.0.0.0/0", "*.example"))
NAMES = ("main", "db")


@pytest.fixture(autouse=True)
def forwards() -> AsyncIterator[None]:
    with forwarding():
        yield


class Units:
    def __init__(self, driver: LocalDriver, image: PreparedImage) -> None:
        self._driver, self._image = driver, image
        self.stack = AsyncExitStack()

    async def make(self, unit: str, name: str, policy: NetworkPolicy = NONE) -> Sandbox:
        spec = SandboxSpec(network=policy, unit=Unit(id=unit, name=name, members=NAMES))
        sandbox = await self.stack.enter_async_context(await self._driver.create(spec, self._image))
        await sandbox.start(Command(shell=f"nc -ll -p 5000 -e echo {unit} {name}"))
        return sandbox


@pytest.fixture
async def units(driver: LocalDriver, busybox_image: PreparedImage) -> AsyncIterator[Units]:
    made = Units(driver, busybox_image)
    async with made.stack:
        yield made


async def ask(sandbox: Sandbox, place: str) -> str:
    line = f"until nc -w 2 {place} 5000 </dev/null; do usleep 20000; done"
    return (await sandbox.run(Command(shell=line, timeout_s=10))).stdout.text.strip()


async def reaches(sandbox: Sandbox, place: str) -> bool:
    return bool(
        (await sandbox.run(Command(shell=f"nc -w 2 {place} 5000 </dev/null", timeout_s=10))).stdout.text
    )


async def address(sandbox: Sandbox) -> str:
    return (await sandbox.run(Command(shell="ip -o -4 addr show eth0"))).stdout.text.split()[3].split("/")[0]


@pytest.mark.parametrize("policy", [NONE, ALLOW, PUBLIC], ids=["none", "allowlist", "public"])
async def test_members_reach_each_other_by_name_and_nobody_else(units: Units, policy: NetworkPolicy) -> None:
    main, db = await units.make("u1", "main", policy), await units.make("u1", "db")
    other, stranger = await units.make("u2", "main", policy), await units.make("u3", "db", PUBLIC)
    assert await ask(main, "db") == "u1 db"
    assert await ask(db, "main") == "u1 main"
    assert await ask(main, "main") == "u1 main"
    assert await ask(other, "main") == "u2 main"
    assert not await reaches(other, "db")  # its own is not there, and the others' are not its
    for outsider in (other, stranger):
        for member in (main, db):
            assert not await reaches(outsider, await address(member))
            assert not await reaches(member, await address(outsider))


async def test_a_unit_leads_nowhere_else_unless_the_policy_says_so(
    units: Units, driver: LocalDriver, settings: Settings
) -> None:
    main, _ = await units.make("u1", "main"), await units.make("u1", "db")
    assert not (await main.run(Command(shell="nslookup example.org", timeout_s=20))).ok
    said = await main.run(Command(shell="nc -w 2 192.0.2.1 80 </dev/null", timeout_s=10))
    assert not said.ok
    assert ("example.org", 53) in {(d.name, d.port) for d in await driver.denials(main.id)}
    await driver.set_network(main.id, PUBLIC)
    assert await ask(main, "db") == "u1 db"  # a new policy does not part it from its unit
    await driver.set_network(main.id, NONE)
    assert await ask(main, "db") == "u1 db"


async def test_nothing_of_a_unit_is_left(units: Units, settings: Settings) -> None:
    await units.make("u1", "main")
    await units.make("u1", "db")
    table = network.plan(settings).table
    assert "u1" not in await listed(table)  # the kernel knows numbers only
    await units.stack.aclose()
    async with asyncio.timeout(20):
        while [
            name for name in ("generation", "current", "members") if "elements" in await listed(table, name)
        ]:
            await asyncio.sleep(0.05)
    prefix = network.plan(settings).links
    assert not [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(prefix)]


async def listed(table: str, name: str | None = None) -> str:
    words = ("list", "table", "inet", table) if name is None else ("list", "set", "inet", table, name)
    if name == "generation":
        words = ("list", "map", "inet", table, name)
    process = await asyncio.create_subprocess_exec("nft", *words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return said.decode()


@pytest.mark.parametrize(
    "unit",
    [
        Unit(id="u", name="x", members=NAMES),
        Unit(id="u", name="a.b", members=("a.b",)),
        Unit(id="", name="main", members=NAMES),
        Unit(id="u", name="m0", members=tuple(f"m{n}" for n in range(65))),
    ],
)
async def test_a_unit_that_cannot_be(driver: LocalDriver, busybox_image: PreparedImage, unit: Unit) -> None:
    with pytest.raises(InvalidInput, match="unit"):
        await driver.create(SandboxSpec(unit=unit), busybox_image)
