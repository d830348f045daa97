"""The model client against a real HTTP server: counts to the token, and one stated result for every fault."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey

from cloche.agents import chat
from cloche.agents.answer import ChatAnswer
from cloche.agents.base import ModelEndpoint
from cloche.agents.chat import ChatClient, retry_after_s
from cloche.agents.errors import (
    ContextExceeded,
    MalformedToolCall,
    ModelAuthRefused,
    ModelGarbage,
    ModelNotFound,
    ModelRateLimited,
    ModelRequestRefused,
    ModelStalled,
    ModelUnavailable,
    ModelUnreachable,
)
from cloche.agents.usage import UsageMeter
from cloche.core.errors import ModelError
from cloche.core.failures import UNREACHABLE_HINT
from cloche.testing.model_server import Fault, Script, ScriptedCall, ScriptedModelServer, Turn

Clock = Any
Until = Callable[[Callable[[], bool]], Awaitable[None]]
HELLO = [{"role": "user", "content": "hello there"}]
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])


def script(*turns: Turn, name: str = "hello", match: str = "hello", model: str = "m") -> Script:
    return Script(model=model, name=name, match=match, turns=turns)


def faulty(kind: str, **more: Any) -> Turn:
    return Turn(text="one two three four five six seven eight", chunk_chars=5, fault=Fault(kind=kind, **more))


async def ask(
    server: ScriptedModelServer, clock: Clock, meter: UsageMeter | None = None, **endpoint: Any
) -> ChatAnswer:
    where = ModelEndpoint(base_url=server.base_url, model="m", **endpoint)
    async with ChatClient(where, clock=clock, chance=random.Random(1)) as client:
        return await client.complete(HELLO, (), meter or UsageMeter())


async def fail(
    turn: Turn, clock: Clock, kind: type[ModelError], *, calls: int, uncounted: int, **endpoint: Any
) -> ModelError:
    """Ask for a turn that fails; check what the meter and the ledger say, and return the error."""
    meter = UsageMeter()
    async with ScriptedModelServer([script(turn)]) as server:
        with pytest.raises(ModelError) as caught:
            await ask(server, clock, meter, **endpoint)
    assert type(caught.value) is kind
    assert (meter.model_calls, meter.uncounted_calls) == (calls, uncounted)
    total = server.ledger.total
    assert (total.in_flight, total.reported, total.unreported) == (0, 0, uncounted)
    return caught.value


@STREAMED
async def test_an_answer_and_its_counts(stream: bool, clock: Clock) -> None:
    calls = (
        ScriptedCall(name="bash", arguments={"command": "echo 'ä' && ls"}, id="x"),
        ScriptedCall(name="read_file", arguments={"path": "/a", "lines": 3}),
    )
    turn = Turn(text="Let me look 👩🏽‍🌾.", reasoning="hm", calls=calls, chunk_chars=3)
    meter = UsageMeter()
    async with ScriptedModelServer([script(turn)]) as server:
        answer = await ask(server, clock, meter, stream=stream)
    assert (answer.text, answer.reasoning, answer.finish_reason) == (turn.text, "hm", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in answer.calls] == [
        ("x", "bash", {"command": "echo 'ä' && ls"}),
        ("call_0_1", "read_file", {"path": "/a", "lines": 3}),
    ]
    served = server.ledger.total
    assert answer.counts is not None
    assert meter.counted_prompt_tokens == served.prompt_tokens == answer.counts.prompt_tokens > 0
    assert meter.counted_completion_tokens == served.completion_tokens == answer.counts.completion_tokens > 0
    assert meter.uncounted_calls == 0


@STREAMED
@pytest.mark.fault("model-usage-absent")
async def test_without_usage_the_count_is_unknown(stream: bool, clock: Clock) -> None:
    meter = UsageMeter()
    async with ScriptedModelServer([script(Turn(text="hi", usage="absent"))]) as server:
        answer = await ask(server, clock, meter, stream=stream)
    assert answer.counts is None
    total = meter.total()
    assert total is not None
    assert total.input_tokens is None
    assert server.ledger.total.unreported == 1


@pytest.mark.fault("model-usage-late")
async def test_late_usage_is_counted(clock: Clock) -> None:
    meter = UsageMeter()
    async with ScriptedModelServer([script(Turn(text="hi", usage="late", late_s=0.05))]) as server:
        await ask(server, clock, meter)
    assert meter.counted_prompt_tokens == server.ledger.total.prompt_tokens > 0
    assert meter.uncounted_calls == 0


@pytest.mark.fault("model-usage-twice")
async def test_usage_that_comes_twice_is_counted_once(clock: Clock) -> None:
    meter = UsageMeter()
    async with ScriptedModelServer([script(Turn(text="hi there you", usage="twice"))]) as server:
        await ask(server, clock, meter)
    served = server.ledger.total
    assert (meter.counted_prompt_tokens, meter.counted_completion_tokens) == (
        served.prompt_tokens,
        served.completion_tokens,
    )


@pytest.mark.fault("model-rate-limit")
async def test_a_rate_limit_is_waited_for_as_long_as_asked(clock: Clock) -> None:
    meter = UsageMeter()
    turn = faulty("status", status=429, retry_after_s=7, times=2)
    async with ScriptedModelServer([script(turn)]) as server:
        answer = await ask(server, clock, meter)
    assert answer.text == turn.text
    assert clock.waited_s == [7.0, 7.0]
    assert server.ledger.total.refused == 2
    assert meter.model_calls == server.ledger.total.reported == 1
    assert meter.uncounted_calls == 0


@pytest.mark.fault("model-rate-limit-lasting")
async def test_a_rate_limit_that_lasts_is_given_up(clock: Clock) -> None:
    turn = faulty("status", status=429, retry_after_s=2)
    error = await fail(turn, clock, ModelRateLimited, calls=0, uncounted=0)
    assert clock.waited_s == [2.0] * (chat.ATTEMPTS - 1)
    assert getattr(error, "retry_after_s", None) == 2.0


@pytest.mark.fault("model-rate-limit-long")
async def test_a_long_wait_is_left_to_the_caller(clock: Clock) -> None:
    error = await fail(
        faulty("status", status=429, retry_after_s=600), clock, ModelRateLimited, calls=0, uncounted=0
    )
    assert clock.waited_s == []
    assert getattr(error, "retry_after_s", None) == 600.0


@pytest.mark.fault("model-5xx")
async def test_a_server_error_is_tried_again_with_growing_waits(clock: Clock) -> None:
    await fail(faulty("status", status=503), clock, ModelUnavailable, calls=0, uncounted=0)
    assert len(clock.waited_s) == chat.ATTEMPTS - 1
    for number, waited in enumerate(clock.waited_s):
        assert 0.5 <= waited / (chat.BACKOFF_FIRST_S * 2**number) <= 1.0


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (401, "invalid_api_key", "wrong key", ModelAuthRefused),
        (403, None, "not yours", ModelAuthRefused),
        (404, "model_not_found", "no such model", ModelNotFound),
        (400, None, "unknown parameter", ModelRequestRefused),
        (400, "tool_use_failed", "failed to call a function", MalformedToolCall),
        (400, "context_length_exceeded", "too long", ContextExceeded),
    ],
)
@pytest.mark.fault("model-refuses-request")
async def test_what_another_try_cannot_mend_is_not_tried_again(
    status: int, code: str | None, message: str, kind: type[ModelError], clock: Clock
) -> None:
    turn = faulty("status", status=status, error_code=code, message=message)
    error = await fail(turn, clock, kind, calls=0, uncounted=0)
    assert clock.waited_s == []
    assert message in error.message


@pytest.mark.fault("model-stream-cut")
@pytest.mark.parametrize("after", [0, 1, 4])
async def test_a_cut_stream_is_not_repeated(after: int, clock: Clock) -> None:
    await fail(faulty("cut", after_chunks=after), clock, ModelUnreachable, calls=1, uncounted=1)
    assert clock.waited_s == []


async def test_a_cut_body_is_not_repeated(clock: Clock) -> None:
    await fail(faulty("cut"), clock, ModelUnreachable, calls=1, uncounted=1, stream=False)


@pytest.mark.fault("model-hangs")
@pytest.mark.parametrize(("stream", "after"), [(True, 0), (True, 3), (False, 0)])
async def test_silence_ends(stream: bool, after: int, clock: Clock) -> None:
    turn = faulty("hang", after_chunks=after)
    await fail(turn, clock, ModelStalled, calls=1, uncounted=1, stream=stream, stall_timeout_s=0.5)
    assert clock.waited_s == []


@STREAMED
@pytest.mark.fault("model-malformed-json")
async def test_half_a_json_is_garbage(stream: bool, clock: Clock) -> None:
    await fail(
        faulty("malformed_json", after_chunks=2), clock, ModelGarbage, calls=1, uncounted=1, stream=stream
    )


@STREAMED
@pytest.mark.fault("model-garbage")
async def test_what_is_no_answer_is_garbage(stream: bool, clock: Clock) -> None:
    await fail(faulty("garbage"), clock, ModelGarbage, calls=1, uncounted=1, stream=stream)


@STREAMED
@pytest.mark.fault("model-error-with-200")
async def test_an_error_with_status_200_is_that_error(stream: bool, clock: Clock) -> None:
    turn = faulty("error_body", after_chunks=1, error_code="rate_limit_exceeded", message="slow down")
    error = await fail(turn, clock, ModelRateLimited, calls=1, uncounted=1, stream=stream)
    assert "slow down" in error.message
    assert clock.waited_s == []


@pytest.mark.fault("model-unreachable")
async def test_no_server_at_all(clock: Clock) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening: nobody else gets the port meanwhile
        endpoint = ModelEndpoint(base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1", model="m")
        meter = UsageMeter()
        async with ChatClient(endpoint, clock=clock) as client:
            with pytest.raises(ModelUnreachable) as caught:
                await client.complete(HELLO, (), meter)
    assert caught.value.message == f"nobody answers at {endpoint.base_url}: Connection refused"
    assert caught.value.hint == "check that the model's server runs, and that --base-url is its address"
    assert len(clock.waited_s) == chat.ATTEMPTS - 1
    assert meter.total() is None


KEY = ConnectionKey("example.org", 443, True, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "Name or service not known")),
            "nobody answers at https://example.org/v1: Name or service not known",
        ),
        (
            aiohttp.ClientConnectorError(KEY, OSError(113, "Connect call failed ('10.0.0.1', 443)")),
            "nobody answers at https://example.org/v1: No route to host",
        ),
        (aiohttp.ConnectionTimeoutError("x"), "no connection to https://example.org/v1 in 30 s"),
        (
            aiohttp.ClientConnectorSSLError(KEY, OSError(1, "wrong version number")),
            "no secure connection to https://example.org/v1: wrong version number",
        ),
    ],
)
def test_why_nobody_was_reached(clock: Clock, error: Exception, said: str) -> None:
    endpoint = ModelEndpoint(base_url="https://example.org/v1", model="m")
    failure = ChatClient(endpoint, clock=clock)._unreachable(error)
    assert failure.message == said
    assert failure.hint == UNREACHABLE_HINT


@pytest.mark.parametrize("url", ["not a url", "http://", "ftp://example.org/v1", "http://[::bad/v1"])
async def test_a_base_url_that_is_none(url: str, clock: Clock) -> None:
    async with ChatClient(ModelEndpoint(base_url=url, model="m"), clock=clock) as client:
        with pytest.raises(ModelUnreachable):
            await client.complete(HELLO, (), UsageMeter())


async def serve_raw(handle: Callable[[web.Request], Any]) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


async def raw(handle: Callable[[web.Request], Any], clock: Clock, **endpoint: Any) -> ChatAnswer:
    runner, url = await serve_raw(handle)
    try:
        async with ChatClient(ModelEndpoint(base_url=url, model="m", **endpoint), clock=clock) as client:
            return await client.complete(HELLO, (), UsageMeter())
    finally:
        await runner.cleanup()


async def test_the_key_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    seen = []

    async def echo(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=401, text=f"wrong key: {request.headers.get('Authorization')}")

    with pytest.raises(ModelAuthRefused) as caught:
        await raw(echo, clock, api_key_env="MY_KEY")
    assert seen == ["Bearer sk-very-secret"]
    assert "secret" not in str(caught.value)
    assert "***" in str(caught.value)


async def test_without_a_key_none_is_sent(clock: Clock) -> None:
    async def check(request: web.Request) -> web.Response:
        return web.Response(status=400 if "Authorization" in request.headers else 404)

    with pytest.raises(ModelNotFound):
        await raw(check, clock, api_key_env="CLOCHE_TEST_KEY_THAT_IS_NOT_SET")


async def test_a_redirect_is_not_followed(clock: Clock) -> None:
    async def away(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:1/elsewhere")

    with pytest.raises(ModelUnavailable, match="307"):
        await raw(away, clock)


async def test_an_endpoint_that_does_not_stream_is_understood(clock: Clock) -> None:
    async def whole(request: web.Request) -> web.Response:
        assert (await request.json())["stream"] is True
        return web.json_response({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})

    assert (await raw(whole, clock)).text == "hi"


async def test_parameters_go_with_every_request(clock: Clock) -> None:
    asked = {}

    async def note(request: web.Request) -> web.Response:
        asked.update(await request.json())
        return web.json_response({"choices": [{"message": {"content": "hi"}}]})

    await raw(note, clock, stream=False, parameters={"temperature": 0.5, "max_tokens": 9})
    assert (asked["temperature"], asked["max_tokens"], asked["model"]) == (0.5, 9, "m")
    assert "stream" not in asked
    assert "tools" not in asked


async def test_a_connection_lost_after_the_last_word_loses_only_the_usage(clock: Clock) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(
            b'data: {"choices": [{"delta": {"content": "all"}, "finish_reason": "stop"}]}\n\n'
        )
        assert request.transport is not None
        request.transport.close()
        return response

    answer = await raw(cut, clock)
    assert (answer.text, answer.counts) == ("all", None)


async def test_a_connection_lost_before_the_answer_is_tried_again(clock: Clock) -> None:
    times = []

    async def drop_first(request: web.Request) -> web.Response:
        times.append(1)
        if len(times) == 1:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"choices": [{"message": {"content": "hi"}}]})

    assert (await raw(drop_first, clock)).text == "hi"
    assert len(clock.waited_s) == 1


@pytest.mark.fault("model-answer-endless")
async def test_an_answer_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(chat, "BODY_LIMIT_BYTES", 10_000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                await response.write(b" " * 1000)
        return response

    with pytest.raises(ModelGarbage, match="longer than 10000 bytes"):
        await raw(endless, clock)


async def test_a_stream_that_goes_on_after_its_end_is_left(clock: Clock) -> None:
    async def linger(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\ndata: [DONE]\n\n')
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await asyncio.sleep(3600)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", linger)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    async with ChatClient(ModelEndpoint(base_url=url, model="m"), clock=clock) as client:
        assert (await client.complete(HELLO, (), UsageMeter())).text == "hi"
    await runner.cleanup()


@pytest.mark.fault("model-call-cancelled")
async def test_cancelling_in_the_middle_of_a_stream_closes_it(clock: Clock, until: Until) -> None:
    turn = faulty("hang", after_chunks=3)
    meter = UsageMeter()
    async with ScriptedModelServer([script(turn)]) as server:
        asking = asyncio.create_task(ask(server, clock, meter))
        await until(lambda: server.ledger.total.in_flight == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: server.ledger.total.in_flight == 0)  # the server notices
    assert server.ledger.total.unreported == meter.uncounted_calls == 1


async def test_it_is_of_no_use_outside_its_with(clock: Clock) -> None:
    client = ChatClient(ModelEndpoint(base_url="http://127.0.0.1:1", model="m"), clock=clock)
    with pytest.raises(RuntimeError):
        await client.complete(HELLO, (), UsageMeter())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None, clock: Clock) -> None:
    assert retry_after_s(value, clock) == seconds


async def test_many_at_once_are_counted_to_the_token(clock: Clock) -> None:
    """A hundred conversations at once, some refused first, some cut, some without usage."""
    kinds: list[dict[str, Any]] = [
        {},
        {"usage": "twice"},
        {"usage": "late", "late_s": 0.01},
        {"usage": "absent"},
        {"fault": Fault(kind="status", status=429, retry_after_s=1, times=1)},
        {"fault": Fault(kind="status", status=500, times=2)},
        {"fault": Fault(kind="cut", after_chunks=2)},
        {"fault": Fault(kind="malformed_json")},
        {"fault": Fault(kind="error_body")},
        {"per_chunk_s": 0.001},
    ]
    scripts = [
        script(
            Turn(text=f"answer {n} " * (n % 7 + 1), chunk_chars=4, **kinds[n % len(kinds)]),
            name=f"c{n}",
            match=f"conversation {n}.",
        )
        for n in range(100)
    ]
    meters = [UsageMeter() for _ in scripts]

    async def one(number: int, server: ScriptedModelServer) -> None:
        endpoint = ModelEndpoint(base_url=server.base_url, model="m", stream=number % 3 > 0)
        messages = [{"role": "user", "content": f"conversation {number}."}]
        async with ChatClient(endpoint, clock=clock) as client:
            with contextlib.suppress(ModelError):
                await client.complete(messages, (), meters[number])

    async with ScriptedModelServer(scripts) as server:
        await asyncio.gather(*[one(number, server) for number in range(len(scripts))])
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ledger") as response:
            ledger = await response.json()
    for number, meter in enumerate(meters):
        served = ledger["by_conversation"][f"m/c{number}"]
        assert served["prompt_tokens"] == meter.counted_prompt_tokens, number
        assert served["completion_tokens"] == meter.counted_completion_tokens, number
        assert served["cached_tokens"] == meter.counted_cached_tokens == 0, number
        assert served["unreported"] == meter.uncounted_calls, number
        assert served["reported"] + served["unreported"] == meter.model_calls, number
    assert ledger["total"]["refused"] == 30
    assert (
        ledger["total"]["reported"]
        == sum(meter.model_calls - meter.uncounted_calls for meter in meters)
        == 60
    )
