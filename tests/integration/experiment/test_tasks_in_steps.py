"""Tasks in steps, in real sandboxes: order, gates, inheritance, and what a later step may not see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cloche.experiment.record.attempt import AttemptRecord
from cloche.experiment.record.shapes import TrialResult
from cloche.testing.experiments import Lab, MakeTask

GRADE = (
    "#!/bin/sh\ncat /root/{0} > /logs/verifier/reward.txt 2>/dev/null || echo 0 > /logs/verifier/reward.txt\n"
)


def steps(
    rewards: Mapping[str, str], toml: Mapping[str, str] | None = None, more: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Return what makes a task whose solutions earn these rewards, step by step."""
    tables = "".join(f'[[steps]]\nname = "{name}"\n{(toml or {}).get(name, "")}\n' for name in rewards)
    files: dict[str, str | None] = {"instruction.md": None, "solution/solve.sh": None, "tests/test.sh": None}
    for name, reward in rewards.items():
        files[f"steps/{name}/instruction.md"] = f"Do the step {name}.\n"
        files[f"steps/{name}/solution/solve.sh"] = f"#!/bin/sh\necho {reward} > /root/{name}\n"
        files[f"steps/{name}/tests/test.sh"] = GRADE.format(name)
    return {"toml": tables, "files": {**files, **(more or {})}}


def result_of(folder: Path) -> TrialResult:
    return TrialResult.model_validate_json((folder / "result.json").read_bytes())


def rewards_of(result: TrialResult) -> list[dict[str, float | int] | None]:
    assert result.step_results is not None
    return [step.verifier_result and step.verifier_result.rewards for step in result.step_results]


async def test_the_reward_is_the_mean_of_the_steps_and_each_has_its_folder(
    lab: Lab, make_task: MakeTask
) -> None:
    ending = await lab.run([make_task(**steps({"one": "1", "two": "0.5"}))], ["oracle", "nop"])
    assert ending.status == 0
    assert ending.sandboxes_left == 0
    assert {trial.agent: trial.last and trial.last.rewards for trial in ending.outcomes} == {
        "oracle": {"reward": 0.75},
        "nop": {"reward": 0.0},
    }
    folder = next(lab.folder / trial.name for trial in ending.outcomes if trial.agent == "oracle")
    result = result_of(folder)
    assert rewards_of(result) == [{"reward": 1.0}, {"reward": 0.5}]
    assert result.verifier_environment_mode is None
    assert result.step_results is not None
    assert all(step.agent_execution and step.verifier for step in result.step_results)
    for name in ("one", "two"):
        assert (folder / "steps" / name / "agent" / "trajectory.json").is_file()
        assert (folder / "steps" / name / "agent" / "oracle.txt").is_file()
        assert (folder / "steps" / name / "verifier" / "reward.txt").is_file()
        assert (folder / "steps" / name / "artifacts" / "manifest.json").is_file()
    record = AttemptRecord.model_validate_json((folder / "attempt.json").read_bytes())
    assert [step.name for step in record.step_outcomes] == ["one", "two"]
    assert {"environment_setup", "agent_execution", "collection", "verifier"} <= set(
        record.step_outcomes[0].phases
    )
    # what was written can be read again
    assert [step.rewards for step in ending.outcomes[0].attempts[0].step_outcomes] != []


async def test_final_takes_the_last_step(lab: Lab, make_task: MakeTask) -> None:
    task = make_task(top='multi_step_reward_strategy = "final"', **steps({"one": "1", "two": "0.25"}))
    ending = await lab.run([task])
    assert ending.outcomes[0].last is not None
    assert ending.outcomes[0].last.rewards == {"reward": 0.25}


