"""From the outcomes of trials to what a table says: cells, columns and totals. Pure.

Must never count a trial without a verdict as a failure of the agent, nor leave it out unsaid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloche.core.errors import Domain
from cloche.core.failures import Failure
from cloche.core.outcome import TrialOutcome, Usage, add_usage
from cloche.report.numbers import median


@dataclass(frozen=True, slots=True)
class Column:
    """One agent with one model, or with none."""

    agent: str
    model: str | None

    @property
    def label(self) -> str:
        """``loop·model`` or just the agent's name."""
        return self.agent if self.model is None else f"{self.agent}·{self.model}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One task in one column: its trials in the order of their repeats."""

    trials: tuple[TrialOutcome, ...]

    @property
    def graded(self) -> int:
        """How many have a verdict."""
        return sum(trial.graded for trial in self.trials)

    @property
    def solved(self) -> int:
        """How many were solved."""
        return sum(trial.solved for trial in self.trials)

    @property
    def missing(self) -> tuple[TrialOutcome, ...]:
        """Those without a verdict."""
        return tuple(trial for trial in self.trials if not trial.graded)


@dataclass(frozen=True, slots=True)
class Totals:
    """All trials of one column, or of the whole run. ``wall_s`` and ``steps``: medians of the graded ones."""

    trials: int
    graded: int
    solved: int
    attempts: int
    usage: Usage | None
    steps: float | None
    wall_s: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a table shows. ``cells`` is keyed by (task, column)."""

    tasks: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: dict[tuple[str, Column], Cell]
    totals: dict[Column, Totals]
    whole: Totals
    by_domain: dict[Domain, int]

    @property
    def without_verdict(self) -> int:
        """How many trials have no verdict."""
        return self.whole.trials - self.whole.graded


def wall_s(trial: TrialOutcome) -> float | None:
    """Return how long the attempts took together, the waits between them left out."""
    if not trial.attempts:
        return None
    return sum(attempt.finished_at - attempt.started_at for attempt in trial.attempts)


def why_missing(trial: TrialOutcome) -> Failure | None:
    """Return why a trial has no verdict; ``None`` for one that has a verdict or was never started."""
    return None if trial.graded else trial.failure


def _totals(trials: Sequence[TrialOutcome]) -> Totals:
    graded = [trial for trial in trials if trial.graded]
    last = [trial.last for trial in graded if trial.last is not None]
    return Totals(
        trials=len(trials),
        graded=len(graded),
        solved=sum(trial.solved for trial in trials),
        attempts=sum(len(trial.attempts) for trial in trials),
        usage=add_usage([usage for trial in trials if (usage := trial.usage) is not None]),
        steps=median([attempt.steps for attempt in last if attempt.steps is not None]),
        wall_s=median([seconds for trial in graded if (seconds := wall_s(trial)) is not None]),
    )


def _domain_counts(trials: Iterable[TrialOutcome]) -> dict[Domain, int]:
    counts: dict[Domain, int] = {}
    for trial in trials:
        reason = why_missing(trial)
        if reason is not None:
            counts[reason.domain] = counts.get(reason.domain, 0) + 1
    return counts


def summarise(trials: Sequence[TrialOutcome]) -> Summary:
    """Group trials by task and by agent with model, both in the order in which they first come."""
    cells: dict[tuple[str, Column], list[TrialOutcome]] = {}
    columns: dict[Column, list[TrialOutcome]] = {}
    for trial in trials:
        column = Column(trial.agent, trial.model)
        cells.setdefault((trial.task, column), []).append(trial)
        columns.setdefault(column, []).append(trial)
    return Summary(
        tasks=tuple(dict.fromkeys(trial.task for trial in trials)),
        columns=tuple(columns),
        cells={
            key: Cell(tuple(sorted(group, key=lambda trial: trial.repeat))) for key, group in cells.items()
        },
        totals={column: _totals(group) for column, group in columns.items()},
        whole=_totals(trials),
        by_domain=_domain_counts(trials),
    )
