"""The loop against a scripted model: what it does, when it stops, and what it leaves on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cloche.agents import loop, tools
from cloche.agents.base import AgentContext, Limits, get_agent
from cloche.agents.errors import (
    ModelRefused,
    ModelUnreachable,
    OutputCut,
    StepLimitReached,
    TimeLimitReached,
    TokenLimitReached,
)
from cloche.core.errors import ClocheError, InvalidInput, SandboxLost
from cloche.sandbox.spec import Command, Completed, EndReason
from cloche.testing.model_server import Fault, Script, ScriptedCall, ScriptedModelServer, Turn

MakeContext = Callable[..., AgentContext]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
INSTRUCTION = "Please do the thing."


def bash(command: str, **more: Any) -> ScriptedCall:
    return ScriptedCall(name="bash", arguments={"command": command}, **more)


def serve(*turns: Turn) -> ScriptedModelServer:
    return ScriptedModelServer([Script(model="m", name="thing", match="do the thing", turns=turns)])


async def run(server: ScriptedModelServer, sandbox: Any, make: MakeContext, **more: Any) -> AgentContext:
    """Run to the end; a failure is left in ``context.env`` only by those who expect one, see ``fail``."""
    context = make(server.base_url, **more)
    agent = get_agent("loop")
    await agent.setup(sandbox, context)
    await agent.run(INSTRUCTION, sandbox, context)
    return context


async def fail(
    kind: type[ClocheError], server: ScriptedModelServer, sandbox: Any, make: MakeContext, **more: Any
) -> AgentContext:
    context = make(server.base_url, **more)
    with pytest.raises(kind) as caught:
        await get_agent("loop").run(INSTRUCTION, sandbox, context)
    assert type(caught.value) is kind
    return context


def sources(context: AgentContext) -> list[str]:
    return [step.source for step in context.trajectory.steps]


def results(context: AgentContext) -> list[dict[str, str]]:
    """The results of each agent step, by call."""
    return [
        {str(item.source_call_id): str(item.content) for item in step.observation.results}
        for step in context.trajectory.steps
        if step.observation is not None
    ]


@pytest.mark.parametrize("path", [loop.__file__, tools.__file__])
def test_it_is_short_enough_to_read_standing_up(path: str) -> None:
    limit = 200 if path == loop.__file__ else 250
    assert len(Path(path).read_text().splitlines()) < limit


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
async def test_it_works_until_an_answer_without_a_call(
    stream: bool, sandbox: Any, make_context: MakeContext
) -> None:
    turns = (
        Turn(text="I will look.", calls=(bash("echo 5 > n; cat n"), bash("echo ü >&2; exit 4"))),
        Turn(calls=(ScriptedCall(name="write_file", arguments={"path": "out.txt", "content": "6\n"}),)),
        Turn(text="It is six."),
    )
    async with serve(*turns) as server:
        context = await run(server, sandbox, make_context, stream=stream)
    assert (sandbox.folder / "out.txt").read_text() == "6\n"
    assert sources(context) == ["system", "user", "agent", "agent", "agent"]
    assert results(context) == [
        {"call_0_0": "5", "call_0_1": "ü\n[exit status 4]"},
        {"call_1_0": "wrote 2 bytes"},
    ]
    assert context.trajectory.steps[-1].message == "It is six."
    served, total = server.ledger.total, context.usage.total()
    assert total is not None
    assert (total.input_tokens, total.output_tokens, total.cached_tokens, total.model_calls) == (
        served.prompt_tokens,
        served.completion_tokens,
        served.cached_tokens,
        3,
    )
    assert served.cached_tokens > 0
    steps = [step.metrics for step in context.trajectory.steps if step.metrics is not None]
    assert sum(metrics.prompt_tokens or 0 for metrics in steps) == served.prompt_tokens


async def test_parallel_calls_run_side_by_side_and_keep_their_order(
    sandbox: Any, make_context: MakeContext
) -> None:
    # the first two wait for what the third makes: one after the other would never end
    calls = (
        bash("while [ ! -e go ]; do sleep 0.01; done; echo first"),
        bash("while [ ! -e go ]; do sleep 0.01; done; echo second"),
        bash("touch go; echo third"),
    )
    async with serve(Turn(calls=calls), Turn(text="done")) as server:
        context = await run(server, sandbox, make_context)
    assert results(context) == [{"call_0_0": "first", "call_0_1": "second", "call_0_2": "third"}]
    assert sandbox.most_running == 3


async def test_parallel_calls_are_bounded(sandbox: Any, make_context: MakeContext) -> None:
    sandbox.answer = lambda command: Completed(id=command.id, reason=EndReason.EXIT, exit_code=0)
    calls = tuple(bash(f"echo {n}") for n in range(20))
    async with serve(Turn(calls=calls), Turn(text="done")) as server:
        await run(server, sandbox, make_context, limits=Limits(parallel_calls=3))
    assert len(sandbox.commands) == 20
    assert sandbox.most_running == 3


async def test_what_the_model_is_told_is_what_is_on_record(sandbox: Any, make_context: MakeContext) -> None:
    """The scripted server refuses conversations whose calls and results do not match."""
    malformed = ScriptedCall(name="bash", raw_arguments='{"command": "ls', id="same")
    turns = (Turn(calls=(malformed, bash("echo hi"), ScriptedCall(name="fly"))), Turn(text="done"))
    async with serve(*turns) as server:
        context = await run(server, sandbox, make_context)
    (told,) = results(context)
    assert told["same"].startswith("error: the arguments are not valid JSON")
    assert told["call_0_1"] == "hi"
    assert told["call_0_2"].startswith("error: there is no tool 'fly'")
    calls = context.trajectory.steps[2].tool_calls or []
    assert calls[0].arguments == {}
    assert '{"command": "ls' in str(calls[0].extra)
    assert server.ledger.total.refused == 0


@pytest.mark.fault("agent-step-limit")
async def test_the_step_limit_ends_it(sandbox: Any, make_context: MakeContext) -> None:
    turns = [Turn(calls=(bash(f"echo {n}"),)) for n in range(5)]
    async with serve(*turns) as server:
        context = await fail(StepLimitReached, server, sandbox, make_context, limits=Limits(steps=3))
    assert len(sandbox.commands) == context.trajectory.agent_steps == server.ledger.total.reported == 3


@pytest.mark.fault("agent-token-limit")
async def test_the_token_limit_ends_it(sandbox: Any, make_context: MakeContext) -> None:
    turns = [Turn(calls=(bash("echo"),)) for _ in range(9)]
    async with serve(*turns) as server:
        context = await fail(TokenLimitReached, server, sandbox, make_context, limits=Limits(tokens=1000))
    assert context.usage.counted_tokens >= 1000
    before_the_last = context.usage.counted_tokens - (context.trajectory.steps[-1].metrics.prompt_tokens or 0)  # type: ignore[union-attr]
    assert before_the_last < 1000


@pytest.mark.fault("agent-time-limit")
async def test_the_time_limit_ends_a_command(sandbox: Any, make_context: MakeContext) -> None:
    async with serve(Turn(calls=(bash("sleep 60"),)), Turn(text="done")) as server:
        context = await fail(TimeLimitReached, server, sandbox, make_context, limits=Limits(seconds=0.5))
    assert sandbox.running == 0
    assert sources(context) == ["system", "user", "agent"]
    assert context.usage.uncounted_calls == 0


async def test_the_time_limit_ends_a_model_call(sandbox: Any, make_context: MakeContext) -> None:
    async with serve(Turn(text="x", fault=Fault(kind="hang"))) as server:
        context = await fail(TimeLimitReached, server, sandbox, make_context, limits=Limits(seconds=0.3))
    assert context.usage.uncounted_calls == 1
    assert server.ledger.total.unreported == 1


async def test_somebody_elses_timeout_is_not_the_agents(sandbox: Any, make_context: MakeContext) -> None:
    def late(command: Command) -> Completed:
        raise TimeoutError("a request to the sandbox was not answered")

    sandbox.answer = late
    async with serve(Turn(calls=(bash("x"),))) as server:
        context = make_context(server.base_url, limits=Limits(seconds=60))
        with pytest.raises(TimeoutError) as caught:
            await get_agent("loop").run(INSTRUCTION, sandbox, context)
    assert not isinstance(caught.value, ClocheError)


@pytest.mark.fault("model-output-cut")
async def test_an_answer_cut_at_the_output_limit_ends_it(sandbox: Any, make_context: MakeContext) -> None:
    turn = Turn(text="and then", calls=(bash("rm -rf /"),), finish_reason="length")
    async with serve(turn) as server:
        context = await fail(OutputCut, server, sandbox, make_context)
    assert sandbox.commands == []
    assert context.trajectory.agent_steps == 1


@pytest.mark.fault("model-refuses-task")
async def test_a_refusal_ends_it(sandbox: Any, make_context: MakeContext) -> None:
    async with serve(Turn(text="I cannot help.", finish_reason="content_filter")) as server:
        await fail(ModelRefused, server, sandbox, make_context)


async def test_what_was_done_before_a_failure_is_on_record(
    tmp_path: Path, sandbox: Any, make_context: MakeContext
) -> None:
    turns = (
        Turn(calls=(bash("echo hi"),)),
        Turn(text="a longer text that is cut", fault=Fault(kind="cut", after_chunks=1)),
    )
    async with serve(*turns) as server:
        context = await fail(ModelUnreachable, server, sandbox, make_context)
    context.trajectory.write(tmp_path / "trajectory.json", context.usage)
    document = json.loads((tmp_path / "trajectory.json").read_text())
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent"]
    assert "total_prompt_tokens" not in document["final_metrics"]
    assert document["final_metrics"]["extra"]["uncounted_calls"] == 1
    assert document["final_metrics"]["extra"]["counted_prompt_tokens"] == server.ledger.total.prompt_tokens
    assert document["agent"]["tool_definitions"][0]["function"]["name"] == "bash"


@pytest.mark.fault("agent-sandbox-lost")
async def test_a_sandbox_lost_in_one_call_ends_the_others(sandbox: Any, make_context: MakeContext) -> None:
    real = sandbox._run

    async def lose(command: Command, on_output: Any) -> Completed:
        if "lose" in command.argv[-1]:
            raise SandboxLost("it is gone")
        return await real(command, on_output)

    sandbox._run = lose
    async with serve(Turn(calls=(bash("sleep 60"), bash("lose")))) as server:
        await fail(SandboxLost, server, sandbox, make_context)
    assert sandbox.running == 0


@pytest.mark.fault("agent-cancelled-in-a-command")
async def test_cancelling_ends_the_running_commands(
    sandbox: Any, make_context: MakeContext, until: Until
) -> None:
    async with serve(Turn(calls=(bash("touch here; sleep 60"), bash("sleep 60")))) as server:
        context = make_context(server.base_url)
        running = asyncio.create_task(get_agent("loop").run(INSTRUCTION, sandbox, context))
        await until((sandbox.folder / "here").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert sandbox.running == 0
    assert context.usage.uncounted_calls == 0
    assert sources(context) == ["system", "user", "agent"]


@pytest.mark.fault("agent-cancelled-in-an-answer")
async def test_cancelling_in_an_answer_leaves_its_count_unknown(
    sandbox: Any, make_context: MakeContext, until: Until
) -> None:
    turn = Turn(text="something long", chunk_chars=2, fault=Fault(kind="hang", after_chunks=3))
    async with serve(turn) as server:
        context = make_context(server.base_url)
        running = asyncio.create_task(get_agent("loop").run(INSTRUCTION, sandbox, context))
        await until(lambda: server.ledger.total.in_flight == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert context.usage.uncounted_calls == server.ledger.total.unreported == 1


@pytest.mark.fault("agent-without-a-model")
async def test_without_a_model_it_says_so(sandbox: Any, make_context: MakeContext) -> None:
    with pytest.raises(InvalidInput, match="needs a model") as caught:
        await get_agent("loop").setup(sandbox, make_context())
    assert "--base-url" in (caught.value.hint or "")


async def test_one_agent_runs_many_attempts_at_once(
    tmp_path: Path, sandbox: Any, make_context: MakeContext
) -> None:
    agent = get_agent("loop")
    turns = (Turn(calls=(bash("echo $A"),)), Turn(text="done"))
    sandbox.answer = lambda command: Completed(id=command.id, reason=EndReason.EXIT, exit_code=0)
    async with serve(*turns) as server:
        contexts = [make_context(server.base_url) for _ in range(20)]
        await asyncio.gather(*[agent.run(INSTRUCTION, sandbox, context) for context in contexts])
    assert {context.trajectory.agent_steps for context in contexts} == {2}
    assert (
        sum(context.usage.counted_prompt_tokens for context in contexts) == server.ledger.total.prompt_tokens
    )