@pytest.mark.parametrize(
    ("gate", "left_out"),
    [("min_reward = 0.5", False), ("min_reward = 0.6", True), ("min_reward = { quality = 0.0 }", True)],
)
async def test_a_missed_threshold_leaves_out_the_steps_after_it(
    lab: Lab, make_task: MakeTask, gate: str, left_out: bool
) -> None:
    ending = await lab.run([make_task(**steps({"one": "0.5", "two": "1"}, {"one": gate}))])
    folder = lab.trial(ending)
    assert rewards_of(result_of(folder)) == [{"reward": 0.5}, {"reward": 1.0}][: 1 if left_out else 2]
    assert (folder / "steps" / "two").exists() is not left_out
    assert ending.outcomes[0].graded
    assert ("the steps after it are left out" in (folder / "trial.log").read_text()) is left_out


@pytest.mark.fault("step-sees-earlier-grading")
async def test_a_later_step_sees_neither_tests_nor_rewards_nor_solutions(
    lab: Lab, make_task: MakeTask
) -> None:
    look = "#!/bin/sh\nfind /tests /solution /logs > /root/seen\ntouch /root/{0}\n"
    task = make_task(
        **steps(
            {"one": "1", "two": "1"},
            more={
                "steps/one/tests/secret.txt": "SECRET",
                "steps/one/solution/secret.txt": "SECRET",
                "steps/two/workdir/setup.sh": look.format("two"),
                "steps/two/solution/solve.sh": "#!/bin/sh\n"
                "cp /root/seen /logs/artifacts/seen; find /tests /logs >> /logs/artifacts/seen\n"
                "echo 1 > /root/two\n",
            },
        )
    )
    ending = await lab.run([task])
    assert ending.outcomes[0].solved
    folder = lab.trial(ending) / "steps"
    assert (folder / "one" / "verifier" / "reward.txt").is_file()
    seen = (folder / "two" / "artifacts" / "logs" / "artifacts" / "seen").read_text()
    assert "/tests\n" in seen
    for name in ("secret.txt", "reward.txt", "test.sh", "test-stdout.txt", "solve.sh", "oracle.txt"):
        assert name not in seen.partition("/root")[0], seen


async def test_each_step_brings_files_and_is_made_ready(lab: Lab, make_task: MakeTask) -> None:
    health = '[steps.healthcheck]\ncommand = "test -e /root/ready"\nretries = 1\n'
    task = make_task(
        **steps(
            {"one": "1", "two": "1"},
            {"two": health},
            {
                "steps/two/workdir/data.txt": "brought\n",
                "steps/two/workdir/setup.sh": "cp data.txt prepared.txt\ntouch ready\n",
                "steps/two/solution/solve.sh": "#!/bin/sh\ngrep -q brought prepared.txt && echo 1 > two\n",
            },
        )
    )
    ending = await lab.run([task])
    assert ending.outcomes[0].solved
    assert "two: healthy after 1 tries" in (lab.trial(ending) / "trial.log").read_text()


async def test_processes_of_a_step_do_not_reach_the_next(lab: Lab, make_task: MakeTask) -> None:
    task = make_task(
        **steps(
            {"one": "1", "two": "1"},
            more={
                "steps/one/solution/solve.sh": "#!/bin/sh\nsetsid sleep 300 &\necho 1 > /root/one\n",
                "steps/one/tests/test.sh": "#!/bin/sh\nsetsid sleep 301 &\n"
                "echo 1 > /logs/verifier/reward.txt\n",
                "steps/two/solution/solve.sh": "#!/bin/sh\n"
                "grep -l sleep /proc/[0-9]*/cmdline > /logs/artifacts/left 2>/dev/null\necho 1 > /root/two\n",
            },
        )
    )
    ending = await lab.run([task])
    left = lab.trial(ending) / "steps" / "two" / "artifacts" / "logs" / "artifacts" / "left"
    assert left.read_text() == ""


