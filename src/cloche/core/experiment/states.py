"""The states of a trial and the steps between them that are possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class TrialState(StrEnum):
    """Where a trial stands. ``WAITING``: an attempt failed, and the next one is not due yet."""

    PLANNED = "planned"
    QUEUED = "queued"
    WAITING = "waiting"
    STARTING = "starting"
    SETUP = "setup"
    RUNNING = "running"
    VERIFYING = "verifying"
    COLLECTING = "collecting"
    DONE = "done"

    @property
    def active(self) -> bool:
        """Whether an attempt is on: it holds permits and may have a sandbox."""
        return self in ACTIVE


ACTIVE = frozenset(
    {
        TrialState.STARTING,
        TrialState.SETUP,
        TrialState.RUNNING,
        TrialState.VERIFYING,
        TrialState.COLLECTING,
    }
)

_ENDS = frozenset({TrialState.WAITING, TrialState.DONE})

ALLOWED: Mapping[TrialState, frozenset[TrialState]] = MappingProxyType(
    {
        TrialState.PLANNED: frozenset({TrialState.QUEUED, TrialState.DONE}),
        TrialState.QUEUED: frozenset({TrialState.STARTING, TrialState.DONE}),
        TrialState.WAITING: frozenset({TrialState.QUEUED, TrialState.DONE}),
        TrialState.STARTING: _ENDS | {TrialState.SETUP},
        TrialState.SETUP: _ENDS | {TrialState.RUNNING},
        # evidence may be collected before the verifier or after it; a task in steps begins anew with setup
        TrialState.RUNNING: _ENDS | {TrialState.VERIFYING, TrialState.COLLECTING},
        TrialState.VERIFYING: _ENDS | {TrialState.COLLECTING, TrialState.SETUP},
        TrialState.COLLECTING: _ENDS | {TrialState.VERIFYING, TrialState.SETUP},
        TrialState.DONE: frozenset(),
    }
)


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of a trial, for its history."""

    at_s: float
    before: TrialState
    after: TrialState
    cause: str

    def __str__(self) -> str:
        return f"{self.at_s:.3f} {self.before} → {self.after}: {self.cause}"


class ImpossibleTransition(Exception):
    """A trial cannot go there from where it is: a fault of ours, told with the trial's whole history."""

    def __init__(self, name: str, after: str, cause: str, history: tuple[Step, ...]) -> None:
        """Tell the trial's whole history."""
        lines = "\n".join(f"  {step}" for step in history) or "  (nothing yet)"
        super().__init__(f"{name} cannot become {after} ({cause}); its history:\n{lines}")
        self.name = name
        self.after = after
        self.history = history
