"""``cloche task lint`` and ``new``, ``cloche dataset ls``: places, fixes and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.cli import main
from cloche.core.errors import InvalidInput
from cloche.tasks import load_task
from cloche.tasks.lint import Level, lint
from cloche.tasks.skeleton import new_task

MakeTask = Callable[..., Path]
TIMED = "[agent]\ntimeout_sec = 60\n"


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([*arguments])
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def advice(folder: Path) -> list[tuple[str, str]]:
    notes = lint(load_task(folder), {})
    assert {note.level for note in notes} <= {Level.DOUBT}
    return [(note.finding.code, note.finding.where.removeprefix(f"{folder}/")) for note in notes]


def test_a_good_task_has_nothing_said_about_it(
    make_task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_task(TIMED)
    assert advice(folder) == []
    assert call(capsys, "task", "lint", "--strict", str(folder)) == (
        0,
        "",
        "1 tasks · 0 that do not run · 0 doubts\n",
    )


@pytest.mark.parametrize(
    ("toml", "files", "found"),
    [
        ("", {}, ("lint/no_timeout", "task.toml")),
        (TIMED, {"solution/solve.sh": None}, ("lint/no_solution", "solution")),
        (TIMED, {"instruction.md": "a\nsee /tests/x\n"}, ("lint/gives_away", "instruction.md")),
        (TIMED, {"tests/test.sh": "#!/bin/sh\necho\r\n"}, ("lint/line_ends", "tests/test.sh:2")),
        (TIMED, {"solution/solve.sh": "true\n"}, ("lint/no_interpreter", "solution/solve.sh:1")),
    ],
)
def test_advice_has_its_place(
    make_task: MakeTask, toml: str, files: dict[str, str | None], found: tuple[str, str]
) -> None:
    assert advice(make_task(toml, files)) == [found]


def test_doubts_alone_stop_nobody_unless_asked(
    make_task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(make_task("[agent]\ntimeout_secs = 5\n"))
    status, out, err = call(capsys, "task", "lint", folder)
    assert status == 0
    assert f"{folder}/task.toml:2: doubt: `agent.timeout_secs` is not a key" in out
    assert "hint: did you mean `timeout_sec`?" in out
    assert err == "1 tasks · 0 that do not run · 2 doubts\n"
    assert call(capsys, "task", "lint", "--strict", folder)[0] == 1


def test_broken_and_refused_tasks_exit_with_two(
    make_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_task("[", name="broken")
    make_task(f'{TIMED}[environment]\ngpus = 1\nos = "windows"\n', name="refused")
    make_task(TIMED, name="good")
    status, out, err = call(capsys, "task", "lint", "--json", str(tmp_path))
    assert status == 2
    records = [json.loads(line) for line in out.splitlines()]
    assert [(record["task"], record["level"], record["code"]) for record in records] == [
        ("broken", "error", "task/toml"),
        ("refused", "refused", "plan/gpu"),
        ("refused", "refused", "plan/windows"),
    ]
    assert err == "3 tasks · 2 that do not run · 0 doubts\n"


def test_a_new_task_is_faultless_and_its_scripts_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sets" / "first"
    status, out, err = call(capsys, "task", "new", str(folder), "--organisation", "me")
    assert (status, err) == (0, f"next: cloche task check {folder}\n")
    assert out.splitlines() == [str(folder / name) for name in sorted_as_written(folder)]
    task = load_task(folder)
    assert task.full_name == "me/first"
    assert advice(folder) == []
    assert (folder / "tests" / "test.sh").stat().st_mode & 0o111 == 0o111


def sorted_as_written(folder: Path) -> list[str]:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    order = ["task.toml", "instruction.md", "environment/Dockerfile", "environment/name.txt"]
    return [*order, *sorted((name for name in names if name not in order), reverse=True)]


@pytest.mark.parametrize("name", ["Upper", "a b", "-x", "ü", "x" * 64])
def test_names_that_a_new_task_cannot_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name of a task"):
        new_task(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("task-new-over-another")
def test_a_new_task_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("kept")
    with pytest.raises(InvalidInput, match="is there already"):
        new_task(tmp_path / "x")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["mine"]


def test_a_dataset_is_listed_with_what_runs(
    make_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_task("[", name="broken")
    make_task("[environment]\ngpus = 1\n", name="gpu")
    steps = "[[steps]]\nname = 'a'\n[[steps]]\nname = 'b'\n"
    files = {"instruction.md": None, "steps/a/instruction.md": "x", "steps/b/instruction.md": "x"}
    make_task(TIMED + steps, files, name="stepped")
    status, out, err = call(capsys, "dataset", "ls", str(tmp_path))
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[0] == ["TASK", "STEPS", "IMAGE", "NETWORK", "AGENT_S", "DIGEST", "RUNS"]
    assert lines[1] == ["broken", "-", "-", "-", "-", "-", "no:", "task/toml"]
    assert lines[2][-2:] == ["no:", "plan/gpu"]
    assert lines[3][:5] == ["stepped", "2", "Dockerfile", "public", "120"]
    assert err == "3 tasks · 1 run here\n"
    records = [
        json.loads(line) for line in call(capsys, "dataset", "ls", "--json", str(tmp_path))[1].splitlines()
    ]
    assert [record["runs"] for record in records] == ["no: task/toml", "no: plan/gpu", "yes"]