@pytest.mark.fault("step-setup-failed")
async def test_a_setup_that_fails_is_nobodys_score_and_shows_with_its_step(
    lab: Lab, make_task: MakeTask
) -> None:
    bad = "echo broken disk >&2\nexit 3\n"
    task = make_task(**steps({"one": "1", "two": "1"}, more={"steps/two/workdir/setup.sh": bad}))
    ending = await lab.run([task], retries=0)
    failure = ending.outcomes[0].failure
    assert failure is not None
    assert (failure.code, ending.status) == ("infra/step_setup", 3)
    assert "status 3" in failure.message
    assert not ending.outcomes[0].graded
    result = result_of(lab.trial(ending))
    assert result.verifier_result is None
    assert result.exception_info is not None
    assert result.step_results is not None
    assert [bool(step.exception_info) for step in result.step_results] == [False, True]
    assert result.step_results[0].verifier_result is not None


@pytest.mark.fault("step-agent-timeout")
async def test_an_agent_that_runs_out_in_a_step_is_graded_and_the_trial_says_so(
    lab: Lab, make_task: MakeTask
) -> None:
    slow = "#!/bin/sh\necho 1 > /root/one\nsleep 60\n"
    task = make_task(
        **steps(
            {"one": "1", "two": "1"},
            {"one": "[steps.agent]\ntimeout_sec = 1.0"},
            {"steps/one/solution/solve.sh": slow},
        )
    )
    ending = await lab.run([task])
    trial = ending.outcomes[0]
    assert trial.failure is not None
    assert trial.failure.code == "agent/timeout"
    assert trial.last is not None
    assert trial.last.rewards == {"reward": 1.0}
    result = result_of(lab.trial(ending))
    assert result.exception_info is not None
    assert result.exception_info.exception_type == "AgentTimeoutError"
    assert result.step_results is not None
    assert [bool(step.exception_info) for step in result.step_results] == [True, False]


@pytest.mark.fault("step-without-verdict")
async def test_a_step_without_a_verdict_leaves_the_trial_without_one(lab: Lab, make_task: MakeTask) -> None:
    task = make_task(
        **steps({"one": "1", "two": "1"}, more={"steps/two/tests/test.sh": "#!/bin/sh\nexit 1\n"})
    )
    ending = await lab.run([task])
    assert ending.outcomes[0].failure is not None
    assert ending.outcomes[0].failure.code == "verifier/reward_missing"
    assert not ending.outcomes[0].graded
    assert rewards_of(result_of(lab.trial(ending))) == [{"reward": 1.0}, None]


async def test_steps_share_tests_and_inherit_env_users_and_artifacts(lab: Lab, make_task: MakeTask) -> None:
    shared = (
        '#!/bin/sh\n. /tests/part.sh\necho "$SAID $MORE" > /logs/verifier/said\n'
        "echo $reward > /logs/verifier/reward.txt\n"
    )
    made = steps(
        {"one": "1", "two": "1"},
        {"two": '[steps.verifier]\nenv = { MORE = "step" }\n'},
        {
            "tests/test.sh": shared,
            "tests/part.sh": "reward=0.5\n",
            "steps/two/tests/part.sh": "reward=1\n",
            "steps/one/solution/solve.sh": "#!/bin/sh\necho first > /root/kept.txt\n",
        },
    )
    files = made["files"]
    assert isinstance(files, dict)
    files["steps/one/tests/test.sh"] = files["steps/two/tests/test.sh"] = None
    task = make_task(
        top='artifacts = ["/root/kept.txt"]',
        toml=f'[verifier.env]\nSAID = "task"\nMORE = "task"\n{made["toml"]}',
        files=files,
    )
    ending = await lab.run([task])
    folder = lab.trial(ending) / "steps"
    assert rewards_of(result_of(lab.trial(ending))) == [{"reward": 0.5}, {"reward": 1.0}]
    assert (folder / "one" / "verifier" / "said").read_text() == "task task\n"
    assert (folder / "two" / "verifier" / "said").read_text() == "task step\n"
    for name in ("one", "two"):
        assert (folder / name / "artifacts" / "root" / "kept.txt").read_text() == "first\n"
        manifest = json.loads((folder / name / "artifacts" / "manifest.json").read_text())
        assert [entry["source"] for entry in manifest] == ["/logs/artifacts", "/root/kept.txt"]
