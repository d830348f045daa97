"""Answers: pieces put together are the whole, and whatever comes is an answer or a typed error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.agents.answer import (
    ARGUMENT_DEPTH_LIMIT,
    CALL_LIMIT,
    AnswerBuilder,
    ChatAnswer,
    RequestedCall,
    parse_arguments,
    parse_usage,
)
from cloche.agents.errors import ModelGarbage, ModelRateLimited
from cloche.agents.usage import TokenCounts
from cloche.core.errors import ModelError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "index",
                    "usage",
                    "error",
                    "code",
                    "prompt_tokens",
                    "completion_tokens",
                    "finish_reason",
                    "refusal",
                    "reasoning_content",
                    "model",
                ]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def from_chunks(*deltas: dict[str, Any], finish_reason: str = "stop") -> ChatAnswer:
    builder = AnswerBuilder()
    for delta in deltas:
        builder.add_chunk({"choices": [{"index": 0, "delta": delta}]})
    builder.add_chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    return builder.build()


def call_part(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": head.pop("name")} if "name" in head else {})}
    return {"tool_calls": [{"index": index, "function": function, **head}]}


def test_text_and_reasoning_are_put_together() -> None:
    answer = from_chunks(
        {"role": "assistant", "content": None},
        {"reasoning_content": "h"},
        {"reasoning": "m"},
        {"content": "He"},
        {"content": "llo"},
    )
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Hello", "hm", "stop")


def test_parallel_calls_may_come_interleaved() -> None:
    answer = from_chunks(
        call_part(0, "", id="a", name="bash"),
        call_part(1, '{"x"', id="b", name="read_file"),
        call_part(0, '{"command": '),
        call_part(1, ": 1}"),
        call_part(0, '"ls"}'),
    )
    assert answer.calls == (
        RequestedCall("a", "bash", {"command": "ls"}),
        RequestedCall("b", "read_file", {"x": 1}),
    )


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=8), max_size=4), st.integers(1, 7))
def test_arguments_in_any_number_of_pieces(arguments: dict[str, str], size: int) -> None:
    raw = json.dumps(arguments)
    pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
    answer = from_chunks(call_part(0, "", id="a", name="f"), *[call_part(0, piece) for piece in pieces])
    assert answer.calls[0].arguments == json.loads(json.dumps(arguments))
    assert answer.calls[0].problem == ""


@pytest.mark.parametrize("ids", [(None, None), ("", ""), ("same", "same"), ("call_1", "call_1")])
def test_missing_and_repeated_ids_become_ids_of_their_own(ids: tuple[str | None, str | None]) -> None:
    answer = from_chunks(*[call_part(n, "{}", name="f", id=call_id) for n, call_id in enumerate(ids)])
    assert len({call.id for call in answer.calls}) == 2


def test_calls_without_an_index_are_told_apart_by_their_names() -> None:
    answer = from_chunks(
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"function": {"arguments": "}"}}]},
        {"tool_calls": [{"id": "b", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
    )
    assert answer.calls == (RequestedCall("a", "f", {}), RequestedCall("b", "f", {"x": 1}))


@pytest.mark.parametrize("count", [CALL_LIMIT, CALL_LIMIT + 1])
def test_the_number_of_calls_is_bounded(count: int) -> None:
    builder = AnswerBuilder()
    calls = [{"function": {"name": "f", "arguments": "{}"}}] * count
    body = {"choices": [{"message": {"tool_calls": calls}}]}
    if count > CALL_LIMIT:
        with pytest.raises(ModelGarbage):
            builder.add_body(body)
        return
    builder.add_body(body)
    assert len({call.id for call in builder.build().calls}) == count


def test_arguments_that_were_parsed_already_are_taken() -> None:
    builder = AnswerBuilder()
    call = {"id": "a", "function": {"name": "f", "arguments": {"x": [1]}}}
    builder.add_body(
        {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "stop"}]}
    )
    assert builder.build().calls == (RequestedCall("a", "f", {"x": [1]}),)


@pytest.mark.fault("model-tool-arguments-malformed")
@pytest.mark.parametrize("raw", ['{"a": ', "[1]", "NaN", '{"a": NaN}', "x", '{"a": "\x01"}', "9" * 5000])
def test_arguments_that_are_no_object_are_a_problem_not_an_error(raw: str) -> None:
    arguments, problem = parse_arguments(raw)
    assert arguments == {}
    assert problem.startswith("the arguments")
    assert len(problem) < 800


@pytest.mark.parametrize("depth", [ARGUMENT_DEPTH_LIMIT + 1, 100_000])
def test_arguments_nested_without_end_are_a_problem(depth: int) -> None:
    arguments, problem = parse_arguments('{"a":' + "[" * depth + "]" * depth + "}")
    assert arguments == {}
    assert problem


@pytest.mark.parametrize("raw", ["", "  ", "{}"])
def test_no_arguments_are_an_empty_object(raw: str) -> None:
    assert parse_arguments(raw) == ({}, "")


def test_a_malformed_call_goes_back_as_an_empty_object() -> None:
    answer = from_chunks(call_part(0, '{"a": ', id="a", name="f"))
    assert answer.as_message()["tool_calls"][0]["function"]["arguments"] == "{}"


def test_usage_that_comes_twice_is_the_last_not_the_sum() -> None:
    builder = AnswerBuilder()
    for completion in (1, 5, 9):
        builder.add_chunk({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": completion}})
    builder.add_chunk({"choices": [], "usage": None})
    assert builder.build().counts == TokenCounts(prompt_tokens=7, completion_tokens=9)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        3,
        {"prompt_tokens": 1},
        {"prompt_tokens": None, "completion_tokens": 1},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": "1", "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
    ],
)
def test_usage_that_is_not_whole_is_unknown(value: Any) -> None:
    assert parse_usage(value) is None


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}, 4])
def test_cached_tokens_may_be_unknown(details: Any) -> None:
    counts = parse_usage({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": details})
    assert counts == TokenCounts(prompt_tokens=3, completion_tokens=1, cached_tokens=None)


@pytest.mark.parametrize(
    "chunk",
    [
        None,
        [],
        "x",
        {},
        {"choices": {}},
        {"choices": [3]},
        {"choices": [{"delta": 3}]},
        {"choices": [{"delta": {"content": 3}}]},
        {"choices": [{"delta": {"tool_calls": {"a": 1}}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": -1}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 10**9}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": 4}}]}}]},
    ],
)
def test_a_chunk_against_the_format_is_garbage(chunk: Any) -> None:
    with pytest.raises(ModelGarbage):
        AnswerBuilder().add_chunk(chunk)


def test_a_call_without_a_name_is_garbage() -> None:
    with pytest.raises(ModelGarbage, match="no function name"):
        from_chunks(call_part(0, "{}", id="a"))


def test_an_error_inside_a_stream_is_that_error() -> None:
    with pytest.raises(ModelRateLimited):
        AnswerBuilder().add_chunk({"error": {"message": "slow down", "code": "rate_limit_exceeded"}})


@given(JSON, st.booleans())
def test_anything_is_an_answer_or_a_model_error(value: Any, whole: bool) -> None:
    builder = AnswerBuilder()
    try:
        (builder.add_body if whole else builder.add_chunk)(value)
        answer = builder.build()
    except ModelError:
        return
    json.dumps(answer.as_message()).encode()
    assert all(isinstance(call.arguments, dict) for call in answer.calls)
