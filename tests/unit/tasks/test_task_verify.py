"""What verify does around the script, over a sandbox in memory; real ones are in tests/integration/tasks."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from cloche.core.errors import InfraError, InvalidInput, NotFound, PlanRefused, SandboxLost
from cloche.sandbox.handle import FileInfo, FileKind, Sandbox
from cloche.sandbox.spec import Command, Completed, EndReason, ImageConfig
from cloche.tasks import load_task
from cloche.tasks.rewards import RewardEmpty, RewardMissing, VerifierFailed, VerifierTimeout
from cloche.tasks.verify import (
    TestsNotUploaded,
    VerifierFilesLost,
    VerifierResult,
    prepare_paths,
    verify,
)

MakeTask = Callable[..., Path]
LOGS = "/logs/verifier"


@dataclass
class MemorySandbox:
    """Files in a dictionary (None is a folder, a Path a link) and commands that a function answers."""

    files: dict[str, bytes | Path | None] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    answer: Callable[[MemorySandbox, Command], Completed] | None = None
    image: ImageConfig = field(default_factory=ImageConfig)
    commands: list[Command] = field(default_factory=list)
    broken: dict[str, Exception] = field(default_factory=dict)

    def _fail(self, name: str) -> None:
        if name in self.broken:
            raise self.broken[name]

    async def make_dir(self, path: str, *, mode: int = 0o755) -> None:
        while path != "/":
            if path not in self.files:
                self.files[path] = None
                self.modes[path] = mode
            path = path.rpartition("/")[0] or "/"

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        assert not follow
        self._fail("stat")
        if path not in self.files:
            raise NotFound(path)
        found = self.files[path]
        kind = (
            FileKind.FOLDER
            if found is None
            else FileKind.SYMLINK
            if isinstance(found, Path)
            else FileKind.FILE
        )
        return FileInfo(
            path=path,
            kind=kind,
            size_bytes=0,
            mode=self.modes.get(path, 0o644),
            uid=0,
            gid=0,
            modified_at=0.0,
        )

    async def exists(self, path: str) -> bool:
        return path in self.files

    async def list_dir(self, path: str) -> list[FileInfo]:
        names = [name for name in sorted(self.files) if name.rpartition("/")[0] == path]
        return [await self.stat(name, follow=False) for name in names]

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        for name in list(self.files):
            if name == path or name.startswith(f"{path}/"):
                del self.files[name]

    async def upload(self, source: Path, target: str) -> None:
        self._fail("upload")
        for name, data in contents(source).items():
            await self.write_file(f"{target}/{name}", data)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.files[path], self.modes[path] = data, mode

    async def run(self, command: Command) -> Completed:
        self.commands.append(command)
        if self.answer is not None and command.argv[0] != "chmod":
            return self.answer(self, command)
        return Completed(id=command.id, reason=EndReason.EXIT, exit_code=0)

    async def download(self, source: str, target: Path, *, limit_bytes: int = 0) -> list[FileInfo]:
        self._fail("download")
        skipped = []
        found: dict[str, bytes] = {}
        for info in await self.list_dir(source):
            data = self.files[info.path]
            if isinstance(data, bytes):
                found[info.name] = data
            else:
                skipped.append(info)
        put(target, found)
        return skipped


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def script(
    files: dict[str, bytes | Path] | None = None,
    reason: EndReason = EndReason.EXIT,
    exit_code: int | None = 0,
    signal: int | None = None,
    message: str = "",
) -> Callable[[MemorySandbox, Command], Completed]:
    """Return a script that leaves files in the verifier's folder and ends as told."""

    def answer(sandbox: MemorySandbox, command: Command) -> Completed:
        for name, data in (files or {}).items():
            sandbox.files[f"{LOGS}/{name}"] = data
        return Completed(id=command.id, reason=reason, exit_code=exit_code, signal=signal, message=message)

    return answer


ONE = {"reward.txt": b"1\n"}


async def grade(folder: Path, sandbox: MemorySandbox, output: Path, **more: Any) -> VerifierResult:
    return await verify(load_task(folder), cast("Sandbox", sandbox), output, **more)


async def test_the_reward_is_read_and_the_files_are_had(make_task: MakeTask, tmp_path: Path) -> None:
    sandbox = MemorySandbox(answer=script({**ONE, "test-stdout.txt": b"fine\n", "link": Path("/etc")}))
    result = await grade(make_task(), sandbox, tmp_path / "out")
    assert result.rewards == {"reward": 1.0}
    assert result.reward == 1.0
    assert result.skipped == (f"{LOGS}/link",)
    assert (tmp_path / "out" / "test-stdout.txt").read_text() == "fine\n"


