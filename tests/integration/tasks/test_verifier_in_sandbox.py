"""The verifier in real sandboxes that hold nothing but busybox: users, time, links and leftovers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, PreparedImage
from cloche.tasks import Task, load_task
from cloche.tasks.rewards import RewardInvalid, RewardMissing, VerifierFailed, VerifierTimeout
from cloche.tasks.verify import verify

MakeSandbox = Callable[[Task, PreparedImage], AbstractAsyncContextManager[Sandbox]]
REWARD = "echo 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def task_with(tmp_path: Path) -> Callable[..., Task]:
    def make(script: str, toml: str = "", **tests: str) -> Task:
        folder = tmp_path / "task"
        for name in ("environment", "tests"):
            (folder / name).mkdir(parents=True)
        (folder / "task.toml").write_text(f'environment.network_mode = "no-network"\n{toml}')
        (folder / "instruction.md").write_text("Do it.\n")
        (folder / "environment" / "Dockerfile").write_text("FROM small\n")
        (folder / "tests" / "test.sh").write_text(script)
        for name, text in tests.items():
            (folder / "tests" / name).write_text(text)
        return load_task(folder)

    return make


async def sh(sandbox: Sandbox, line: str, user: str | None = None) -> str:
    done = await sandbox.run(Command(shell=line, user=user, timeout_s=20.0))
    assert done.ok, done.stderr.text
    return done.stdout.text


async def test_a_script_without_first_line_or_execute_bit_is_run(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    script = f"id -u; pwd; echo to stderr >&2; cat /tests/data; {REWARD}exit 7\n"
    task = task_with(script, data="hidden\n")
    async with sandbox_for(task, small_image) as sandbox:
        result = await verify(task, sandbox, tmp_path / "out")
    assert result.rewards == {"reward": 1.0}
    assert result.completed.exit_code == 7
    assert (tmp_path / "out" / "test-stdout.txt").read_text() == "0\n/tmp\nto stderr\nhidden\n"


async def test_the_verifier_s_own_user_workdir_and_environment(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    toml = '[verifier]\nuser = "ann"\nenv = { A = "${A}" }\n'
    toml = f'environment.workdir = "/home"\nenvironment.env.B = "b"\n{toml}'
    script = f'#!/bin/sh\nid -un; pwd; echo "$A$B"; cat /tests/data\n{REWARD}'
    task = task_with(script, toml, data="x\n")
    old = os.umask(0o077)
    try:
        (task.verifier.tests_dir / "data").chmod(0o600)
        async with sandbox_for(task, small_image) as sandbox:
            result = await verify(task, sandbox, tmp_path / "out", environ={"A": "a"})
    finally:
        os.umask(old)
    assert (tmp_path / "out" / "test-stdout.txt").read_text() == "ann\n/home\nab\nx\n"
    assert result.reward == 1.0


async def test_tests_are_not_there_before_the_verifier(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage
) -> None:
    async with sandbox_for(task_with(REWARD), small_image) as sandbox:
        assert await sh(sandbox, "ls -A /tests; ls -A /solution") == ""
        for folder in ("agent", "verifier", "artifacts"):
            await sh(sandbox, f"touch /logs/{folder}/mine", user="ann")


@pytest.mark.parametrize(
    "trick",
    [
        "echo 1 > /logs/verifier/reward.txt",
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "mkdir /logs/verifier/reward.json",
        "rm -r /logs/verifier; mkdir /tmp/m; echo 1 > /tmp/m/reward.txt; ln -s /tmp/m /logs/verifier",
        "mv /logs /tmp/logs; echo 1 > /tmp/logs/verifier/reward.txt; ln -s /tmp/logs /logs",
        "ln -s /etc/passwd /logs/verifier/reward.txt",
        "ln -s /etc/passwd /logs/verifier/test-stdout.txt",
        "chmod 0 /logs/verifier",
        "rm -r /tests; ln -s /tmp /tests",
    ],
)
async def test_what_an_agent_left_is_no_verdict(
    task_with: Callable[..., Task],
    sandbox_for: MakeSandbox,
    small_image: PreparedImage,
    tmp_path: Path,
    trick: str,
) -> None:
    task = task_with("#!/bin/sh\nid -un\n", '[verifier]\nuser = "ann"\n')
    async with sandbox_for(task, small_image) as sandbox:
        await sh(sandbox, trick)
        with pytest.raises(RewardMissing, match="exited with status 0"):
            await verify(task, sandbox, tmp_path / "out")
        assert "ann" in (tmp_path / "out" / "test-stdout.txt").read_text()
        assert (await sandbox.stat("/tests", follow=False)).is_folder
        assert (await sandbox.read_file("/etc/passwd")).startswith(b"root:")


async def test_a_link_that_the_verifier_leaves_never_reaches_the_host(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1")
    task = task_with(f"ln -s {secret} /logs/verifier/reward.txt; ln -s / /logs/verifier/root\n")
    async with sandbox_for(task, small_image) as sandbox:
        with pytest.raises(RewardMissing):
            await verify(task, sandbox, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["test-stdout.txt"]


async def test_a_timeout_ends_the_verifier_s_whole_tree(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    script = f"echo begun\n{REWARD}setsid sh -c 'sleep 987' &\nsleep 986\n"
    task = task_with(script, "[verifier]\ntimeout_sec = 1\n")
    async with sandbox_for(task, small_image) as sandbox:
        with pytest.raises(VerifierTimeout, match="after 1 s") as caught:
            await verify(task, sandbox, tmp_path / "out")
        left = await sh(sandbox, "cat /proc/[0-9]*/cmdline || true")
        assert "sleep\x00987" not in left
        assert "sleep\x00986" not in left
    assert caught.value.hint == "begun"


async def test_a_cancelled_verification_leaves_nothing_running(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    task = task_with("touch /tmp/begun\nsetsid sleep 985 &\nsleep 984\n")
    async with sandbox_for(task, small_image) as sandbox:
        verifying = asyncio.create_task(verify(task, sandbox, tmp_path / "out"))
        await sh(sandbox, "until [ -e /tmp/begun ]; do sleep 0.05; done")
        verifying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await verifying
        left = await sh(sandbox, "cat /proc/[0-9]*/cmdline || true")
        assert "sleep\x00984" not in left
        assert "sleep\x00985" not in left


async def test_a_verifier_that_cannot_start_is_told(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    task = task_with(REWARD, '[verifier]\nuser = "nobody-of-that-name"\n')
    async with sandbox_for(task, small_image) as sandbox:
        with pytest.raises(VerifierFailed, match="nobody-of-that-name"):
            await verify(task, sandbox, tmp_path / "out")


async def test_a_first_line_that_names_what_is_not_there_is_explained(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    task = task_with(f"#!/usr/bin/python3\n{REWARD}")
    async with sandbox_for(task, small_image) as sandbox:
        with pytest.raises(RewardMissing, match="exited with status 127") as caught:
            await verify(task, sandbox, tmp_path / "out")
    assert "not found" in str(caught.value.hint)


async def test_a_reward_that_is_no_number_is_told_with_its_file(
    task_with: Callable[..., Task], sandbox_for: MakeSandbox, small_image: PreparedImage, tmp_path: Path
) -> None:
    task = task_with("echo '{\"reward\": NaN}' > /logs/verifier/reward.json\n" + REWARD)
    async with sandbox_for(task, small_image) as sandbox:
        with pytest.raises(RewardInvalid, match="not a finite number") as caught:
            await verify(task, sandbox, tmp_path / "out")
    assert caught.value.where == str(tmp_path / "out" / "reward.json")
