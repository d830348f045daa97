"""``cloche run`` and ``cloche report`` as programs: tables, records, hints and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloche.testing.experiments import Installation, MakeTask

LINE = re.compile(r"^ (\d+) trials? · (\d+) graded · .*?(\d+) attempts? · (\d+) sandboxes left · \d")


def _closing(out: str) -> tuple[str, ...]:
    matches = [match.groups() for line in out.splitlines() if (match := LINE.match(line))]
    assert len(matches) == 1, out
    return matches[0]


def test_a_run_ends_with_the_table_and_report_shows_it_again(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    tasks = make_task("a").parent
    make_task("b")
    out = tmp_path / "out"
    done = installation.run("run", str(tasks), "-a", "oracle", "-a", "nop", "-k", "2", "-o", str(out))
    assert done.status == 0, done.err
    assert _closing(done.out) == ("8", "8", "8", "0")
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.out.splitlines()]
    assert ["task", "oracle", "nop"] in rows
    assert ["a", "● 2/2", "○ 0/2"] in rows
    assert ["solved", "4/4", "0/4"] in rows
    assert f"record: {out}   open it: cloche report {out}" in done.out
    again = installation.run("report", str(out))
    assert again.status == 0
    assert again.out == done.out


def test_records_on_standard_output_and_everything_else_on_standard_error(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    done = installation.run(
        "run", str(make_task()), "-a", "oracle", "-o", str(tmp_path / "out"), "--json", "-n", "1"
    )
    records = [json.loads(line) for line in done.out.splitlines()]
    assert records[0]["type"] == "launch"
    assert records[0]["trials"] == 1
    assert records[-1] == {
        "type": "done",
        "folder": str(tmp_path / "out"),
        "status": 0,
        "trials": 1,
        "graded": 1,
        "solved": 1,
        "attempts": 1,
        "sandboxes_left": 0,
        "seconds": records[-1]["seconds"],
    }
    assert "● 1/1" in done.err


def test_quiet_shows_the_table_alone(installation: Installation, make_task: MakeTask, tmp_path: Path) -> None:
    done = installation.run("run", str(make_task()), "-a", "nop", "-o", str(tmp_path / "out"), "--quiet")
    assert done.status == 0
    assert done.err == ""
    assert "○ 0/1" in done.out


def test_a_refused_task_is_said_when_planned_and_the_rest_runs(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    make_task("good")
    make_task("gpu", toml="gpus = 1")
    broken = make_task("broken")
    (broken / "task.toml").write_text('[agent]\ntimeout_sec = "soon"\n')
    done = installation.run("run", str(broken.parent), "-a", "oracle", "-o", str(tmp_path / "out"))
    assert done.status == 3
    assert "[plan/gpu]" in done.err
    assert re.search(r"broken/task\.toml:2", done.err)
    assert _closing(done.out)[:2] == ("3", "1")
    assert "◌ plan/gpu" in done.out
    assert "2 trials have no verdict" in done.out
    assert "(exit code 3)" in done.out.splitlines()[-1]


def test_when_every_task_is_refused_nothing_is_written(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    done = installation.run(
        "run", str(make_task(toml="gpus = 1")), "-a", "oracle", "-o", str(tmp_path / "out")
    )
    assert done.status == 2
    assert "nothing is left to run" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-a", "orcale"], "did you mean `oracle`?"),
        (["-a", "loop"], "agent `loop` needs a model"),
        (["-a", "loop", "-m", "x"], "-m needs an endpoint"),
        (["-a", "loop", "-m", "", "--base-url", "http://h/v1"], "-m is empty"),
        (["-a", "loop", "-m", "x", "--base-url", "ftp://h/"], "is not the address of an endpoint"),
        (["-a", "loop", "-m", "x", "--base-url", "http://u:p@h/v1"], "holds a user, a password or a query"),
        (["-a", "nop", "--price", "x=1/2"], "which is no model of this run"),
        (["-a", "loop", "-m", "x", "--base-url", "http://h/v1", "--price", "x=1"], "is no price"),
        (["-a", "loop", "-m", "x", "--base-url", "http://h/v1", "--price", "x=nan/1"], "is no price"),
        (["-a", "nop", "-n", "0"], "-n"),
        (["-a", "nop", "-k", "0"], "-k"),
        (["-a", "nop", "--timeout-multiplier", "0"], "--timeout-multiplier"),
        ([], "-a"),
    ],
)
def test_wrong_use_is_said_and_nothing_is_written(
    installation: Installation, make_task: MakeTask, tmp_path: Path, arguments: list[str], said: str
) -> None:
    folder = tmp_path / "out"
    done = installation.run("run", str(make_task()), *arguments, "-o", str(folder), MODEL_BASE_URL="")
    assert done.status == 2, done.err
    assert said in done.err
    assert not folder.exists()


def test_a_path_without_a_task(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = installation.run("run", str(tmp_path / "empty"), "-a", "nop")
    assert done.status == 2
    assert "there is no task in" in done.err


@pytest.mark.fault("foreign-output-folder")
def test_a_folder_that_is_not_ours_is_refused(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    done = installation.run("run", str(make_task()), "-a", "nop", "-o", str(folder))
    assert done.status == 2
    assert "is no record of cloche" in done.err
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    assert installation.run("report", str(folder)).status == 2


def test_report_of_nothing(installation: Installation, tmp_path: Path) -> None:
    done = installation.run("report", str(tmp_path / "none"))
    assert done.status == 2
    assert "there is no record" in done.err


@pytest.mark.fault("run-cannot-go-on")
def test_a_machine_where_the_run_cannot_go_on_is_said_in_one_line(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = installation.run(
        *("run", str(make_task()), "-a", "nop", "-o", str(tmp_path / "out"), "--quiet"),
        CLOCHE_RUN_DIR=str(tmp_path / "file" / "run"),
    )
    assert done.status == 5
    assert len(done.err.splitlines()) == 1
    assert re.match(r"error: the run cannot go on: .*Not a directory.*\[[a-z]+/[a-z_]+\]$", done.err.strip())
