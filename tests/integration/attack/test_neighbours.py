"""Two sandboxes beside one another: nothing of the one is seen, reached or used up by the other."""

# ruff: noqa: ASYNC240  # a test may block its own loop

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, PreparedImage, SandboxSpec

KEY = "424242"


async def first_line(sandbox: Sandbox, *argv: str) -> str:
    """Start a program that says one line and goes on; return that line."""
    process = await sandbox.start(Command(argv=argv, grace_s=0))
    return (await anext(process.output())).data.decode()


@pytest.mark.fault("shared-memory-between-sandboxes")
async def test_shared_memory_is_not_shared_between_sandboxes(
    driver: LocalDriver, busybox_image: PreparedImage, reach: Path, neighbour: Sandbox
) -> None:
    async with await driver.create(SandboxSpec(), busybox_image) as maker:
        await maker.upload(reach, "/bin/reach")
        assert (await maker.run(Command(argv=("reach", "shm-make", KEY)))).ok
        assert (await maker.run(Command(argv=("reach", "shm-find", KEY)))).ok
        found = await neighbour.run(Command(argv=("reach", "shm-find", KEY)))
        assert found.stdout.text == "No such file or directory\n"
    listed = Path("/proc/sysvipc/shm").read_text()  # nothing of it outlives its sandbox on the host
    assert not [line for line in listed.splitlines()[1:] if line.split()[0] == KEY]


@pytest.mark.fault("abstract-sockets-between-sandboxes")
async def test_abstract_sockets_do_not_meet(hostile: Sandbox, neighbour: Sandbox) -> None:
    assert await first_line(hostile, "reach", "listen", "meet-me", "60") == "done\n"
    assert (await hostile.run(Command(argv=("reach", "connect", "meet-me")))).ok
    met = await neighbour.run(Command(argv=("reach", "connect", "meet-me")))
    assert met.stdout.text == "Connection refused\n"


@pytest.mark.fault("inotify-taken")
async def test_watchers_are_left_for_others(hostile: Sandbox, neighbour: Sandbox) -> None:
    taken = int(await first_line(hostile, "reach", "watchers", "100000", "60"))
    assert 0 < taken < 100000
    assert await first_line(neighbour, "reach", "watchers", "64", "0") == "64\n"


@pytest.mark.fault("descriptors-taken")
async def test_descriptors_are_left_for_others_and_for_the_guest(
    hostile: Sandbox, neighbour: Sandbox
) -> None:
    line = "ulimit -n 2000; exec reach files 20 60"
    assert await first_line(hostile, "sh", "-c", line) == "done\n"
    assert (await hostile.run(Command(argv=("/bin/echo", "fine")))).stdout.text == "fine\n"
    assert await first_line(neighbour, "reach", "files", "1", "0") == "done\n"


async def test_processes_and_files_of_others_are_not_in_sight(hostile: Sandbox, neighbour: Sandbox) -> None:
    await neighbour.write_file("/tmp/secret-of-the-neighbour", b"x")
    await neighbour.start(Command(argv=("/bin/sleep", "6174")))
    line = "ps; find / -xdev -name 'secret-of*'; cat /proc/*/cmdline | tr '\\0' ' '"
    seen = (await hostile.run(Command(shell=line))).stdout.text
    assert "6174" not in seen
    assert "secret-of-the-neighbour\n" not in seen


async def test_the_network_holds_nobody_else(hostile: Sandbox, neighbour: Sandbox) -> None:
    await neighbour.start(Command(shell="nc -l -p 7777"))
    tried = await hostile.run(
        Command(shell="cat /proc/net/dev /proc/net/unix; nc -w 1 127.0.0.1 7777 </dev/null")
    )
    assert tried.exit_code != 0
    devices = [line.split(":")[0].strip() for line in tried.stdout.text.splitlines() if ":" in line]
    assert "eth0" not in devices
    assert "spawner.sock" not in tried.stdout.text
