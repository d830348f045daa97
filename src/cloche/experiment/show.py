"""How a run is shown while it goes on: a live view, a line now and then, JSON records, or nothing.

Data goes to standard output, everything else to standard error. Must never hold the run up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from rich.console import Console

from cloche.core.errors import ClocheError
from cloche.core.failures import Failure
from cloche.core.outcome import TrialOutcome
from cloche.experiment.runner import Runner, Watch
from cloche.report.live import LiveView
from cloche.report.numbers import duration, plural
from cloche.report.progress import Progress, plain_line, record
from cloche.report.summary import Column

LINE_EVERY_S = 5.0
RECORD_EVERY_S = 2.0


class Style(StrEnum):
    """What is shown while a run goes on."""

    LIVE = "live"
    LINES = "lines"
    JSON = "json"
    QUIET = "quiet"


@dataclass(slots=True)
class Show:
    """One way to show one run."""

    style: Style
    progress: Progress
    console: Console
    out: TextIO
    show_error: Callable[[ClocheError], None]
    began_s: float = 0.0

    def watch(self) -> Watch:
        """Return what the runner tells its news to."""
        return Watch(
            trial_done=self._trial_done,
            attempt_failed=self._attempt_failed,
            trouble=self.trouble,
            changed=self._changed,
            said=self._said,
        )

    def say(self, text: str) -> None:
        """Write a line to standard error; above the live view where there is one."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def trouble(self, error: ClocheError) -> None:
        """Show an error as all commands do; above the live view where there is one."""
        if self.style is not Style.LIVE:
            self.show_error(error)
            return
        self.say(f"error: {error.message}  [{error.code}]")
        if error.where:
            self.say(f"  {error.where}")
        if error.hint:
            self.say(f"hint: {error.hint}")

    def known(self, trial: TrialOutcome) -> None:
        """Count a trial that needs not be run."""
        self.progress.add(trial, fresh=False)

    def _trial_done(self, trial: TrialOutcome) -> None:
        self.progress.add(trial)

    def _attempt_failed(self, trial: TrialOutcome, failure: Failure, wait_s: float) -> None:
        if self.style in {Style.LIVE, Style.LINES}:
            who = f"{trial.task} {Column(trial.agent, trial.model).label} #{trial.repeat}"
            self.say(f"{who}: {failure.message} [{failure.code}]; again in {duration(wait_s)}")

    def _said(self, line: str) -> None:
        if self.style in {Style.LIVE, Style.LINES}:
            self.say(line)

    def _changed(self, runner: Runner) -> None:
        progress = self.progress
        progress.running = runner.running
        progress.waiting = runner.waiting
        progress.stop = runner.stop
        tasks = runner.preparing
        progress.preparing = f"preparing the images of {plural(tasks, 'task')}" if tasks else ""

    def emit(self, kind: str, values: dict[str, object]) -> None:
        """Write one JSON record to standard output, where that is asked for."""
        if self.style is Style.JSON:
            self.out.write(json.dumps({"type": kind, **values}) + "\n")
            self.out.flush()

    def _tell(self) -> None:
        elapsed_s = time.monotonic() - self.began_s
        if self.style is Style.JSON:
            self.emit("progress", record(self.progress, elapsed_s))
        else:
            self.say(plain_line(self.progress, elapsed_s))

    async def _ticking(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self._tell()

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        """Show the run for as long as the block lasts."""
        self.began_s = time.monotonic()
        if self.style is Style.LIVE:
            with LiveView(self.console, self.progress, time.monotonic):
                yield
            return
        if self.style is Style.QUIET:
            yield
            return
        every_s = RECORD_EVERY_S if self.style is Style.JSON else LINE_EVERY_S
        ticker = asyncio.create_task(self._ticking(every_s))
        try:
            yield
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
