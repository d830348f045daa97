"""Running totals of a run, and the lines and records that show them. Pure.

Their cost must not grow with the number of trials: no trial is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloche.core.outcome import TrialOutcome
from cloche.core.schedule import Stop
from cloche.report.numbers import NOTHING, UNKNOWN, count, duration, money, percent, plural, rate

_BAR_CELLS = 18
_STOP_WORDS = {
    Stop.RUNNING: "",
    Stop.DRAINING: "draining: running trials finish, nothing new starts (Ctrl-C again cancels them)",
    Stop.CANCELLING: "cancelling: deleting sandboxes (Ctrl-C again kills)",
    Stop.KILLING: "killing",
}


@dataclass(slots=True)
class Progress:
    """Running totals. ``preparing`` says what is done before trials can start, such as building images."""

    total: int
    workers: int = 0
    done: int = 0
    graded: int = 0
    solved: int = 0
    infra: int = 0
    other: int = 0
    running: int = 0
    waiting: int = 0
    attempts: int = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cost_usd: float | None = 0.0
    asked_a_model: bool = False
    stop: Stop = Stop.RUNNING
    preparing: str = ""
    fresh: int = 0

    def add(self, trial: TrialOutcome, *, fresh: bool = True) -> None:
        """Count a trial that is over; ``fresh`` is False for one that an earlier run did."""
        self.done += 1
        self.fresh += fresh
        self.attempts += len(trial.attempts)
        self.graded += trial.graded
        self.solved += trial.solved
        if not trial.graded and trial.failure is not None:
            infra = trial.failure.domain == "infra"
            self.infra += infra
            self.other += not infra
        usage = trial.usage
        if usage is not None:
            self.asked_a_model = True
            self.input_tokens = _plus(self.input_tokens, usage.input_tokens)
            self.output_tokens = _plus(self.output_tokens, usage.output_tokens)
            known = self.cost_usd is not None and usage.cost_usd is not None
            self.cost_usd = (self.cost_usd or 0.0) + (usage.cost_usd or 0.0) if known else None

    @property
    def queued(self) -> int:
        """How many have not started, those that wait for another attempt included."""
        return self.total - self.done - self.running

    def eta_s(self, elapsed_s: float) -> float | None:
        """Return an estimate of the rest from this run's own rate; ``None`` before the first trial ended."""
        if not self.fresh or self.done >= self.total:
            return None
        return elapsed_s / self.fresh * (self.total - self.done)


def _plus(total: int | None, value: int | None) -> int | None:
    return None if total is None or value is None else total + value


def bar(done: int, total: int, cells: int = _BAR_CELLS) -> str:
    """Return a bar that is full only when all is done."""
    full = cells if total == 0 else done * cells // total
    return "█" * full + "░" * (cells - full)


def state_words(progress: Progress) -> str:
    """Return ``6 done · 2 running · 16 queued (1 waiting to be tried again)``."""
    words = f"{progress.done:,} done · {progress.running:,} running · {progress.queued:,} queued"
    return f"{words} ({progress.waiting:,} waiting to be tried again)" if progress.waiting else words


def state_line(progress: Progress) -> str:
    """Return ``24 trials  ███░░  6 done · 2 running · 16 queued``."""
    return f"{plural(progress.total, 'trial')}  {bar(progress.done, progress.total)}  {state_words(progress)}"


def result_parts(progress: Progress, elapsed_s: float) -> list[str]:
    """Return what has come out so far: solved with interval, infrastructure, tokens, cost, estimate."""
    parts = [f"solved {rate(progress.solved, progress.graded)}"]
    share = f" ({percent(progress.infra / progress.done, 1)})" if progress.infra else ""
    parts.append(f"infra {progress.infra:,}{share}")
    if progress.other:
        parts.append(f"{progress.other:,} otherwise without verdict")
    if progress.asked_a_model:
        parts.append(f"tokens {count(progress.input_tokens)} in / {count(progress.output_tokens)} out")
        cost = money(progress.cost_usd)
        parts.append(f"cost {UNKNOWN}" if cost == UNKNOWN else cost)
    eta_s = progress.eta_s(elapsed_s)
    parts.append(f"ETA {NOTHING if eta_s is None else duration(eta_s)}")
    return parts


def view(progress: Progress, elapsed_s: float) -> list[str]:
    """Return the lines of the live view."""
    lines = [state_line(progress), "   ".join(result_parts(progress, elapsed_s))]
    note = _STOP_WORDS[progress.stop] or progress.preparing
    return [*lines, note] if note else lines


def plain_line(progress: Progress, elapsed_s: float) -> str:
    """Return one line for a log: where the run stands, and what has come out so far."""
    return f"{duration(elapsed_s)}: {state_words(progress)}; {'; '.join(result_parts(progress, elapsed_s))}"


def record(progress: Progress, elapsed_s: float) -> dict[str, object]:
    """Return the same as data."""
    return {
        "elapsed_s": round(elapsed_s, 3),
        "trials": progress.total,
        "done": progress.done,
        "running": progress.running,
        "queued": progress.queued,
        "waiting": progress.waiting,
        "graded": progress.graded,
        "solved": progress.solved,
        "infra": progress.infra,
        "attempts": progress.attempts,
        "input_tokens": progress.input_tokens,
        "output_tokens": progress.output_tokens,
        "cost_usd": progress.cost_usd,
        "stop": progress.stop.name.lower(),
    }
