"""Grading: the verifier's script, run in the sandbox once everything of the agent has ended.

Must never grade while a process of the agent lives (the caller sees to that), never read a reward that
was there before, and never take the script's exit status for a verdict. The contract is Harbor's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from cloche.core.errors import ClocheError, InfraError, NotFound, SandboxLost
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, Completed, EndReason
from cloche.tasks.model import Environment, Task, VerifierPhase
from cloche.tasks.refuse import resolve_env
from cloche.tasks.rewards import (
    Rewards,
    VerifierError,
    VerifierFailed,
    VerifierTimeout,
    read_rewards,
)
from cloche.tasks.select import selected

AGENT_LOGS = "/logs/agent"
VERIFIER_LOGS = "/logs/verifier"
ARTIFACTS = "/logs/artifacts"
TESTS = "/tests"
SOLUTION = "/solution"
TEST_OUTPUT = "test-stdout.txt"

_SCRIPT = f"{TESTS}/test.sh"
_LAST_LINES_BYTES = 4096
_LOGS_BYTES_MAX = 256 << 20
_OPEN = 0o777


class TestsNotUploaded(InfraError):
    """The verifier's files could not be brought into the sandbox."""

    __test__ = False  # it is no test case, whatever its name suggests to a collector
    code = "infra/tests_upload"
    harbor_name: ClassVar[str] = "AddTestsDirError"


class VerifierFilesLost(InfraError):
    """What the verifier wrote could not be brought out of the sandbox."""

    code = "infra/verifier_download"
    harbor_name: ClassVar[str] = "DownloadVerifierDirError"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierResult:
    """A verdict: the rewards by name, and how the script ended (its exit status decides nothing)."""

    rewards: Rewards
    completed: Completed
    skipped: tuple[str, ...] = field(default=())

    @property
    def reward(self) -> float | None:
        """The reward called ``reward``, which a plain ``reward.txt`` gives."""
        return self.rewards.get("reward")


@contextmanager
def _as(kind: type[InfraError]) -> Iterator[None]:
    """Turn what moving files may raise into a failure that says which step it was."""
    try:
        yield
    except SandboxLost:
        raise
    except (ClocheError, OSError) as error:
        message = f"{(kind.__doc__ or '').splitlines()[0].rstrip('.')}: {error}"
        raise kind(message, hint=getattr(error, "hint", None)) from error


async def prepare_paths(sandbox: Sandbox, task: Task, environment: Environment | None = None) -> None:
    """Make the folders that the format promises, before anything starts, and bring in the task's files.

    ``environment`` is the sandbox's, by default the task's. Agent and verifier may be any user, so the
    folders for logs are open to all. With a prebuilt image the files beside ``environment/Dockerfile``'s
    place go to the working directory.
    """
    environment = environment or task.environment
    for path in ("/logs", TESTS, SOLUTION):
        await sandbox.make_dir(path, mode=0o755)
    for path in (AGENT_LOGS, VERIFIER_LOGS, ARTIFACTS):
        await _open_folder(sandbox, path)
    if environment.upload_dir is not None:
        await sandbox.upload(environment.upload_dir, workdir_of(environment, sandbox))


def workdir_of(environment: Environment, sandbox: Sandbox) -> str:
    """Return where commands of an environment start."""
    return environment.workdir or sandbox.image.workdir or "/"


async def forget_grading(sandbox: Sandbox) -> None:
    """Remove tests, solution, rewards and agent's logs, so that the next step can read none of them."""
    for path in (TESTS, SOLUTION, VERIFIER_LOGS, AGENT_LOGS):
        await _real_folder(sandbox, path, 0o755)
        await empty_folder(sandbox, path)
    for path in (VERIFIER_LOGS, AGENT_LOGS):
        await _open_folder(sandbox, path)


async def empty_folder(sandbox: Sandbox, path: str) -> None:
    """Remove all that a folder holds."""
    for entry in await sandbox.list_dir(path):
        await sandbox.remove(entry.path, recursive=entry.is_folder)


async def verify(
    task: Task,
    sandbox: Sandbox,
    output_dir: Path,
    *,
    environ: Mapping[str, str] | None = None,
    phase: VerifierPhase | None = None,
    timeout_s: float | None = None,
) -> VerifierResult:
    """Run a verifier and return its verdict; everything it wrote is then in ``output_dir``.

    ``phase`` is the verifier, by default the task's; ``timeout_s`` replaces its limit; ``environ`` is the
    host's environment for ``${VAR}``. Raises a VerifierError where there is no verdict, with the files in
    place as far as they could be had; TestsNotUploaded, VerifierFilesLost or SandboxLost where the fault
    lies elsewhere.
    """
    phase = phase or task.verifier
    limit_s = timeout_s or phase.timeout_s
    env = resolve_env(phase.env, environ)
    environment = phase.environment or task.environment
    user = phase.user or environment.user or sandbox.image.user or "0"
    with _as(TestsNotUploaded):
        await _clear(sandbox, phase)
        await _bring_tests(task, sandbox, phase)
        await _open_to(sandbox, user)
    completed = await sandbox.run(await _command(sandbox, env, user, environment.workdir, limit_s))
    _raise_if_not_run(phase, completed)
    with _as(VerifierFilesLost):
        skipped = await sandbox.download(VERIFIER_LOGS, output_dir, limit_bytes=_LOGS_BYTES_MAX)
    if completed.reason is EndReason.TIMEOUT:
        raise VerifierTimeout(
            f"the verifier was ended after {limit_s:g} s",
            hint=_last_line(output_dir),
            where=str(output_dir / TEST_OUTPUT),
        )
    try:
        rewards = await asyncio.to_thread(read_rewards, output_dir)
    except VerifierError as error:
        raise _explained(error, completed, output_dir) from error
    return VerifierResult(rewards=rewards, completed=completed, skipped=tuple(item.path for item in skipped))


