"""The real ``harbor`` package reads what a run of ours wrote, file by file, and its viewer serves it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloche.agents.chat import ATTEMPTS
from cloche.testing.experiments import GRADE_DONE, IMAGE, PROGRAM, SOLVE, Installation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Peer = Callable[[str], Path]
READER = Path(__file__).parent / "peers" / "read_with_harbor.py"
TREE_MAX_BYTES = 64 << 10
VIEWER_START_MAX_S = 120.0

# one conversation goes well, one meets a fault that passes, one a fault that stays
SCRIPTS = {
    "good": """
match = "Do the task good"
[[turns]]
text = "Let me look. Grüße."
calls = [
  {name = "bash", arguments = {command = "touch /root/done; echo kept > /logs/artifacts/note.txt"}},
  {name = "read_file", arguments = {path = "/absent"}},
]
[[turns]]
text = "Done."
""",
    "flaky": """
match = "Do the task flaky"
[[turns]]
calls = [{name = "bash", arguments = {command = "touch /root/done"}}]
[[turns]]
text = "Done."
fault = {kind = "status", status = 429, retry_after_s = 0.01, times = ATTEMPTS}
""",
    "out": """
match = "Do the task out"
[[turns]]
calls = [{name = "bash", arguments = {command = "touch /root/done"}}]
[[turns]]
text = "Done."
fault = {kind = "status", status = 429, retry_after_s = 0.01}
""",
    "staged": """
match = "Do the task staged"
[[turns]]
calls = [{name = "bash", arguments = {command = "touch /root/done"}}]
[[turns]]
text = "Done."
""",
}
SEVERAL = r"""#!/bin/sh
[ -e /root/done ] && r=1 || r=0
echo "{\"reward\": $r, \"speed\": 0.25}" > /logs/verifier/reward.json
"""
SLOW = "#!/bin/sh\ntouch /root/done\nsleep 1000\n"


def write_task(
    folder: Path, *, solve: str = SOLVE, test: str = GRADE_DONE, image: str = IMAGE, agent_s: float = 60.0
) -> Path:
    """Write a task and return its folder."""
    files = {
        "task.toml": f"""
schema_version = "1.4"
[agent]
timeout_sec = {agent_s}
[verifier]
timeout_sec = 30.0
[environment]
docker_image = "{image}"
memory_mb = 256
network_mode = "no-network"
""",
        "instruction.md": f"Do the task {folder.name}.\n",
        "tests/test.sh": test,
        "solution/solve.sh": solve,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_staged(folder: Path) -> Path:
    """Write a task in two steps, the second of which is left out where the first was not solved."""
    write_task(folder)
    (folder / "instruction.md").unlink()
    with (folder / "task.toml").open("a") as config:
        config.write('[[steps]]\nname = "first"\nmin_reward = 1.0\n[[steps]]\nname = "second"\n')
    for step in ("first", "second"):
        part = folder / "steps" / step
        (part / "solution").mkdir(parents=True)
        (part / "instruction.md").write_text(f"Do the task {folder.name}, the {step} step.\n")
        (part / "solution" / "solve.sh").write_text(SOLVE)
    return folder


@dataclass(frozen=True, slots=True)
class Job:
    """A finished run's folder."""

    folder: Path

    def read(self, *names: str) -> Any:
        """Return a JSON file of it."""
        return json.loads(self.folder.joinpath(*names).read_bytes())

    @property
    def trials(self) -> dict[str, dict[str, Any]]:
        """Harbor's result of each trial, by the trial's name."""
        return {path.parent.name: json.loads(path.read_bytes()) for path in self.folder.glob("*/result.json")}

    def trial(self, task: str, agent: str) -> str:
        """Return the name of the one trial of an agent at a task."""
        (name,) = [name for name in self.trials if name.startswith(f"{task}__{agent}")]
        return name


def offline_environ(**more: str) -> dict[str, str]:
    """Return the environment for Harbor's programs: they tell and ask nobody."""
    quiet = {
        "HARBOR_TELEMETRY": "off",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, **quiet, **more}


