"""The built-in agent: ask the model, carry out the calls it asks for, tell it what came of them, ask again.

It runs on the host; only the commands of its tools run inside. An answer without a call ends it. Must never
ask for a judgement of its work, and must never catch what it cannot deal with: a limit, an endpoint's
failure or a lost sandbox leaves as a typed error, with all that was done until then on record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cloche.agents.answer import ChatAnswer, RequestedCall
from cloche.agents.atif import ToolCall
from cloche.agents.base import AgentContext, ModelEndpoint
from cloche.agents.chat import ChatClient
from cloche.agents.errors import (
    ModelRefused,
    OutputCut,
    StepLimitReached,
    TimeLimitReached,
    TokenLimitReached,
    excerpt,
)
from cloche.agents.tools import TOOLS, Toolbox
from cloche.core.errors import InvalidInput
from cloche.core.failures import first_cause

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox

SYSTEM = """\
You do a task on a Linux machine that is yours alone. Use the tools to look, to act and to check your work; \
nobody will answer questions. Each bash call is a new shell in the same working directory. \
When the task is done, answer with a short summary and without calling a tool: that ends your work."""


class LoopAgent:
    """A tool-calling loop over an OpenAI-compatible chat endpoint."""

    name = "loop"
    version = "1"
    needs_model = True

    async def setup(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Check that there is a model to ask: nothing is installed. Raises InvalidInput."""
        _endpoint(context)

    async def run(self, instruction: str, sandbox: Sandbox, context: AgentContext) -> None:
        """Work until the model answers without a call, or a limit is reached."""
        attempt = _Attempt(sandbox, context)
        attempt.open(instruction)
        try:
            async with (
                asyncio.timeout(context.limits.seconds) as deadline,
                ChatClient(_endpoint(context), clock=context.clock) as chat,
            ):
                while await attempt.step(chat):
                    pass
        except TimeoutError as error:
            if not deadline.expired():  # somebody else's time-out is not the agent's
                raise
            raise TimeLimitReached(f"not done after {context.limits.seconds:g} s") from error


class _Attempt:
    """The conversation of one attempt, in the endpoint's format and in the trajectory's."""

    def __init__(self, sandbox: Sandbox, context: AgentContext) -> None:
        self._context = context
        self._toolbox = Toolbox(sandbox, context)
        self._messages: list[dict[str, Any]] = []
        self._steps = 0

    def open(self, instruction: str) -> None:
        """Say what it is all about."""
        trajectory = self._context.trajectory
        trajectory.set_tools(TOOLS)
        for role, text, note in (
            ("system", SYSTEM, trajectory.add_system),
            ("user", instruction, trajectory.add_user),
        ):
            self._messages.append({"role": role, "content": text})
            note(text)

    async def step(self, chat: ChatClient) -> bool:
        """Ask once and carry out what the model asks for. Return whether there is more to do."""
        self._check_limits()
        self._steps += 1
        answer = await chat.complete(self._messages, TOOLS, self._context.usage)
        step_id = self._record(answer)
        _check_ending(answer)
        if not answer.calls:
            return False
        results = await self._carry_out(answer.calls)
        self._context.trajectory.add_results(
            step_id, {call.id: result for call, result in zip(answer.calls, results, strict=True)}
        )
        self._messages.append(answer.as_message())
        self._messages += [
            {"role": "tool", "tool_call_id": call.id, "content": result}
            for call, result in zip(answer.calls, results, strict=True)
        ]
        return True

    def _check_limits(self) -> None:
        limits, used = self._context.limits, self._context.usage.counted_tokens
        if self._steps >= limits.steps:
            raise StepLimitReached(f"not done after {limits.steps} steps")
        if limits.tokens is not None and used >= limits.tokens:
            raise TokenLimitReached(f"not done after {used} of {limits.tokens} tokens")

    def _record(self, answer: ChatAnswer) -> int:
        return self._context.trajectory.add_agent(
            answer.text,
            calls=[
                ToolCall(
                    tool_call_id=call.id,
                    function_name=call.name,
                    arguments=dict(call.arguments),
                    extra={"problem": call.problem} if call.problem else None,
                )
                for call in answer.calls
            ],
            reasoning=answer.reasoning,
            model_name=answer.model,
            counts=answer.counts,
        )

    async def _carry_out(self, calls: Sequence[RequestedCall]) -> list[str]:
        """Run the calls side by side and return their results in order; one that breaks ends the others."""
        places = asyncio.Semaphore(self._context.limits.parallel_calls)

        async def one(call: RequestedCall) -> str:
            async with places:
                return await self._toolbox.call(call)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(call)) for call in calls]
        except ExceptionGroup as failures:
            raise first_cause(failures) from failures
        return [task.result() for task in tasks]


def _check_ending(answer: ChatAnswer) -> None:
    """Raise for an answer that ends the attempt by the way it ended."""
    if answer.finish_reason == "length":
        raise OutputCut(f"the answer was cut off at the output limit: … {answer.text[-80:]}")
    if answer.refusal is not None or answer.finish_reason == "content_filter":
        raise ModelRefused(f"the model refused: {excerpt(answer.refusal or answer.text)}")


def _endpoint(context: AgentContext) -> ModelEndpoint:
    if context.model is None:
        raise InvalidInput("the agent `loop` needs a model", hint="give one with -m MODEL --base-url URL")
    return context.model
