"""Budgets as people write them."""

from __future__ import annotations

import pytest

from cloche.core.errors import InvalidInput
from cloche.core.experiment.policy import Budget
from cloche.experiment.budget import parse_budget


@pytest.mark.parametrize(
    ("texts", "budget"),
    [
        ([], Budget()),
        (["50usd"], Budget(cost_usd=50.0)),
        (["$0.5"], Budget(cost_usd=0.5)),
        (["1,500usd"], Budget(cost_usd=1500.0)),
        (["2Mtokens"], Budget(tokens=2_000_000)),
        (["250_000 tokens"], Budget(tokens=250_000)),
        (["90min"], Budget(wall_s=5400.0)),
        (["3h", "5usd"], Budget(wall_s=10_800.0, cost_usd=5.0)),
    ],
)
def test_what_people_write(texts: list[str], budget: Budget) -> None:
    assert parse_budget(texts) == budget


NONE = ["", "50", "usd", "-1usd", "0usd", "$5usd", "$5h", "nan usd", "5 apples", "1e3usd"]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no budget"):
        parse_budget([text])


def test_a_limit_given_twice() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        parse_budget(["5usd", "$6"])
