"""A model's answer in OpenAI's chat format, put together from a whole body or from the chunks of a stream.

Pure: bytes have become JSON before, and errors are typed. Must never pass on what an endpoint made up
against the format: a wrong type is ``ModelGarbage``, not a crash later. Fields it does not know are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cloche.agents.errors import ModelGarbage, error_in_answer, excerpt
from cloche.agents.trajectory import clean_text
from cloche.agents.usage import TokenCounts

CALL_LIMIT = 128
ARGUMENT_DEPTH_LIMIT = 32
TEXT_LIMIT_CHARS = 16 << 20


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool call as the model wrote it; ``problem`` says why its arguments are no object."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One complete answer. ``finish_reason`` is the endpoint's word; ``counts`` is ``None`` without usage."""

    text: str = ""
    reasoning: str | None = None
    refusal: str | None = None
    calls: tuple[RequestedCall, ...] = ()
    finish_reason: str = "stop"
    model: str | None = None
    counts: TokenCounts | None = None

    def as_message(self) -> dict[str, Any]:
        """Return the answer as a message of the conversation's next request.

        Arguments that were no object go back as an empty one: endpoints parse what they are sent.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
                }
                for call in self.calls
            ]
        return message


def _depth(value: Any, level: int = 0) -> int:
    if level > ARGUMENT_DEPTH_LIMIT:
        return level
    if isinstance(value, Mapping):
        return max((_depth(item, level + 1) for item in value.values()), default=level)
    if isinstance(value, list):
        return max((_depth(item, level + 1) for item in value), default=level)
    return level


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def parse_arguments(raw: str) -> tuple[dict[str, Any], str]:
    """Return (arguments, problem): an object without a problem, or the reverse. Nothing at all is ``{}``."""
    if not raw.strip():
        return {}, ""
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not valid JSON ({excerpt(str(error))}): {excerpt(raw)}"
    if not isinstance(value, dict):
        return {}, f"the arguments are not a JSON object: {excerpt(raw)}"
    if _depth(value) > ARGUMENT_DEPTH_LIMIT:
        return {}, f"the arguments are nested more than {ARGUMENT_DEPTH_LIMIT} deep"
    return _clean(value), ""


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ModelGarbage(f"the model endpoint's {what} is not an object: {excerpt(repr(value))}")
    return value


def _text(value: Any, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ModelGarbage(f"the model endpoint's {what} is not text: {excerpt(repr(value))}")
    return value


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_usage(value: Any) -> TokenCounts | None:
    """Return the counts of a ``usage`` object; ``None`` if it or one of the two that matter is missing."""
    if not isinstance(value, Mapping):
        return None
    prompt, completion = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    return TokenCounts(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class AnswerBuilder:
    """Takes the chunks of a stream, or one whole body, and gives the answer.

    Usage may come with any chunk, also after the last word, and more than once: the last one counts, since
    those that repeat it send running totals.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._finish_reason = ""
        self._model: str | None = None
        self._counts: TokenCounts | None = None
        self._chars = 0
        self._chunks = 0

    @property
    def started(self) -> bool:
        """Whether anything of an answer has come."""
        return self._chunks > 0

    @property
    def finished(self) -> bool:
        """Whether the endpoint has said why the answer ends: what follows can only be usage."""
        return bool(self._finish_reason)

    def add_chunk(self, value: Any) -> None:
        """Take one chunk of a stream. Raises ModelGarbage, or what an error object in it stands for."""
        choice = self._envelope(value, "chunk")
        if choice is not None:
            self._take(_object(choice.get("delta") or {}, "delta"))
            self._finish_reason = _text(choice.get("finish_reason"), "finish_reason") or self._finish_reason

    def add_body(self, value: Any) -> None:
        """Take a whole answer. Raises as ``add_chunk`` does."""
        choice = self._envelope(value, "answer")
        if choice is None:
            raise ModelGarbage("the model endpoint's answer has no choices")
        self._take(_object(choice.get("message"), "message"))
        self._finish_reason = _text(choice.get("finish_reason"), "finish_reason") or "stop"

    def build(self) -> ChatAnswer:
        """Return the answer. Raises ModelGarbage if a call has no name."""
        return ChatAnswer(
            text=clean_text("".join(self._text)),
            reasoning=clean_text("".join(self._reasoning)) or None,
            refusal=clean_text("".join(self._refusal)) or None,
            calls=self._finish_calls(),
            finish_reason=self._finish_reason,
            model=self._model,
            counts=self._counts,
        )

    def _envelope(self, value: Any, what: str) -> Mapping[str, Any] | None:
        value = _object(value, what)
        if value.get("error"):
            raise error_in_answer(value["error"])
        self._chunks += 1
        self._counts = parse_usage(value.get("usage")) or self._counts
        if isinstance(value.get("model"), str):
            self._model = clean_text(value["model"])
        choices = value.get("choices")
        if not isinstance(choices, list):
            raise ModelGarbage(f"the model endpoint's {what} has no list of choices: {excerpt(repr(value))}")
        return _object(choices[0], "choice") if choices else None

    def _take(self, part: Mapping[str, Any]) -> None:
        self._grow(self._text, _text(part.get("content"), "content"))
        self._grow(self._refusal, _text(part.get("refusal"), "refusal"))
        # DeepSeek, vLLM and SGLang say reasoning_content, OpenRouter and newer vLLM say reasoning
        self._grow(
            self._reasoning, _text(part.get("reasoning_content") or part.get("reasoning"), "reasoning")
        )
        calls = part.get("tool_calls") or []
        if not isinstance(calls, list):
            raise ModelGarbage("the model endpoint's tool_calls are not a list")
        for call in calls:
            self._take_call(_object(call, "tool call"))

    def _take_call(self, part: Mapping[str, Any]) -> None:
        function = _object(part.get("function") or {}, "function")
        index = part.get("index")
        if index is None:  # in a whole body, and in some endpoints' streams: a name begins another call
            index = len(self._calls) if function.get("name") else max(self._calls, default=0)
        if not isinstance(index, int) or not 0 <= index < CALL_LIMIT:
            raise ModelGarbage(f"the model endpoint's tool call has the index {excerpt(repr(index))}")
        call = self._calls.setdefault(index, _PartialCall())
        call.id = call.id or _text(part.get("id"), "tool call id")
        call.name = call.name or _text(function.get("name"), "function name")
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):  # some endpoints send them parsed
            arguments = json.dumps(arguments)
        self._grow(call.arguments, _text(arguments, "arguments"))

    def _grow(self, parts: list[str], text: str) -> None:
        self._chars += len(text)
        if self._chars > TEXT_LIMIT_CHARS:
            raise ModelGarbage(f"the model endpoint's answer is longer than {TEXT_LIMIT_CHARS} characters")
        if text:
            parts.append(text)

    def _finish_calls(self) -> tuple[RequestedCall, ...]:
        calls: list[RequestedCall] = []
        taken: set[str] = set()
        for index, partial in sorted(self._calls.items()):
            if not partial.name:
                raise ModelGarbage("the model endpoint's tool call has no function name")
            call_id = clean_text(partial.id)
            if not call_id or call_id in taken:  # some endpoints leave ids out, or repeat them
                call_id = f"call_{index}" if f"call_{index}" not in taken else f"call_{index}_{len(taken)}"
            taken.add(call_id)
            arguments, problem = parse_arguments("".join(partial.arguments))
            calls.append(RequestedCall(call_id, clean_text(partial.name), arguments, problem))
        return tuple(calls)
