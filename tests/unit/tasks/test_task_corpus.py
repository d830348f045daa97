"""A corpus of broken tasks and, for each, everything that is said about it.

``corpus/tasks.json`` has the files of each task as they differ from a good one: a text, nothing for a file
that is left out, ``latin1`` for bytes that are no UTF-8, ``link`` for the target of a link, ``repeat`` for
what is large. ``corpus/expected.json`` has what ``cloche task lint`` says; after a change that is meant, run
this file as a program to write it again, and read the difference.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cloche.tasks import find_tasks
from cloche.tasks.lint import Note, lint

CORPUS = Path(__file__).parent / "corpus"
TASKS: dict[str, dict[str, Any]] = json.loads((CORPUS / "tasks.json").read_text())
EXPECTED: dict[str, list[str]] = json.loads((CORPUS / "expected.json").read_text())

GOOD: dict[str, Any] = {
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM debian:12\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/sh\ntrue\n",
}


def content(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if "latin1" in value:
        return str(value["latin1"]).encode("latin-1")
    text, times = value["repeat"]
    return str(value.get("before", "") + text * times).encode()


def build(folder: Path, name: str) -> None:
    """Make a task of the corpus in a folder that is not there yet."""
    for path, value in {**GOOD, **TASKS[name]}.items():
        target = folder / path
        if value is None:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, dict) and "link" in value:
            target.symlink_to(value["link"])
        else:
            target.write_bytes(content(value) or b"")


def shown(note: Note, folder: Path) -> str:
    place = note.finding.where.replace(f"{folder}", "").lstrip("/")
    hint = f" | {note.finding.hint}" if note.finding.hint else ""
    text = f"{note.level} {note.finding.code} {place}: {note.finding.message}{hint}"
    return text.replace(str(folder), "FOLDER")


def said(folder: Path, name: str) -> list[str]:
    """Make a task and return what is said of it, without advice for authors."""
    build(folder, name)
    (task,) = find_tasks([folder])
    notes = [note for note in lint(task, {}) if not note.finding.code.startswith("lint/")]
    return [shown(note, folder) for note in notes]


def test_the_corpus_is_large_and_complete() -> None:
    assert len(TASKS) >= 60
    assert list(TASKS) == list(EXPECTED)
    assert all(EXPECTED.values())
    kinds = {name.partition("-")[0] for name in TASKS}
    assert kinds >= {"type", "range", "value", "escape", "missing", "cycle", "encoding", "size", "refused"}


@pytest.mark.fault("task-broken-in-any-way")
@pytest.mark.parametrize("name", TASKS)
def test_what_is_said_of_a_broken_task(tmp_path: Path, name: str) -> None:
    assert said(tmp_path / "sample", name) == EXPECTED[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = {name: said(Path(temporary) / name / "sample", name) for name in TASKS}
    (CORPUS / "expected.json").write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n")
