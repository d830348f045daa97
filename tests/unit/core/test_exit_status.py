"""What a run's exit status says."""

from __future__ import annotations

import pytest

from cloche.core.failures import failure
from cloche.core.outcome import AttemptOutcome, TrialOutcome
from cloche.core.schedule import Stop
from cloche.core.verdict import exit_status, unusable


def _trial(
    code: str | None = None, *, reward: float | None = None, refused: str | None = None
) -> TrialOutcome:
    attempts: tuple[AttemptOutcome, ...] = ()
    if code is not None or reward is not None:
        attempts = (
            AttemptOutcome(
                number=1,
                started_at=0,
                finished_at=1,
                failure=failure(code) if code else None,
                rewards=None if reward is None else {"reward": reward},
            ),
        )
    return TrialOutcome(
        name="t",
        task="t",
        agent="a",
        model=None,
        repeat=1,
        attempts=attempts,
        refusal=failure(refused) if refused else None,
    )


SOLVED, UNSOLVED = _trial(reward=1.0), _trial(reward=0.0)
TIMED_OUT = _trial("agent/timeout", reward=0.0)
LOST, REFUSED, NEVER = _trial("infra/sandbox_lost"), _trial(refused="plan/gpu"), _trial()
BARE = _trial("doctor/unusable")


@pytest.mark.parametrize(
    ("trials", "status"),
    [
        ([SOLVED, UNSOLVED, TIMED_OUT], 0),
        ([UNSOLVED], 0),
        ([], 0),
        ([SOLVED, LOST], 3),
        ([SOLVED, REFUSED], 3),
        ([SOLVED, NEVER], 3),
        ([_trial("verifier/reward_missing")], 3),
        ([REFUSED, REFUSED], 2),
        ([BARE, BARE], 5),
        ([BARE, REFUSED], 5),
        ([BARE, SOLVED], 3),
        ([BARE, LOST], 3),
        ([BARE, NEVER], 3),
    ],
)
def test_status(trials: list[TrialOutcome], status: int) -> None:
    assert exit_status(trials) == status


@pytest.mark.parametrize("stop", [Stop.DRAINING, Stop.CANCELLING, Stop.KILLING])
def test_an_interrupted_run_says_so_unless_all_was_done(stop: Stop) -> None:
    assert exit_status([SOLVED, NEVER], stop) == 130
    assert exit_status([SOLVED, LOST], stop) == 130
    assert exit_status([SOLVED, UNSOLVED], stop) == 0


def test_the_reason_why_a_machine_is_of_no_use() -> None:
    reason = unusable([REFUSED, BARE])
    assert reason is not None
    assert reason.code == "doctor/unusable"
    assert unusable([BARE, UNSOLVED]) is None
    assert unusable([REFUSED]) is None
