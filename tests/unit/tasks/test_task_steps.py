"""Steps, separate verifiers and artifacts as they are read: what is inherited and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloche.tasks import Task, TaskInvalid, load_task, refusals
from cloche.tasks.model import Artifact, Healthcheck, RewardStrategy
from cloche.tasks.phases import overlaps, with_convention

MakeTask = Callable[..., Path]

TOML = """\
multi_step_reward_strategy = "final"
artifacts = ["/all"]
[agent]
timeout_sec = 100
user = "ann"
[verifier]
timeout_sec = 50
user = "judge"
env = { A = "task", B = "task" }
[[verifier.collect]]
command = "gather"
[[steps]]
name = "one"
min_reward = 0.5
artifacts = [{ source = "/one", destination = "first" }]
[steps.healthcheck]
command = "probe"
retries = 7
[[steps]]
name = "two"
min_reward = { speed = 1, size = 2.5 }
[steps.agent]
timeout_sec = 7
user = 0
[steps.verifier]
timeout_sec = 8
user = "other"
env = { B = "step" }
[[steps.verifier.collect]]
command = "more"
timeout_sec = 3
user = "ann"
"""
FILES: dict[str, str | None] = {
    "instruction.md": None,
    "steps/one/instruction.md": "One.\n",
    "steps/two/instruction.md": "<!-- canary -->\nTwo.\n",
    "steps/two/tests/test.sh": "#!/bin/sh\n",
    "steps/two/workdir/setup.sh": "true\n",
    "steps/two/solution/solve.sh": "#!/bin/sh\n",
}


def broken(folder: Path) -> TaskInvalid:
    with pytest.raises(TaskInvalid) as caught:
        load_task(folder)
    return caught.value


def test_a_step_inherits_what_it_leaves_out(make_task: MakeTask) -> None:
    folder = make_task(TOML, FILES)
    task = load_task(folder)
    assert (task.refused, task.doubts) == ((), ())
    assert task.strategy is RewardStrategy.FINAL
    one, two = task.stages
    assert (one.name, one.instruction, two.instruction) == ("one", "One.\n", "Two.\n")
    assert (one.agent.timeout_s, one.agent.user, two.agent.timeout_s, two.agent.user) == (100, "ann", 7, "0")
    assert (one.verifier.timeout_s, one.verifier.user) == (50, "judge")
    assert (two.verifier.timeout_s, two.verifier.user) == (8, "other")
    assert {key: value.text for key, value in two.verifier.env.items()} == {"A": "task", "B": "step"}
    assert [command.command for command in two.verifier.collect] == ["gather", "more"]
    assert [(command.timeout_s, command.user) for command in two.verifier.collect] == [(60, None), (3, "ann")]
    assert one.min_reward == {"reward": 0.5}
    assert two.min_reward == {"speed": 1.0, "size": 2.5}
    assert one.healthcheck is not None
    assert (one.healthcheck.command, one.healthcheck.retries) == ("probe", 7)
    assert [artifact.target for artifact in one.artifacts] == ["all", "first"]
    assert one.verifier.script == folder / "tests" / "test.sh"
    assert (two.verifier.script, two.verifier.shared_tests_dir) == (
        folder / "steps" / "two" / "tests" / "test.sh",
        folder / "tests",
    )
    assert one.solution.script == folder / "solution" / "solve.sh"
    assert two.solution.script == folder / "steps" / "two" / "solution" / "solve.sh"
    assert two.setup == folder / "steps" / "two" / "workdir" / "setup.sh"


def test_a_task_without_steps_is_one_stage(make_task: MakeTask) -> None:
    task = load_task(make_task('artifacts = ["/x"]\n'))
    (stage,) = task.stages
    assert (stage.name, stage.instruction, stage.verifier) == ("", task.instruction, task.verifier)
    assert stage.artifacts == task.artifacts == (Artifact(source="/x"),)


@pytest.mark.fault("step-incomplete")
@pytest.mark.parametrize(
    ("files", "code", "named"),
    [
        ({"steps/one/instruction.md": None}, "task/no_instruction", "the step `one` has no steps/one/instr"),
        (
            {"steps/one/instruction.md": "# canary"},
            "task/no_instruction",
            "the steps/one/instruction.md is empty",
        ),
        ({"tests/test.sh": None}, "task/no_verifier", "neither steps/one/tests/test.sh nor tests/test.sh"),
    ],
)
def test_a_step_that_lacks_a_part_is_told(
    make_task: MakeTask, files: dict[str, str | None], code: str, named: str
) -> None:
    error = broken(make_task(TOML, {**FILES, **files}))
    assert error.code == code
    assert named in error.message


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "a\\b", "a:b", "x.", "tab\t", "é" * 200, "a\u202eb"]
)
def test_names_that_no_folder_can_have(make_task: MakeTask, name: str) -> None:
    toml = (
        f"[[steps]]\nname = {name!r}\n".replace("'", '"')
        if "\\" not in name
        else '[[steps]]\nname = "a\\\\b"\n'
    )
    assert broken(make_task(toml.replace("\t", "\\t"))).code in {"task/value", "task/toml"}


def test_two_steps_may_not_have_nearly_the_same_name(make_task: MakeTask) -> None:
    error = broken(make_task('[[steps]]\nname = "A"\n[[steps]]\nname = "a"\n'))
    assert any("two steps called `a`" in finding.message for finding in error.findings)


def test_a_step_may_have_an_earlier_conversation_that_is_refused(make_task: MakeTask) -> None:
    task = load_task(make_task(TOML, {**FILES, "steps/one/trajectory.json": "{}"}))
    assert [refusal.code for refusal in task.refused] == ["plan/trajectory"]


def test_files_that_no_step_uses_are_doubted(make_task: MakeTask) -> None:
    task = load_task(make_task(TOML, {**FILES, "instruction.md": "x", "steps/three/instruction.md": "x"}))
    assert [doubt.code for doubt in task.doubts] == ["task/no_effect", "task/no_effect"]


# --- verifiers of their own ---


def own(task: Task) -> Any:
    environment = task.stages[0].verifier.environment
    assert environment is not None
    return environment


def test_a_separate_verifier_takes_the_tasks_image_and_gets_the_tests(make_task: MakeTask) -> None:
    folder = make_task('[verifier]\nenvironment_mode = "separate"\n[environment]\nmemory_mb = 64\n')
    task = load_task(folder)
    assert own(task).dockerfile == folder / "environment" / "Dockerfile"
    assert own(task).memory_bytes == 64 << 20
    assert not task.verifier.bundled


def test_a_dockerfile_of_the_tests_makes_its_image_and_holds_them(make_task: MakeTask) -> None:
    files = {"tests/Dockerfile": "FROM debian:12\n", "tests/test.sh": None}
    folder = make_task('[verifier.environment]\nmemory_mb = 32\nenv = { X = "${NOT_SET}" }\n', files)
    task = load_task(folder)
    assert own(task).dockerfile == folder / "tests" / "Dockerfile"
    assert own(task).context == folder / "tests"
    assert task.verifier.bundled
    assert [refusal.code for refusal in refusals(task, {})] == ["plan/host_variable"]


def test_an_image_of_the_verifier_counts_before_a_dockerfile(make_task: MakeTask) -> None:
    files = {"tests/Dockerfile": "FROM debian:12\n"}
    task = load_task(make_task('[verifier.environment]\ndocker_image = "judge:1"\n', files))
    assert (own(task).docker_image, own(task).dockerfile) == ("judge:1", None)


def test_a_step_may_go_back_to_the_shared_environment(make_task: MakeTask) -> None:
    toml = (
        '[verifier]\nenvironment_mode = "separate"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
        '[steps.verifier]\nenvironment_mode = "shared"\n'
    )
    one, two = load_task(make_task(toml, FILES)).stages
    assert (one.verifier.separate, two.verifier.separate) == (True, False)


def test_a_phase_must_fit_the_network_of_its_own_environment(make_task: MakeTask) -> None:
    toml = '[verifier]\nnetwork_mode = "no-network"\n[verifier.environment]\nnetwork_mode = "no-network"\n'
    assert load_task(make_task(toml)).refused == ()


def test_a_compose_file_of_a_verifier_is_refused(make_task: MakeTask) -> None:
    task = load_task(
        make_task("[verifier.environment]\ncpus = 1\n", {"tests/docker-compose.yaml": "services: {}\n"})
    )
    assert [refusal.code for refusal in task.refused] == ["plan/compose"]


# --- artifacts ---


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        (Artifact(source="/a"), Artifact(source="/a"), False),
        (Artifact(source="/a"), Artifact(source="/a/b"), False),
        (Artifact(source="/a", exclude=("x",)), Artifact(source="/a/b"), True),
        (Artifact(source="/a"), Artifact(source="/b", destination="a"), True),
        (Artifact(source="/a"), Artifact(source="/b", destination="a/c"), True),
        (Artifact(source="/a"), Artifact(source="/a", destination="z"), False),
        (Artifact(source="/logs"), Artifact(source="/b"), True),
    ],
)
def test_an_artifact_whose_place_is_taken_is_found(one: Artifact, other: Artifact, conflict: bool) -> None:
    assert bool(list(overlaps((one, other)))) is conflict


def test_the_promised_folder_is_an_artifact_unless_the_task_says_how() -> None:
    own_words = Artifact(source="/logs/artifacts", exclude=("*.tmp",))
    assert with_convention((own_words,)) == (own_words,)
    assert with_convention(())[0].source == "/logs/artifacts"


def test_a_healthcheck_has_dockers_defaults(make_task: MakeTask) -> None:
    task = load_task(make_task('[environment.healthcheck]\ncommand = "x"\n'))
    check = task.environment.healthcheck
    assert check == Healthcheck(command="x", where=check.where if check else "")
    assert check is not None
    assert check.where.endswith("task.toml")
