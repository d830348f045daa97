"""``cloche task check`` for real: a new task is sound, and a faulty one is told from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.tasks.skeleton import new_task
from cloche.testing.experiments import IMAGE, Installation, MakeTask


async def test_a_new_task_passes(installation: Installation, tmp_path: Path) -> None:
    new_task(tmp_path / "first", image=IMAGE)
    (tmp_path / "tmp").mkdir()
    done = installation.run("task", "check", str(tmp_path / "first"), "-k", "3", TMPDIR=str(tmp_path / "tmp"))
    assert done.status == 0, done.err
    assert done.out.split() == ["sound", "first", "oracle", "1", "×3", "·", "nop", "0", "×3"]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.fault("task-check-finds-fault")
async def test_faulty_tasks_are_named_with_the_reason_and_their_record_is_kept(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    make_task("generous", test="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    make_task("good")
    make_task("mute", test="#!/bin/sh\nexit 0\n")
    done = installation.run("task", "check", str(tmp_path / "tasks"), "-o", str(tmp_path / "kept"))
    assert done.status == 1
    assert "doing nothing scores 1, not 0 (#1)" in done.out
    assert "[verifier/reward_missing]" in done.out
    assert "1 of 3 tasks are sound" in done.err
    assert (tmp_path / "kept" / "result.json").is_file()


async def test_tasks_that_are_all_refused_are_a_wrong_request(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    make_task("gpu", environment=f'docker_image = "{IMAGE}"\ngpus = 1')
    done = installation.run("task", "check", str(tmp_path / "tasks"), "-o", str(tmp_path / "kept"))
    assert done.status == 2
    assert "[plan/gpu]" in done.out
