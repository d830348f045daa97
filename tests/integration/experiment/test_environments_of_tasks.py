"""Healthchecks, artifacts, collect commands, skills, ignore files and verifiers of their own, for real."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cloche.experiment.limits import PhaseRule, TimeoutRules
from cloche.experiment.record.shapes import ArtifactEntry, TrialConfig, TrialResult
from cloche.sandbox.spec import ImageConfig
from cloche.testing.experiments import IMAGE, Lab, MakeTask
from cloche.testing.sandboxes import make_busybox_root

PRESENT = (
    "#!/bin/sh\n[ -e {0} ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
)


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    entries = json.loads((folder / "artifacts" / "manifest.json").read_text())
    for entry in entries:
        ArtifactEntry.model_validate(entry)
    return {entry["source"]: entry for entry in entries}


async def test_artifacts_come_to_their_places_and_stand_in_the_manifest(
    lab: Lab, make_task: MakeTask
) -> None:
    solve = (
        "#!/bin/sh\nmkdir -p /root/out/cache/deep /root/out/keep\necho 1 > /root/out/a.txt\n"
        "echo 2 > /root/out/keep/b.pyc\necho 3 > /root/out/keep/c.txt\necho 4 > /root/out/cache/deep/d.txt\n"
        "ln -s /etc/passwd /root/out/link\necho 5 > /root/one.txt\n"
        "echo 6 > /logs/artifacts/x\ntouch /root/done\n"
    )
    top = (
        'artifacts = ["one.txt", "/root/missing.txt", { source = "/root/out", destination = "built/tree",'
        ' exclude = ["*.pyc", "cache"] }, "/root/out/"]'
    )
    ending = await lab.run([make_task(solve=solve, top=top)])
    assert ending.outcomes[0].solved
    folder = lab.trial(ending)
    kept = folder / "artifacts"
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if not path.is_dir())
    assert files == [
        "built/tree/a.txt",
        "built/tree/keep/c.txt",
        "logs/artifacts/x",
        "manifest.json",
        "one.txt",
        "root/out/a.txt",
        "root/out/cache/deep/d.txt",
        "root/out/keep/b.pyc",
        "root/out/keep/c.txt",
    ]
    entries = json.loads((kept / "manifest.json").read_text())
    assert [(entry["source"], entry["destination"], entry["type"], entry["status"]) for entry in entries] == [
        ("/logs/artifacts", "artifacts/logs/artifacts", "directory", "ok"),
        ("one.txt", "artifacts/one.txt", "file", "ok"),
        ("/root/missing.txt", "artifacts/root/missing.txt", "directory", "failed"),
        ("/root/out", "artifacts/built/tree", "directory", "ok"),
        ("/root/out", "artifacts/root/out", "directory", "ok"),
    ]
    assert entries[3]["exclude"] == ["*.pyc", "cache"]


@pytest.mark.fault("artifact-hostile")
async def test_hostile_artifacts_reach_nothing_outside_their_folder(lab: Lab, make_task: MakeTask) -> None:
    solve = (
        "#!/bin/sh\nmkdir /root/out; mkfifo /root/pipe; ln -s /root/out/self /root/out/self\n"
        "ln -s / /root/out/top; ln -s /etc/shadow /root/file\ntouch /root/done\n"
    )
    top = 'artifacts = ["/root/out", "/root/pipe", "/root/file", "/proc/self/mem"]'
    ending = await lab.run([make_task(solve=solve, top=top)])
    assert ending.outcomes[0].solved
    found = manifest(lab.trial(ending))
    assert found["/root/pipe"]["status"] == "skipped"
    assert found["/root/file"]["status"] == "failed"
    assert not any(path.is_symlink() for path in lab.trial(ending).rglob("*"))


async def test_collect_commands_run_before_the_artifacts_are_taken(lab: Lab, make_task: MakeTask) -> None:
    toml = (
        '[[verifier.collect]]\ncommand = "echo from $PWD > /logs/artifacts/evidence"\n'
        '[[verifier.collect]]\ncommand = "echo no >&2; false"\n'
        '[[verifier.collect]]\ncommand = "sleep 60"\ntimeout_sec = 0.2\n'
    )
    ending = await lab.run([make_task(toml=toml)])
    assert ending.outcomes[0].solved
    folder = lab.trial(ending)
    assert (folder / "artifacts" / "logs" / "artifacts" / "evidence").read_text() == "from /root\n"
    log = (folder / "trial.log").read_text()
    assert "`echo no >&2; false` failed (status 1): no" in log
    assert "`sleep 60` failed (timeout)" in log


async def test_the_agent_starts_when_the_environment_is_healthy(lab: Lab, make_task: MakeTask) -> None:
    toml = (
        '[environment.healthcheck]\ncommand = "echo x >> /root/tries; test $(wc -l < /root/tries) = 4"\n'
        "start_period_sec = 0.3\nstart_interval_sec = 0.2\ninterval_sec = 0.05\nretries = 3\n"
    )
    ending = await lab.run([make_task(toml=toml)])
    assert ending.outcomes[0].solved
    assert "healthy after 4 tries" in (lab.trial(ending) / "trial.log").read_text()


@pytest.mark.fault("healthcheck-failed")
async def test_an_environment_that_stays_ill_is_nobodys_score(lab: Lab, make_task: MakeTask) -> None:
    toml = (
        '[environment.healthcheck]\ncommand = "echo still loading; exit 7"\n'
        "interval_sec = 0.05\nretries = 2\n"
    )
    ending = await lab.run([make_task(toml=toml)], retries=1)
    trial = ending.outcomes[0]
    assert trial.failure is not None
    assert trial.failure.code == "infra/healthcheck"
    assert "failed 2 times in a row; the last try exited with status 7" in trial.failure.message
    assert len(trial.attempts) == 2
    assert ending.status == 3
    result = TrialResult.model_validate_json((lab.trial(ending) / "result.json").read_bytes())
    assert result.exception_info is not None
    assert result.exception_info.exception_type == "HealthcheckError"


async def test_skills_are_where_agents_look_for_them(lab: Lab, make_task: MakeTask) -> None:
    task = make_task(
        environment=f'docker_image = "{IMAGE}"\nskills_dir = "skills"',
        files={"environment/skills/plant/SKILL.md": "water it\n"},
        test=PRESENT.format("/runtime/skills/plant/SKILL.md"),
    )
    assert (await lab.run([task], ["nop"])).outcomes[0].solved


async def test_files_that_an_ignore_file_names_stay_outside(lab: Lab, make_task: MakeTask) -> None:
    task = make_task(
        test="#!/bin/sh\nls -A /tests /solution > /logs/verifier/seen\necho 1 > /logs/verifier/reward.txt\n",
        files={
            "tests/.harborignore": "*.log\n!keep.log\n",
            "tests/a.log": "a",
            "tests/keep.log": "k",
            "solution/.harborignore": "/notes/\n",
            "solution/notes/x": "x",
        },
    )
    ending = await lab.run([task])
    seen = (lab.trial(ending) / "verifier" / "seen").read_text().split()
    assert sorted(seen) == ["/solution:", "/tests:", "keep.log", "solve.sh", "test.sh"]


# --- verifiers in a sandbox of their own ---

SEPARATE = (
    "#!/bin/sh\nfind /root /tests > /logs/verifier/seen\n"
    "reward=$(cat /root/desk/answer.txt 2>/dev/null) || reward=0\necho $reward > /logs/verifier/reward.txt\n"
)
WORK = "#!/bin/sh\nmkdir -p /root/desk\necho 1 > /root/desk/answer.txt\necho x > /root/dirt\n"


async def test_a_verifier_of_its_own_gets_the_artifacts_and_nothing_else(
    lab: Lab, make_task: MakeTask
) -> None:
    task = make_task(
        top='artifacts = [{ source = "/root/desk", destination = "elsewhere" }]',
        toml='[verifier.environment]\nnetwork_mode = "no-network"\nmemory_mb = 128\n',
        solve=WORK,
        test=SEPARATE,
    )
    ending = await lab.run([task], ["oracle", "nop"])
    assert ending.status == 0
    assert ending.sandboxes_left == 0
    assert {trial.agent: trial.solved for trial in ending.outcomes} == {"oracle": True, "nop": False}
    folder = next(lab.folder / trial.name for trial in ending.outcomes if trial.agent == "oracle")
    seen = (folder / "verifier" / "seen").read_text()
    assert "/root/desk/answer.txt" in seen
    assert "/root/dirt" not in seen
    assert "/tests/test.sh" in seen
    result = TrialResult.model_validate_json((folder / "result.json").read_bytes())
    assert result.verifier_environment_mode == "separate"


async def test_the_agents_sandbox_is_gone_before_a_separate_verifier_starts(
    lab: Lab, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []
    create = lab.driver.create

    async def counting(spec: Any, image: Any) -> Any:
        alive.append(len(await lab.driver.list()))
        return await create(spec, image)

    monkeypatch.setattr(lab.driver, "create", counting)
    task = make_task(
        top='artifacts = ["/root/desk"]',
        toml='[verifier.environment]\nnetwork_mode = "no-network"\n',
        solve=WORK,
        test=SEPARATE,
    )
    assert (await lab.run([task])).outcomes[0].solved
    assert alive == [0, 0]


async def test_an_image_of_the_verifiers_own_holds_the_tests(lab: Lab, make_task: MakeTask) -> None:
    """The image is named; its tests are those that it was made with, and the task's are not uploaded."""
    root = lab.folder.parent / "judge"
    make_busybox_root(root)
    (root / "tests").mkdir()
    (root / "tests" / "test.sh").write_text(SEPARATE)
    config = ImageConfig(env={"PATH": "/bin:/usr/bin"}, workdir="/root")
    lab.installation.store.import_dir(root, "judge:1", config=config)
    task = make_task(
        top='artifacts = ["/root/desk"]',
        toml='[verifier.environment]\ndocker_image = "judge:1"\nnetwork_mode = "no-network"\n',
        solve=WORK,
        test="#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n",
        files={"tests/extra.txt": "not uploaded"},
    )
    ending = await lab.run([task])
    assert ending.outcomes[0].solved
    assert "extra.txt" not in (lab.trial(ending) / "verifier" / "seen").read_text()


