"""When a task is sound, and what is said when it is not."""

from __future__ import annotations

import pytest

from cloche.core.failures import Failure, failure
from cloche.core.outcome import AttemptOutcome, TrialOutcome
from cloche.experiment.check import checks, line


def trial(
    agent: str, repeat: int = 1, rewards: dict[str, float] | None = None, found: Failure | None = None
) -> TrialOutcome:
    attempt = AttemptOutcome(number=1, started_at=0, finished_at=1, failure=found, rewards=rewards)
    return TrialOutcome(
        name=f"{agent}-{repeat}", task="t", agent=agent, model=None, repeat=repeat, attempts=(attempt,)
    )


def test_a_sound_task() -> None:
    (check,) = checks([trial("oracle", 1, {"reward": 1.0}), trial("nop", 1, {"reward": 0.0})] * 2, repeats=2)
    assert check.sound
    assert line(check).split() == ["sound", "t", "oracle", "1", "×2", "·", "nop", "0", "×2"]


def test_several_rewards_count_by_their_mean() -> None:
    (check,) = checks([trial("oracle", 1, {"a": 1.0, "b": 1.0}), trial("nop", 1, {"a": 0.0, "b": 0.0})], 1)
    assert check.sound


@pytest.mark.fault("task-not-sound")
@pytest.mark.parametrize(
    ("oracle", "nop", "said"),
    [
        ({"reward": 0.5}, {"reward": 0.0}, "the reference solution scores 0.5, not 1 (#1)"),
        ({"reward": 1.0}, {"reward": 1.0}, "doing nothing scores 1, not 0 (#1)"),
        ({"reward": 1.0}, {"reward": -1.0}, "doing nothing scores -1, not 0 (#1)"),
        ({"reward": 1.0}, None, "nop #1: no verdict"),
    ],
)
def test_a_faulty_task_says_why(oracle: dict[str, float], nop: dict[str, float] | None, said: str) -> None:
    (check,) = checks([trial("oracle", 1, oracle), trial("nop", 1, nop)], 1)
    assert check.problems == [said]
    assert line(check).startswith("FAULTY")


def test_a_trial_that_is_missing_is_no_success() -> None:
    (check,) = checks([trial("oracle", 1, {"reward": 1.0})], repeats=1)
    assert check.problems == ["nop has 0 of 1 verdicts"]


def test_a_failure_is_told_even_with_a_reward() -> None:
    late = failure("agent/timeout", "not done after 5 s")
    (check,) = checks([trial("oracle", 1, {"reward": 1.0}, late), trial("nop", 1, {"reward": 0.0})], 1)
    assert check.problems == ["oracle #1: not done after 5 s [agent/timeout]"]
