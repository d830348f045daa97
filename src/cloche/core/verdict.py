"""What a whole run came to, as an exit status. Pure; the statuses are documented and stable."""

from __future__ import annotations

from collections.abc import Sequence

from cloche.core.outcome import TrialOutcome
from cloche.core.schedule import Stop

COMPLETE = 0
USAGE = 2
MISSING = 3
UNUSABLE = 5
INTERRUPTED = 130


def exit_status(trials: Sequence[TrialOutcome], stop: Stop = Stop.RUNNING) -> int:
    """Return 0 if every trial has a verdict, whatever it says of the agent.

    Else 130 if somebody stopped the run; 2 if every task was refused; 5 if the machine is the reason for
    all that is missing; 3 if some trial has no verdict.
    """
    missing = [trial for trial in trials if not trial.graded]
    if not missing:
        return COMPLETE
    if stop is not Stop.RUNNING:
        return INTERRUPTED
    if all(trial.refusal is not None for trial in trials):
        return USAGE
    unusable = [trial for trial in missing if trial.failure and trial.failure.code.startswith("doctor/")]
    started = [trial for trial in missing if trial.failure is not None]
    if unusable and len(unusable) == len(started):
        return UNUSABLE
    return MISSING
