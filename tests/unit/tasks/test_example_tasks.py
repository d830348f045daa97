"""The shipped tasks: complete, alike where they should be, and true to what they ask."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from cloche.tasks import Task, find_tasks, refusals
from cloche.tasks.model import TaskNetwork

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "tasks"
TASKS = {task.name: task for task in find_tasks([EXAMPLES]) if isinstance(task, Task)}
SHARED_LAYER = (
    "RUN apt-get update && apt-get install -y --no-install-recommends python3-minimal"
    " && rm -rf /var/lib/apt/lists/*"
)


def test_the_six_are_there() -> None:
    assert set(TASKS) >= {
        "csv-dedupe",
        "fix-off-by-one",
        "log-forensics",
        "non-root-notes",
        "package-tools",
        "utf8-torture",
    }
    assert len(find_tasks([EXAMPLES])) == len(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_nothing_is_refused_or_doubted(name: str) -> None:
    task = TASKS[name]
    assert refusals(task, {}) == []
    assert task.doubts == ()
    assert task.full_name == f"cloche/{task.path.name}"
    assert task.schema_version == "1.4"
    assert all(step.solution.script is not None for step in task.steps)


@pytest.mark.parametrize("name", TASKS)
def test_limits_are_stated_and_modest(name: str) -> None:
    task = TASKS[name]
    assert task.agent.timeout_s is not None
    assert task.agent.timeout_s <= 1800
    assert task.verifier.timeout_s <= 600
    assert task.environment.memory_bytes is not None
    assert task.environment.memory_bytes <= 1 << 30
    assert task.environment.network_stated


def test_only_the_task_with_packages_has_a_network() -> None:
    assert {name for name, task in TASKS.items() if task.environment.network is TaskNetwork.PUBLIC} == {
        "package-tools"
    }


@pytest.mark.parametrize("name", TASKS)
def test_images_share_their_first_layers(name: str) -> None:
    dockerfile = TASKS[name].environment.dockerfile
    assert dockerfile is not None
    lines = dockerfile.read_text().splitlines()
    assert lines[0] == "FROM debian:12"
    assert lines[1] == SHARED_LAYER or "python3" not in dockerfile.read_text()


@pytest.mark.parametrize("name", TASKS)
def test_the_instruction_gives_no_answer_away(name: str) -> None:
    task = TASKS[name]
    for secret in ("/tests", "/solution", "reward"):
        assert secret not in task.instruction


@pytest.mark.parametrize("name", TASKS)
def test_scripts_can_be_executed(name: str) -> None:
    task = TASKS[name]
    for script in (part for step in task.steps for part in (step.verifier.script, step.solution.script)):
        assert script is not None
        assert script.stat().st_mode & 0o111 == 0o111
        assert script.read_bytes().startswith(b"#!/bin/")


def generate(monkeypatch: pytest.MonkeyPatch, task: str, program: str, target: Path) -> None:
    path = EXAMPLES / task / "environment" / program
    monkeypatch.setattr(sys, "argv", [str(path), str(target)])
    runpy.run_path(str(path))


def test_the_logs_are_the_same_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        generate(monkeypatch, "log-forensics", "make_logs.py", tmp_path / name)
    one, two = (
        {path.name: path.read_text() for path in (tmp_path / name).iterdir()} for name in ("one", "two")
    )
    assert one == two
    assert set(one) == {"auth.log", "access.log"}
    before = one["auth.log"].partition("Accepted password for backup from 203.0.113.77")[0]
    assert before.count("Failed password") - before.count("192.0.2.15") == 137
    assert one["auth.log"].count("from 192.0.2.15 ") > 137  # the loudest address is not the intruder's


def test_the_inbox_has_every_kind_of_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    generate(monkeypatch, "utf8-torture", "make_inbox.py", tmp_path / "inbox")
    manifest = (EXAMPLES / "utf8-torture" / "tests" / "manifest.tsv").read_text().splitlines()
    files = [path for path in (tmp_path / "inbox").rglob("*") if path.is_file() and not path.is_symlink()]
    names = [str(path.relative_to(tmp_path / "inbox")) for path in files]
    assert len(files) == len(manifest) == 27
    assert {bytes.fromhex(line.partition("\t")[0]) for line in manifest} == {
        name.encode("utf-8", "surrogateescape") for name in names
    }
    assert any("\udcff" in name for name in names)
    assert any("\n" in name for name in names)
