from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import PlanRefused
from cloche.sandbox.driver import Capability
from cloche.sandbox.spec import NetworkMode
from cloche.tasks import Refusal, find_tasks, load_task, refusals
from cloche.tasks.folder import strip_canary
from cloche.tasks.model import TaskInvalid, TaskNetwork
from cloche.tasks.refuse import needs, refused, resolve_env

MakeTask = Callable[..., Path]

WHOLE = """
schema_version = "1.4"
source = "a book"

[task]
name = "garden/weeding"
version = "1.2.3"
description = "Pull the weeds."
keywords = ["soil", "patience"]
authors = [{ name = "Ada", email = "ada@example.org" }]

[metadata]
difficulty = "easy"
anything = { goes = [1, 2024-01-01] }

[agent]
timeout_sec = 900
user = "gardener"
network_mode = "no-network"

[verifier]
timeout_sec = 30.5
user = 0
env = { STRICT = "1" }

[environment]
build_timeout_sec = 120
cpus = 1.5
memory_mb = 512.0
storage_mb = 2048
env = { LC_ALL = "C.UTF-8", SEED = "${SEED:-7}" }
workdir = "/plot"
network_mode = "no-network"
os = "Linux"

[solution]
env = { HINT = "x" }
"""


def test_a_whole_task_is_read(make_task: MakeTask) -> None:
    folder = make_task(WHOLE)
    task = load_task(folder)
    assert (task.name, task.full_name, task.path) == ("weeding", "garden/weeding", folder)
    assert (task.schema_version, task.source, task.description) == ("1.4", "a book", "Pull the weeds.")
    assert task.keywords == ("soil", "patience")
    assert task.metadata["difficulty"] == "easy"
    assert (task.agent.timeout_s, task.agent.user) == (900.0, "gardener")
    assert (task.verifier.timeout_s, task.verifier.user) == (30.5, "0")
    assert task.verifier.script == folder / "tests" / "test.sh"
    environment = task.environment
    assert environment.dockerfile == folder / "environment" / "Dockerfile"
    assert environment.context == folder / "environment"
    assert (environment.cpus, environment.memory_bytes) == (1.5, 512 << 20)
    assert (environment.build_timeout_s, environment.workdir) == (120.0, "/plot")
    assert (environment.network, environment.network_stated) == (TaskNetwork.NO_NETWORK, True)
    assert environment.policy.mode is NetworkMode.NONE
    assert environment.env["LC_ALL"].text == "C.UTF-8"
    assert task.solution.script == folder / "solution" / "solve.sh"
    assert task.solution.env["HINT"].text == "x"
    assert refusals(task, {}) == []
    assert [doubt.code for doubt in task.doubts] == ["plan/storage_not_enforced"]
    assert task.not_enforced == ("storage_mb",)


def test_the_least_task_has_the_defaults_of_the_format(make_task: MakeTask) -> None:
    task = load_task(make_task("", {"solution/solve.sh": None}))
    assert (task.name, task.full_name, task.schema_version) == ("sample", "sample", "1.4")
    assert task.agent.timeout_s is None
    assert task.verifier.timeout_s == 600.0
    assert task.environment.build_timeout_s == 600.0
    assert task.environment.memory_bytes is None
    assert task.solution.solution_dir is None
    assert task.solution.script is None
    assert (task.refused, task.doubts, task.not_enforced) == ((), (), ())


def test_an_imported_task_keeps_the_public_network_and_says_that_it_did_not_ask(make_task: MakeTask) -> None:
    environment = load_task(make_task()).environment
    assert environment.network is TaskNetwork.PUBLIC
    assert not environment.network_stated
    assert environment.policy.mode is NetworkMode.PUBLIC


