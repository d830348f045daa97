"""The shipped tasks are sound: their solutions score 1 and doing nothing scores 0, ten times over."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASKS = sorted(path.parent.name for path in (ROOT / "examples" / "tasks").glob("*/task.toml"))
REPEATS = 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    folder = Path("/var/tmp") / f"cloche-shipped-{os.getpid()}"
    env = {**os.environ, "CLOCHE_STATE_DIR": str(folder / "state"), "CLOCHE_RUN_DIR": str(folder / "run")}
    yield env
    left = subprocess.run(_cloche("doctor", "--leaks", "--json"), env=env, capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    assert left.stdout == b""


def _cloche(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cloche", *arguments]


def test_solutions_score_one_and_doing_nothing_zero_ten_times_over(
    env: dict[str, str], tmp_path: Path
) -> None:
    subprocess.run(_cloche("image", "bootstrap", "debian:12"), env=env, capture_output=True, check=True)
    out = tmp_path / "record"
    check = _cloche("task", "check", "examples/tasks", "-k", str(REPEATS), "-o", str(out))
    done = subprocess.run(check, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sound = re.findall(rf"^sound +(\S+) +oracle 1 ×{REPEATS} · nop 0 ×{REPEATS}$", done.stdout, re.MULTILINE)
    assert sorted(sound) == TASKS
    results = [json.loads(path.read_text()) for path in out.glob("*/result.json")]
    assert len(results) == 2 * REPEATS * len(TASKS)
    assert all(result["verifier_result"]["rewards"] for result in results)


def test_there_are_at_least_sixteen() -> None:
    assert len(TASKS) >= 16
