"""Tasks on disk, and a driver whose sandboxes are counted but do nothing: for what is pure scheduling.

What really happens in a sandbox is shown in tests/integration/experiment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from cloche.core.errors import InfraError, NotFound
from cloche.sandbox.driver import Capability, Driver, Leftover, SandboxInfo, SandboxState
from cloche.sandbox.handle import CommandStatus, FileInfo, FileKind, Sandbox
from cloche.sandbox.spec import Command, Completed, EndReason, ImageConfig, PreparedImage, SandboxSpec
from cloche.tasks import Task, load_task

IMAGE = PreparedImage(name="fake:1", digest="sha256:" + "1" * 64, layers=())


@dataclass
class FakeSandbox:
    """Keeps what the runner asks of a sandbox; its verifier always leaves ``reward``."""

    spec: SandboxSpec
    driver: FakeDriver
    image: ImageConfig = field(default_factory=ImageConfig)
    calls: list[str] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    out_of_memory_kills: int = 0

    async def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.spec.id not in self.driver.alive:
            raise AssertionError(f"{call} after the sandbox was deleted")
        await asyncio.sleep(0)

    async def make_dir(self, path: str, **_: Any) -> None:
        await self._note("make_dir")
        self.folders.add(path)

    async def upload(self, source: Path, target: str, **_: Any) -> None:
        await self._note("upload")

    async def write_file(self, path: str, data: bytes, **_: Any) -> None:
        await self._note("write_file")

    async def exists(self, path: str) -> bool:
        return False

    async def stat(self, path: str, **_: Any) -> FileInfo:
        await self._note("stat")
        if path not in self.folders:
            raise NotFound(path)
        return FileInfo(
            path=path, kind=FileKind.FOLDER, size_bytes=0, mode=0o777, uid=0, gid=0, modified_at=0.0
        )

    async def list_dir(self, path: str) -> list[FileInfo]:
        return []

    async def remove(self, path: str, **_: Any) -> None:
        await self._note("remove")

    async def run(self, command: Command, **_: Any) -> Completed:
        await self._note("run")
        await self.driver.during_run(self)
        return Completed(id=command.id, reason=EndReason.EXIT, exit_code=0)

    async def download(self, source: str, target: Path, *, limit_bytes: int = 0) -> list[FileInfo]:
        await self._note(f"download {source}")
        if source == "/logs/verifier":
            (target / "reward.txt").write_text(self.driver.reward)
        return []

    async def commands(self) -> list[CommandStatus]:
        return []

    async def kill_all(self) -> None:
        await self._note("kill_all")

    async def close(self) -> None:
        await asyncio.sleep(0)


async def _nothing(_sandbox: FakeSandbox) -> None:
    await asyncio.sleep(0)


@dataclass
class FakeDriver:
    """Counts what is alive. ``refuse`` is called with the number of each create, and may raise."""

    name: str = "fake"
    reward: str = "1"
    refuse: Callable[[int, SandboxSpec], None] = lambda _number, _spec: None
    during_run: Callable[[FakeSandbox], Awaitable[None]] = _nothing
    alive: dict[str, SandboxSpec] = field(default_factory=dict)
    made: list[SandboxSpec] = field(default_factory=list)
    most_alive: int = 0
    undeletable: bool = False
    able: frozenset[Capability] = frozenset(Capability)

    def capabilities(self, isolation: str | None = None) -> frozenset[Capability]:
        return self.able

    async def create(self, spec: SandboxSpec, image: PreparedImage) -> Sandbox:
        self.made.append(spec)
        self.refuse(len(self.made), spec)
        self.alive[spec.id] = spec
        self.most_alive = max(self.most_alive, len(self.alive))
        await asyncio.sleep(0)
        return cast("Sandbox", FakeSandbox(spec, self))

    async def attach(self, sandbox_id: str) -> Sandbox:
        raise NotFound(sandbox_id)

    async def list(self) -> list[SandboxInfo]:
        return [
            SandboxInfo(id=name, state=SandboxState.READY, created_at=0.0, image="fake:1", labels=spec.labels)
            for name, spec in self.alive.items()
        ]

    async def delete(self, sandbox_id: str) -> bool:
        await asyncio.sleep(0)
        if self.undeletable:
            raise InfraError("it does not go away")
        return self.alive.pop(sandbox_id, None) is not None

    async def leftovers(self) -> list[Leftover]:
        return []

    async def reap(self) -> list[Leftover]:
        return []

    async def close(self) -> None:
        pass


def as_driver(fake: FakeDriver) -> Driver:
    """Return the fake as what it stands for; the type checker sees that it fits."""
    return fake


TOML = """\
schema_version = "1.4"
[agent]
timeout_sec = 30.0
[verifier]
timeout_sec = 20.0
[environment]
docker_image = "fake:1"
memory_mb = 64
network_mode = "no-network"
"""

MakeTask = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Return a function that makes a task's folder; ``files`` adds files or, with ``None``, omits them."""

    def make(name: str = "sample", toml: str = TOML, **files: str | None) -> Path:
        wanted: dict[str, str | None] = {
            "task.toml": toml,
            "instruction.md": "Do it.\n",
            "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": "#!/bin/sh\ntrue\n",
            **{path.replace("__", "/"): text for path, text in files.items()},
        }
        folder = tmp_path / "tasks" / name
        for path, text in wanted.items():
            if text is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
        return folder

    return make


@pytest.fixture
def task(make_task: MakeTask) -> Task:
    """One good task."""
    return load_task(make_task())


@pytest.fixture
def fake_driver() -> FakeDriver:
    """A driver with nothing in it."""
    return FakeDriver()
