"""A turn as OpenAI's chat format puts it: as one body, and as the chunks of a stream. Pure.

Must never send an answer that differs from the script: pieces put together are the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cloche.testing.model_server.script import ScriptedCall, Turn
from cloche.testing.model_server.tokens import count_tokens

CREATED = 0  # the same request gets the same bytes


def completion_tokens(turn: Turn) -> int:
    """Return the tokens of an answer: text, reasoning, and name and arguments of each call; at least one."""
    calls = sum(count_tokens(call.name) + count_tokens(call.arguments_text) for call in turn.calls)
    return max(1, count_tokens(turn.text) + count_tokens(turn.reasoning) + calls)


def usage_object(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """Return the ``usage`` object for these counts."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _call_id(call: ScriptedCall, turn_number: int, position: int) -> str:
    return call.id if call.id is not None else f"call_{turn_number}_{position}"


def whole_message(turn: Turn, turn_number: int) -> dict[str, Any]:
    """Return the answer's message."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(call, turn_number, position),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text},
            }
            for position, call in enumerate(turn.calls)
        ]
    return message


def _pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def deltas(turn: Turn, turn_number: int) -> Iterator[dict[str, Any]]:
    """Yield the answer in pieces: the role, reasoning, text, then each call's head and its arguments."""
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(turn.reasoning, turn.chunk_chars):
        yield {"reasoning_content": piece}
    for piece in _pieces(turn.text, turn.chunk_chars):
        yield {"content": piece}
    for position, call in enumerate(turn.calls):
        head = {"index": position, "id": _call_id(call, turn_number, position), "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]}
        for piece in _pieces(call.arguments_text, turn.chunk_chars):
            yield {"tool_calls": [{"index": position, "function": {"arguments": piece}}]}


def body(model: str, turn: Turn, turn_number: int, usage: dict[str, Any] | None) -> dict[str, Any]:
    """Return the whole answer."""
    choice = {"index": 0, "message": whole_message(turn, turn_number), "finish_reason": turn.ending}
    answer = _envelope(model, "chat.completion", turn_number, [choice])
    return answer if usage is None else {**answer, "usage": usage}


def chunk(
    model: str,
    turn_number: int,
    delta: dict[str, Any] | None,
    *,
    finish_reason: str | None = None,
    usage: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one chunk of a stream; without a delta it has no choices, as the one that carries usage."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    answer = _envelope(model, "chat.completion.chunk", turn_number, choices)
    return answer if usage is None else {**answer, "usage": usage}


def error_object(message: str, code: str | int | None, kind: str = "scripted_fault") -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _envelope(model: str, kind: str, turn_number: int, choices: list[Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{turn_number}",
        "object": kind,
        "created": CREATED,
        "model": model,
        "choices": choices,
    }
