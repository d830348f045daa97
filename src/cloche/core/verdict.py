"""What a whole run came to, as an exit status. Pure; the statuses are documented and stable."""

from __future__ import annotations

from collections.abc import Sequence

from cloche.core.failures import Failure
from cloche.core.outcome import TrialOutcome
from cloche.core.schedule import Stop

COMPLETE = 0
USAGE = 2
MISSING = 3
EXHAUSTED = 4
UNUSABLE = 5
INTERRUPTED = 130


def unusable(trials: Sequence[TrialOutcome]) -> Failure | None:
    """Return why this machine cannot run any of it; ``None`` if some trial shows that it can."""
    reasons = [trial.failure for trial in trials if trial.refusal is None]
    if not reasons or any(trial.graded for trial in trials):
        return None
    if all(reason is not None and reason.code.startswith("doctor/") for reason in reasons):
        return reasons[0]
    return None


def exit_status(
    trials: Sequence[TrialOutcome], stop: Stop = Stop.RUNNING, exhausted: Failure | None = None
) -> int:
    """Return 0 if every trial has a verdict, whatever it says of the agent.

    Else 4 if a budget was ``exhausted``; 130 if somebody stopped the run; 2 if every task was refused; 5 if
    this machine cannot run any; 3 if some trial has no verdict.
    """
    if all(trial.graded for trial in trials):
        return COMPLETE
    if exhausted is not None:
        return EXHAUSTED
    if stop is not Stop.RUNNING:
        return INTERRUPTED
    if all(trial.refusal is not None for trial in trials):
        return USAGE
    return MISSING if unusable(trials) is None else UNUSABLE
