"""Healthchecks: Docker's rules, decided without a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.core.errors import SandboxLost
from cloche.sandbox.handle import Sandbox
from cloche.sandbox.spec import Command, Completed, EndReason, Output
from cloche.tasks.health import HealthcheckFailed, Verdict, after_failure, wait_until_healthy
from cloche.tasks.model import Healthcheck

CHECK = Healthcheck(
    command="probe", interval_s=5, timeout_s=3, start_period_s=20, start_interval_s=2, retries=3, where="t:1"
)


@dataclass
class Clock:
    """A clock that only sleeping and probing moves on; ``results`` are the exit codes to come."""

    results: list[int | EndReason]
    probe_s: float = 1.0
    now_s: float = 100.0
    waits: list[float] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds

    async def run(self, command: Command) -> Completed:
        self.commands.append(command)
        self.now_s += self.probe_s
        result = self.results.pop(0)
        said = Output(head=b"first\nwhy not\n", total_bytes=14)
        if isinstance(result, EndReason):
            return Completed(id="c", reason=result, stdout=said, message="gone")
        return Completed(id="c", reason=EndReason.EXIT, exit_code=result, stdout=said)


async def probe(clock: Clock, check: Healthcheck = CHECK) -> int:
    return await wait_until_healthy(
        cast("Sandbox", clock), check, user="ann", cwd="/srv", clock=clock, sleep=clock.sleep
    )


@pytest.mark.parametrize(
    ("began_s", "failures", "verdict"),
    [
        (0.0, 0, Verdict(0, 2)),
        (19.9, 2, Verdict(2, 2)),
        (20.0, 0, Verdict(1, 5)),
        (50.0, 1, Verdict(2, 5)),
        (50.0, 2, Verdict(3, None)),
    ],
)
def test_what_follows_a_failure(began_s: float, failures: int, verdict: Verdict) -> None:
    assert after_failure(CHECK, began_s, failures) == verdict


async def test_failures_of_the_start_period_do_not_count() -> None:
    clock = Clock([1] * 7 + [1, 1, 0])
    assert await probe(clock) == 10
    assert clock.waits == [2] * 7 + [5, 5]  # the eighth try begins at 21 s
    assert (clock.commands[0].user, clock.commands[0].cwd, clock.commands[0].timeout_s) == ("ann", "/srv", 3)


async def test_retries_in_a_row_are_a_failure_that_says_what_was_said() -> None:
    clock = Clock([1, EndReason.TIMEOUT, 7], probe_s=30)
    with pytest.raises(
        HealthcheckFailed, match="3 times in a row; the last try exited with status 7"
    ) as caught:
        await probe(clock, Healthcheck(command="x", retries=3, where="t:9"))
    assert (caught.value.hint, caught.value.where) == ("it said last: why not", "t:9")


async def test_a_lost_sandbox_is_no_failed_check() -> None:
    with pytest.raises(SandboxLost):
        await probe(Clock([EndReason.SANDBOX_LOST]))


@given(st.lists(st.sampled_from([0, 1]), max_size=40), st.integers(1, 5), st.floats(0, 30))
async def test_it_always_ends_within_the_retries(results: list[int], retries: int, start_s: float) -> None:
    check = Healthcheck(command="x", start_period_s=start_s, retries=retries)
    clock = Clock([*results, *[1] * 100])
    try:
        tries = await probe(clock, check)
    except HealthcheckFailed:
        assert clock.now_s - 100 >= start_s
    else:
        assert results[tries - 1] == 0
