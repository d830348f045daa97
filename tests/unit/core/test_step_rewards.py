"""How the rewards of steps make the reward of a task, and when a threshold is missed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.outcome import combine_rewards, missed

REWARDS = st.one_of(st.none(), st.dictionaries(st.sampled_from("abc"), st.floats(-10, 10), min_size=1))


@pytest.mark.parametrize(
    ("steps", "mean", "final"),
    [
        ([], None, None),
        ([None], None, None),
        ([{"reward": 1.0}, {"reward": 0.5}], {"reward": 0.75}, {"reward": 0.5}),
        ([{"a": 1.0}, {"b": 1.0}], {"a": 0.5, "b": 0.5}, {"b": 1.0}),
        ([{"reward": 1.0}, None], {"reward": 1.0}, None),
    ],
)
def test_both_strategies(
    steps: list[dict[str, float] | None], mean: dict[str, float] | None, final: dict[str, float] | None
) -> None:
    assert combine_rewards(steps) == mean
    assert combine_rewards(steps, final=True) == final


@given(st.lists(REWARDS, max_size=6))
def test_the_mean_lies_between_the_least_and_the_most(steps: list[dict[str, float] | None]) -> None:
    for key, value in (combine_rewards(steps) or {}).items():
        seen = [rewards.get(key, 0.0) for rewards in steps if rewards is not None]
        assert min(seen) - 1e-9 <= value <= max(seen) + 1e-9


@pytest.mark.parametrize(
    ("rewards", "least", "why"),
    [
        ({"reward": 1.0}, {}, None),
        ({"reward": 0.5}, {"reward": 0.5}, None),
        ({"reward": 0.4}, {"reward": 0.5}, "reward is 0.4, below 0.5"),
        ({"reward": 1.0}, {"quality": -5.0}, "quality is missing, below -5"),
        (None, {"reward": 0.0}, "reward is missing, below 0"),
        ({"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 0.1}, "b is 0, below 0.1"),
    ],
)
def test_thresholds(rewards: dict[str, float] | None, least: dict[str, float], why: str | None) -> None:
    assert missed(rewards, least) == why
