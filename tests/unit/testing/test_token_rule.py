"""The counting rule of the scripted server, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.testing.model_server.script import ScriptedCall, Turn
from cloche.testing.model_server.tokens import cached_tokens, count_tokens, message_tokens, prompt_tokens
from cloche.testing.model_server.wire import completion_tokens

TEXT = st.text(max_size=30)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "tool", "assistant"]), "content": TEXT}
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é", 1), ("👩🏽‍🌾", 4), ("ééé", 2)]
)
def test_four_bytes_are_a_token(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


def test_a_message_costs_three_more() -> None:
    assert message_tokens({"role": "user", "content": "abcd"}) == 4
    assert message_tokens({"role": "user", "content": None}) == 3
    assert message_tokens({"role": "user", "content": [{"type": "text", "text": "abcde"}]}) == 5
    call = {"function": {"name": "bash", "arguments": '{"a":1}'}}
    assert message_tokens({"role": "assistant", "content": "", "tool_calls": [call]}) == 3 + 1 + 2


def test_tools_count_as_compact_json() -> None:
    request = {"messages": [{"role": "user", "content": "abcd"}], "tools": [{"a": "é"}]}
    assert prompt_tokens(request) == 4 + count_tokens('[{"a":"é"}]') == 4 + 3


def test_an_answer_has_at_least_one_token() -> None:
    assert completion_tokens(Turn()) == 1
    calls = (ScriptedCall(name="bash", raw_arguments="12345"), ScriptedCall(name="x"))
    assert completion_tokens(Turn(text="abcde", reasoning="a", calls=calls)) == 2 + 1 + (1 + 2) + (1 + 1)


@given(MESSAGES, MESSAGES)
def test_the_cache_holds_what_the_last_request_asked(
    before: list[dict[str, str]], after: list[dict[str, str]]
) -> None:
    after = [{**message, "role": "user"} for message in after]
    asked = {"messages": before, "tools": [{"x": 1}]}
    asks = {"messages": [*before, {"role": "assistant", "content": "y"}, *after], "tools": [{"x": 1}]}
    assert cached_tokens(asks) == prompt_tokens(asked)


def test_a_first_request_finds_no_cache() -> None:
    assert cached_tokens({"messages": [{"role": "user", "content": "x" * 100}]}) == 0