@pytest.mark.fault("separate-verifier-image-missing")
async def test_a_verifier_without_its_image_is_told_before_the_agent_starts(
    lab: Lab, make_task: MakeTask
) -> None:
    task = make_task(toml='[verifier.environment]\ndocker_image = "nowhere:1"\n')
    ending = await lab.run([task], retries=0)
    failure = ending.outcomes[0].failure
    assert failure is not None
    assert failure.code.startswith("infra/image")
    assert "nowhere:1" in failure.message
    assert ending.outcomes[0].attempts[0].sandbox_id == ""


async def test_steps_may_be_graded_apart_while_their_sandbox_lives_on(lab: Lab, make_task: MakeTask) -> None:
    toml = (
        '[[steps]]\nname = "a"\nartifacts = ["/root/desk"]\n'
        '[steps.verifier.environment]\nnetwork_mode = "no-network"\n[[steps]]\nname = "b"\n'
    )
    files: dict[str, str | None] = {
        "instruction.md": None,
        "steps/a/instruction.md": "a\n",
        "steps/b/instruction.md": "b\n",
        "steps/a/solution/solve.sh": WORK,
        "steps/a/tests/test.sh": SEPARATE,
        "steps/b/solution/solve.sh": "#!/bin/sh\n[ -e /root/dirt ] && touch /root/done\n",
    }
    ending = await lab.run([make_task(toml=toml, files=files)])
    assert ending.outcomes[0].last is not None
    assert ending.outcomes[0].last.rewards == {"reward": 1.0}
    assert ending.sandboxes_left == 0


