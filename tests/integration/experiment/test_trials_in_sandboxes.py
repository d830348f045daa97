"""Trials in real sandboxes: verdicts, the end of the agent's processes, limits, what is collected."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from cloche.agents.atif import Trajectory
from cloche.core.outcome import TrialOutcome
from cloche.experiment.plan import Price
from cloche.experiment.record.folder import JobFolder
from cloche.experiment.record.shapes import JobResult, TrialConfig, TrialLock, TrialResult
from cloche.testing.experiments import Lab, MakeTask
from cloche.testing.model_server import Script, ScriptedCall, ScriptedModelServer, Turn

COUNT_PROCESSES = r"""#!/bin/sh
# processes other than the guest, this shell and the shell that started it
left=0
for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    [ "$pid" = 1 ] || [ "$pid" = $$ ] || [ "$pid" = $PPID ] || left=$((left + 1))
done
ls /proc | grep '^[0-9]' > /logs/verifier/processes
[ -e /root/late ] && left=99
[ $left = 0 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


def _script(*turns: Turn, match: str = "Do the task") -> Script:
    return Script(model="m", name="s", match=match, turns=turns)


def _bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall(name="bash", arguments={"command": command}),))


def _by_agent(outcomes: list[TrialOutcome]) -> dict[str, TrialOutcome]:
    return {trial.agent: trial for trial in outcomes}


async def test_oracle_solves_and_nop_does_not(lab: Lab, make_task: MakeTask) -> None:
    ending = await lab.run([make_task("a"), make_task("b")], ["oracle", "nop"], repeats=2)
    assert ending.status == 0
    assert ending.sandboxes_left == 0
    assert len(ending.outcomes) == 8
    assert all(trial.graded and len(trial.attempts) == 1 for trial in ending.outcomes)
    assert {trial.name for trial in ending.outcomes if trial.solved} == {
        trial.name for trial in ending.outcomes if trial.agent == "oracle"
    }
    assert len({trial.attempts[0].sandbox_id for trial in ending.outcomes}) == 8


