"""Both ends of the spawner's socket have the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloche.sandbox.native.wire import VERSION, Answer, Request, Tag

HEADER = Path(__file__).parents[4] / "guest" / "spawner" / "spawner.h"


def numbers(prefix: str) -> dict[str, int]:
    found = re.findall(rf"\b{prefix}_([A-Z_]+) = (\d+)", HEADER.read_text())
    return {name: int(value) for name, value in found}


@pytest.mark.parametrize(("prefix", "names"), [("R", Request), ("A", Answer), ("W", Tag)])
def test_numbers_are_the_same(prefix: str, names: type[Request] | type[Answer] | type[Tag]) -> None:
    assert numbers(prefix) == {member.name: member.value for member in names}


def test_the_version_is_the_same() -> None:
    assert re.search(r"#define SPAWNER_VERSION (\d+)", HEADER.read_text())[1] == str(VERSION)