@pytest.mark.parametrize(
    ("line", "network"),
    [
        ("allow_internet = false", TaskNetwork.NO_NETWORK),
        ("allow_internet = true", TaskNetwork.PUBLIC),
        ("allow_internet = false\nnetwork_mode = 'public'", TaskNetwork.PUBLIC),
    ],
)
def test_the_old_internet_field_is_read(make_task: MakeTask, line: str, network: TaskNetwork) -> None:
    environment = load_task(make_task(f"version = '1.0'\n[environment]\n{line}\n")).environment
    assert (environment.network, environment.network_stated) == (network, True)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("memory = '2G'", 2 << 30),
        ("memory = '512m'", 512 << 20),
        ("memory = '1.5 G'", 1536 << 20),
        ("memory = '20480K'", 20 << 20),
    ],
)
def test_old_sizes_are_read(make_task: MakeTask, line: str, size: int) -> None:
    assert load_task(make_task(f"[environment]\n{line}\n")).environment.memory_bytes == size


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4"])
@pytest.mark.parametrize("key", ["schema_version", "version"])
def test_known_versions_run(make_task: MakeTask, key: str, version: str) -> None:
    task = load_task(make_task(f'{key} = "{version}"\n'))
    assert task.schema_version == version
    assert not task.refused


REFUSED = {
    "plan/schema_version": ('schema_version = "2.0"\n', 1),
    "plan/service": ('[[verifier.collect]]\ncommand = "true"\nservice = "db"\n', 3),
    "plan/network_allowlist": (
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["2001:db8::/32"]\n',
        3,
    ),
    "plan/gpu": ("[environment]\ngpus = 1\n", 2),
    "plan/tpu": ('[environment]\ntpu = { type = "v4", topology = "2x2" }\n', 2),
    "plan/windows": ('[environment]\nos = "Windows"\n', 2),
    "plan/mcp_servers": ('[[environment.mcp_servers]]\nname = "x"\nurl = "http://mcp.example"\n', 1),
    "plan/deadlines": (
        '[environment]\n[environment.healthcheck]\ncommand = "true"\nstart_period_sec = 600\n',
        2,
    ),
}


@pytest.mark.fault("task-asks-for-what-cannot-be-done")
@pytest.mark.parametrize("code", REFUSED)
def test_what_cannot_be_executed_is_refused_with_its_line(make_task: MakeTask, code: str) -> None:
    toml, line = REFUSED[code]
    found = refusals(load_task(make_task("# first line\n" + toml)), {})
    assert [refusal.code for refusal in found] == [code]
    assert found[0].where.endswith(f"sample/task.toml:{line + 1}")


PHASES = """
[environment]
network_mode = "allowlist"
allowed_hosts = ["a.example", "10.0.0.0/8"]
[agent]
network_mode = "no-network"
[verifier]
network_mode = "public"
[[steps]]
name = "one"
[[steps]]
name = "two"
[steps.agent]
network_mode = "allowlist"
allowed_hosts = ["*.b.example:443"]
"""


def test_phases_have_networks_of_their_own_and_steps_inherit_them(make_task: MakeTask) -> None:
    step = {"steps/one/instruction.md": "do", "steps/two/instruction.md": "do"}
    task = load_task(make_task(PHASES, step))
    assert not task.refused
    assert task.environment.policy.allow == ("a.example", "10.0.0.0/8")
    first, second = task.stages
    assert [stage.agent.network and stage.agent.network.mode.value for stage in task.stages] == [
        "none",
        "allowlist",
    ]
    assert second.agent.network is not None
    assert second.agent.network.allow == ("*.b.example:443",)
    assert first.verifier.network == second.verifier.network
    assert needs(task) == {Capability.ALLOWLIST, Capability.PUBLIC, Capability.NETWORK_SWITCH}


@pytest.mark.parametrize(
    ("toml", "needed"),
    [
        ("", {Capability.PUBLIC}),
        ('[environment]\nnetwork_mode = "no-network"\n', set()),
        ('[environment]\nnetwork_mode = "no-network"\n[agent]\nnetwork_mode = "no-network"\n', set()),
        (
            '[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n',
            {Capability.PUBLIC, Capability.NETWORK_SWITCH},
        ),
        (
            '[environment]\nnetwork_mode = "no-network"\n'
            '[verifier]\nnetwork_mode = "public"\nenvironment_mode = "separate"\n',
            {Capability.PUBLIC},
        ),
    ],
)
def test_what_a_task_needs_of_a_driver(make_task: MakeTask, toml: str, needed: set[Capability]) -> None:
    assert needs(load_task(make_task(toml))) == needed


def test_hosts_that_cannot_be_are_told(make_task: MakeTask) -> None:
    toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["http://a.example"]\n'
    with pytest.raises(TaskInvalid, match="allowed_hosts"):
        load_task(make_task(toml))


