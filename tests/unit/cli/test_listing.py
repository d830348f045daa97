"""Listings are plain columns."""

from __future__ import annotations

from cloche.cli.listing import table


def test_columns_line_up_and_empty_values_are_dashes() -> None:
    rows: list[dict[str, object]] = [
        {"id": "a", "created_at": 0.0, "labels": {"b": "2", "a": "1"}, "pid": None},
        {"id": "longer", "created_at": 86400.0, "labels": {}, "pid": 7},
    ]
    assert table(rows).splitlines() == [
        "ID      CREATED_AT            LABELS   PID",
        "a       1970-01-01T00:00:00Z  a=1,b=2  -",
        "longer  1970-01-02T00:00:00Z  -        7",
    ]
