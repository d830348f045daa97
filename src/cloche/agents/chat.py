"""The model client: one request, one complete answer, over any OpenAI-compatible chat endpoint.

Must never repeat a request once a part of its answer was received, never wait without a bound, and never let
the key out: not into a message, a log or another host (redirects are not followed).
Format: https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import email.utils
import json
import os
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from cloche.agents.answer import AnswerBuilder, ChatAnswer
from cloche.agents.base import ModelEndpoint
from cloche.agents.clock import Clock
from cloche.agents.errors import (
    ModelGarbage,
    ModelRateLimited,
    ModelStalled,
    ModelUnavailable,
    ModelUnreachable,
    excerpt,
    refusal,
)
from cloche.agents.sse import EventDecoder, EventTooLong
from cloche.agents.usage import UsageMeter
from cloche.core.errors import ModelError
from cloche.core.failures import UNREACHABLE_HINT

ATTEMPTS = 4
BACKOFF_FIRST_S = 0.5
# a longer wait is the scheduler's to make, which can give the place to another trial meanwhile
WAIT_LIMIT_S = 30.0
BODY_LIMIT_BYTES = 64 << 20
ERROR_BODY_LIMIT_BYTES = 64 << 10
# shorter than the 5 s after which common servers drop an idle connection: no request meets one that is going
KEEP_ALIVE_S = 4.0


def retry_after_s(value: str | None, clock: Clock) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for: a number, or an HTTP date; else ``None``."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (when - clock.now()).total_seconds() if when.tzinfo else 0.0
    return max(0.0, seconds) if seconds < float("inf") else None


class _Repeatable(Exception):
    """Carries a failure from before the answer began: the same request may be sent again."""

    def __init__(self, failure: ModelError) -> None:
        super().__init__(str(failure))
        self.failure = failure


class ChatClient:
    """Asks one endpoint. An async context manager; one request at a time is what it is made for."""

    def __init__(self, endpoint: ModelEndpoint, *, clock: Clock, chance: random.Random | None = None) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._chance = chance or random.SystemRandom()
        self._url = endpoint.base_url.rstrip("/") + "/chat/completions"
        self._key = os.environ.get(endpoint.api_key_env, "") if endpoint.api_key_env else ""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=self._endpoint.connect_timeout_s,
            sock_connect=self._endpoint.connect_timeout_s,
            sock_read=self._endpoint.stall_timeout_s,
        )
        headers = {"User-Agent": "cloche", "Accept": "application/json, text/event-stream"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            timeout=timeout, headers=headers, connector=aiohttp.TCPConnector(keepalive_timeout=KEEP_ALIVE_S)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], usage: UsageMeter
    ) -> ChatAnswer:
        """Return the model's answer to the conversation, and count it.

        A refusal with 429 or 5xx and a connection that fails before the answer begins are tried again, at
        most ``ATTEMPTS`` times in all and after at most ``WAIT_LIMIT_S`` each. Raises a ModelError.
        """
        body = json.dumps(self._request(messages, tools)).encode()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._attempt(body, usage)
            except _Repeatable as trouble:
                wait_s = self._wait_s(trouble.failure, attempt)
                if wait_s is None:
                    raise trouble.failure from trouble.__cause__
            await self._clock.sleep(wait_s)
        raise AssertionError("the last attempt either answers or raises")

    def _request(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self._endpoint.model, "messages": list(messages)}
        if tools:
            request["tools"] = list(tools)
        if self._endpoint.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return request | dict(self._endpoint.parameters)

    def _wait_s(self, failure: ModelError, attempt: int) -> float | None:
        """Return how long to wait before the next attempt, ``None`` to give up."""
        if attempt == ATTEMPTS:
            return None
        asked: float | None = getattr(failure, "retry_after_s", None)
        if asked is not None:
            return asked if asked <= WAIT_LIMIT_S else None
        return BACKOFF_FIRST_S * 2.0 ** (attempt - 1) * self._chance.uniform(0.5, 1.0)

    async def _attempt(self, body: bytes, usage: UsageMeter) -> ChatAnswer:
        if self._session is None:
            raise RuntimeError("the client is used outside its `async with`")
        answering = False
        usage.begin_call()
        try:
            async with self._session.post(
                self._url, data=body, headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as response:
                if response.status != 200:
                    usage.withdraw_call()
                    raise await self._refused(response)
                answering = True
                answer = await self._read(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            usage.withdraw_call()
            raise _Repeatable(self._unreachable(error)) from error
        except TimeoutError as error:
            silence = self._endpoint.stall_timeout_s
            raise ModelStalled(f"the model endpoint sent nothing for {silence:g} s") from error
        except aiohttp.InvalidURL as error:
            usage.withdraw_call()
            raise ModelUnreachable(f"{self._url} is not a URL") from error
        except (aiohttp.ClientError, OSError) as error:
            if answering:
                raise self._unreachable(error) from error
            raise _Repeatable(self._unreachable(error)) from error
        usage.settle_call(answer.counts)
        return answer

    async def _refused(self, response: aiohttp.ClientResponse) -> Exception:
        """Return what to raise for an answer other than 200."""
        text = (await _read_bounded(response, ERROR_BODY_LIMIT_BYTES, cut=True)).decode("utf-8", "replace")
        wait_s = retry_after_s(response.headers.get("Retry-After"), self._clock)
        failure = refusal(response.status, self._without_key(text), retry_after_s=wait_s)
        if isinstance(failure, ModelRateLimited | ModelUnavailable):
            return _Repeatable(failure)
        return failure

    async def _read(self, response: aiohttp.ClientResponse) -> ChatAnswer:
        builder = AnswerBuilder()
        try:
            if response.content_type == "text/event-stream":
                await _read_stream(response, builder)
            else:  # also where a stream was asked for: some endpoints do not stream
                data = await _read_bounded(response, BODY_LIMIT_BYTES)
                builder.add_body(_json(data.decode("utf-8", "replace")))
        except (aiohttp.ClientPayloadError, aiohttp.ClientOSError, TimeoutError):
            if not builder.finished:  # else the answer is whole, and only its usage unknown
                raise
        return builder.build()

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    def _unreachable(self, error: Exception) -> ModelError:
        url = self._endpoint.base_url
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            what = f"no connection to {url} in {self._endpoint.connect_timeout_s:g} s"
        elif isinstance(error, aiohttp.ClientSSLError):
            what = f"no secure connection to {url}: {error.strerror or type(error).__name__}"
        elif isinstance(error, aiohttp.ClientConnectorError):
            number = error.errno or 0  # negative where a name is not found
            what = f"nobody answers at {url}: {os.strerror(number) if number > 0 else error.strerror}"
        else:
            why = excerpt(self._without_key(str(error))) or type(error).__name__
            what = f"the connection to {url} failed: {why}"
        return ModelUnreachable(what, hint=UNREACHABLE_HINT)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelGarbage(f"the model endpoint's answer is not JSON: {excerpt(text)}") from error


async def _read_bounded(response: aiohttp.ClientResponse, limit_bytes: int, *, cut: bool = False) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit_bytes:
            if cut:
                break
            raise ModelGarbage(f"the model endpoint's answer is longer than {limit_bytes} bytes")
    return bytes(data[:limit_bytes])


async def _read_stream(response: aiohttp.ClientResponse, builder: AnswerBuilder) -> None:
    decoder = EventDecoder()
    done = False
    try:
        async for piece in response.content.iter_any():
            for event in decoder.feed(piece):
                done = done or event.strip() == "[DONE]"
                if not done and event.strip():
                    builder.add_chunk(_json(event))
            if done:
                break
    except EventTooLong as error:
        raise ModelGarbage(str(error)) from error
    if not builder.started:
        raise ModelGarbage("the model endpoint's stream holds no part of an answer")
    if not (done or builder.finished):
        raise aiohttp.ClientPayloadError("the stream ended in the middle of an answer")
