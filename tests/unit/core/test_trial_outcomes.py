"""What a trial came to: verdicts, what counts as solved, and sums that never turn unknown into 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import Domain
from cloche.core.failures import FAILURES, failure
from cloche.core.outcome import AttemptOutcome, Span, TrialOutcome, Usage, add_usage, solved


def _attempt(number: int = 1, **more: object) -> AttemptOutcome:
    values = {"number": number, "started_at": 0.0, "finished_at": 1.0, **more}
    return AttemptOutcome(**values)  # type: ignore[arg-type]


def _trial(*attempts: AttemptOutcome, **more: object) -> TrialOutcome:
    values = {"name": "t", "task": "t", "agent": "a", "model": None, "repeat": 1, **more}
    return TrialOutcome(attempts=attempts, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", sorted(FAILURES))
def test_a_reward_beside_a_failure_counts_only_if_it_is_the_agents(code: str) -> None:
    attempt = _attempt(rewards={"reward": 1.0}, failure=failure(code))
    assert attempt.graded == (FAILURES[code].domain is Domain.AGENT)
    assert _trial(attempt).solved == attempt.graded


def test_without_a_reward_there_is_no_verdict() -> None:
    assert not _attempt().graded
    assert not _attempt(failure=failure("agent/timeout")).graded
    assert not _trial().graded


def test_the_last_attempt_decides() -> None:
    lost = _attempt(1, failure=failure("infra/sandbox_lost"))
    good = _attempt(2, rewards={"reward": 1.0})
    assert _trial(lost, good).solved
    assert _trial(lost, good).failure is None
    assert not _trial(good, lost).graded


def test_a_refused_trial_has_its_reason_and_no_verdict() -> None:
    trial = _trial(refusal=failure("plan/gpu"))
    assert not trial.graded
    assert trial.failure is not None
    assert trial.failure.code == "plan/gpu"


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ({"reward": 1.0}, True),
        ({"reward": 1}, True),
        ({"reward": 2.5}, True),
        ({"reward": 0.999}, False),
        ({"reward": 1 - 1e-12}, True),
        ({"reward": 0.0}, False),
        ({"reward": 1.0, "style": 0.2}, True),
        ({"pass": 1.0}, True),
        ({"pass": 1.0, "partial": 0.5}, False),
        ({"pass": 1.0, "partial": 1.0}, True),
        ({}, False),
    ],
)
def test_solved(rewards: dict[str, float], expected: bool) -> None:
    assert solved(rewards) is expected


counts = st.none() | st.integers(0, 10**9)
usages = st.builds(
    Usage,
    input_tokens=counts,
    cached_tokens=counts,
    output_tokens=counts,
    cost_usd=st.none() | st.floats(0, 1e6),
    model_calls=st.integers(0, 1000),
)


@given(st.lists(usages, max_size=8))
def test_a_sum_is_unknown_as_soon_as_a_part_is(parts: list[Usage]) -> None:
    total = add_usage(parts)
    if not parts:
        assert total is None
        return
    assert total is not None
    for name in ("input_tokens", "cached_tokens", "output_tokens", "cost_usd"):
        values = [getattr(part, name) for part in parts]
        if None in values:
            assert getattr(total, name) is None
        else:
            assert getattr(total, name) == pytest.approx(sum(values))
    assert total.model_calls == sum(part.model_calls for part in parts)


def test_a_trial_counts_the_tokens_of_every_attempt() -> None:
    part = Usage(input_tokens=10, cached_tokens=0, output_tokens=2, cost_usd=0.5, model_calls=1)
    lost = _attempt(1, failure=failure("infra/sandbox_lost"), usage=part)
    usage = _trial(lost, _attempt(2, rewards={"reward": 0.0}, usage=part)).usage
    assert usage == Usage(input_tokens=20, cached_tokens=0, output_tokens=4, cost_usd=1.0, model_calls=2)
    assert _trial(_attempt()).usage is None


def test_a_span_has_a_length() -> None:
    assert Span(10.0, 12.5).seconds == 2.5