@pytest.mark.fault("separate-verifier-timeout")
async def test_a_separate_verifier_that_hangs_is_ended_with_its_sandbox(
    lab: Lab, make_task: MakeTask
) -> None:
    task = make_task(
        toml='[verifier.environment]\nnetwork_mode = "no-network"\n',
        test="#!/bin/sh\nsleep 100\n",
        verifier_s=0.5,
    )
    ending = await lab.run([task])
    assert ending.outcomes[0].failure is not None
    assert ending.outcomes[0].failure.code == "verifier/timeout"
    assert ending.sandboxes_left == 0


@pytest.mark.fault("separate-verifier-cancelled")
async def test_a_run_that_is_cancelled_while_a_separate_verifier_works_leaves_nothing(
    lab: Lab, make_task: MakeTask
) -> None:
    toml = '[verifier.environment]\nnetwork_mode = "no-network"\n'
    running = asyncio.create_task(lab.run([make_task(toml=toml, test="#!/bin/sh\nsleep 100\n")]))
    async with asyncio.timeout(60):
        while not any(info.labels.get("role") == "verifier" for info in await lab.driver.list()):
            assert not running.done()
            await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await lab.driver.list() == []


# --- time limits ---


async def test_limits_of_a_run_hold_by_phase_and_stand_in_the_record(lab: Lab, make_task: MakeTask) -> None:
    task = make_task(solve="#!/bin/sh\ntouch /root/done\nsleep 60\n")
    rules = TimeoutRules(
        multiplier=3.0,
        agent=PhaseRule(override_s=40.0, max_s=20.0, multiplier=0.05),
        verifier=PhaseRule(max_s=10.0),
    )
    ending = await lab.run([task], limits=rules)
    trial = ending.outcomes[0]
    assert trial.failure is not None
    assert (trial.failure.code, trial.failure.message) == ("agent/timeout", "not done after 1 s")
    assert trial.solved
    config = TrialConfig.model_validate_json((lab.trial(ending) / "config.json").read_bytes())
    assert (config.agent.override_timeout_sec, config.agent.max_timeout_sec) == (40.0, 20.0)
    assert (config.timeout_multiplier, config.agent_timeout_multiplier) == (3.0, 0.05)
    record = json.loads((lab.trial(ending) / "attempt.json").read_text())
    assert record["setting"]["agent_timeout_s"] == 1.0
    assert record["setting"]["verifier_timeout_s"] == 30.0
    assert record["setting"]["network_stated"] is True


