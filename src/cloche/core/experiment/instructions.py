"""What the core asks of its shell. Each is to be carried out once, in order."""

from __future__ import annotations

from dataclasses import dataclass

from cloche.core.failures import Failure


@dataclass(frozen=True, slots=True)
class Instruction:
    """Something to do."""


@dataclass(frozen=True, slots=True)
class Start(Instruction):
    """Make this attempt; its permits are taken. Answer with ``Reached`` and, once, with ``Ended``."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Cancel(Instruction):
    """End this attempt at once; ``Ended`` is still owed."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class TryAgain(Instruction):
    """Tell that the attempt failed and another follows in ``wait_s`` seconds. Nothing else to do."""

    name: str
    failure: Failure
    wait_s: float


@dataclass(frozen=True, slots=True)
class Finish(Instruction):
    """The trial is over: tell and record it. ``unrun`` is why it was given up without an attempt."""

    name: str
    unrun: Failure | None = None


@dataclass(frozen=True, slots=True)
class Hold(Instruction):
    """Tell that nothing is started on this resource until ``until_s``, and why."""

    resource: str
    until_s: float
    failure: Failure


@dataclass(frozen=True, slots=True)
class Release(Instruction):
    """Tell that the resource works again."""

    resource: str


@dataclass(frozen=True, slots=True)
class Exhausted(Instruction):
    """Tell that a budget is used up: nothing more is started."""

    failure: Failure
