"""The guest stands what the workload's root throws at it."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, EndReason

MEGABYTE = 1 << 20


async def resident_bytes(driver: LocalDriver, sandbox: Sandbox) -> int:
    """Return what the guest has had in memory at most."""
    (pid,) = [info.pid for info in await driver.list() if info.id == sandbox.id]
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.fault("guest-signalled")
async def test_signals_do_not_reach_the_guest(hostile: Sandbox) -> None:
    await hostile.run(
        Command(shell="for s in KILL STOP TERM SEGV HUP USR1 33 64; do kill -$s 1; done; kill -9 -1")
    )
    assert (await hostile.run(Command(shell="echo alive"))).stdout.text == "alive\n"


@pytest.mark.parametrize(
    "line",
    [
        "head -c 1 /proc/1/mem",
        "cat /proc/1/fd/3",
        "cat /proc/1/environ",
        "ls /proc/1/exe/",
        "ls /proc/1/root/",
        "cat /proc/1/maps",
        "cat /proc/1/stack",
        "renice -n 19 -p 1",
        "chrt -i -p 0 1",
        "taskset -p 1 1",
        "ionice -c 3 -p 1",
    ],
)
@pytest.mark.fault("guest-looked-into")
async def test_the_guest_cannot_be_looked_into_or_slowed(hostile: Sandbox, line: str) -> None:
    completed = await hostile.run(Command(shell=line))
    assert not completed.ok, completed.stdout.text
    assert completed.stderr.text != ""


@pytest.mark.fault("ten-thousand-commands")
async def test_ten_thousand_commands_leave_the_guest_small(driver: LocalDriver, hostile: Sandbox) -> None:
    for _ in range(20):
        await asyncio.gather(*(hostile.run(Command(argv=("true",))) for _ in range(500)))
    assert await resident_bytes(driver, hostile) < 16 * MEGABYTE
    assert len(await hostile.commands()) <= 1024


async def test_a_flood_of_output_stays_bounded(driver: LocalDriver, hostile: Sandbox) -> None:
    completed = await hostile.run(Command(shell=f"head -c {1 << 30} /dev/zero"))
    assert completed.stdout.total_bytes == 1 << 30
    assert len(completed.stdout.head) + len(completed.stdout.tail) <= MEGABYTE
    assert await resident_bytes(driver, hostile) < 8 * MEGABYTE


async def test_a_reader_that_does_not_read_holds_up_nobody(driver: LocalDriver, hostile: Sandbox) -> None:
    process = await hostile.start(Command(shell=f"head -c {256 * MEGABYTE} /dev/zero; echo end >&2"))
    reader = process.output()
    await anext(reader)
    async for chunk in process.output("stderr"):
        assert chunk.data == b"end\n"
    await reader.aclose()  # type: ignore[attr-defined]  # an async generator
    assert await resident_bytes(driver, hostile) < 16 * MEGABYTE


async def test_input_for_a_command_that_has_closed_it(hostile: Sandbox) -> None:
    process = await hostile.start(Command(shell="exec <&-; sleep 0.3; echo done", interactive=True))
    with pytest.raises(InvalidInput):
        await process.write(b"x" * (4 * MEGABYTE))
    assert (await process.wait()).stdout.text == "done\n"
    completed = await hostile.run(Command(shell="true", stdin=b"x" * (8 * MEGABYTE)))
    assert completed.reason is EndReason.EXIT


async def test_output_that_is_closed_early_is_not_the_end(hostile: Sandbox) -> None:
    completed = await hostile.run(Command(shell="exec >&- 2>&-; sleep 0.2; exit 3"))
    assert completed.exit_code == 3


@pytest.mark.fault("zombies-and-orphans")
async def test_thousands_of_zombies_and_orphans_are_reaped(hostile: Sandbox) -> None:
    line = "i=0; while [ $i -lt 5000 ]; do (true &) ; i=$((i+1)); done; echo made"
    assert (await hostile.run(Command(shell=line))).stdout.text == "made\n"
    left = await hostile.run(Command(shell="ps -o stat,comm | grep -c '^Z'"))
    assert left.stdout.text == "0\n"


@pytest.mark.parametrize(
    "number",
    [165, 166, 155, 308, 425, 426, 428, 429, 430, 432, 438, 442, 250, 248, 321, 298, 323, 303, 304, 310, 311],
)
@pytest.mark.fault("forbidden-system-calls")
async def test_calls_that_could_change_the_sandbox_are_refused(hostile: Sandbox, number: int) -> None:
    completed = await hostile.run(Command(argv=("probe", "call", str(number), "0", "0")))
    assert completed.stdout.text in {"Operation not permitted\n", "Function not implemented\n"}


@pytest.mark.parametrize(
    ("number", "flags"), [(272, 0x10000000), (272, 0x20000), (272, 0x02000000), (56, 0x10000011)]
)
@pytest.mark.fault("nested-namespaces")
async def test_no_new_namespaces_of_users_mounts_or_cgroups(
    hostile: Sandbox, number: int, flags: int
) -> None:
    completed = await hostile.run(Command(argv=("probe", "call", str(number), str(flags), "0")))
    assert completed.stdout.text == "Operation not permitted\n"


async def test_x32_and_clone3_do_not_exist(hostile: Sandbox) -> None:
    for number in (0x40000000 | 39, 435):
        completed = await hostile.run(Command(argv=("probe", "call", str(number), "0", "0")))
        assert completed.stdout.text == "Function not implemented\n"
