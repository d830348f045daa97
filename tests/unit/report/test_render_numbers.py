"""How figures are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.report.numbers import count, duration, median, money, percent, plain, plural, rate, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Wilson 1927; figures from the closed form in exact arithmetic
    [
        (4, 6, 0.300, 0.903),
        (2, 5, 0.118, 0.769),
        (0, 10, 0.0, 0.278),
        (10, 10, 0.722, 1.0),
        (50, 100, 0.404, 0.596),
    ],
)
def test_wilson(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))


@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_share_and_stays_in_range(pair: tuple[int, int]) -> None:
    successes, n = pair
    low, high = wilson(successes, n)
    assert 0 <= low <= high <= 1
    if n:
        assert low <= successes / n <= high
        mirrored = wilson(n - successes, n)
        assert mirrored == (pytest.approx(1 - high), pytest.approx(1 - low))


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_more_observations_make_it_narrower(pair: tuple[int, int]) -> None:
    successes, n = pair
    few, many = wilson(successes, n), wilson(successes * 10, n * 10)
    assert many[1] - many[0] < few[1] - few[0]


@pytest.mark.parametrize("pair", [(-1, 5), (6, 5), (1, 0)])
def test_what_is_no_proportion_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        wilson(*pair)


def test_rate() -> None:
    assert rate(4, 6) == "4/6 67 % [30–90]"
    assert rate(3402, 6190, 1) == "3,402/6,190 55.0 % [53.7–56.2]"
    assert rate(0, 0) == "0/0"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.5, "50 %"), (0.9999, ">99 %"), (0.0001, "<1 %"), (0.994, "99 %")],
)
def test_percent_is_all_or_nothing_only_for_all_or_nothing(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0"),
        (41203, "41,203"),
        (9_999_999, "9,999,999"),
        (61_000_000, "61 M"),
        (1_900_000_000, "1.9 G"),
        (2_000_000_000_000, "2 T"),
    ],
)
def test_count(value: int | None, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "unknown"),
        (0.0, "$0"),
        (0.018, "$0.018"),
        (0.0057, "$0.0057"),
        (0.00001234, "$0.000012"),
        (0.5, "$0.50"),
        (1.5, "$1.50"),
        (412.4, "$412"),
        (1310.0, "$1,310"),
        (-2.0, "-$2.00"),
    ],
)
def test_money(usd: float | None, text: str) -> None:
    assert money(usd) == text


@given(st.floats(0, 1e9))
def test_money_that_was_spent_is_never_shown_as_nothing(usd: float) -> None:
    if usd >= 1e-7:
        assert money(usd) != "$0"
        assert any(digit in money(usd) for digit in "123456789")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.0, "0 ms"),
        (0.0851, "85 ms"),
        (0.9999, "1.0 s"),
        (2.14, "2.1 s"),
        (59.96, "60 s"),
        (75.2, "75 s"),
        (120.0, "2 min"),
        (1260.0, "21 min"),
        (11_100.0, "3 h 05 min"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_median() -> None:
    assert median([]) is None
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0]) == 2.5


def test_plain_and_plural() -> None:
    assert [plain(None), plain(6.0), plain(6.5), plain(1234.0)] == ["–", "6", "6.5", "1,234"]
    assert plural(1, "trial") == "1 trial"
    assert plural(1200, "trial") == "1,200 trials"
    assert plural(0, "sandbox", "sandboxes") == "0 sandboxes"
