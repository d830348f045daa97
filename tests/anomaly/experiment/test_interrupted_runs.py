"""Runs stopped by signals or killed at any moment: no sandbox is left, and the record says what happened."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cloche.experiment.record.folder import JobFolder
from cloche.sandbox.native.record import read_folders
from cloche.testing.experiments import Finished, Installation, MakeTask, finish

SLOW = "#!/bin/sh\nsleep 1.5\ntouch /root/done\n"
STUBBORN = "#!/bin/sh\ntrap '' TERM INT HUP\nsetsid sh -c \"trap '' TERM; sleep 1000\" &\nsleep 1000\n"


def _begin(installation: Installation, tasks: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return installation.start("run", str(tasks), "-a", "oracle", "-o", str(out), "-n", "2", *more)


def _sandboxes(installation: Installation) -> list[str]:
    return [folder.id for folder in read_folders(installation.settings.sandboxes_dir)]


def _wait_for_agents(out: Path, process: subprocess.Popen[str], count: int = 1) -> None:
    """Wait until that many attempts are on record, and a moment more."""
    deadline = time.monotonic() + 60
    while len(list(out.glob("*/attempt.json"))) < count:
        if process.poll() is not None or time.monotonic() > deadline:
            done = finish(process)
            raise AssertionError(f"no trial began: {done.status}\n{done.out}\n{done.err}")
        time.sleep(0.02)


def _left(done: Finished) -> int:
    (count,) = re.findall(r"(\d+) sandbox(?:es)? left", done.out)
    return int(count)


def _codes(out: Path) -> list[str]:
    """Return the code of the failure of each trial, ``ok`` for a verdict, ``none`` for one not begun."""
    return [
        "ok" if trial.graded else trial.failure.code if trial.failure else "none"
        for trial in JobFolder(out).outcomes()
    ]


def _rerun_completes(installation: Installation, tasks: Path, out: Path, trials: int) -> None:
    done = finish(_begin(installation, tasks, out, "-k", str(trials)))
    assert done.status == 0, (done.out, done.err)
    assert _codes(out) == ["ok"] * trials
    for trial in JobFolder(out).outcomes():
        numbers = [attempt.number for attempt in trial.attempts]
        assert numbers == list(range(1, len(numbers) + 1)), "an attempt is lost or counted twice"
    assert _sandboxes(installation) == []


@pytest.mark.fault("ctrl-c-once")
def test_ctrl_c_once_lets_what_runs_finish(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    tasks, out = make_task(solve=SLOW), tmp_path / "out"
    process = _begin(installation, tasks, out, "-k", "8")
    _wait_for_agents(out, process, 2)
    done = finish(process, signal.SIGINT)
    assert done.status == 130
    assert "draining" in done.err
    codes = _codes(out)
    assert codes.count("ok") == 2
    assert codes.count("none") == 6
    assert _left(done) == 0
    assert "interrupted, 6 trials have no verdict" in done.out
    assert _sandboxes(installation) == []
    _rerun_completes(installation, tasks, out, 8)


@pytest.mark.fault("ctrl-c-twice")
def test_ctrl_c_twice_cancels(installation: Installation, make_task: MakeTask, tmp_path: Path) -> None:
    tasks, out = make_task(solve=STUBBORN), tmp_path / "out"
    process = _begin(installation, tasks, out, "-k", "4")
    _wait_for_agents(out, process, 2)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    done = finish(process, signal.SIGINT)
    assert done.status == 130, done.err
    assert "cancelling" in done.err
    codes = _codes(out)
    assert codes.count("user/interrupted") == 2
    assert codes.count("none") == 2
    assert _left(done) == 0
    assert _sandboxes(installation) == []
    for trial in out.glob("*__*"):
        if (trial / "attempt.json").exists():
            assert (trial / "result.json").is_file()
            assert "[user/interrupted]" in (trial / "exception.txt").read_text()


@pytest.mark.fault("ctrl-c-three-times")
def test_ctrl_c_three_times_kills_and_still_deletes(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    tasks, out = make_task(solve=STUBBORN), tmp_path / "out"
    process = _begin(installation, tasks, out, "-k", "4")
    _wait_for_agents(out, process, 2)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    done = finish(process, signal.SIGINT)
    assert done.status == 130, done.err
    assert _sandboxes(installation) == []
    codes = _codes(out)
    assert len(codes) == 4
    assert set(codes) <= {"user/interrupted", "infra/runner_lost", "none"}


@pytest.mark.fault("sigterm")
def test_sigterm_cancels(installation: Installation, make_task: MakeTask, tmp_path: Path) -> None:
    tasks, out = make_task(solve=STUBBORN), tmp_path / "out"
    process = _begin(installation, tasks, out, "-k", "3")
    _wait_for_agents(out, process, 2)
    done = finish(process, signal.SIGTERM)
    assert done.status == 130, done.err
    assert _left(done) == 0
    assert _codes(out).count("user/interrupted") == 2
    assert _sandboxes(installation) == []


@pytest.mark.slow
@pytest.mark.fault("ctrl-c-any-moment")
@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_at_any_moment_leaves_nothing_and_the_run_can_go_on(
    installation: Installation, make_task: MakeTask, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    tasks, out = make_task(solve="#!/bin/sh\nsleep 0.2\ntouch /root/done\n"), tmp_path / "out"
    process = _begin(installation, tasks, out, "-k", "6")
    time.sleep(0.4 + chance.random() * 1.2)
    for _ in range(chance.randint(1, 3)):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        time.sleep(chance.random() * 0.2)
    done = finish(process)
    # before the handlers stand, the interpreter's own answer to a signal is -2
    assert done.status in {0, 130, -signal.SIGINT}, (done.out, done.err)
    assert _sandboxes(installation) == []
    _rerun_completes(installation, tasks, out, 6)


@pytest.mark.fault("runner-killed")
@pytest.mark.parametrize("wait_s", [0.05, 0.4, 1.0])
def test_a_runner_killed_in_the_middle_is_gone_on_with(
    installation: Installation, make_task: MakeTask, tmp_path: Path, wait_s: float
) -> None:
    tasks, out = make_task(solve="#!/bin/sh\nsleep 0.7\ntouch /root/done\n"), tmp_path / "out"
    process = _begin(installation, tasks, out, "-k", "6")
    _wait_for_agents(out, process, 2)
    time.sleep(wait_s)
    os.kill(process.pid, signal.SIGKILL)
    assert finish(process).status == -signal.SIGKILL
    lost = [trial for trial in JobFolder(out).outcomes() if trial.failure]
    assert all(trial.failure.code == "infra/runner_lost" for trial in lost if trial.failure)
    _rerun_completes(installation, tasks, out, 6)
    again = {trial.name: trial for trial in JobFolder(out).outcomes()}
    for trial in lost:
        first, *_ = again[trial.name].attempts
        assert first.failure is not None, "the attempt that was lost is kept beside the one that counts"
        assert first.failure.code == "infra/runner_lost"
        assert len(again[trial.name].attempts) == 2


@pytest.mark.fault("two-runners-one-folder")
def test_a_second_runner_on_the_same_folder_is_refused(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    tasks, out = make_task(solve=SLOW), tmp_path / "out"
    process = _begin(installation, tasks, out)
    _wait_for_agents(out, process)
    second = finish(_begin(installation, tasks, out))
    assert second.status == 2
    assert "another run is writing to" in second.err
    assert finish(process).status == 0
    assert _codes(out) == ["ok"]
