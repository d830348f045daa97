"""Whether another attempt is made, and when: for every row of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import Domain
from cloche.core.failures import FAILURES, failure
from cloche.core.retry import GiveUp, RetryAfter, RetryPolicy, decide

codes = st.sampled_from(sorted(FAILURES))
policies = st.builds(
    RetryPolicy,
    retries=st.integers(0, 20),
    first_wait_s=st.floats(0, 100),
    factor=st.floats(1, 4),
    max_wait_s=st.floats(0, 1000),
)


@given(codes, st.integers(1, 1000), policies, st.floats(0, 1))
def test_a_retry_is_for_infrastructure_within_the_number_and_the_longest_wait(
    code: str, attempt: int, policy: RetryPolicy, jitter: float
) -> None:
    found = decide(attempt, failure(code), policy, jitter=jitter)
    if isinstance(found, RetryAfter):
        assert FAILURES[code].domain is Domain.INFRA
        assert FAILURES[code].retried
        assert attempt <= policy.retries
        assert 0 <= found.wait_s <= policy.max_wait_s
    else:
        assert found.reason


@given(codes, policies)
def test_it_ends(code: str, policy: RetryPolicy) -> None:
    assert isinstance(decide(policy.retries + 1, failure(code), policy), GiveUp)


def test_by_default_there_are_five_further_attempts_after_half_a_minute_to_five() -> None:
    lost = failure("infra/sandbox_lost")
    waits = [decide(attempt, lost, RetryPolicy()) for attempt in range(1, 6)]
    assert waits == [RetryAfter(float(s)) for s in (30, 60, 120, 240, 300)]
    assert isinstance(decide(6, lost, RetryPolicy()), GiveUp)


HARBOR_NAMES = [
    ("SandboxResourceExhaustedError", "infra/capacity"),
    ("SandboxUnavailableError", "infra/sandbox_lost"),
    ("SandboxRequestTimeoutError", "infra/request_timeout"),
    ("EnvironmentStartTimeoutError", "infra/sandbox_start_timeout"),
    ("ApiRateLimitError", "infra/model_rate_limit"),
    ("ApiUsageLimitError", "infra/model_usage_limit"),
]


@pytest.mark.parametrize(("name", "code"), HARBOR_NAMES)
def test_failures_may_be_named_as_harbors_files_do(name: str, code: str) -> None:
    found = failure(code)
    assert isinstance(decide(1, found, RetryPolicy(include=frozenset({name}))), RetryAfter)
    assert isinstance(decide(1, found, RetryPolicy(exclude=frozenset({name}))), GiveUp)
    assert isinstance(decide(1, failure("infra/disk_full"), RetryPolicy(include=frozenset({name}))), GiveUp)


def test_a_result_is_never_tried_again_whatever_is_included() -> None:
    for code, kind in FAILURES.items():
        if kind.domain is not Domain.INFRA:
            policy = RetryPolicy(include=frozenset({code, kind.harbor}))
            assert isinstance(decide(1, failure(code), policy), GiveUp)


def test_waits_double_up_to_the_longest() -> None:
    policy = RetryPolicy(retries=9, first_wait_s=1, max_wait_s=10)
    waits = [decide(n, failure("infra/error"), policy) for n in range(1, 7)]
    assert waits == [RetryAfter(float(s)) for s in (1, 2, 4, 8, 10, 10)]


@pytest.mark.parametrize(("jitter", "wait_s"), [(0.0, 3.0), (0.5, 4.0), (1.0, 5.0)])
def test_chance_spreads_the_wait(jitter: float, wait_s: float) -> None:
    policy = RetryPolicy(first_wait_s=4)
    assert decide(1, failure("infra/error"), policy, jitter=jitter) == RetryAfter(wait_s)


def test_what_the_endpoint_asks_for_is_the_least_wait_within_ours() -> None:
    asked = replace(failure("infra/model_rate_limit"), retry_after_s=20.0)
    policy = RetryPolicy(first_wait_s=1.0, max_wait_s=60.0)
    assert decide(1, asked, policy) == RetryAfter(20.0)
    assert decide(1, replace(asked, retry_after_s=3600.0), policy) == RetryAfter(60.0)
    assert decide(1, replace(asked, retry_after_s=0.1), policy) == RetryAfter(1.0)


@pytest.mark.parametrize(
    "code",
    ["agent/timeout", "verifier/reward_missing", "user/interrupted", "infra/model_auth", "budget/money"],
)
def test_what_would_only_happen_again_is_not_tried_again(code: str) -> None:
    found = decide(1, failure(code), RetryPolicy(retries=5))
    assert isinstance(found, GiveUp)
    assert code in found.reason
