"""The folder of an experiment: ours or refused, opened again, added to, read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.core.errors import InvalidInput, NotFound
from cloche.experiment.plan import Plan, make_plan
from cloche.experiment.record.attempt import when
from cloche.experiment.record.folder import EXPERIMENT, JOB_RESULT, JobFolder
from cloche.tasks import load_task

MakeTask = Callable[..., Path]


def _plan(folder: Path, **more: int) -> Plan:
    return make_plan([load_task(folder)], ["nop"], [], **more)


def test_a_new_folder_is_made_and_recognised(tmp_path: Path, make_task: MakeTask) -> None:
    job = JobFolder(tmp_path / "runs" / "x")
    record = job.open(_plan(make_task()), when(0))
    assert job.read() == record
    assert [outcome.graded for outcome in job.outcomes()] == [False]
    assert job.last_run() is None
    assert record.created_at == when(0)


def test_the_same_plan_again_changes_nothing(tmp_path: Path, make_task: MakeTask) -> None:
    job, folder = JobFolder(tmp_path / "x"), make_task()
    first = job.open(_plan(folder), when(0))
    assert job.open(_plan(folder), when(99)) == first


def test_more_repeats_are_added(tmp_path: Path, make_task: MakeTask) -> None:
    job, folder = JobFolder(tmp_path / "x"), make_task()
    first = job.open(_plan(folder, repeats=2), when(0))
    more = job.open(_plan(folder, repeats=4), when(1))
    assert [trial.name for trial in more.trials[:2]] == [trial.name for trial in first.trials]
    assert len(more.trials) == 4
    assert more.id == first.id
    fewer = job.open(_plan(folder, repeats=1), when(2))
    assert len(fewer.trials) == 4, "what is on record stays on record"


def test_a_task_that_changed_is_refused(tmp_path: Path, make_task: MakeTask) -> None:
    job, folder = JobFolder(tmp_path / "x"), make_task()
    job.open(_plan(folder), when(0))
    (folder / "instruction.md").write_text("Do something else.\n")
    with pytest.raises(InvalidInput, match="task `sample` has changed"):
        job.open(_plan(folder), when(1))


def test_a_refused_task_may_be_mended(tmp_path: Path, make_task: MakeTask) -> None:
    job = JobFolder(tmp_path / "x")
    folder = make_task(toml='[environment]\ndocker_image = "x:1"\ngpus = 1\n')
    (trial,) = job.open(_plan(folder), when(0)).trials
    assert trial.refusal is not None
    (folder / "task.toml").write_text('[environment]\ndocker_image = "x:1"\n')
    (mended,) = job.open(_plan(folder), when(1)).trials
    assert mended.refusal is None


@pytest.mark.parametrize("there", ["notes.txt", "result.json", "config.json"])
def test_a_folder_that_is_not_ours_is_refused_untouched(
    tmp_path: Path, make_task: MakeTask, there: str
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / there).write_text("{}")
    with pytest.raises(InvalidInput, match="is no record of cloche") as caught:
        JobFolder(tmp_path / "x").open(_plan(make_task()), when(0))
    assert "nothing has been written" in (caught.value.hint or "")
    assert [path.name for path in (tmp_path / "x").iterdir()] == [there]


def test_a_file_or_a_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(InvalidInput, match="is not a folder"):
            JobFolder(tmp_path / name).check()


def test_what_cannot_be_read_is_named(tmp_path: Path, make_task: MakeTask) -> None:
    job = JobFolder(tmp_path / "x")
    with pytest.raises(NotFound, match="there is no record"):
        job.read()
    job.open(_plan(make_task()), when(0))
    value = json.loads((job.path / EXPERIMENT).read_text())
    (job.path / EXPERIMENT).write_text(json.dumps({**value, "format": "cloche-experiment/99"}))
    with pytest.raises(InvalidInput, match=r"experiment\.json: `format`"):
        job.read()
    (job.path / EXPERIMENT).write_text("{")
    with pytest.raises(InvalidInput, match=r"experiment\.json cannot be read"):
        job.check()


def test_the_last_run(tmp_path: Path, make_task: MakeTask) -> None:
    job = JobFolder(tmp_path / "x")
    job.open(_plan(make_task()), when(0))
    (job.path / JOB_RESULT).write_text(
        json.dumps({"status": 3, "sandboxes_left": 0, "seconds": 1.5, "more": 1})
    )
    last = job.last_run()
    assert last is not None
    assert (last.status, last.sandboxes_left, last.seconds) == (3, 0, 1.5)
    (job.path / JOB_RESULT).write_text("{}")
    with pytest.raises(InvalidInput, match="not what we write"):
        job.last_run()
