"""docs/tasks.md names every field of the format and every code that a task can meet."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.tasks import fields, load_task

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "tasks.md").read_text()
SOURCES = "".join(path.read_text() for path in (ROOT / "src" / "cloche" / "tasks").glob("*.py"))
CODES = sorted(set(re.findall(r'"((?:task|plan|verifier|infra)/[a-z_]+)"', SOURCES)))
INNER_CODES = {"task/invalid", "task/missing", "verifier/error"}  # never seen: a more exact one is


def test_there_are_codes() -> None:
    assert len(CODES) > 30


@pytest.mark.parametrize("code", [code for code in CODES if code not in INNER_CODES])
def test_every_code_is_documented(code: str) -> None:
    assert f"`{code}`" in DOCUMENT


def test_every_field_is_documented(make_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    finish = fields.Table.finish

    def note(table: fields.Table) -> None:
        asked.update(table.name(key) for key in table._known)
        finish(table)

    monkeypatch.setattr(fields.Table, "finish", note)
    load_task(make_task())
    assert len(asked) > 30
    tables = {"agent", "environment", "solution", "task", "verifier"}
    assert not [name for name in sorted(asked - tables) if f"`{name}`" not in DOCUMENT]
