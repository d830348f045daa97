"""The scripted server by its bytes: what a client of OpenAI's format would see, without our client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from cloche.testing.model_server import Fault, Script, ScriptedCall, ScriptedModelServer, Turn

USER = {"role": "user", "content": "please say hello"}
CALLS = (
    ScriptedCall(name="bash", arguments={"command": "echo 'grüße' && seq 1 100"}),
    ScriptedCall(name="bash", arguments={"command": "ls"}, id="mine"),
)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def serve(*turns: Turn, **options: Any) -> ScriptedModelServer:
    return ScriptedModelServer([Script(model="m", name="hello", match="say hello", turns=turns)], **options)


async def post(
    session: aiohttp.ClientSession, server: ScriptedModelServer, **request: Any
) -> tuple[int, str]:
    body = {"model": "m", "messages": [USER], **request}
    async with session.post(f"{server.base_url}/chat/completions", json=body) as response:
        return response.status, await response.text()


def events(text: str) -> list[Any]:
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


async def test_a_body(session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="Hello", calls=CALLS)) as server:
        status, text = await post(session, server)
    assert status == 200
    answer = json.loads(text)
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_0_0", "mine"]
    assert json.loads(choice["message"]["tool_calls"][1]["function"]["arguments"]) == {"command": "ls"}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] == 3 + 4


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_stream_is_the_body_in_pieces(size: int, session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="Hello, wörld!", reasoning="hm", calls=CALLS, chunk_chars=size)) as server:
        _, whole = await post(session, server)
        _, text = await post(session, server, stream=True)
    message = json.loads(whole)["choices"][0]["message"]
    *chunks, last = events(text)
    assert last["choices"] == []
    assert last["usage"] == json.loads(whole)["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for position, call in enumerate(message["tool_calls"]):
        mine = [piece for piece in pieces if piece["index"] == position]
        assert mine[0]["id"] == call["id"]
        assert all("id" not in piece for piece in mine[1:])
        assert "".join(piece["function"]["arguments"] for piece in mine) == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert (len(pieces) > 4) == (size < 1000)


async def test_the_turn_is_the_number_of_answers_so_far(session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="one"), Turn(text="two")) as server:
        again = [USER, {"role": "assistant", "content": "one"}, {"role": "user", "content": "and?"}]
        for _ in range(3):  # however often it is asked
            assert "one" in (await post(session, server))[1]
            assert "two" in (await post(session, server, messages=again))[1]
        status, text = await post(session, server, messages=[*again, {"role": "assistant", "content": "two"}])
    assert (status, json.loads(text)["error"]["code"]) == (422, "script_ended")
    assert (server.ledger.total.reported, server.ledger.total.refused) == (6, 1)


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"model": "unknown"}, 404, "model_not_found"),
        ({"model": None}, 400, "invalid_model"),
        ({"messages": "hello"}, 400, "invalid_messages"),
        ({"messages": ["hello"]}, 400, "invalid_messages"),
        ({"messages": []}, 422, "no_script"),
        ({"messages": [{"role": "user", "content": "else"}]}, 422, "no_script"),
        (
            {"messages": [USER, {"role": "tool", "tool_call_id": "x", "content": ""}]},
            400,
            "invalid_tool_message",
        ),
    ],
)
@pytest.mark.fault("script-does-not-know-the-conversation")
async def test_what_no_script_says_is_refused(
    request_: dict[str, Any], status: int, code: str, session: aiohttp.ClientSession
) -> None:
    async with serve(Turn(text="one")) as server:
        got, text = await post(session, server, **request_)
    assert (got, json.loads(text)["error"]["code"]) == (status, code)
    assert server.ledger.total.refused == server.ledger.total.requests == 1


def called(arguments: str = "{}") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": function}]}


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([called()], "missing_tool_message"),
        ([called(), USER], "missing_tool_message"),
        ([called(), {"role": "tool", "tool_call_id": "b", "content": ""}], "invalid_tool_message"),
        ([called("{"), {"role": "tool", "tool_call_id": "a", "content": ""}], "invalid_tool_call"),
    ],
)
async def test_calls_and_results_must_belong_together(
    messages: list[dict[str, Any]], code: str, session: aiohttp.ClientSession
) -> None:
    async with serve(Turn(text="one"), Turn(text="two")) as server:
        status, text = await post(session, server, messages=[USER, *messages])
    assert (status, json.loads(text)["error"]["code"]) == (400, code)


async def test_content_in_parts_is_matched_too(session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="one")) as server:
        parts = [{"role": "user", "content": [{"type": "text", "text": "do say hello"}]}]
        assert (await post(session, server, messages=parts))[0] == 200


async def test_not_json_is_refused(session: aiohttp.ClientSession) -> None:
    async with (
        serve(Turn(text="one")) as server,
        session.post(f"{server.base_url}/chat/completions", data=b"{") as response,
    ):
        assert response.status == 400


async def test_models_and_keys(session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="one"), api_key="sesame") as server:
        assert (await post(session, server))[0] == 401
        async with session.get(f"{server.base_url}/models") as response:
            assert [row["id"] for row in (await response.json())["data"]] == ["m"]
        session.headers["Authorization"] = "Bearer sesame"
        assert (await post(session, server))[0] == 200


async def test_a_refusal_says_how_long_to_wait_and_happens_as_often_as_asked(
    session: aiohttp.ClientSession,
) -> None:
    fault = Fault(kind="status", status=429, retry_after_s=3, times=2, error_code="rate_limit_exceeded")
    async with serve(Turn(text="one", fault=fault)) as server:
        url, body = f"{server.base_url}/chat/completions", {"model": "m", "messages": [USER]}
        statuses = []
        for _ in range(3):
            async with session.post(url, json=body) as response:
                statuses.append((response.status, response.headers.get("Retry-After")))
    assert statuses == [(429, "3"), (429, "3"), (200, None)]


async def test_usage_may_be_absent_late_or_twice(session: aiohttp.ClientSession) -> None:
    counts = {}
    for usage in ("final", "absent", "late", "twice"):
        async with serve(Turn(text="Hello there", usage=usage, late_s=0.01)) as server:
            _, text = await post(session, server, stream=True)
        with_usage = [chunk for chunk in events(text) if "usage" in chunk]
        counts[usage] = len(with_usage)
        assert server.ledger.total.reported == (usage != "absent")
    assert counts == {"final": 1, "absent": 0, "late": 1, "twice": 2}


async def test_delays_are_waited_for(session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr("cloche.testing.model_server.delivery.asyncio.sleep", note)
    turn = Turn(text="abcdef", chunk_chars=2, first_chunk_s=7.0, per_chunk_s=0.25, usage="late", late_s=3.0)
    async with serve(turn) as server:
        await post(session, server, stream=True)
    assert slept[0] == 7.0
    assert slept.count(0.25) == 4  # the role, three pieces and the ending are five chunks
    assert slept.count(3.0) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_answer_breaks_the_connection(stream: bool, session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="Hello" * 10, fault=Fault(kind="cut", after_chunks=1))) as server:
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(session, server, stream=stream)
    assert server.ledger.total.unreported == 1
    assert server.ledger.recent[0].fault == "cut"


async def test_stopping_ends_answers_that_hang(session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="Hello", fault=Fault(kind="hang"))) as server:
        asking = asyncio.create_task(post(session, server))
        for _ in range(1000):
            if server.ledger.total.in_flight:
                break
            await asyncio.sleep(0.005)
    with pytest.raises(aiohttp.ClientError):
        await asking
    assert (server.ledger.total.in_flight, server.ledger.total.unreported) == (0, 1)


async def test_the_ledger_over_http_is_the_ledger(session: aiohttp.ClientSession) -> None:
    async with serve(Turn(text="Hello")) as server:
        await post(session, server)
        await post(session, server, model="unknown")
        async with session.get(f"{server.url}/ledger") as response:
            shown = await response.json()
        assert shown == server.ledger.as_dict()
    assert shown["total"]["requests"] == 2
    assert shown["by_model"]["m"]["reported"] == shown["by_conversation"]["m/hello"]["reported"] == 1
    assert [entry["status"] for entry in shown["recent"]] == [200, 404]


def test_it_has_no_address_before_it_is_entered() -> None:
    with pytest.raises(RuntimeError):
        _ = serve(Turn(text="x")).base_url
