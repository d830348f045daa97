from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.cli import main

MakeTask = Callable[..., Path]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["task", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def test_show_tells_what_was_understood(make_task: MakeTask, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_task('[environment]\nmemory_mb = 512\nstorage_mb = 1024\ncpus = 2\n[agent]\nuser = "ada"\n')
    status, out, _ = call(capsys, "show", str(folder))
    assert status == 0
    for part in (
        "sample",
        "sha256:",
        "environment/Dockerfile (ready within 600 s)",
        "2 CPU · memory 512 MiB · storage 1024 MiB (where the store has limits)",
        "agent without time limit · verifier 600 s",
        "public (the format's default)",
        "agent ada · verifier as the image says",
        "solution/solve.sh",
        "doubt",
        "[plan/storage_not_enforced]",
        "runs      yes",
    ):
        assert part in out


def test_show_tells_refusals_with_their_place(
    make_task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_task("[environment]\nos = 'linux'\ngpus = 1\n")
    status, out, _ = call(capsys, "show", str(folder))
    assert status == 0
    assert "refused   it asks for a GPU" in out
    assert f"{folder}/task.toml:3" in out
    assert "runs" not in out


def test_show_of_a_broken_task_fails_and_still_shows_the_others(
    make_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_task("[", name="bad")
    make_task(name="good")
    status, out, _ = call(capsys, "show", str(tmp_path))
    assert status == 2
    assert "bad  cannot be understood" in out
    assert "[task/toml]" in out
    assert "good" in out


def test_show_as_json_has_one_object_a_line(
    make_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_task("agent = 1\n", name="bad")
    make_task('[metadata]\nwhen = 2024-01-01\n[environment.env]\nA = "${B:-c}"\n', name="good")
    status, out, _ = call(capsys, "show", "--json", str(tmp_path))
    bad, good = (json.loads(line) for line in out.splitlines())
    assert status == 2
    assert bad["broken"][0]["code"] == "task/type"
    assert good["metadata"] == {"when": "2024-01-01"}
    assert good["environment"]["env"] == {"A": "${B:-c}"}
    assert good["environment"]["network"] == "public"
    assert good["environment"]["network_stated"] is False
    assert (good["refusals"], good["doubts"]) == ([], [])
    assert good["instruction"] == "Do it.\n"


def test_values_from_the_host_are_never_shown(
    make_task: MakeTask, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    folder = make_task('[environment.env]\nKEY = "${MY_SECRET}"\n')
    for arguments in (["show", str(folder)], ["show", "--json", str(folder)]):
        _, out, _ = call(capsys, *arguments)
        assert "${MY_SECRET}" in out
        assert "hunter2" not in out


def test_show_of_nothing_is_an_error_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "show", str(tmp_path))
    assert (status, out) == (2, "")
    assert "there is no task in" in err
    assert "hint: a task is a folder with a task.toml" in err


def test_show_tells_steps_artifacts_and_who_grades(
    make_task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = (
        'artifacts = [{ source = "/out", destination = "kept" }]\n'
        '[environment.healthcheck]\ncommand = "probe it"\n[verifier]\nenvironment_mode = "separate"\n'
        '[[steps]]\nname = "one"\nmin_reward = 0.5\n[[steps]]\nname = "two"\n'
        '[steps.agent]\ntimeout_sec = 9\n[steps.verifier]\nenvironment_mode = "shared"\n'
    )
    files = {"instruction.md": None, "steps/one/instruction.md": "1", "steps/two/instruction.md": "2"}
    folder = str(make_task(toml, files))
    status, out, _ = call(capsys, "show", folder)
    assert status == 0
    for part in (
        "health    probe it",
        "artifact  /out → artifacts/kept",
        "step      one · agent without time limit · verifier 600 s · graded apart · goes on from reward 0.5",
        "step      two · agent 9 s · verifier 600 s",
        "solution  solution/solve.sh, solution/solve.sh",
    ):
        assert part in out
    record = json.loads(call(capsys, "show", "--json", folder)[1])
    assert [(step["name"], step["verifier"]["separate"]) for step in record["steps"]] == [
        ("one", True),
        ("two", False),
    ]
    assert record["artifacts"] == ["/out"]