def test_an_earlier_conversation_is_refused(make_task: MakeTask) -> None:
    found = refusals(load_task(make_task(files={"trajectory.json": "{}"})), {})
    assert [refusal.code for refusal in found] == ["plan/trajectory"]
    assert found[0].where.endswith("trajectory.json")


def test_everything_that_is_refused_is_told_at_once(make_task: MakeTask) -> None:
    toml = '[environment]\ngpus = 2\nos = "windows"\nnetwork_mode = "allowlist"\nallowed_hosts = ["::1"]\n'
    task = load_task(make_task(toml, {"tests/test.sh": None, "tests/test.bat": "x"}))
    assert sorted(refusal.code for refusal in task.refused) == [
        "plan/gpu",
        "plan/network_allowlist",
        "plan/windows",
    ]


@pytest.mark.parametrize(
    "toml",
    [
        "[environment]\ngpus = 0\ngpu_types = []\nmcp_servers = []\n",
        "steps = []\nartifacts = []\n",
        '[verifier]\nenvironment_mode = "shared"\ncollect = []\n',
        '[agent]\nnetwork_mode = "public"\n[verifier]\nnetwork_mode = "public"\n',
    ],
)
def test_what_asks_for_nothing_is_not_refused(make_task: MakeTask, toml: str) -> None:
    task = load_task(make_task(toml))
    assert (task.refused, task.doubts) == ((), ())


def test_a_refusal_is_shown_as_an_error(make_task: MakeTask) -> None:
    task = load_task(make_task("[environment]\ngpus = 1\n"))
    error = refused(task, task.refused[0])
    assert isinstance(error, PlanRefused)
    assert error.message == "task `sample` cannot start: it asks for a GPU, which sandboxes do not have"
    assert (error.code, error.exit_code) == ("plan/gpu", 2)
    assert str(error.where).endswith("task.toml:2")


@pytest.mark.fault("task-unknown-key")
@pytest.mark.parametrize(
    ("toml", "name", "hint"),
    [
        ("[agent]\ntimeout_secs = 1\n", "agent.timeout_secs", "did you mean `timeout_sec`?"),
        ("[environment]\nmemroy_mb = 1\n", "environment.memroy_mb", "did you mean `memory_mb`?"),
        ("[verifer]\ntimeout_sec = 1\n", "verifer", "did you mean `verifier`?"),
        ("\nzzz = 1\n", "zzz", ""),
    ],
)
def test_an_unknown_key_is_a_doubt_with_the_nearest_known_one(
    make_task: MakeTask, toml: str, name: str, hint: str
) -> None:
    task = load_task(make_task(toml))
    assert not task.refused
    (doubt,) = task.doubts
    assert (doubt.code, doubt.hint) == ("task/unknown_key", hint)
    assert doubt.message.startswith(f"`{name}` is not a key")
    assert doubt.where.endswith("task.toml:2") or name == "verifer"


