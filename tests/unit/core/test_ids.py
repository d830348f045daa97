"""Identifiers are safe as names everywhere, and sort by time."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from cloche.core.ids import is_name, new_id


def test_new_ids_are_names_and_differ() -> None:
    made = {new_id("sb") for _ in range(2000)}
    assert len(made) == 2000
    assert all(is_name(name) and len(name) == 19 for name in made)


def test_later_ids_sort_later() -> None:
    first = new_id("c")
    time.sleep(0.002)
    assert new_id("c") > first


@given(st.text())
def test_a_name_is_never_a_path_or_an_option(text: str) -> None:
    if is_name(text):
        assert "/" not in text
        assert not text.startswith(("-", "."))
        assert text.isascii()
        assert 0 < len(text) <= 63