# --- what an image starts by itself ---


async def test_an_entry_point_runs_for_the_agent_and_again_for_the_verifier(
    lab: Lab, make_task: MakeTask
) -> None:
    root = lab.folder.parent / "service"
    make_busybox_root(root)
    (root / "bin" / "enter").write_text('#!/bin/sh\necho "$@" >> /root/starts\nexec "$@"\n')
    (root / "bin" / "enter").chmod(0o755)
    config = ImageConfig(env={"PATH": "/bin:/usr/bin"}, workdir="/root", entrypoint=("/bin/enter",))
    lab.installation.store.import_dir(root, "service:1", config=config)
    running = "grep -l infinity /proc/[0-9]*/cmdline | wc -l"
    task = make_task(
        environment='docker_image = "service:1"\n[environment.healthcheck]\ncommand = "test -e starts"\n'
        "interval_sec = 0.05",
        solve=f"#!/bin/sh\n{running} > /root/agent; cat /root/starts > /root/before\n",
        test=f"#!/bin/sh\n{running} > /logs/verifier/running; cp /root/[abs]* /logs/verifier/\n"
        "echo 1 > /logs/verifier/reward.txt\n",
    )
    ending = await lab.run([task])
    assert ending.outcomes[0].graded
    seen = lab.trial(ending) / "verifier"
    line = "sh -c sleep infinity\n"
    assert (seen / "before").read_text() == line
    assert (seen / "starts").read_text() == line * 2
    assert int((seen / "agent").read_text()) >= 1
    assert int((seen / "running").read_text()) >= 1
    record = json.loads((lab.trial(ending) / "attempt.json").read_text())
    assert set(record["command_ends"]) == {"exit"}  # the entry point is none of the agent's commands


@pytest.mark.fault("service-broken-by-agent")
async def test_a_service_that_the_agent_broke_leaves_the_verdict_to_the_verifier(
    lab: Lab, make_task: MakeTask
) -> None:
    toml = '[environment.healthcheck]\ncommand = "test ! -e /root/done"\ninterval_sec = 0.05\nretries = 2\n'
    ending = await lab.run([make_task(toml=toml)])
    assert ending.outcomes[0].solved
    assert ending.outcomes[0].failure is None
    assert (
        "services did not come back: the healthcheck failed" in (lab.trial(ending) / "trial.log").read_text()
    )
