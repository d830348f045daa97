"""What can go wrong between an agent and its model, and which error a refusal of the endpoint is.

Every code stands in the failure table (``cloche.core.failures``), which alone decides what it means for a
trial. Must never be raised with a key, a whole request or a whole answer in the message. The tree::

    ModelError
     ├── ModelRateLimited        429; says how long to wait
     ├── ModelQuotaUsedUp        429 because the account has nothing left
     ├── ModelUnavailable        5xx
     ├── ModelUnreachable        no connection, or it broke, in the middle of an answer too
     ├── ModelStalled            nothing came for too long
     ├── ModelGarbage            an answer that is not one
     ├── ModelAuthRefused        401, 403
     ├── ModelNotFound           404
     ├── ModelRequestRefused     any other 4xx
     └── ModelOutcome            the endpoint worked: this is the model's own doing
          ├── MalformedToolCall  the endpoint could not make a call of what the model wrote
          ├── ContextExceeded    the conversation outgrew the model's context
          ├── OutputCut          the answer hit the output limit
          └── ModelRefused       the model declined
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cloche.core.errors import ClocheError, Domain, ModelError

EXCERPT_CHARS = 300


class ModelRateLimited(ModelError):
    """The model endpoint said: too many requests."""

    code = "infra/model_rate_limit"
    http_status = 429
    retry_after_s: float | None = None


class ModelQuotaUsedUp(ModelError):
    """The account's quota or credit at the model endpoint is used up."""

    code = "infra/model_usage_limit"
    http_status = 429


class ModelUnavailable(ModelError):
    """The model endpoint failed."""

    code = "infra/model_unavailable"
    http_status = 503
    retry_after_s: float | None = None


class ModelUnreachable(ModelError):
    """The connection to the model endpoint failed."""

    code = "infra/model_connection"


class ModelStalled(ModelError):
    """The model endpoint stopped answering."""

    code = "infra/model_timeout"
    http_status = 504


class ModelGarbage(ModelError):
    """The model endpoint's answer is malformed."""

    code = "infra/model_response"


class ModelAuthRefused(ModelError):
    """The model endpoint refused the key."""

    code = "infra/model_auth"
    http_status = 401


class ModelNotFound(ModelError):
    """The model endpoint knows no such model or path."""

    code = "infra/model_not_found"
    http_status = 404


class ModelRequestRefused(ModelError):
    """The model endpoint refused the request."""

    code = "infra/model_bad_request"
    http_status = 400


class ModelOutcome(ModelError):
    """The model ended the run by what it wrote."""

    code = "agent/malformed_tool_call"
    domain = Domain.AGENT


class MalformedToolCall(ModelOutcome):
    """The endpoint could not read the model's tool call."""


class ContextExceeded(ModelOutcome):
    """The conversation outgrew the model's context."""

    code = "agent/context_limit"


class OutputCut(ModelOutcome):
    """The model's answer was cut off at the output limit."""

    code = "agent/output_limit"


class ModelRefused(ModelOutcome):
    """The model refused the task."""

    code = "agent/refusal"


class StepLimitReached(ClocheError):
    """The agent used up its steps."""

    code = "agent/step_limit"
    domain = Domain.AGENT


class TimeLimitReached(ClocheError):
    """The agent was not done when its time was up."""

    code = "agent/timeout"
    domain = Domain.AGENT


class TokenLimitReached(ClocheError):
    """The agent used up its tokens."""

    code = "budget/tokens"
    domain = Domain.BUDGET


# Words that endpoints put into the code, the type or the message of a 400. Context: OpenAI, Azure, vLLM,
# SGLang, llama.cpp, Anthropic. Tool calls: Groq's code, and the tool parsers and templates of vLLM.
_CONTEXT = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context window|prompt is too long",
    re.IGNORECASE,
)
_TOOL_CALL = re.compile(
    r"tool_use_failed|(failed|could not|unable|invalid|error)[^.]{0,40}\b(tool|function)[ _]?(call|argument)",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient_quota|exceeded your current quota|credit balance|usage limit", re.IGNORECASE
)


def _error_text(body: str) -> str:
    """Return the codes and the message of an OpenAI-style error body, or the body as it is."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(value, Mapping):
        value = value.get("error", value.get("detail", value))
    if isinstance(value, Mapping):
        parts = [value.get(key) for key in ("code", "type", "message")]
        return ": ".join(str(part) for part in parts if part)
    return str(value)


def excerpt(text: str) -> str:
    """Return one short line of what the other side wrote."""
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT_CHARS else line[:EXCERPT_CHARS] + " […]"


def _of_bad_request(text: str) -> type[ModelError]:
    if _CONTEXT.search(text):
        return ContextExceeded
    return MalformedToolCall if _TOOL_CALL.search(text) else ModelRequestRefused


_OF_STATUS: Mapping[int, type[ModelError]] = {
    401: ModelAuthRefused,
    402: ModelQuotaUsedUp,
    403: ModelAuthRefused,
    404: ModelNotFound,
    408: ModelUnavailable,
    409: ModelUnavailable,
    425: ModelUnavailable,
}
_HINTS: Mapping[type[ModelError], str] = {
    ModelAuthRefused: "check the environment variable that holds the key",
    ModelNotFound: "check the model's name and the base URL, which usually ends in /v1",
    ModelRateLimited: "run fewer trials at once, or raise the quota",
}


def refusal(status: int, body: str, *, retry_after_s: float | None = None) -> ModelError:
    """Return the error for an answer other than 200; ``body`` is what came with it."""
    text = _error_text(body)
    if status == 429:
        kind: type[ModelError] = ModelQuotaUsedUp if _QUOTA.search(text) else ModelRateLimited
    elif status in _OF_STATUS:
        kind = _OF_STATUS[status]
    elif 400 <= status < 500:
        kind = _of_bad_request(text)
    else:
        kind = ModelUnavailable
    error = kind(
        f"the model endpoint answered {status}: {excerpt(text) or 'nothing more'}", hint=_HINTS.get(kind)
    )
    if isinstance(error, ModelRateLimited | ModelUnavailable):
        error.retry_after_s = retry_after_s
    return error


def error_in_answer(value: Any) -> ModelError:
    """Return the error for an ``error`` object that came with status 200, in a stream or on its own.

    A numeric ``code`` is read as the status that should have been sent; without one it goes by its words.
    """
    details = value if isinstance(value, Mapping) else {"message": value}
    code = details.get("code")
    words = f"{code} {details.get('type')}".lower()
    if isinstance(code, int) and 400 <= code < 600:
        status = code
    elif str(code).isdecimal() and 400 <= int(str(code)) < 600:
        status = int(str(code))
    elif "rate_limit" in words:
        status = 429
    elif "invalid_request" in words or _CONTEXT.search(words) or _TOOL_CALL.search(words):
        status = 400
    else:
        status = 502
    return refusal(status, json.dumps({"error": dict(details)}, default=str))
