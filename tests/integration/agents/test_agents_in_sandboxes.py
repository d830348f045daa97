"""Agents in real sandboxes: what they may touch, and what is left of their commands when they are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloche.agents.base import AgentContext, Limits, ModelEndpoint, get_agent
from cloche.agents.errors import TimeLimitReached
from cloche.agents.trajectory import TrajectoryBuilder
from cloche.core.errors import SandboxLost
from cloche.sandbox.drivers.local import LocalDriver
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, PreparedImage, Resources, SandboxSpec
from cloche.testing.model_server import Fault, Script, ScriptedCall, ScriptedModelServer, Turn

MakeContext = Callable[..., AgentContext]
INSTRUCTION = "Please do the thing."


def bash(command: str, **more: Any) -> ScriptedCall:
    return ScriptedCall(name="bash", arguments={"command": command, **more})


def tool(name: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def serve(*turns: Turn) -> ScriptedModelServer:
    return ScriptedModelServer([Script(model="m", name="thing", match="do the thing", turns=turns)])


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    def make(server: ScriptedModelServer | None = None, **more: Any) -> AgentContext:
        logs = tmp_path / "logs"
        logs.mkdir(exist_ok=True)
        return AgentContext(
            logs_dir=logs,
            trajectory=TrajectoryBuilder(agent_name="a", agent_version="1", session_id="s"),
            model=ModelEndpoint(base_url=server.base_url, model="m") if server else None,
            **more,
        )

    return make


def told(context: AgentContext) -> list[str]:
    """What the model was told, in order."""
    observations = [step.observation for step in context.trajectory.steps if step.observation is not None]
    return [str(result.content) for observation in observations for result in observation.results]


async def processes(sandbox: Sandbox, name: str) -> int:
    """How many processes inside run the program ``name``."""
    count = f'[ "$c" = {name} ] && n=$((n+1))'
    line = f"n=0; for p in /proc/[0-9]*; do read -r c < $p/comm && {count}; done; echo $n"
    return int((await sandbox.run(Command(shell=line))).stdout.text)


async def until_running(sandbox: Sandbox, name: str, count: int) -> None:
    for _ in range(400):
        if await processes(sandbox, name) == count:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{count} of {name} never ran")


async def test_the_loop_does_what_the_model_says(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    turns = (
        Turn(calls=(bash("pwd; id -un; echo $A; echo ü >&2; exit 3"), tool("read_file", path="/etc/passwd"))),
        Turn(calls=(tool("write_file", path="sub/notes.txt", content="eins\nzwei\n"),)),
        Turn(calls=(tool("str_replace", path="/home/sub/notes.txt", old="zwei", new="2"),)),
        Turn(calls=(tool("read_file", path="sub/notes.txt"), bash("ls -ld sub sub/notes.txt | cut -c1-10"))),
        Turn(text="done"),
    )
    async with serve(*turns) as server, await driver.create(SandboxSpec(), busybox_image) as sandbox:
        await sandbox.run(Command(argv=("chown", "user", "/home")))
        context = make_context(server, user="user", workdir="/home", env={"A": "1"})
        await get_agent("loop").run(INSTRUCTION, sandbox, context)
        info = await sandbox.stat("/home/sub/notes.txt")
    assert info.uid == 1000
    first, passwd, *rest = told(context)
    assert first == "/home\nuser\n1\nü\n[exit status 3]"
    assert passwd.startswith("root:x:0:0")
    assert rest == ["wrote 10 bytes", "replaced", "eins\n2\n", "drwxr-xr-x\n-rw-r--r--"]
    total = context.usage.total()
    assert total is not None
    assert (total.input_tokens, total.output_tokens) == (
        server.ledger.total.prompt_tokens,
        server.ledger.total.completion_tokens,
    )


@pytest.mark.fault("agent-tool-without-the-right")
async def test_the_file_tools_have_the_rights_of_the_user_and_no_more(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    turns = (
        Turn(
            calls=(
                tool("read_file", path="/root/secret"),
                tool("write_file", path="/etc/passwd", content=""),
                tool("str_replace", path="/root/secret", old="s", new="t"),
            )
        ),
        Turn(text="done"),
    )
    async with serve(*turns) as server, await driver.create(SandboxSpec(), busybox_image) as sandbox:
        await sandbox.write_file("/root/secret", b"s", mode=0o600)
        context = make_context(server, user="user")
        await get_agent("loop").run(INSTRUCTION, sandbox, context)
        assert await sandbox.read_file("/root/secret") == b"s"
        assert b"root" in await sandbox.read_file("/etc/passwd")
    assert len(told(context)) == 3
    assert all("denied" in text for text in told(context))


@pytest.mark.fault("agent-command-outlives-its-time")
async def test_a_command_that_takes_too_long_goes_with_all_it_started(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    line = "setsid sleep 600 & (sleep 600 &) ; trap '' TERM; sleep 600"
    turns = (Turn(calls=(bash(line, timeout_s=0.5),)), Turn(text="done"))
    async with serve(*turns) as server, await driver.create(SandboxSpec(), busybox_image) as sandbox:
        context = make_context(server)
        await get_agent("loop").run(INSTRUCTION, sandbox, context)
        assert await processes(sandbox, "sleep") == 0
    assert told(context) == ["[ended after 0.5 s, with everything it started]"]


@pytest.mark.fault("agent-cancelled")
async def test_cancelling_ends_the_trees_of_all_commands(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    calls = (bash("setsid sleep 600 & sleep 600"), bash("sleep 600; sleep 600"))
    async with (
        serve(Turn(calls=calls)) as server,
        await driver.create(SandboxSpec(), busybox_image) as sandbox,
    ):
        context = make_context(server)
        running = asyncio.create_task(get_agent("loop").run(INSTRUCTION, sandbox, context))
        await until_running(sandbox, "sleep", 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await processes(sandbox, "sleep") == 0
    assert context.usage.uncounted_calls == 0
    assert [step.source for step in context.trajectory.steps] == ["system", "user", "agent"]


async def test_the_time_limit_ends_the_trees_too(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    turn = Turn(calls=(bash("setsid sleep 600 & sleep 600"),))
    async with serve(turn) as server, await driver.create(SandboxSpec(), busybox_image) as sandbox:
        context = make_context(server, limits=Limits(seconds=1.0))
        with pytest.raises(TimeLimitReached):
            await get_agent("loop").run(INSTRUCTION, sandbox, context)
        assert await processes(sandbox, "sleep") == 0


async def test_cancelling_in_the_middle_of_an_answer_leaves_the_sandbox_alone(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    turns = (
        Turn(calls=(bash("setsid sleep 600 >/dev/null 2>&1 & echo started"),)),
        Turn(text="a long answer", chunk_chars=1, fault=Fault(kind="hang", after_chunks=4)),
    )
    async with serve(*turns) as server, await driver.create(SandboxSpec(), busybox_image) as sandbox:
        context = make_context(server)
        running = asyncio.create_task(get_agent("loop").run(INSTRUCTION, sandbox, context))
        for _ in range(1000):
            if server.ledger.total.requests == 2:
                break
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await sandbox.kill_all()  # what the runner does before it grades
        assert await processes(sandbox, "sleep") == 0
    assert context.usage.uncounted_calls == server.ledger.total.unreported == 1
    assert told(context) == ["started"]


@pytest.mark.fault("agent-output-of-a-gibibyte")
async def test_a_gibibyte_of_output_is_told_in_brief(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    line = "echo begin; head -c 1073741824 /dev/zero | tr '\\0' x; echo; echo end"
    turns = (Turn(calls=(bash(line),)), Turn(text="done"))
    async with serve(*turns) as server, await driver.create(SandboxSpec(), busybox_image) as sandbox:
        context = make_context(server)
        await get_agent("loop").run(INSTRUCTION, sandbox, context)
    (text,) = told(context)
    assert text.startswith("begin\nxxx")
    assert text.endswith("xxx\nend")
    assert len(text) < 17_000


@pytest.mark.fault("agent-out-of-memory")
async def test_a_memory_hog_is_ended_and_the_model_told(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    turns = (
        Turn(calls=(bash("x=x; while :; do x=$x$x; done"),)),
        Turn(calls=(bash("echo alive"),)),
        Turn(text="done"),
    )
    spec = SandboxSpec(resources=Resources(memory_bytes=48 << 20))
    async with serve(*turns) as server, await driver.create(spec, busybox_image) as sandbox:
        context = make_context(server)
        await get_agent("loop").run(INSTRUCTION, sandbox, context)
    hog, after = told(context)
    assert hog.endswith("[ended: out of memory]")
    assert after == "alive"


@pytest.mark.fault("agent-sandbox-deleted-under-it")
async def test_a_sandbox_that_goes_is_an_infrastructure_failure(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    async with (
        serve(Turn(calls=(bash("sleep 600"),))) as server,
        await driver.create(SandboxSpec(), busybox_image) as sandbox,
    ):
        context = make_context(server)
        running = asyncio.create_task(get_agent("loop").run(INSTRUCTION, sandbox, context))
        await until_running(sandbox, "sleep", 1)
        await driver.delete(sandbox.id)
        with pytest.raises(SandboxLost):
            await running


async def test_the_oracle_runs_the_solution_as_the_user(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext, tmp_path: Path
) -> None:
    solution = tmp_path / "solution"
    (solution / "data").mkdir(parents=True)
    (solution / "data" / "answer").write_text("42\n")
    (solution / "solve.sh").write_text(
        "#!/bin/sh\nid -un; pwd; echo $A$B; cat /solution/data/answer; exit 4\n"
    )
    solution.chmod(0o700)
    (solution / "data").chmod(0o700)
    (solution / "data" / "answer").chmod(0o600)
    context = make_context(
        user="user", workdir="/home", env={"A": "1"}, solution_dir=solution, solution_env={"B": "2"}
    )
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        agent = get_agent("oracle")
        await agent.setup(sandbox, context)
        await agent.run(INSTRUCTION, sandbox, context)
    assert (context.logs_dir / "oracle.txt").read_text() == "user\n/home\n12\n42\n"
    assert (context.logs_dir / "exit-code.txt").read_text() == "4\n"


async def test_a_stopped_oracle_leaves_no_process(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext, tmp_path: Path
) -> None:
    solution = tmp_path / "solution"
    solution.mkdir()
    (solution / "solve.sh").write_text("#!/bin/sh\necho begun\nsetsid sleep 600 &\nsleep 600\n")
    context = make_context(solution_dir=solution)
    async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
        agent = get_agent("oracle")
        await agent.setup(sandbox, context)
        running = asyncio.create_task(agent.run(INSTRUCTION, sandbox, context))
        await until_running(sandbox, "sleep", 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await processes(sandbox, "sleep") == 0
    assert (context.logs_dir / "oracle.txt").read_text() == "begun\n"


async def test_many_attempts_in_sandboxes_of_their_own(
    driver: LocalDriver, busybox_image: PreparedImage, make_context: MakeContext
) -> None:
    turns = (Turn(calls=(bash("echo $$ > mine; cat mine"), bash("hostname"))), Turn(text="done"))

    async def one(server: ScriptedModelServer) -> AgentContext:
        context = make_context(server, workdir="/tmp")
        async with await driver.create(SandboxSpec(), busybox_image) as sandbox:
            await get_agent("loop").run(INSTRUCTION, sandbox, context)
        return context

    async with serve(*turns) as server:
        contexts = await asyncio.gather(*[one(server) for _ in range(10)])
    assert (
        sum(context.usage.counted_prompt_tokens for context in contexts) == server.ledger.total.prompt_tokens
    )
    assert server.ledger.total.reported == 20
