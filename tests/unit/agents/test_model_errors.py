"""Refusals of an endpoint: each has one error, and each error has its row in the failure table."""

from __future__ import annotations

import json

import pytest

from cloche.agents import errors
from cloche.agents.errors import (
    ContextExceeded,
    MalformedToolCall,
    ModelAuthRefused,
    ModelNotFound,
    ModelQuotaUsedUp,
    ModelRateLimited,
    ModelRequestRefused,
    ModelUnavailable,
    error_in_answer,
    refusal,
)
from cloche.core.errors import ClocheError, Domain, ModelError
from cloche.core.failures import FAILURES, classify

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, ClocheError) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_its_row(kind: type[ClocheError]) -> None:
    assert kind.code in FAILURES
    assert FAILURES[kind.code].domain is kind.domain
    assert classify(kind("x")).code == kind.code


def test_only_the_agents_doing_counts_as_a_result() -> None:
    graded = {kind.__name__ for kind in ALL if kind.domain is Domain.AGENT}
    assert graded == {
        "ContextExceeded",
        "MalformedToolCall",
        "ModelOutcome",
        "ModelRefused",
        "OutputCut",
        "StepLimitReached",
        "TimeLimitReached",
    }


def body(message: str, code: str | None = None, kind: str | None = None) -> str:
    return json.dumps({"error": {"message": message, "code": code, "type": kind}})


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (429, body("Rate limit reached"), ModelRateLimited),
        (429, "", ModelRateLimited),
        (429, body("You exceeded your current quota", "insufficient_quota"), ModelQuotaUsedUp),
        (402, body("Payment required"), ModelQuotaUsedUp),
        (500, "oops", ModelUnavailable),
        (502, "<html>bad gateway</html>", ModelUnavailable),
        (503, body("overloaded"), ModelUnavailable),
        (529, body("overloaded_error"), ModelUnavailable),
        (408, "", ModelUnavailable),
        (302, "", ModelUnavailable),
        (401, body("Incorrect API key"), ModelAuthRefused),
        (403, body("no"), ModelAuthRefused),
        (404, body("The model `x` does not exist", "model_not_found"), ModelNotFound),
        (400, body("Unknown parameter: foo"), ModelRequestRefused),
        (422, json.dumps({"detail": [{"loc": ["body"]}]}), ModelRequestRefused),
        (413, "", ModelRequestRefused),
        (400, body("the maximum context length is 8192", "context_length_exceeded"), ContextExceeded),
        (
            400,
            body("the request exceeds the available context size", kind="exceed_context_size_error"),
            ContextExceeded,
        ),
        (400, body("prompt is too long: 210000 tokens > 200000 maximum"), ContextExceeded),
        (400, body("Failed to call a function", "tool_use_failed"), MalformedToolCall),
        (400, body("Invalid function arguments: Expecting value"), MalformedToolCall),
        (400, body("Could not parse tool call of the model"), MalformedToolCall),
    ],
)
def test_statuses(status: int, text: str, kind: type[ModelError]) -> None:
    error = refusal(status, text, retry_after_s=3.0)
    assert type(error) is kind
    assert f"answered {status}" in error.message
    if kind in {ModelRateLimited, ModelUnavailable}:
        assert classify(error).retry_after_s == 3.0


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"message": "slow down", "code": 429}, ModelRateLimited),
        ({"message": "slow down", "code": "429"}, ModelRateLimited),
        ({"message": "slow down", "type": "rate_limit_error"}, ModelRateLimited),
        ({"message": "no", "code": "context_length_exceeded"}, ContextExceeded),
        ({"message": "bad", "type": "invalid_request_error"}, ModelRequestRefused),
        ({"message": "boom"}, ModelUnavailable),
        ("boom", ModelUnavailable),
        (["boom"], ModelUnavailable),
        ({"code": "²", "message": "boom"}, ModelUnavailable),
        ({"code": 7, "message": "boom"}, ModelUnavailable),
    ],
)
def test_errors_that_come_with_200(value: object, kind: type[ModelError]) -> None:
    assert type(error_in_answer(value)) is kind


def test_a_long_body_is_cut_to_one_line() -> None:
    message = refusal(500, "line\n" * 10_000).message
    assert len(message) < 400
    assert "\n" not in message
