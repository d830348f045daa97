"""Starts real guests as plain processes: pid 1 of a namespace of their own, with or without a cgroup."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloche.sandbox.binaries import guest_path
from cloche.sandbox.guest.connection import GuestConnection, connect
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, ImageConfig, Lease, SandboxSpec

DOCKER_CAPS = "a80425fb"
_UNIFIED = next(
    (path for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(path, "cgroup.procs").exists()),
    None,
)
_counter = itertools.count()


def _program() -> str:
    return os.environ.get("CLOCHE_TEST_GUEST") or str(guest_path())


@dataclass
class Guest:
    """One guest: its socket, and what must go with it."""

    socket_path: Path
    process: subprocess.Popen[bytes]
    cgroup: Path | None
    connections: list[GuestConnection] = field(default_factory=list)
    sandboxes: list[Sandbox] = field(default_factory=list)

    async def connect(self) -> GuestConnection:
        """Return one more connection."""
        connection = await connect(self.socket_path)
        self.connections.append(connection)
        return connection

    async def sandbox(
        self,
        *,
        spec: SandboxSpec | None = None,
        config: ImageConfig | None = None,
        oom_kills: Callable[[], Awaitable[int]] | None = None,
    ) -> Sandbox:
        """Return a handle over a connection of its own."""

        async def deleter(_: str) -> bool:
            was = self.process.poll() is None
            self.end()
            return was

        sandbox = Sandbox(
            spec=spec or SandboxSpec(lease=Lease(ttl_s=None)),
            config=config or ImageConfig(),
            connection=await self.connect(),
            deleter=deleter,
            oom_kills=oom_kills,
        )
        self.sandboxes.append(sandbox)
        return sandbox

    async def ended(self) -> int:
        """Wait until the guest has ended by itself."""
        while self.process.poll() is None:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.005)
        return self.process.returncode

    def end(self) -> None:
        """Kill it, and with it its namespace."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        while self.cgroup is not None and self.cgroup.exists():
            with contextlib.suppress(OSError):
                (self.cgroup / "cgroup.kill").write_text("1")
            for folder in [*self.cgroup.glob("*/"), self.cgroup]:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            time.sleep(0.002)


GuestMaker = Callable[..., Guest]


def _wrapper(tree: str, cgroup: Path | None) -> list[str]:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if tree == "plain":
        return []
    if cgroup is None:
        return unshare
    enter = f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"'
    return ["sh", "-c", enter, "sh", *unshare, "--cgroup"]


@pytest.fixture
def guest_program() -> str:
    """Return the path of the program under test."""
    return _program()


@pytest.fixture
async def make_guest() -> AsyncIterator[GuestMaker]:
    """Return what starts a guest: ``tree`` is ``cgroup``, ``keeper`` or ``plain`` (not pid 1)."""
    made: list[Guest] = []
    folder = Path(tempfile.mkdtemp(prefix="cloche-guest-"))

    def make(*options: str, tree: str = "keeper", wrapper: list[str] | None = None) -> Guest:
        if tree == "cgroup" and _UNIFIED is None:
            pytest.fail("this machine has no cgroup v2 hierarchy")
        cgroup = None
        if tree == "cgroup":
            cgroup = Path(_UNIFIED or "", f"cloche-test-{os.getpid()}-{next(_counter)}")
            cgroup.mkdir()
        path = folder / f"{len(made)}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(64)
            command = [
                *_wrapper(tree, cgroup),
                *(wrapper or []),
                _program(),
                f"--listen-fd={listener.fileno()}",
                *(["--cgroup"] if tree == "cgroup" else []),
                *options,
            ]
            environment = {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0"}
            process = subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment)
        made.append(Guest(path, process, cgroup))
        return made[-1]

    yield make
    for guest in made:
        for sandbox in guest.sandboxes:
            await sandbox.close()
        for connection in guest.connections:
            await connection.close()
        guest.end()
    shutil.rmtree(folder)


@pytest.fixture(params=["keeper", "cgroup"])
async def guest(make_guest: GuestMaker, request: pytest.FixtureRequest) -> Guest:
    """Return a guest with Docker's capabilities for commands, once with and once without a cgroup."""
    return make_guest(f"--caps={DOCKER_CAPS}", "--harden", tree=request.param)


@pytest.fixture
async def sandbox(guest: Guest) -> Sandbox:
    """Return a handle on ``guest``."""
    return await guest.sandbox()


@pytest.fixture
async def lone(make_guest: GuestMaker) -> Guest:
    """Return one guest where how trees are ended does not matter."""
    return make_guest()


async def command_lines(sandbox: Sandbox) -> list[str]:
    """Return the command lines of all processes inside, zombies left out."""
    script = 'for p in /proc/[0-9]*; do tr "\\0" " " < $p/cmdline; echo; done 2>/dev/null'
    done = await sandbox.run(Command(shell=script))
    return [line.strip() for line in done.stdout.text.splitlines() if line.strip()]


@pytest.fixture
def inside() -> Callable[[Sandbox], Awaitable[list[str]]]:
    """Return what lists the command lines inside."""
    return command_lines


@pytest.fixture
async def until() -> Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]:
    """Return what waits until something becomes true; the test's own time limit is the bound."""

    async def wait(condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():  # noqa: ASYNC110  # what is waited for is another process
            await asyncio.sleep(0.01)

    return wait