@pytest.fixture(scope="module")
def job(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One real run of three agents over five tasks: one has steps, one an image that does not exist."""
    top = tmp_path_factory.mktemp("run")
    for name, text in SCRIPTS.items():
        path = top / "scripts" / "scripted" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("ATTEMPTS", str(ATTEMPTS)))
    tasks = [
        write_task(top / "tasks" / "good", test=SEVERAL),
        write_task(top / "tasks" / "flaky"),
        write_task(top / "tasks" / "out", solve=SLOW, agent_s=3.0),
        write_task(top / "tasks" / "refused", image="no-such-image:1"),
        write_staged(top / "tasks" / "staged"),
    ]
    folder = top / "jobs" / "first"
    serve = [sys.executable, "-m", "cloche.testing.model_server", "--scripts", str(top / "scripts")]
    run = [*PROGRAM, "run", *map(str, tasks), "-a", "oracle", "-a", "nop", "-a", "loop", "-m", "scripted"]
    run += ["--retries", "1", "--retry-wait", "1s"]
    run += ["--price", "scripted=0.15/0.60", "-o", str(folder), "--quiet"]
    done = subprocess.run(
        [*serve, "--", *run], env=installation.environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, f"one trial keeps meeting a fault:\n{done.stdout}\n{done.stderr}"
    return Job(folder)


def test_harbor_parses_every_file_and_writes_it_again_as_it_was(peer: Peer, job: Job) -> None:
    done = subprocess.run(
        [peer("harbor") / "bin" / "python", READER, job.folder],
        env=offline_environ(HOME=str(job.folder.parent)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert not said["figures"]
    report: dict[str, list[str]] = said["files"]
    found = {name: lines for name, lines in report.items() if lines}
    assert not found, json.dumps(found, indent=1)

    # nothing of Harbor's names was passed over, and every kind of ending was there
    ours = {"config.json", "lock.json", "result.json", "trajectory.json", "manifest.json"}
    written = {str(path.relative_to(job.folder)) for path in job.folder.rglob("*.json") if path.name in ours}
    assert set(report) == written
    flaky, out = job.trial("flaky", "loop"), job.trial("out", "loop")
    for attempt in (f"{flaky}/attempts/1", f"{out}/attempts/1", out):
        assert f"{attempt}/agent/trajectory.json" in report
        assert (job.folder / attempt / "exception.txt").read_text()
    assert not (job.folder / flaky / "exception.txt").exists()
    assert {Path(name).name for name in report} == ours
    endings = {
        name: (result["exception_info"] or {}).get("exception_type") for name, result in job.trials.items()
    }
    assert endings[flaky] is None
    assert endings[out] == "ApiRateLimitError"
    assert endings[job.trial("out", "oracle")] == "AgentTimeoutError"

    staged = job.trial("staged", "loop")
    for step in ("first", "second"):
        assert f"{staged}/steps/{step}/agent/trajectory.json" in report
    assert [step["step_name"] for step in job.trials[staged]["step_results"]] == ["first", "second"]
    given_up = job.trials[job.trial("staged", "nop")]["step_results"]
    assert [step["verifier_result"]["rewards"] for step in given_up] == [{"reward": 0}]


def disk_bytes(folder: Path) -> int:
    """Return what a folder takes on the disk, itself included; earlier attempts are trees of their own."""
    paths = [
        folder,
        *(path for path in folder.rglob("*") if "attempts" not in path.relative_to(folder).parts),
    ]
    return sum(path.lstat().st_blocks * 512 for path in paths)


def test_a_trial_takes_little_room(job: Job) -> None:
    """A trial's tree; of a task in steps each step has a tree of its own, with folders of whole blocks."""
    attempts = [path.parent for path in job.folder.rglob("attempt.json")]
    sizes = {str(path.relative_to(job.folder)): disk_bytes(path) for path in attempts}
    assert len(sizes) >= 11
    trees = {str(path.relative_to(job.folder)): 1 + len([*(path / "steps").glob("*")]) for path in attempts}
    allowed = {name: TREE_MAX_BYTES * count for name, count in trees.items()}
    assert not {name: size for name, size in sizes.items() if size > allowed[name]}


@contextlib.contextmanager
def viewer(program: Path, jobs: Path, home: Path) -> Iterator[Callable[[str], Any]]:
    """Serve a folder of jobs with ``harbor view``; give a function that asks it. Ends all of it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = home / "viewer.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "view", jobs, "--jobs", "--no-build", "--host", "127.0.0.1", "--port", str(port)],
            env=offline_environ(HOME=str(home)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return json.load(answer)

    try:
        until = time.monotonic() + VIEWER_START_MAX_S
        while True:
            try:
                ask("/api/health")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    pytest.fail(f"harbor view did not come up:\n{log.read_text()}")
                time.sleep(0.1)
        yield ask
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, with everything in its group, and see that nothing is left."""
    try:
        process.terminate()
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for _ in range(100):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("something that the viewer started is still there")


def test_harbor_view_serves_our_folder(peer: Peer, job: Job, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with viewer(peer("harbor") / "bin" / "harbor", job.folder.parent, home) as ask:
        (listed,) = ask("/api/jobs")["items"]
        assert listed["name"] == "first"
        assert listed["n_total_trials"] == len(job.trials)
        assert sorted(listed["agents"]) == ["loop", "nop", "oracle"]
        stats = ask("/api/jobs/first")["stats"]
        assert stats["n_retries"] == job.read("result.json")["stats"]["n_retries"] == 2

        trials = {trial["name"]: trial for trial in ask("/api/jobs/first/trials")["items"]}
        assert trials.keys() == job.trials.keys()
        good, out = job.trial("good", "loop"), job.trial("out", "loop")
        assert trials[good]["model_name"] == "scripted"
        assert trials[out]["error_type"] == "ApiRateLimitError"
        for name, result in job.trials.items():
            assert ask(f"/api/jobs/first/trials/{name}") == result

        trajectory = ask(f"/api/jobs/first/trials/{good}/trajectory")
        assert trajectory == job.read(good, "agent", "trajectory.json")
        assert trajectory["steps"][2]["message"] == "Let me look. Grüße."
        artifacts = ask(f"/api/jobs/first/trials/{good}/artifacts")
        assert "note.txt" in json.dumps(artifacts)
        assert "reward" in json.dumps(ask(f"/api/jobs/first/trials/{good}/verifier-output"))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask("/api/jobs/first/trials/absent")
