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
CODES = sorted(set(re.findall(r'"((?:task|plan|verifier|infra|lint)/[a-z_]+)"', SOURCES)))
INNER_CODES = {"task/invalid", "task/missing", "verifier/error"}  # never seen: a more exact one is


def test_there_are_codes() -> None:
    assert len(CODES) > 30


@pytest.mark.parametrize("code", [code for code in CODES if code not in INNER_CODES])
def test_every_code_is_documented(code: str) -> None:
    assert f"`{code}`" in DOCUMENT


FIELD = re.compile(r"`([a-z_.\[\]]+)`")
TABLES = {
    "agent",
    "environment",
    "solution",
    "task",
    "verifier",
    "environment.healthcheck",
}
LISTS = {"steps", "verifier.collect", "task.authors", "environment.mcp_servers"}
# what stands for the fields of a table that is described elsewhere
SAME_AS = {
    "steps[].agent": "agent",
    "steps[].verifier": "verifier",
    "steps[].healthcheck": "environment.healthcheck",
    "verifier.environment": "environment",
    "steps[].artifacts[]": "artifacts[]",
}
FULL = """
artifacts = ["/a", { source = "/b" }]
task = { authors = [{ name = "x" }] }
environment = { healthcheck = { command = "x" }, mcp_servers = [{ name = "x" }] }
[verifier]
environment = { healthcheck = { command = "x" } }
collect = [{ command = "x" }]
[[steps]]
name = "one"
artifacts = [{ source = "/b" }]
healthcheck = { command = "x" }
verifier = { collect = [{ command = "x" }] }
"""


def fields_of_the_schema(make_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return every key that reading a task with all kinds of tables asks for, lists without their index."""
    asked: set[str] = set()
    finish = fields.Table.finish

    def note(table: fields.Table) -> None:
        asked.update(re.sub(r"\[\d+\]", "[]", table.name(key)) for key in table._known)
        finish(table)

    monkeypatch.setattr(fields.Table, "finish", note)
    files = {"instruction.md": None, "steps/one/instruction.md": "x"}
    assert load_task(make_task(FULL, files)).refused
    return asked


def test_the_table_of_fields_is_that_of_the_schema(
    make_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = DOCUMENT.partition("## The fields of `task.toml`")[2].partition("\nA value of an")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in FIELD.findall(row)}
    asked = fields_of_the_schema(make_task, monkeypatch) - TABLES - LISTS
    for inner, outer in SAME_AS.items():
        asked = {
            name.replace(f"{inner}.", f"{outer}.", 1) if name.startswith(f"{inner}.") else name
            for name in asked
        }
    asked = {name for name in asked if name not in TABLES and name not in LISTS}
    assert len(asked) > 60
    assert documented - asked == set()
    assert asked - documented == set()
