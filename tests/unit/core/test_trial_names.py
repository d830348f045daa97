"""Names of trials: the same for the same, different for the different, safe everywhere."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cloche.core.names import NAME_LIMIT_CHARS, slug, trial_name

SAFE = re.compile(r"[a-z0-9][a-z0-9._-]*")
texts = st.text(min_size=1, max_size=120)
cells = st.tuples(texts, texts, st.none() | texts, st.integers(1, 10_000), st.text(max_size=20))


def _name(cell: tuple[str, str, str | None, int, str]) -> str:
    task, agent, model, repeat, key = cell
    return trial_name(task, agent, model, repeat, key=key)


@given(cells)
def test_a_name_is_safe_as_a_folder_and_short(cell: tuple[str, str, str | None, int, str]) -> None:
    name = _name(cell)
    assert SAFE.fullmatch(name)
    assert len(name) <= NAME_LIMIT_CHARS
    assert ".." not in name.split("__")
    assert name == _name(cell)


@given(st.lists(cells, min_size=2, max_size=30, unique=True))
def test_different_cells_have_different_names(group: list[tuple[str, str, str | None, int, str]]) -> None:
    names = {_name(cell) for cell in group}
    # an empty model's name is none: the only two cells that mean the same
    wanted = {(task, agent, model or None, repeat, key) for task, agent, model, repeat, key in group}
    assert len(names) == len(wanted)


def test_a_name_can_be_read() -> None:
    name = trial_name("acme/fix-off-by-one", "loop", "gpt-oss:20b", 3)
    assert re.fullmatch(r"fix-off-by-one__loop-gpt-oss-20b__k3-[0-9a-f]{6}", name)
    assert re.fullmatch(r"csv__oracle__k1-[0-9a-f]{6}", trial_name("csv", "oracle", None, 1))


def test_long_names_leave_room_for_each_other() -> None:
    name = trial_name("t" * 200, "loop", "m" * 200, 12)
    what, who, _ = name.split("__")
    assert len(name) == NAME_LIMIT_CHARS
    assert min(len(what), len(who)) > 15


def test_slug() -> None:
    assert slug("A b/C_d..") == "a-b-c-d"
    assert slug("ÄÖÜ") == "x"
    assert slug("../..") == "x"
