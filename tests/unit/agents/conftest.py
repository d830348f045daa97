"""A sandbox that is a folder of this machine, a clock that never waits, and contexts for agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloche.agents.base import AgentContext, Limits, ModelEndpoint
from cloche.agents.trajectory import TrajectoryBuilder
from cloche.sandbox.spec import Command, Completed, EndReason, Output


@dataclass
class StillClock:
    """Waiting takes no time, but is written down."""

    time: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    waited_s: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self.time += timedelta(seconds=seconds)
        await asyncio.sleep(0)


def _output(data: bytes, cap_bytes: int) -> Output:
    half = cap_bytes // 2
    if len(data) <= 2 * half:
        return Output(head=data, total_bytes=len(data))
    return Output(head=data[:half], tail=data[-half:], total_bytes=len(data))


@dataclass
class FolderSandbox:
    """Runs commands as children of the test, in a folder; keeps the part of a sandbox's contract agents use.

    ``answer`` replaces running: it gets the command and returns how it ended.
    """

    folder: Path
    answer: Callable[[Command], Completed] | None = None
    commands: list[Command] = field(default_factory=list)
    uploads: list[tuple[Path, str]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def run(self, command: Command, *, on_output: Any = None) -> Completed:
        self.commands.append(command)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._run(command, on_output)
        finally:
            self.running -= 1

    async def _run(self, command: Command, on_output: Any) -> Completed:
        if self.answer is not None:
            await asyncio.sleep(0)
            return self.answer(command)
        argv = command.argv or ("/bin/sh", "-c", command.shell or "")
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        reason = EndReason.EXIT
        try:
            async with asyncio.timeout(command.timeout_s):
                out, err = await process.communicate(command.stdin)
        except TimeoutError:
            reason, out, err = EndReason.TIMEOUT, b"", b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        code = process.returncode
        return Completed(
            id=command.id,
            reason=EndReason.SIGNAL if reason is EndReason.EXIT and code < 0 else reason,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=_output(out, command.output_cap_bytes),
            stderr=_output(err, command.output_cap_bytes),
        )

    async def upload(self, source: Path, target: str, *, user: str | None = None) -> None:
        self.uploads.append((source, target))


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait for something that another task brings about; bounded, so that a test which waits in vain ends."""

    async def wait(condition: Callable[[], bool]) -> None:
        for _ in range(4000):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it never came to be")

    return wait


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def sandbox(tmp_path: Path) -> FolderSandbox:
    folder = tmp_path / "inside"
    folder.mkdir()
    return FolderSandbox(folder)


@pytest.fixture
def make_context(tmp_path: Path, clock: StillClock) -> Callable[..., AgentContext]:
    def make(base_url: str | None = None, model: str = "m", **more: Any) -> AgentContext:
        endpoint = {key: more.pop(key) for key in tuple(more) if key in ModelEndpoint.__dataclass_fields__}
        logs = tmp_path / "logs"
        logs.mkdir(exist_ok=True)
        limits = more.pop("limits", Limits())
        return AgentContext(
            logs_dir=logs,
            trajectory=TrajectoryBuilder(agent_name="a", agent_version="1", session_id="s", clock=clock),
            model=ModelEndpoint(base_url=base_url, model=model, **endpoint) if base_url else None,
            limits=limits,
            clock=clock,
            **more,
        )

    return make