async def test_the_record_is_complete_private_and_of_harbors_shape(lab: Lab, make_task: MakeTask) -> None:
    solve = "#!/bin/sh\ntouch /root/done\necho log > /logs/agent/mine.txt\necho out > /logs/artifacts/x.txt\n"
    ending = await lab.run([make_task(solve=solve)])
    trial = lab.trial(ending)
    files = {str(path.relative_to(lab.folder)) for path in lab.folder.rglob("*") if path.is_file()}
    top = {"config.json", "lock.json", "result.json", "job.log", "experiment.json", "job-result.json"}
    below = {
        "config.json",
        "lock.json",
        "result.json",
        "trial.log",
        "attempt.json",
        "agent/trajectory.json",
        "agent/oracle.txt",
        "agent/exit-code.txt",
        "agent/mine.txt",
        "artifacts/manifest.json",
        "artifacts/logs/artifacts/x.txt",
        "verifier/reward.txt",
        "verifier/test-stdout.txt",
    }
    assert files == top | {f"{trial.name}/{name}" for name in below}
    for path in [lab.folder, *lab.folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    TrialConfig.model_validate_json((trial / "config.json").read_bytes())
    TrialLock.model_validate_json((trial / "lock.json").read_bytes())
    result = TrialResult.model_validate_json((trial / "result.json").read_bytes())
    assert result.verifier_result is not None
    assert result.verifier_result.rewards == {"reward": 1.0}
    phases = [result.environment_setup, result.agent_setup, result.agent_execution, result.verifier]
    assert None not in phases
    job = JobResult.model_validate_json((lab.folder / "result.json").read_bytes())
    assert (job.stats.n_completed_trials, job.stats.n_errored_trials) == (1, 0)
    trajectory = Trajectory.model_validate_json((trial / "agent" / "trajectory.json").read_bytes())
    assert trajectory.steps[0].message == "Do the task sample.\n"
    manifest = json.loads((trial / "artifacts" / "manifest.json").read_text())
    assert [(item["source"], item["status"]) for item in manifest] == [("/logs/artifacts", "ok")]


async def test_the_agents_processes_are_gone_before_the_verifier(lab: Lab, make_task: MakeTask) -> None:
    solve = (
        "#!/bin/sh\n"
        "setsid sh -c 'sleep 1; touch /root/late; sleep 1000' >/dev/null 2>&1 &\n"
        "(trap '' TERM HUP; (while :; do sleep 1; done) &) \n"
        "touch /root/done\n"
    )
    ending = await lab.run([make_task(solve=solve, test=COUNT_PROCESSES)])
    seen = (lab.trial(ending) / "verifier" / "processes").read_text()
    assert ending.outcomes[0].solved, f"the verifier saw these processes: {seen.split()}"


async def test_an_agent_that_ends_itself_badly_is_graded_all_the_same(lab: Lab, make_task: MakeTask) -> None:
    ending = await lab.run([make_task(solve="#!/bin/sh\ntouch /root/done\nexit 7\n")])
    assert ending.outcomes[0].solved
    assert (lab.trial(ending) / "agent" / "exit-code.txt").read_text() == "7\n"


async def test_the_loop_with_a_model_tokens_and_price(lab: Lab, make_task: MakeTask) -> None:
    turns = (_bash("ls -la"), _bash("touch /root/done"), Turn(text="Done."))
    async with ScriptedModelServer([_script(*turns)]) as server:
        ending = await lab.run(
            [make_task()], ["loop"], models=["m"], base_url=server.base_url, prices={"m": Price(1.0, 10.0)}
        )
    (trial,) = ending.outcomes
    usage = trial.usage
    assert trial.solved
    assert usage is not None
    assert usage.model_calls == 3
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    assert usage.cost_usd is not None
    assert abs(usage.cost_usd - (usage.input_tokens * 1.0 + usage.output_tokens * 10.0) / 1e6) < 1e-12
    assert trial.attempts[0].steps == 3
    result = TrialResult.model_validate_json((lab.trial(ending) / "result.json").read_bytes())
    assert result.agent_result is not None
    assert result.agent_result.n_input_tokens == usage.input_tokens
    assert result.agent_info.model_info is not None
    assert result.agent_info.model_info.name == "m"
    trajectory = Trajectory.model_validate_json(
        (lab.trial(ending) / "agent" / "trajectory.json").read_bytes()
    )
    assert trajectory.final_metrics is not None
    assert trajectory.final_metrics.total_cost_usd == usage.cost_usd


async def test_a_model_without_a_price_has_an_unknown_cost(lab: Lab, make_task: MakeTask) -> None:
    async with ScriptedModelServer([_script(Turn(text="No."))]) as server:
        ending = await lab.run([make_task()], ["loop"], models=["m"], base_url=server.base_url)
    (trial,) = ending.outcomes
    assert trial.graded
    assert trial.usage is not None
    assert trial.usage.cost_usd is None
    assert json.loads((lab.folder / "result.json").read_text())["stats"]["cost_usd"] is None


async def test_a_rerun_on_the_same_folder_runs_only_what_is_missing(lab: Lab, make_task: MakeTask) -> None:
    good, bad = make_task("good"), make_task("bad", environment='docker_image = "not-here:1"')
    first = await lab.run([good, bad])
    assert first.status == 3
    assert {trial.task: trial.graded for trial in first.outcomes} == {"good": True, "bad": False}
    kept = JobFolder(lab.folder).outcomes()
    image = lab.installation.store.resolve("busybox:1")
    lab.installation.store.import_dir(image.layers[0], "not-here:1", config=image.config)
    try:
        lab.news.clear()
        again = await lab.run([good, bad])
    finally:
        lab.installation.store.remove("not-here:1")
    assert again.status == 0
    good_name = next(trial.name for trial in kept if trial.task == "good")
    bad_trial = next(trial for trial in again.outcomes if trial.task == "bad")
    assert lab.news == [f"known {good_name}", bad_trial.name]
    assert [attempt.number for attempt in bad_trial.attempts] == [1, 2]
    assert (lab.folder / bad_trial.name / "attempts" / "1" / "exception.txt").is_file()


async def test_a_broken_and_a_refused_task_are_rows_and_the_rest_runs(lab: Lab, make_task: MakeTask) -> None:
    tasks = [make_task("good"), make_task("gpu", toml="gpus = 1"), make_task("broken", toml="[[[")]
    ending = await lab.run(tasks)
    assert ending.status == 3
    codes = {trial.task: trial.failure.code if trial.failure else None for trial in ending.outcomes}
    assert codes == {"good": None, "gpu": "plan/gpu", "broken": "task/toml"}
    for trial in ending.outcomes:
        assert (lab.folder / trial.name / "result.json").is_file()


async def test_nothing_secret_is_in_any_file(
    lab: Lab, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, token = "sk-canary-model-0123456789", "canary-task-token-0123456789"
    monkeypatch.setenv("CANARY_KEY", key)
    environ = {"CANARY_KEY": key, "CANARY_TOKEN": token}
    folder = make_task(
        toml='[environment.env]\nTOKEN = "${CANARY_TOKEN}"\n',
        test="#!/bin/sh\necho $TOKEN\nenv\necho 1 > /logs/verifier/reward.txt\n",
    )
    leak = "env; echo $TOKEN > /logs/agent/leak; echo $TOKEN > /logs/artifacts/leak; touch /root/done"
    turns = (_bash(leak), Turn(text=f"The key is {key}."))
    async with ScriptedModelServer([_script(*turns)], api_key=key) as server:
        ending = await lab.run(
            [folder],
            ["loop"],
            models=["m"],
            base_url=server.base_url,
            api_key_env="CANARY_KEY",
            environ=environ,
        )
    assert ending.outcomes[0].graded, ending.outcomes[0].failure
    found = [
        path
        for path in lab.folder.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in (key, token))
    ]
    assert found == []
    assert (lab.trial(ending) / "agent" / "leak").read_text() == "${CANARY_TOKEN}\n"


def _attempt(path: Path) -> dict[str, object]:
    value: dict[str, object] = json.loads((path / "attempt.json").read_text())
    return value


async def test_what_a_trial_ran_in_is_on_record(lab: Lab, make_task: MakeTask) -> None:
    ending = await lab.run([make_task(toml="cpus = 1\nstorage_mb = 512")])
    setting = _attempt(lab.trial(ending))["setting"]
    assert isinstance(setting, dict)
    image = lab.installation.store.resolve("busybox:1")
    assert setting["image_digest"] == image.digest
    assert (setting["driver"], setting["isolation"], setting["network"]) == ("local", "native", "none")
    assert (setting["cpus"], setting["memory_bytes"], setting["pids"]) == (1.0, 256 << 20, 4096)
    assert (setting["not_enforced"], setting["disk_bytes"]) == (["storage_mb"], None)


async def test_a_tasks_disk_limit_holds_where_there_are_such(
    lab: Lab, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCHE_DISK_LIMIT", "tmpfs")
    solve = (
        "#!/bin/sh\ndd if=/dev/zero of=/big bs=1M count=20\nsize=$(stat -c %s /big)\nrm /big\n"
        "[ $size -gt 1048576 ] && [ $size -lt 16777216 ] && touch /root/done\n"
    )
    ending = await lab.run([make_task(toml="storage_mb = 16", solve=solve)])
    setting = _attempt(lab.trial(ending))["setting"]
    assert isinstance(setting, dict)
    assert (setting["not_enforced"], setting["disk_bytes"]) == ([], 16 << 20)
    assert ending.outcomes[0].solved


async def test_a_memory_hog_is_ended_reported_and_graded(lab: Lab, make_task: MakeTask) -> None:
    solve = "#!/bin/sh\ntouch /root/done\ntail /dev/zero\n"
    ending = await lab.run([make_task(solve=solve)])
    assert ending.outcomes[0].solved
    ends = _attempt(lab.trial(ending))["command_ends"]
    assert isinstance(ends, dict)
    log = (lab.trial(ending) / "trial.log").read_text()
    assert ends.get("out_of_memory", 0) >= 1, (ends, log)
    assert "out_of_memory" in log
