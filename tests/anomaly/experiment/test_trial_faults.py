"""What goes wrong inside trials: each fault has its code, its place in the record, and leaves nothing."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from cloche.core.outcome import TrialOutcome
from cloche.experiment.record.folder import JobFolder
from cloche.experiment.record.shapes import TrialResult
from cloche.testing.experiments import Installation, Lab, MakeTask
from cloche.testing.model_server import Fault, Script, ScriptedCall, ScriptedModelServer, Turn

NEVER = "#!/bin/sh\nsleep 1000\n"


def _code(trial: TrialOutcome) -> str | None:
    return trial.failure.code if trial.failure else None


def _endpoint(fault: Fault) -> ScriptedModelServer:
    return ScriptedModelServer(
        [Script(model="m", name="s", match="Do", turns=(Turn(text="x", fault=fault),))]
    )


@pytest.mark.fault("agent-timeout")
async def test_an_agent_that_runs_out_of_time_is_graded(lab: Lab, make_task: MakeTask) -> None:
    half = "#!/bin/sh\ntouch /root/done\nsleep 1000\n"
    tasks = [make_task("done", solve=half, agent_s=1.0), make_task("not", solve=NEVER, agent_s=1.0)]
    ending = await lab.run(tasks)
    assert ending.status == 0
    assert [(trial.task, trial.solved, _code(trial)) for trial in ending.outcomes] == [
        ("done", True, "agent/timeout"),
        ("not", False, "agent/timeout"),
    ]
    assert all(len(trial.attempts) == 1 for trial in ending.outcomes), "a result is not tried again"
    result = TrialResult.model_validate_json((lab.trial(ending) / "result.json").read_bytes())
    assert result.exception_info is not None
    assert result.exception_info.exception_type == "AgentTimeoutError"
    assert result.reward_valid


@pytest.mark.fault("verifier-hang")
async def test_a_verifier_that_never_ends_is_ended(lab: Lab, make_task: MakeTask) -> None:
    stubborn = "#!/bin/sh\ntrap '' TERM\necho started\nsetsid sleep 1000 &\nsleep 1000\n"
    ending = await lab.run([make_task(test=stubborn, verifier_s=1.0)])
    assert ending.status == 3
    (trial,) = ending.outcomes
    assert _code(trial) == "verifier/timeout"
    assert len(trial.attempts) == 1
    assert not trial.graded
    assert (lab.trial(ending) / "verifier" / "test-stdout.txt").read_text() == "started\n"


REWARDS = {
    "missing": ("true", "verifier/reward_missing"),
    "empty": (": > /logs/verifier/reward.txt", "verifier/reward_empty"),
    "nan": ("echo nan > /logs/verifier/reward.txt", "verifier/reward_invalid"),
    "words": ("echo pass > /logs/verifier/reward.txt", "verifier/reward_invalid"),
    "nested": ('echo \'{"a": {"b": 1}}\' > /logs/verifier/reward.json', "verifier/reward_invalid"),
    "infinite": ("echo '{\"reward\": 1e999}' > /logs/verifier/reward.json", "verifier/reward_invalid"),
}


@pytest.mark.fault("reward-unusable")
async def test_a_reward_that_is_missing_or_no_number_is_no_verdict(lab: Lab, make_task: MakeTask) -> None:
    tasks = [make_task(name, test=f"#!/bin/sh\n{line}\n") for name, (line, _) in REWARDS.items()]
    ending = await lab.run(tasks)
    assert ending.status == 3
    assert {trial.task: _code(trial) for trial in ending.outcomes} == {
        name: code for name, (_, code) in REWARDS.items()
    }
    assert not any(trial.graded for trial in ending.outcomes)
    assert all(len(trial.attempts) == 1 for trial in ending.outcomes)
    for path in lab.folder.rglob("*.json"):
        text = path.read_text()
        assert "NaN" not in text
        json.loads(text, parse_constant=pytest.fail)
    assert math.isfinite(ending.seconds)


@pytest.mark.fault("reward-planted-by-the-agent")
async def test_a_reward_that_the_agent_left_is_not_read(lab: Lab, make_task: MakeTask) -> None:
    solve = (
        "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\necho '{\"reward\": 1}' > /logs/verifier/reward.json\n"
    )
    ending = await lab.run([make_task(solve=solve, test="#!/bin/sh\ntrue\n")])
    assert _code(ending.outcomes[0]) == "verifier/reward_missing"


@pytest.mark.fault("model-rate-limit")
async def test_429_is_infrastructure_with_two_attempts_both_kept(lab: Lab, make_task: MakeTask) -> None:
    async with _endpoint(Fault(kind="status", status=429, retry_after_s=0.01)) as server:
        ending = await lab.run([make_task()], ["loop", "oracle"], models=["m"], base_url=server.base_url)
    assert ending.status == 3
    loop, oracle = ending.outcomes
    assert oracle.solved
    assert _code(loop) == "infra/model_rate_limit"
    assert [attempt.number for attempt in loop.attempts] == [1, 2]
    assert len({attempt.sandbox_id for attempt in loop.attempts}) == 2
    folder = lab.folder / loop.name
    for place in (folder, folder / "attempts" / "1"):
        assert (place / "agent" / "trajectory.json").is_file()
        assert "[infra/model_rate_limit]" in (place / "exception.txt").read_text()
        result = TrialResult.model_validate_json((place / "result.json").read_bytes())
        assert result.verifier_result is None
        assert result.exception_info is not None
        assert result.exception_info.exception_type == "ApiRateLimitError"
        assert not result.reward_valid


@pytest.mark.fault("model-fault-passes")
async def test_a_fault_of_the_endpoint_that_passes_costs_no_trial(lab: Lab, make_task: MakeTask) -> None:
    touch = ScriptedCall(name="bash", arguments={"command": "touch /root/done"})
    fault = Fault(kind="cut", times=1)
    script = Script(
        model="m", name="s", match="Do", turns=(Turn(calls=(touch,)), Turn(text="ok", fault=fault))
    )
    async with ScriptedModelServer([script]) as server:
        ending = await lab.run([make_task()], ["loop"], models=["m"], base_url=server.base_url)
    assert ending.status == 0
    assert ending.outcomes[0].solved


@pytest.mark.fault("model-key-refused")
async def test_a_refused_key_is_not_tried_again(lab: Lab, make_task: MakeTask) -> None:
    async with _endpoint(Fault(kind="status", status=401)) as server:
        ending = await lab.run([make_task()], ["loop"], models=["m"], base_url=server.base_url)
    (trial,) = ending.outcomes
    assert _code(trial) == "infra/model_auth"
    assert len(trial.attempts) == 1


@pytest.mark.fault("image-missing")
async def test_an_image_that_is_not_here_is_said_once(lab: Lab, make_task: MakeTask) -> None:
    ending = await lab.run([make_task(environment='docker_image = "no-such:1"')], repeats=2)
    assert ending.status == 3
    assert [_code(trial) for trial in ending.outcomes] == ["infra/image", "infra/image"]
    assert [line for line in lab.news if "no-such:1" in line] == ["there is no image no-such:1"]
    assert all(len(trial.attempts) == 1 for trial in ending.outcomes)


@pytest.mark.fault("agent-output-1gib")
async def test_a_gibibyte_of_output_is_bounded_everywhere(lab: Lab, make_task: MakeTask) -> None:
    solve = "#!/bin/sh\nhead -c 1073741824 /dev/zero\ntouch /root/done\n"
    ending = await lab.run([make_task(solve=solve)])
    assert ending.outcomes[0].solved, ending.outcomes[0].failure
    log = lab.trial(ending) / "agent" / "oracle.txt"
    assert log.stat().st_size < 8 << 20
    assert "bytes left out" in log.read_bytes()[-200:].decode()
    assert sum(path.stat().st_size for path in lab.folder.rglob("*") if path.is_file()) < 16 << 20


@pytest.mark.fault("too-much-to-collect")
async def test_more_than_the_bounds_is_left_in_the_sandbox(lab: Lab, make_task: MakeTask) -> None:
    solve = (
        "#!/bin/sh\ntouch /root/done\ntruncate -s 300M /logs/artifacts/huge\n"
        "ln -s /etc/passwd /logs/agent/link\necho small > /logs/agent/small\n"
    )
    ending = await lab.run([make_task(solve=solve)])
    folder = lab.trial(ending)
    assert ending.outcomes[0].solved
    (entry,) = json.loads((folder / "artifacts" / "manifest.json").read_text())
    assert entry["status"] == "skipped"
    assert not (folder / "artifacts" / "logs").exists()
    assert (folder / "agent" / "small").read_text() == "small\n"
    assert not (folder / "agent" / "link").is_symlink()
    log = (folder / "trial.log").read_text()
    assert "256 MiB" in log
    assert "/logs/agent/link is neither a file nor a folder" in log


@pytest.mark.fault("agent-plants-a-trajectory")
async def test_what_the_agent_calls_a_trajectory_does_not_replace_ours(lab: Lab, make_task: MakeTask) -> None:
    solve = "#!/bin/sh\ntouch /root/done\necho '{}' > /logs/agent/trajectory.json\n"
    ending = await lab.run([make_task(solve=solve)])
    value = json.loads((lab.trial(ending) / "agent" / "trajectory.json").read_text())
    assert value["schema_version"] == "ATIF-v1.8"


@pytest.mark.fault("output-disk-full")
def test_a_full_disk_below_the_record_stops_the_run_and_leaves_nothing(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", place], check=True)
    try:
        solve = "#!/bin/sh\ntouch /root/done\nhead -c 100000 /dev/zero > /logs/agent/blob\n"
        tasks = make_task(solve=solve)
        done = installation.run(
            "run", str(tasks), "-a", "oracle", "-k", "8", "-n", "2", "-o", str(place / "out")
        )
        assert done.status == 5, (done.out, done.err)
        assert "[infra/disk_full]" in done.err
        assert "hint: free some space" in done.err
        subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        again = installation.run("run", str(tasks), "-a", "oracle", "-k", "8", "-o", str(place / "out"))
        assert again.status == 0, (again.out, again.err)
        assert all(trial.graded for trial in JobFolder(place / "out").outcomes())
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.fault("agent-kills-everything")
async def test_an_agent_that_kills_all_it_can_see_is_graded_in_order(lab: Lab, make_task: MakeTask) -> None:
    ending = await lab.run([make_task(solve="#!/bin/sh\ntouch /root/done\nkill -KILL 1\nkill -KILL -1\n")])
    assert ending.outcomes[0].solved, ending.outcomes[0].failure
    assert ending.sandboxes_left == 0


@pytest.mark.fault("dockerfile-fails")
def test_a_dockerfile_that_fails_shows_its_log_once_and_keeps_it(
    installation: Installation, make_task: MakeTask, tmp_path: Path
) -> None:
    recipe = "FROM busybox:1\nRUN echo about to break && exit 3\n"
    make_task("good")
    broken = make_task("broken", environment="", files={"environment/Dockerfile": recipe})
    out = tmp_path / "out"
    done = installation.run("run", str(broken.parent), "-a", "oracle", "-a", "nop", "-o", str(out), "--quiet")
    assert done.status == 3
    assert done.err.count("about to break") >= 1
    assert done.err.count("error:") == 1
    log = next(Path(line.strip()) for line in done.err.splitlines() if line.strip().endswith(".log"))
    assert "about to break" in log.read_text()
    codes = {(trial.task, trial.agent): _code(trial) for trial in JobFolder(out).outcomes()}
    assert codes == {
        ("good", "oracle"): None,
        ("good", "nop"): None,
        ("broken", "oracle"): "infra/image",
        ("broken", "nop"): "infra/image",
    }