@pytest.mark.parametrize(
    ("toml", "files", "code"),
    [
        ('multi_step_reward_strategy = "mean"\n', {}, "task/no_effect"),
        ('[environment]\ndocker_image = "debian:12"\n', {}, "task/no_effect"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n', {}, "task/no_effect"),
        ("", {"steps/one/instruction.md": "x"}, "task/no_effect"),
        ('artifacts = ["/a", { source = "/b", destination = "a/b" }]\n', {}, "task/overlap"),
        ('[environment.healthcheck]\ncommand = "x"\ninterval_sec = 200\n', {}, "task/deadlines"),
        ('[environment]\nstorage = "1G"\n', {}, "plan/storage_not_enforced"),
    ],
)
def test_what_has_no_effect_is_doubted(
    make_task: MakeTask, toml: str, files: dict[str, str], code: str
) -> None:
    task = load_task(make_task(toml, files))
    assert [doubt.code for doubt in task.doubts] == [code]
    assert not task.refused


def test_an_image_needs_no_dockerfile(make_task: MakeTask) -> None:
    task = load_task(
        make_task('[environment]\ndocker_image = "debian:12"\n', {"environment/Dockerfile": None})
    )
    assert (task.environment.docker_image, task.environment.dockerfile) == ("debian:12", None)
    assert task.environment.upload_dir is None


def test_files_beside_an_image_are_to_be_uploaded(make_task: MakeTask) -> None:
    files = {"environment/Dockerfile": None, "environment/data.txt": "x"}
    folder = make_task('[environment]\ndocker_image = "debian:12"\n', files)
    assert load_task(folder).environment.upload_dir == folder / "environment"


@pytest.mark.fault("task-variable-not-set-on-host")
def test_a_variable_that_the_host_lacks_is_refused(make_task: MakeTask) -> None:
    toml = (
        '[environment.env]\nA = "1"\nKEY = "${MY_KEY}"\n[verifier.env]\nB = "${B:-}"\n'
        '[solution.env]\nC = "${C}"\n'
    )
    task = load_task(make_task(toml))
    found = refusals(task, {})
    assert [(refusal.code, refusal.where.rpartition(":")[2]) for refusal in found] == [
        ("plan/host_variable", "3"),
        ("plan/host_variable", "7"),
    ]
    assert "`MY_KEY`" in found[0].message
    assert refusals(task, {"MY_KEY": "x", "C": ""}) == []
    with pytest.raises(PlanRefused, match="MY_KEY"):
        resolve_env(task.environment.env, {})


def test_the_host_is_this_process_by_default(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task(make_task('[environment.env]\nKEY = "${CLOCHE_TEST_KEY}"\n'))
    monkeypatch.delenv("CLOCHE_TEST_KEY", raising=False)
    assert len(refusals(task)) == 1
    monkeypatch.setenv("CLOCHE_TEST_KEY", "here")
    assert refusals(task) == []
    assert resolve_env(task.environment.env) == {"KEY": "here"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "host"),
        ("${A:-else}", "host"),
        ("${NONE:-else}", "else"),
        ("${NONE:-}", ""),
        ("${NONE:-a:-b}", "a:-b"),
        ("x${A}", "x${A}"),
        ("$A", "$A"),
        ("${A} ", "${A} "),
        ("$${A}", "$${A}"),
    ],
)
def test_only_a_whole_reference_is_filled_in(make_task: MakeTask, text: str, value: str) -> None:
    task = load_task(make_task(f'[environment.env]\nX = "{text}"\n'))
    assert resolve_env(task.environment.env, {"A": "host"}) == {"X": value}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<!-- harbor-canary GUID 1 -->\n\nDo it.\n", "Do it.\n"),
        ("# CANARY\n<!-- canary -->\n\n\nDo it.\n", "Do it.\n"),
        ("# Title\n<!-- canary -->\nDo it.", "# Title\n<!-- canary -->\nDo it."),
        ("\nDo it.", "Do it."),
        ("Do it.\n# canary\n", "Do it.\n# canary\n"),
        ("  # a canary, indented\nDo it.", "Do it."),
    ],
)
def test_the_canary_block_is_not_shown_to_agents(text: str, shown: str) -> None:
    assert strip_canary(text) == shown


@given(st.text())
def test_stripping_twice_changes_nothing_more(text: str) -> None:
    assert strip_canary(strip_canary(text)) == strip_canary(text)
    assert text.endswith(strip_canary(text))


def test_line_ends_of_an_instruction_are_line_feeds(make_task: MakeTask) -> None:
    assert load_task(make_task(files={"instruction.md": "a\r\nb\rc\n"})).instruction == "a\nb\nc\n"


def test_tasks_are_found_once_and_in_order(make_task: MakeTask, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        make_task(name=name)
    (tmp_path / "not-a-task").mkdir()
    (tmp_path / "README.md").write_text("x")
    assert [task.name for task in find_tasks([tmp_path / "c", tmp_path, tmp_path / "a"])] == ["c", "a", "b"]
    assert [task.name for task in find_tasks([tmp_path / "b" / "task.toml"])] == ["b"]
    (tmp_path / "link").symlink_to("a")
    assert [task.name for task in find_tasks([tmp_path / "link"])] == ["a"]


def test_a_task_is_data(make_task: MakeTask) -> None:
    task = load_task(make_task())
    assert task == load_task(make_task())
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.name = "other"  # type: ignore[misc]
    assert Refusal(code="a", message="b", where="c") == Refusal(code="a", message="b", where="c")
