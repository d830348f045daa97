"""The oracle runs the solution as the agent's user; nop touches nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cloche.agents import oracle
from cloche.agents.base import AgentContext, get_agent
from cloche.core.errors import InfraError, InvalidInput
from cloche.sandbox.handle import Chunk
from cloche.sandbox.spec import Command, Completed, EndReason

MakeContext = Callable[..., AgentContext]
Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def solution(tmp_path: Path) -> Path:
    folder = tmp_path / "solution"
    folder.mkdir()
    (folder / "solve.sh").write_text("#!/bin/sh\n")
    return folder


def scripted(sandbox: Any, **endings: Any) -> None:
    """Make the sandbox answer: ``solve`` is how the solution ends, ``chmod`` how the preparation does."""

    async def answer(command: Command, on_output: Any) -> Completed:
        which = "solve" if command.shell else "chmod"
        if which == "solve" and on_output is not None:
            for data in endings.get("output", ()):
                on_output(Chunk(stream="stdout", offset=0, data=data))
        if endings.get("hang") and which == "solve":
            await asyncio.Event().wait()
        ending = {"reason": EndReason.EXIT, "exit_code": 0, **endings.get(which, {})}
        return Completed(id=command.id, **ending)

    sandbox._run = answer


async def solve(sandbox: Any, context: AgentContext) -> None:
    agent = get_agent("oracle")
    await agent.setup(sandbox, context)
    await agent.run("do it", sandbox, context)


async def test_it_runs_the_solution(sandbox: Any, solution: Path, make_context: MakeContext) -> None:
    scripted(sandbox, output=[b"gr\xc3", b"\xbc\xc3\x9fe\n"], solve={"exit_code": 3})
    context = make_context(
        solution_dir=solution, env={"A": "1", "B": "1"}, solution_env={"B": "2"}, user="scribe", workdir="/w"
    )
    await solve(sandbox, context)
    assert sandbox.uploads == [(solution, "/solution")]
    *prepared, ran = sandbox.commands
    assert {command.user for command in prepared} == {"0"}
    assert (ran.shell, ran.user, ran.cwd, dict(ran.env)) == (
        "/solution/solve.sh",
        "scribe",
        "/w",
        {"A": "1", "B": "2"},
    )
    assert (context.logs_dir / "oracle.txt").read_text() == "grüße\n"
    assert (context.logs_dir / "exit-code.txt").read_text() == "3\n"
    said, did = context.trajectory.steps
    assert (said.source, said.message) == ("user", "do it")
    assert did.llm_call_count == 0
    assert did.observation is not None
    assert did.observation.results[0].content == "grüße\n\n[exit status 3]"
    assert context.usage.total() is None


@pytest.mark.fault("oracle-without-solution")
@pytest.mark.parametrize("kind", ["none", "empty"])
async def test_a_task_without_a_solution(
    kind: str, tmp_path: Path, sandbox: Any, make_context: MakeContext
) -> None:
    context = make_context(solution_dir=None if kind == "none" else tmp_path)
    with pytest.raises(InvalidInput, match=r"no solution/solve\.sh"):
        await get_agent("oracle").setup(sandbox, context)
    assert sandbox.uploads == []


async def test_a_solution_that_cannot_be_prepared(
    sandbox: Any, solution: Path, make_context: MakeContext
) -> None:
    scripted(sandbox, chmod={"exit_code": 1, "message": "read-only"})
    with pytest.raises(InfraError, match="read-only"):
        await get_agent("oracle").setup(sandbox, make_context(solution_dir=solution))


async def test_a_solution_that_cannot_be_started(
    sandbox: Any, solution: Path, make_context: MakeContext
) -> None:
    scripted(sandbox, solve={"reason": EndReason.START_FAILED, "exit_code": None, "message": "no such user"})
    with pytest.raises(InfraError, match="no such user"):
        await solve(sandbox, make_context(solution_dir=solution))


async def test_a_long_log_is_bounded(
    sandbox: Any, solution: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "LOG_LIMIT_BYTES", 10)
    scripted(sandbox, output=[b"01234567", b"89abcdef", b"x"])
    context = make_context(solution_dir=solution)
    await solve(sandbox, context)
    assert (context.logs_dir / "oracle.txt").read_text() == "0123456789\n[... 7 bytes left out ...]\n"


async def test_a_solution_that_is_stopped_leaves_its_log(
    sandbox: Any, solution: Path, make_context: MakeContext, until: Until
) -> None:
    scripted(sandbox, output=[b"so far\n"], hang=True)
    context = make_context(solution_dir=solution)
    running = asyncio.create_task(solve(sandbox, context))
    await until(lambda: any(command.shell for command in sandbox.commands))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (context.logs_dir / "oracle.txt").read_text() == "so far\n"
    assert [step.source for step in context.trajectory.steps] == ["user", "agent"]


async def test_nop_touches_nothing(sandbox: Any, make_context: MakeContext) -> None:
    context = make_context()
    agent = get_agent("nop")
    await agent.setup(sandbox, context)
    await agent.run("do it", sandbox, context)
    assert sandbox.commands == sandbox.uploads == []
    assert [step.source for step in context.trajectory.steps] == ["user"]
    assert context.usage.total() is None
