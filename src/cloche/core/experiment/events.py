"""What can happen to an experiment. Each event has its time: seconds of one clock that never goes back."""

from __future__ import annotations

from dataclasses import dataclass

from cloche.core.experiment.states import TrialState
from cloche.core.failures import Failure
from cloche.core.outcome import Usage
from cloche.core.schedule import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """What the core must know of a trial: who shares limits with it. ``exclusive``: it runs alone."""

    name: str
    agent: str
    model: str | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened at ``at_s``."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """A trial is part of the experiment. ``attempts`` were made before; ``done``: it needs no more."""

    trial: TrialSpec
    attempts: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Event):
    """What the trials need (their image) is there."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unready(Event):
    """What the trials need cannot be had: each ends with this failure, which counts as an attempt."""

    names: tuple[str, ...]
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached(Event):
    """An attempt has got to a phase."""

    name: str
    number: int
    state: TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Event):
    """An attempt is over and its sandbox is gone.

    ``graded``: it has a verdict. ``usage`` is what it spent, ``None`` when no model was asked.
    """

    name: str
    number: int
    failure: Failure | None = None
    graded: bool = False
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed(Event):
    """Time has passed: what was due may be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted(Event):
    """Somebody asked to stop so far."""

    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized(Event):
    """The number of trials that may run at once was changed."""

    concurrency: int
