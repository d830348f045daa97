"""Listings are plain columns that fit a terminal."""

from __future__ import annotations

import json
import time

import pytest

from cloche.cli.listing import print_rows, table


def test_columns_line_up_and_empty_values_are_dashes() -> None:
    rows: list[dict[str, object]] = [
        {"id": "a", "labels": {"b": "2", "a": "1"}, "pid": None, "size_bytes": 3 << 20},
        {"id": "longer", "labels": {}, "pid": 7, "size_bytes": 0},
    ]
    assert table(rows).splitlines() == [
        "ID      LABELS   PID  SIZE",
        "a       a=1,b=2  -    3 MiB",
        "longer  -        7    0 MiB",
    ]


@pytest.mark.parametrize(("seconds", "age"), [(5, "5 s"), (600, "10 min"), (10800, "3 h"), (864000, "10 d")])
def test_times_are_shown_as_ages(seconds: float, age: str) -> None:
    assert table([{"created_at": time.time() - seconds}]).splitlines()[1] == age


def test_json_has_all_and_columns_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "a", "labels": {"x": "1"}}]
    print_rows(rows, as_json=True, short=("id",))
    assert json.loads(capsys.readouterr().out) == rows[0]
    print_rows(rows, as_json=False, short=("id",))
    assert capsys.readouterr().out == "ID\na\n"


def test_nothing_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], as_json=False, short=("id",))
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "none\n")
