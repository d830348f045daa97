"""Broken tasks: each is told with a code, the file, the line and what is wrong, and never by a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloche.core.errors import ClocheError, Domain, InvalidInput, NotFound
from cloche.core.failures import failure
from cloche.tasks import BrokenTask, Task, TaskInvalid, find_tasks, load_task

MakeTask = Callable[..., Path]


def broken(folder: Path) -> TaskInvalid:
    with pytest.raises(TaskInvalid) as caught:
        load_task(folder)
    error = caught.value
    assert isinstance(error, InvalidInput)
    assert error.exit_code == 2
    assert "\n" not in error.message
    return error


@pytest.mark.fault("task-without-instruction")
@pytest.mark.parametrize("text", [None, "", " \n\n", "<!-- canary 123 -->\n\n"])
def test_a_task_without_instruction(make_task: MakeTask, text: str | None) -> None:
    error = broken(make_task(files={"instruction.md": text}))
    assert error.code == "task/no_instruction"
    assert error.where is not None
    assert error.where.endswith("sample/instruction.md")


@pytest.mark.fault("task-without-verifier")
def test_a_task_without_verifier(make_task: MakeTask) -> None:
    error = broken(make_task(files={"tests/test.sh": None, "tests/other.py": "1"}))
    assert error.code == "task/no_verifier"
    assert error.message == "task `sample`: it has no verifier: tests/test.sh is missing"
    assert error.hint is not None


@pytest.mark.fault("task-without-image")
def test_a_task_without_image(make_task: MakeTask) -> None:
    error = broken(make_task(files={"environment/Dockerfile": None}))
    assert error.code == "task/no_image"
    assert "docker_image" in (error.hint or "")


def test_everything_that_is_missing_is_told_at_once(make_task: MakeTask) -> None:
    nothing = {"instruction.md": None, "tests/test.sh": None, "environment/Dockerfile": None}
    error = broken(make_task("[agent]\ntimeout_sec = 'x'\n", files=nothing))
    assert [finding.code for finding in error.findings] == [
        "task/type",
        "task/no_instruction",
        "task/no_image",
        "task/no_verifier",
    ]
    assert error.message.endswith("(and 3 more)")


@pytest.mark.fault("task-toml-broken")
@pytest.mark.parametrize(
    ("toml", "line", "column"),
    [
        ("schema_version = \n", 1, 18),
        ("[agent]\ntimeout_sec = 1\ntimeout_sec = 2\n", 3, 16),
        ("[agent\n", 1, 7),
        ('[environment]\nx = "\n', 2, 6),
        ("[metadata]\nwhen = 2024-13-01\n", 2, 12),
    ],
)
def test_broken_toml_has_line_and_column(make_task: MakeTask, toml: str, line: int, column: int) -> None:
    error = broken(make_task(toml))
    assert error.code == "task/toml"
    assert error.message.endswith(f", line {line}, column {column}")
    assert error.where is not None
    assert error.where.endswith(f"task.toml:{line}")


@pytest.mark.fault("task-wrong-type")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("agent = 1", "`agent` must be a table, not an integer"),
        ("agent.timeout_sec = 'ten'", "`agent.timeout_sec` must be a number, not a text"),
        ("agent.timeout_sec = true", "`agent.timeout_sec` must be a number, not a boolean"),
        ("agent.user = 1.5", "`agent.user` must be a user's name or number, not a number"),
        ("verifier.env = []", "`verifier.env` must be a table of texts, not a list"),
        ("verifier.env.A = 1", "`verifier.env.A` must be a text, not an integer"),
        ("verifier.collect = 'x'", "`verifier.collect` must be a list of tables, not a text"),
        ("environment.cpus = '1'", "`environment.cpus` must be a number, not a text"),
        ("environment.memory_mb = 1.5", "`environment.memory_mb` must be an integer, not 1.5"),
        ("environment.docker_image = 1", "`environment.docker_image` must be a text, not an integer"),
        (
            "environment.allowed_hosts = [1]",
            "`environment.allowed_hosts` must hold texts, but item 0 is an integer",
        ),
        (
            "environment.allow_internet = 'no'",
            "`environment.allow_internet` must be true or false, not a text",
        ),
        ("environment.healthcheck = 'x'", "`environment.healthcheck` must be a table, not a text"),
        (
            "environment.mcp_servers = ['x']",
            "`environment.mcp_servers` must hold tables, but item 0 is a text",
        ),
        ("schema_version = 1.4", "`schema_version` must be a text, not a number"),
        ("source = 2024-01-01", "`source` must be a text, not a date or time"),
        ("metadata = 'x'", "`metadata` must be a table, not a text"),
        ("task.keywords = 'x'", "`task.keywords` must be a list of texts, not a text"),
        ("steps = {}", "`steps` must be a list of tables, not a table"),
        ("artifacts = [1]", "`artifacts` must hold paths or tables, but item 0 is an integer"),
    ],
)
def test_a_wrong_type_names_line_and_field(make_task: MakeTask, line: str, message: str) -> None:
    error = broken(make_task(f"# a comment\n\n{line}\n"))
    assert error.code == "task/type"
    assert error.message == f"task `sample`: {message}"
    assert error.where is not None
    assert error.where.endswith("sample/task.toml:3")


@pytest.mark.fault("task-value-out-of-range")
@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("agent.timeout_sec = 0", "agent.timeout_sec"),
        ("agent.timeout_sec = nan", "agent.timeout_sec"),
        ("verifier.timeout_sec = inf", "verifier.timeout_sec"),
        ("verifier.timeout_sec = -1", "verifier.timeout_sec"),
        ("verifier.timeout_sec = " + "9" * 400, "verifier.timeout_sec"),
        ("environment.build_timeout_sec = 0.0", "environment.build_timeout_sec"),
        ("environment.cpus = -inf", "environment.cpus"),
        ("environment.memory_mb = 0", "environment.memory_mb"),
        ("environment.memory_mb = " + "9" * 30, "environment.memory_mb"),
        ("environment.storage_mb = -5", "environment.storage_mb"),
        ("environment.gpus = -1", "environment.gpus"),
    ],
)
def test_a_value_out_of_range_names_the_field(make_task: MakeTask, line: str, field: str) -> None:
    error = broken(make_task(line))
    assert error.code == "task/range"
    assert f"`{field}`" in error.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("environment.network_mode = 'none'", "must be one of public, no-network, allowlist"),
        ("environment.os = 'bsd'", "must be one of linux, windows"),
        ("environment.memory = '2 GB'", "is not a size"),
        ("environment.memory = '0K'", "is not a size"),
        (
            "environment.memory = '2G'\nenvironment.memory_mb = 1",
            "is 2048 MB, but `environment.memory_mb` is 1",
        ),
        ("environment.workdir = 'app'", "must be an absolute path"),
        ("environment.workdir = '/a\\u0000'".replace("'", '"'), "null character"),
        ("environment.docker_image = ' '", "is not the name of an image"),
        ("environment.docker_image = 'a b'", "is not the name of an image"),
        ("environment.allowed_hosts = ['a.example']", "only valid with network_mode"),
        ("agent.allowed_hosts = ['a.example']", "only valid with network_mode"),
        ("agent.user = ''", "is not a user"),
        ("agent.user = 'a:b'", "is not a user"),
        ("agent.user = -1", "is not a user"),
        ("environment.env.'A=B' = 'x'", "is not a variable"),
        ("environment.env.'' = 'x'", "is not a variable"),
        ('environment.env.A = "\\u0000"', "is not a variable"),
        ("task.name = 'no-organisation'", "must be `organisation/name`"),
        ("task.name = '../../etc'", "must be `organisation/name`"),
        ("task.name = 'a/b..c'", "must not hold"),
        ("multi_step_reward_strategy = 'max'", "must be one of mean, final"),
        ("verifier.environment_mode = 'own'", "must be one of shared, separate"),
    ],
)
def test_a_value_that_cannot_be_used_says_why(make_task: MakeTask, line: str, says: str) -> None:
    error = broken(make_task(line + "\n"))
    assert says in error.message


def test_a_near_word_is_suggested(make_task: MakeTask) -> None:
    error = broken(make_task("environment.network_mode = 'no_network'\n"))
    assert error.hint == "did you mean `no-network`?"


@pytest.mark.fault("task-path-escape")
@pytest.mark.parametrize(
    "name",
    [
        "instruction.md",
        "environment/Dockerfile",
        "tests/test.sh",
        "tests/data",
        "solution/solve.sh",
        "task.toml",
    ],
)
@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "/nowhere/at/all"])
def test_a_link_out_of_the_task_is_refused(
    make_task: MakeTask, tmp_path: Path, name: str, target: str
) -> None:
    (tmp_path / "outside").write_text("secret")
    folder = make_task()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    error = broken(folder)
    assert error.code == "task/path_escape"
    assert "secret" not in error.message


@pytest.mark.parametrize("name", ["tests", "solution", "environment"])
def test_a_folder_that_is_a_link_out_of_the_task_is_refused(
    make_task: MakeTask, tmp_path: Path, name: str
) -> None:
    folder = make_task()
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert broken(folder).code == "task/path_escape"


def test_links_inside_the_task_are_fine(make_task: MakeTask) -> None:
    folder = make_task(files={"common.sh": "#!/bin/sh\n", "tests/test.sh": None, "tests/a": "x"})
    (folder / "tests" / "test.sh").symlink_to("../common.sh")
    (folder / "tests" / "b").symlink_to("a")
    assert load_task(folder).verifier.script.name == "test.sh"


@pytest.mark.fault("task-link-cycle")
def test_a_link_that_goes_round_is_refused(make_task: MakeTask) -> None:
    folder = make_task(files={"tests/deep/x": "1"})
    (folder / "tests" / "deep" / "again").symlink_to("..")
    assert broken(folder).code == "task/link_cycle"
    own = make_task(name="own")
    (own / "tests" / "self").symlink_to("self")
    assert broken(own).code == "task/link_cycle"


@pytest.mark.parametrize("top", ["tests", "environment"])
def test_folders_that_are_too_deep_are_refused(make_task: MakeTask, top: str) -> None:
    folder = make_task()
    deep = folder / top / "/".join(["d"] * 100)
    deep.mkdir(parents=True)
    assert broken(folder).code == "task/too_large"


@pytest.mark.fault("task-encoding")
@pytest.mark.parametrize("name", ["task.toml", "instruction.md"])
def test_a_file_that_is_not_utf8_is_located(make_task: MakeTask, name: str) -> None:
    error = broken(make_task(files={name: b"# fine\n# caf\xe9\n"}))
    assert error.code == "task/encoding"
    assert error.message.endswith("byte 0xe9 is not UTF-8, line 2, column 6")
    assert error.where is not None
    assert error.where.endswith(f"{name}:2")


@pytest.mark.fault("task-too-large")
@pytest.mark.parametrize("name", ["task.toml", "instruction.md"])
def test_a_file_that_is_too_large_is_refused(make_task: MakeTask, name: str) -> None:
    error = broken(make_task(files={name: b"#" * ((1 << 20) + 1)}))
    assert error.code == "task/too_large"


def test_a_config_that_is_a_folder_is_refused(make_task: MakeTask) -> None:
    folder = make_task()
    (folder / "task.toml").unlink()
    (folder / "task.toml").mkdir()
    assert broken(folder).code == "task/unreadable"


@pytest.mark.parametrize("name", ["line\nbreak", "esc\x1b[31m", os.fsdecode(b"caf\xe9")])
def test_a_folder_whose_name_cannot_be_shown_is_refused(make_task: MakeTask, name: str) -> None:
    error = broken(make_task(name=name))
    assert error.code == "task/name"
    (error.message + str(error.where)).encode()
    assert str(error.where).isprintable()


def test_one_broken_task_is_a_row_and_not_the_end(make_task: MakeTask, tmp_path: Path) -> None:
    make_task(name="b-good")
    make_task("[", name="a-bad")
    found = find_tasks([tmp_path])
    assert [item.name for item in found] == ["a-bad", "b-good"]
    assert isinstance(found[0], BrokenTask)
    assert found[0].findings[0].code == "task/toml"
    assert found[0].error.message.startswith("task `a-bad`: `task.toml` is not valid TOML")
    assert isinstance(found[1], Task)


def test_a_path_without_tasks_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone", "nul\0"):
        with pytest.raises(NotFound):
            find_tasks([path])
        with pytest.raises(NotFound):
            load_task(path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotFound):
        find_tasks([tmp_path / "file"])


KEYS = st.sampled_from(
    [
        "schema_version",
        "version",
        "task",
        "metadata",
        "agent",
        "verifier",
        "environment",
        "solution",
        "steps",
        "artifacts",
        "source",
        "name",
        "user",
        "timeout_sec",
        "env",
        "network_mode",
        "allowed_hosts",
        "cpus",
        "memory_mb",
        "memory",
        "storage",
        "gpus",
        "tpu",
        "os",
        "workdir",
        "collect",
        "docker_image",
        "healthcheck",
        "mcp_servers",
        "skills_dir",
        "environment_mode",
        "allow_internet",
        "keywords",
        "steps",
        "artifacts",
        "name",
        "min_reward",
        "source",
        "destination",
        "exclude",
        "service",
        "command",
        "retries",
        "start_period_sec",
    ]
)
VALUES = st.recursive(
    st.sampled_from(
        ["1", "-1", "0.5", "nan", "inf", "true", '""', '"1.4"', '"x"', '"${A}"', "2024-01-01", "1e400"]
    )
    | st.integers().map(str),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(KEYS, inner, max_size=2).map(
            lambda table: "{" + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        )
    ),
    max_leaves=4,
)
DOCUMENTS = st.lists(
    st.tuples(st.lists(KEYS, min_size=1, max_size=3).map(".".join), VALUES).map(
        lambda pair: f"{pair[0]} = {pair[1]}"
    )
    | st.lists(KEYS, min_size=1, max_size=2).map(lambda keys: f"[{'.'.join(keys)}]")
    | KEYS.map(lambda key: f"[[{key}]]"),
    max_size=8,
).map("\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300)
@given(DOCUMENTS.map(str.encode) | st.binary(max_size=200))
def test_any_config_gives_a_task_or_an_error_of_ours(make_task: MakeTask, content: bytes) -> None:
    folder = make_task(content)
    try:
        task = load_task(folder)
    except ClocheError:
        with pytest.raises(
            TaskInvalid, check=lambda error: error.code.startswith("task/") and str(error.where)
        ):
            load_task(folder)
        return
    assert task.verifier.timeout_s > 0
    assert task.environment.memory_bytes is None or task.environment.memory_bytes > 0


@pytest.mark.parametrize("left", ["instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_a_folder_that_lacks_its_task_toml_is_a_row_with_a_reason(
    make_task: MakeTask, tmp_path: Path, left: str
) -> None:
    make_task(name="good")
    rest = ["task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile", "solution/solve.sh"]
    make_task(name="lost", files={name: None for name in rest if name != left})
    (tmp_path / "notes").mkdir()
    good, lost = find_tasks([tmp_path])
    assert isinstance(good, Task)
    assert isinstance(lost, BrokenTask)
    assert (lost.name, lost.error.code) == ("lost", "task/no_config")
    assert lost.error.message == "task `lost`: it looks like a task, but there is no task.toml in it"
    assert lost.error.where == str(tmp_path / "lost")
    assert failure(lost.error.code).domain is Domain.USER


def test_a_path_that_is_no_folder_of_tasks_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / "tasks.md").write_text("x")
    for name in ("tasks.md", "gone"):
        with pytest.raises(NotFound, match="cannot be read") as caught:
            find_tasks([tmp_path / name])
        assert caught.value.hint == (
            "a task is a folder with a task.toml; name one, or a folder of such folders"
        )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("memory_mb = 1", "`environment.memory_mb` must be at least 8 MB for a sandbox to start, not 1"),
        ("memory = '7M'", "`environment.memory` must be at least 8 MB for a sandbox to start, not 7"),
        ("cpus = 0.001", "`environment.cpus` must be at least 0.01, not 0.001"),
    ],
)
def test_limits_that_no_sandbox_can_have(make_task: MakeTask, line: str, said: str) -> None:
    error = broken(make_task(f"[environment]\n{line}\n"))
    assert (error.code, error.message) == ("task/range", f"task `sample`: {said}")
    assert (error.where or "").endswith("sample/task.toml:2")


def test_the_least_that_a_sandbox_can_have_is_taken(make_task: MakeTask) -> None:
    environment = load_task(make_task("[environment]\nmemory_mb = 8\ncpus = 0.01\n")).environment
    assert (environment.memory_bytes, environment.cpus) == (8 << 20, 0.01)