async def _clear(sandbox: Sandbox, phase: VerifierPhase) -> None:
    """Empty the verifier's folder, and make it one that the verifier can write to.

    Harbor removes stale rewards only; whatever else an agent put there would end up in the record.
    """
    for path in ("/logs",) if phase.bundled else ("/logs", TESTS):
        await _real_folder(sandbox, path, 0o755)
    await _open_folder(sandbox, VERIFIER_LOGS)
    for entry in await sandbox.list_dir(VERIFIER_LOGS):
        await sandbox.remove(f"{VERIFIER_LOGS}/{entry.name}", recursive=True)


async def _bring_tests(task: Task, sandbox: Sandbox, phase: VerifierPhase) -> None:
    """Upload the tests, a step's own over those that all steps share, unless the image holds them."""
    if phase.bundled:
        if await sandbox.exists(_SCRIPT):
            await _as_root(sandbox, "chmod", "a+rx", _SCRIPT)
        return
    for folder in (phase.shared_tests_dir, phase.tests_dir):
        if folder is not None:
            async with selected(folder, task.path) as files:
                await sandbox.upload(files, TESTS)
    script = await asyncio.to_thread(phase.script.read_bytes)
    await sandbox.write_file(_SCRIPT, script, mode=0o755)


async def _open_folder(sandbox: Sandbox, path: str) -> None:
    """See that there is a folder which everybody may write to."""
    await _real_folder(sandbox, path, _OPEN)
    found = await sandbox.stat(path, follow=False)
    if found.mode & _OPEN != _OPEN:  # the image has it otherwise, or somebody has closed it
        await _as_root(sandbox, "chmod", "0777", path)


async def _real_folder(sandbox: Sandbox, path: str, mode: int) -> None:
    """See that there is a folder, and no link or file that an agent may have put in its place."""
    try:
        found = await sandbox.stat(path, follow=False)
    except NotFound:
        pass
    else:
        if found.is_folder:
            return
        await sandbox.remove(path)
    await sandbox.make_dir(path, mode=mode)


async def _as_root(sandbox: Sandbox, *argv: str) -> None:
    completed = await sandbox.run(Command(argv=argv, user="0", cwd="/", timeout_s=60.0))
    if not completed.ok:
        raise InfraError(f"`{' '.join(argv)}` failed: {completed.message or completed.stderr.text.strip()}")


async def _open_to(sandbox: Sandbox, user: str) -> None:
    """Let a verifier that is not root read its files, whatever modes they have on this machine."""
    if user.partition(":")[0] not in {"0", "root"}:
        await _as_root(sandbox, "chmod", "-R", "a+rX", TESTS)


async def _command(
    sandbox: Sandbox, env: Mapping[str, str], user: str, workdir: str | None, limit_s: float
) -> Command:
    """Let a shell start the script by its first line and catch all that it says."""
    shell = "/bin/bash" if await sandbox.exists("/bin/bash") else "/bin/sh"
    line = f"{_SCRIPT} > {VERIFIER_LOGS}/{TEST_OUTPUT} 2>&1"
    return Command(
        argv=(shell, "-c", line),
        env=env,
        user=user,
        cwd=workdir,
        timeout_s=limit_s,
    )


def _raise_if_not_run(phase: VerifierPhase, completed: Completed) -> None:
    if completed.reason is EndReason.SANDBOX_LOST:
        raise SandboxLost(completed.message or None)
    if completed.reason is EndReason.CANCELLED:
        raise InfraError("the verifier was cancelled from outside")
    if completed.reason is EndReason.START_FAILED:
        raise VerifierFailed(
            f"the verifier could not be started: {completed.message or 'no reason given'}",
            hint="an image needs /bin/sh, the verifier's user and the working directory",
            where=str(phase.script),
        )


def _explained(error: VerifierError, completed: Completed, output_dir: Path) -> VerifierError:
    """Add what the script said last, which is what people look for first."""
    if completed.reason is EndReason.OUT_OF_MEMORY:
        how = "it was ended because memory ran out"
    elif completed.signal is not None:
        how = f"it was ended by signal {completed.signal}"
    else:
        how = f"it exited with status {completed.exit_code}"
    message = f"{error.message.rstrip('.')}; {how}"
    said = _last_line(output_dir)
    hint = f"it said last: {said}" if said else f"see {TEST_OUTPUT}; it said nothing"
    return type(error)(message, hint=hint, where=error.where, code=error.code)


def _last_line(output_dir: Path) -> str:
    """Return the last line of the verifier's output, empty if there is none."""
    path = output_dir / TEST_OUTPUT
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LAST_LINES_BYTES))
        lines = file.read(_LAST_LINES_BYTES).decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return "".join(character for character in last if character.isprintable())[:200]
