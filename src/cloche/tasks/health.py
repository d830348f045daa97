"""Healthchecks: a command is tried until it succeeds, with the meaning of Docker's HEALTHCHECK.

Must never count a failure of the start period, and never let a try outlive its own time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from cloche.core.errors import InfraError, SandboxLost
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, Completed, EndReason
from cloche.tasks.model import Healthcheck

_SAID_CHARS = 200


class HealthcheckFailed(InfraError):
    """The environment did not become healthy."""

    code = "infra/healthcheck"
    harbor_name: ClassVar[str] = "HealthcheckError"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows a failed try: ``failures`` in a row that count, and the wait; no wait is the end."""

    failures: int
    wait_s: float | None


def after_failure(check: Healthcheck, began_s: float, failures: int) -> Verdict:
    """Decide what follows a try that began ``began_s`` seconds after the first and has failed."""
    if began_s < check.start_period_s:
        return Verdict(failures, check.start_interval_s)
    failures += 1
    return Verdict(failures, None if failures >= check.retries else check.interval_s)


async def wait_until_healthy(
    sandbox: Sandbox,
    check: Healthcheck,
    *,
    user: str | None = None,
    cwd: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> int:
    """Try until the command exits with 0; returns how many tries it took.

    Raises HealthcheckFailed with what the last try said, and SandboxLost.
    """
    first_s = clock()
    failures = tries = 0
    while True:
        began_s = clock() - first_s
        tries += 1
        completed = await sandbox.run(
            Command(shell=check.command, user=user, cwd=cwd, timeout_s=check.timeout_s)
        )
        if completed.ok:
            return tries
        if completed.reason is EndReason.SANDBOX_LOST:
            raise SandboxLost(completed.message or None)
        verdict = after_failure(check, began_s, failures)
        if verdict.wait_s is None:
            raise _failed(check, completed, verdict.failures)
        failures = verdict.failures
        await sleep(verdict.wait_s)


def _failed(check: Healthcheck, completed: Completed, failures: int) -> HealthcheckFailed:
    times = "once" if failures == 1 else f"{failures} times in a row"
    if completed.reason is EndReason.TIMEOUT:
        how = f"the last try was ended after {check.timeout_s:g} s"
    elif completed.exit_code is not None:
        how = f"the last try exited with status {completed.exit_code}"
    else:
        how = completed.message or f"the last try ended by {completed.reason.value}"
    said = (completed.stderr.text.strip() or completed.stdout.text.strip()).split("\n")[-1]
    said = "".join(character for character in said if character.isprintable())[:_SAID_CHARS]
    return HealthcheckFailed(
        f"the healthcheck failed {times}; {how}",
        hint=f"it said last: {said}" if said else "it said nothing",
        where=check.where or None,
    )