async def test_the_exit_status_decides_nothing(make_task: MakeTask, tmp_path: Path) -> None:
    sandbox = MemorySandbox(answer=script(ONE, exit_code=3))
    result = await grade(make_task(), sandbox, tmp_path / "out")
    assert (result.reward, result.completed.exit_code) == (1.0, 3)


async def test_the_script_runs_as_the_format_says(make_task: MakeTask, tmp_path: Path) -> None:
    toml = (
        '[verifier]\ntimeout_sec = 7\nuser = "judge"\nenv = { A = "${A}", B = "2" }\n'
        '[environment]\nworkdir = "/plot"\n'
    )
    sandbox = MemorySandbox(answer=script(ONE), files={"/bin/bash": b""})
    await grade(make_task(toml), sandbox, tmp_path / "out", environ={"A": "host"})
    opened, command = sandbox.commands
    assert opened.argv == ("chmod", "-R", "a+rX", "/tests")
    assert command.argv == ("/bin/bash", "-c", "/tests/test.sh > /logs/verifier/test-stdout.txt 2>&1")
    assert (command.user, command.cwd, command.timeout_s) == ("judge", "/plot", 7.0)
    assert command.env == {"A": "host", "B": "2"}
    assert sandbox.modes["/tests/test.sh"] == 0o755


@pytest.mark.parametrize(("user", "ran_as"), [("", "0"), ("web", "web")])
async def test_without_a_user_it_is_the_image_s(
    make_task: MakeTask, tmp_path: Path, user: str, ran_as: str
) -> None:
    sandbox = MemorySandbox(answer=script(ONE), image=ImageConfig(user=user))
    await grade(make_task(), sandbox, tmp_path / "out")
    assert sandbox.commands[-1].user == ran_as
    assert sandbox.commands[-1].argv[0] == "/bin/sh"
    assert sandbox.commands[-1].cwd is None


