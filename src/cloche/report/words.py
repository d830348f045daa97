"""What stands in each place of the result table, as plain text with a tone. Pure.

Must never let colour alone carry a meaning: each cell has a symbol and its count or its code.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloche.core.failures import UNREACHABLE_HINT, Failure
from cloche.core.outcome import TrialOutcome
from cloche.core.verdict import INTERRUPTED
from cloche.report.numbers import NOTHING, UNKNOWN, count, duration, money, plain, plural, rate
from cloche.report.summary import Cell, Column, Summary, Totals, why_missing

_TIMEOUT = "agent/timeout"
_UNREACHABLE = "infra/model_connection"

SOLVED, PARTLY, UNSOLVED, MISSING = "●", "◐", "○", "◌"


@dataclass(frozen=True, slots=True)
class Words:
    """Text with a tone: ``good``, ``mixed``, ``bad``, ``missing`` or ``plain``."""

    text: str
    tone: str = "plain"


def code_words(failure: Failure | None, attempts: int, *, short: bool = False) -> str:
    """Return why there is no verdict: ``infra/model_rate_limit (2 attempts)``; ``not run`` for no reason."""
    if failure is None:
        return "not run"
    name = failure.code.partition("/")[2] if short else failure.code
    return name if attempts < 2 or short else f"{name} ({plural(attempts, 'attempt')})"


def cell_words(cell: Cell | None, *, short: bool = False) -> Words:
    """Return what a cell says. The n of ``● 2/2`` is the trials with a verdict; others are named after it."""
    if cell is None:
        return Words(NOTHING)
    missing = cell.missing
    if not cell.graded:
        first = missing[0]
        tries = sum(len(trial.attempts) for trial in missing)
        many = f" ×{len(missing)}" if len(missing) > 1 else ""
        return Words(f"{MISSING} {code_words(first.failure, tries, short=short)}{many}", "missing")
    symbol, tone = PARTLY, "mixed"
    if cell.solved == cell.graded:
        symbol, tone = SOLVED, "good"
    elif not cell.solved:
        symbol, tone = UNSOLVED, "bad"
    text = f"{symbol} {cell.solved}/{cell.graded}"
    return Words(f"{text} {MISSING} {len(missing)}" if missing else text, tone)


def solved_words(totals: Totals) -> str:
    """Return ``6/6`` for all or nothing, else count, share and interval."""
    if totals.solved in {0, totals.graded}:
        return f"{totals.solved:,}/{totals.graded:,}"
    return rate(totals.solved, totals.graded)


def token_words(totals: Totals) -> str:
    """Return ``41,203 / 3,118``, a dash where no model was asked."""
    if totals.usage is None:
        return NOTHING
    return f"{count(totals.usage.input_tokens)} / {count(totals.usage.output_tokens)}"


def cost_words(totals: Totals, column: Column, *, short: bool = False) -> str:
    """Return the cost; ``unknown`` with the reason, a dash where no model was asked."""
    if totals.usage is None:
        return NOTHING
    if totals.usage.cost_usd is not None:
        return money(totals.usage.cost_usd)
    return UNKNOWN if short or column.model is None else f"{UNKNOWN} (no price for {column.model})"


def total_rows(summary: Summary, *, short: bool = False) -> list[tuple[str, list[str]]]:
    """Return the rows below the tasks: their name and one text per column."""
    totals = [summary.totals[column] for column in summary.columns]
    pairs = list(zip(totals, summary.columns, strict=True))
    return [
        ("solved", [solved_words(item) for item in totals]),
        ("tokens in / out", [token_words(item) for item in totals]),
        ("cost", [cost_words(item, column, short=short) for item, column in pairs]),
        ("median steps", [plain(item.steps) for item in totals]),
        ("median wall", [NOTHING if item.wall_s is None else duration(item.wall_s) for item in totals]),
    ]


def missing_lines(trials: list[TrialOutcome], limit: int = 20) -> list[str]:
    """Return one line for each reason to have no verdict, at most ``limit`` and a rest.

    A line names the first trial with that reason, and how many more are like it.
    """
    alike: dict[tuple[str, str], list[TrialOutcome]] = {}
    for trial in trials:
        failure = why_missing(trial)
        if failure is not None:
            alike.setdefault((failure.code, failure.message), []).append(trial)
    lines = []
    for (code, message), (trial, *others) in alike.items():
        who = f"{trial.task} {Column(trial.agent, trial.model).label}"
        tries = f" ({plural(len(trial.attempts), 'attempt')})" if len(trial.attempts) > 1 else ""
        more = f" … and {len(others):,} more like it" if others else ""
        lines.append(f"{MISSING} {who} #{trial.repeat}: {message}  [{code}]{tries}{more}")
    if len(lines) > limit:
        rest = sum(len(group) for group in list(alike.values())[limit:])
        lines = [*lines[:limit], f"… and {rest:,} more"]
    if any(code == _UNREACHABLE for code, _ in alike):
        lines.append(f"hint: {UNREACHABLE_HINT}")
    return lines


def timeout_notes(trials: list[TrialOutcome]) -> list[str]:
    """Return a line about the agents that their time limit ended and that have a verdict all the same."""
    ended = sum(trial.graded and _out_of_time(trial) for trial in trials)
    if not ended:
        return []
    return [f"{plural(ended, 'agent')} ran out of time and {'was' if ended == 1 else 'were'} graded"]


def _out_of_time(trial: TrialOutcome) -> bool:
    if trial.last is None:
        return False
    failures = [trial.last.failure, *[step.failure for step in trial.last.step_outcomes]]
    return any(failure is not None and failure.code == _TIMEOUT for failure in failures)


def closing_line(summary: Summary, *, sandboxes_left: int | None, seconds: float | None) -> str:
    """Return the line that accounts for everything: verdicts, what is missing, attempts, what is left."""
    names = {"infra": "infrastructure"}
    missing = [f"{n:,} {names.get(domain, domain)}" for domain, n in sorted(summary.by_domain.items())]
    unstarted = summary.without_verdict - sum(summary.by_domain.values())
    parts = [
        plural(summary.whole.trials, "trial"),
        f"{summary.whole.graded:,} graded",
        *missing,
        *([f"{unstarted:,} not run"] if unstarted else []),
        plural(summary.whole.attempts, "attempt"),
    ]
    if sandboxes_left is not None:
        parts.append(f"{plural(sandboxes_left, 'sandbox', 'sandboxes')} left")
    return " · ".join([*parts, *([] if seconds is None else [duration(seconds)])])


def cost_notes(summary: Summary) -> list[str]:
    """Return one line per model whose cost is unknown for want of a price, with what to do."""
    models = {
        column.model
        for column, totals in summary.totals.items()
        if column.model is not None and totals.usage is not None and totals.usage.cost_usd is None
    }
    return [
        f"cost of {model} is unknown: give its price with --price {model}=IN/OUT (US$ per million tokens)"
        for model in sorted(models)
    ]


def hint_line(summary: Summary, status: int) -> str | None:
    """Return what to do about trials without a verdict; ``None`` if there are none."""
    missing = summary.without_verdict
    if not missing:
        return None
    what = f"{plural(missing, 'trial')} {'has' if missing == 1 else 'have'} no verdict"
    if status == INTERRUPTED:
        return f"interrupted, {what}; the same command on the same folder goes on (exit code {status})"
    return f"{what}; `cloche run` on the same folder tries again what has none (exit code {status})"
