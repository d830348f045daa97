"""Counting: what is unknown stays unknown, and what is known stays readable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloche.agents.usage import TokenCounts, UsageMeter
from cloche.core.outcome import Usage

COUNTS = st.builds(
    TokenCounts,
    prompt_tokens=st.integers(0, 10**6),
    completion_tokens=st.integers(0, 10**6),
    cached_tokens=st.none() | st.integers(0, 10**6),
)


def test_no_call_is_no_usage() -> None:
    assert UsageMeter().total() is None


def test_a_call_in_flight_makes_the_total_unknown() -> None:
    meter = UsageMeter()
    meter.begin_call()
    meter.settle_call(TokenCounts(prompt_tokens=10, completion_tokens=2, cached_tokens=4))
    meter.begin_call()
    assert meter.total() == Usage(model_calls=2)
    assert meter.counted_tokens == 12


def test_a_call_without_counts_stays_unknown() -> None:
    meter = UsageMeter()
    meter.begin_call()
    meter.settle_call(None)
    assert meter.total() == Usage(input_tokens=None, output_tokens=None, model_calls=1)


def test_a_refused_call_is_no_call() -> None:
    meter = UsageMeter()
    meter.begin_call()
    meter.withdraw_call()
    assert meter.total() is None


def test_zero_tokens_that_were_counted_are_zero() -> None:
    meter = UsageMeter()
    meter.begin_call()
    meter.settle_call(TokenCounts(prompt_tokens=0, completion_tokens=0))
    assert meter.total() == Usage(input_tokens=0, output_tokens=0, cached_tokens=None, model_calls=1)


@given(st.lists(st.none() | COUNTS, min_size=1, max_size=20))
def test_the_total_is_the_sum_or_unknown(calls: list[TokenCounts | None]) -> None:
    meter = UsageMeter()
    for counts in calls:
        meter.begin_call()
        meter.settle_call(counts)
    total = meter.total()
    assert total is not None
    assert total.model_calls == len(calls)
    known = [counts for counts in calls if counts is not None]
    assert meter.counted_prompt_tokens == sum(counts.prompt_tokens for counts in known)
    if len(known) < len(calls):
        assert total.input_tokens is total.output_tokens is total.cached_tokens is None
        return
    assert total.input_tokens == sum(counts.prompt_tokens for counts in known)
    assert total.output_tokens == sum(counts.completion_tokens for counts in known)
    cached = [counts.cached_tokens for counts in known]
    assert total.cached_tokens == (None if None in cached else sum(cached))  # type: ignore[arg-type]