@pytest.mark.fault("verifier-stale-reward")
async def test_a_reward_that_was_there_before_never_counts(make_task: MakeTask, tmp_path: Path) -> None:
    stale: dict[str, bytes | Path | None] = {
        "/logs": None,
        LOGS: None,
        f"{LOGS}/reward.txt": b"1",
        f"{LOGS}/reward.json": b'{"reward": 1}',
        f"{LOGS}/test-stdout.txt": Path("/etc/passwd"),
        f"{LOGS}/notes.txt": b"planted",
    }
    sandbox = MemorySandbox(files=stale, answer=script())
    with pytest.raises(RewardMissing):
        await grade(make_task(), sandbox, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("path", ["/logs", LOGS, "/tests"])
async def test_a_link_in_place_of_a_folder_is_replaced(
    make_task: MakeTask, tmp_path: Path, path: str
) -> None:
    sandbox = MemorySandbox(files={path: Path("/home/agent")}, answer=script(ONE))
    assert (await grade(make_task(), sandbox, tmp_path / "out")).reward == 1.0
    assert sandbox.files[path] is None


async def test_a_folder_that_was_closed_is_opened(make_task: MakeTask, tmp_path: Path) -> None:
    sandbox = MemorySandbox(files={LOGS: None}, modes={LOGS: 0o700}, answer=script(ONE))
    await grade(make_task(), sandbox, tmp_path / "out")
    assert sandbox.commands[0].argv == ("chmod", "0777", LOGS)
    assert sandbox.commands[0].user == "0"


@pytest.mark.fault("verifier-timeout")
async def test_a_verifier_that_runs_out_of_time_has_no_verdict(make_task: MakeTask, tmp_path: Path) -> None:
    left = {"test-stdout.txt": b"step 1\nstep 2\n", **ONE}
    sandbox = MemorySandbox(answer=script(left, EndReason.TIMEOUT, None, 15))
    with pytest.raises(VerifierTimeout, match="after 600 s") as caught:
        await grade(make_task(), sandbox, tmp_path / "out")
    assert caught.value.hint == "step 2"
    assert (tmp_path / "out" / "reward.txt").exists()


@pytest.mark.parametrize(
    ("completed", "says"),
    [
        ({"exit_code": 127}, "it exited with status 127"),
        ({"reason": EndReason.SIGNAL, "exit_code": None, "signal": 9}, "it was ended by signal 9"),
        ({"reason": EndReason.OUT_OF_MEMORY, "exit_code": None, "signal": 9}, "because memory ran out"),
    ],
)
async def test_a_missing_reward_says_how_the_script_ended(
    make_task: MakeTask, tmp_path: Path, completed: dict[str, Any], says: str
) -> None:
    output = {"test-stdout.txt": b"/bin/sh: 1: jq: \x1b[31mnot found\n\n"}
    sandbox = MemorySandbox(answer=script(output, **completed))
    with pytest.raises(RewardMissing, match=says) as caught:
        await grade(make_task(), sandbox, tmp_path / "out")
    assert caught.value.hint == "it said last: /bin/sh: 1: jq: [31mnot found"
    assert "\n" not in caught.value.message


async def test_an_empty_reward_keeps_its_kind_and_place(make_task: MakeTask, tmp_path: Path) -> None:
    sandbox = MemorySandbox(answer=script({"reward.txt": b""}))
    with pytest.raises(RewardEmpty, match=r"reward\.txt is empty; it exited with status 0") as caught:
        await grade(make_task(), sandbox, tmp_path / "out")
    assert caught.value.where == str(tmp_path / "out" / "reward.txt")
    assert caught.value.hint == "see test-stdout.txt; it said nothing"


@pytest.mark.fault("verifier-not-started")
async def test_a_script_that_cannot_be_started_is_told(make_task: MakeTask, tmp_path: Path) -> None:
    answer = script(reason=EndReason.START_FAILED, exit_code=None, message="no user judge")
    with pytest.raises(VerifierFailed, match="no user judge") as caught:
        await grade(make_task(), MemorySandbox(answer=answer), tmp_path / "out")
    assert caught.value.code == "verifier/not_run"


@pytest.mark.fault("tests-upload-failed")
async def test_tests_that_cannot_be_uploaded_are_nobodys_score(make_task: MakeTask, tmp_path: Path) -> None:
    sandbox = MemorySandbox(broken={"upload": InvalidInput("no space is left", hint="free some")})
    with pytest.raises(TestsNotUploaded, match="no space is left") as caught:
        await grade(make_task(), sandbox, tmp_path / "out")
    assert isinstance(caught.value, InfraError)
    assert (caught.value.harbor_name, caught.value.hint) == ("AddTestsDirError", "free some")


@pytest.mark.fault("verifier-download-failed")
async def test_results_that_cannot_be_had_are_nobodys_score(make_task: MakeTask, tmp_path: Path) -> None:
    sandbox = MemorySandbox(answer=script(ONE), broken={"download": OSError(28, "No space left")})
    with pytest.raises(VerifierFilesLost, match="No space left") as caught:
        await grade(make_task(), sandbox, tmp_path / "out")
    assert caught.value.harbor_name == "DownloadVerifierDirError"


@pytest.mark.parametrize("step", ["stat", "upload", "download"])
async def test_a_lost_sandbox_stays_a_lost_sandbox(make_task: MakeTask, tmp_path: Path, step: str) -> None:
    sandbox = MemorySandbox(answer=script(ONE), broken={step: SandboxLost()})
    with pytest.raises(SandboxLost):
        await grade(make_task(), sandbox, tmp_path / "out")


@pytest.mark.parametrize(
    ("reason", "kind"), [(EndReason.SANDBOX_LOST, SandboxLost), (EndReason.CANCELLED, InfraError)]
)
async def test_a_script_that_was_ended_from_outside_is_nobodys_score(
    make_task: MakeTask, tmp_path: Path, reason: EndReason, kind: type[InfraError]
) -> None:
    with pytest.raises(kind):
        await grade(make_task(), MemorySandbox(answer=script(ONE, reason, None)), tmp_path / "out")


async def test_a_missing_variable_is_told_before_anything_happens(
    make_task: MakeTask, tmp_path: Path
) -> None:
    sandbox = MemorySandbox()
    with pytest.raises(PlanRefused, match="JUDGE_KEY"):
        await grade(make_task('[verifier.env]\nK = "${JUDGE_KEY}"\n'), sandbox, tmp_path, environ={})
    assert not sandbox.files


async def test_the_promised_folders_are_made_before_the_agent(make_task: MakeTask) -> None:
    sandbox = MemorySandbox(files={"/logs/agent": None}, modes={"/logs/agent": 0o755})
    await prepare_paths(cast("Sandbox", sandbox), load_task(make_task()))
    assert {path for path, data in sandbox.files.items() if data is None} == {
        "/logs",
        "/logs/agent",
        "/logs/verifier",
        "/logs/artifacts",
        "/tests",
        "/solution",
    }
    assert stat.S_IMODE(sandbox.modes["/logs/artifacts"]) == 0o777
    assert [command.argv for command in sandbox.commands] == [("chmod", "0777", "/logs/agent")]


async def test_files_beside_an_image_go_to_the_working_directory(make_task: MakeTask) -> None:
    files = {"environment/Dockerfile": None, "environment/data/x.txt": "x"}
    task = load_task(make_task('[environment]\ndocker_image = "debian:12"\n', files))
    sandbox = MemorySandbox(image=ImageConfig(workdir="/srv"))
    await prepare_paths(cast("Sandbox", sandbox), task)
    assert sandbox.files["/srv/data/x.txt"] == b"x"
