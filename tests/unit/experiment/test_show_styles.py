"""How a run is shown: live, in lines, as records, not at all; data on stdout, the rest on stderr."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from rich.console import Console

from cloche.core.errors import ClocheError, ImageError
from cloche.core.failures import failure
from cloche.core.outcome import AttemptOutcome, TrialOutcome
from cloche.experiment import show as show_module
from cloche.experiment.show import Show, Style
from cloche.report.progress import Progress

TRIAL = TrialOutcome(
    name="t",
    task="csv",
    agent="loop",
    model="m",
    repeat=2,
    attempts=(AttemptOutcome(number=1, started_at=0, finished_at=1, rewards={"reward": 1.0}),),
)


class Screen:
    """A show with its two streams."""

    def __init__(self, style: Style) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        console = Console(file=self.err, force_terminal=style is Style.LIVE, width=100)
        self.errors: list[ClocheError] = []
        self.show = Show(style, Progress(total=2), console, self.out, self.errors.append)


@pytest.mark.parametrize("style", list(Style))
async def test_trials_are_counted_in_every_style(style: Style) -> None:
    screen = Screen(style)
    async with screen.show.showing():
        screen.show.watch().trial_done(TRIAL)
        screen.show.known(TRIAL)
    assert (screen.show.progress.done, screen.show.progress.fresh) == (2, 1)
    if style is not Style.JSON:
        assert screen.out.getvalue() == ""


async def test_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_module, "RECORD_EVERY_S", 0.01)
    screen = Screen(Style.JSON)
    screen.show.emit("launch", {"trials": 2})
    async with screen.show.showing():
        await asyncio.sleep(0.05)
    screen.show.emit("done", {"status": 0})
    records = [json.loads(line) for line in screen.out.getvalue().splitlines()]
    assert [record["type"] for record in records[:2]] == ["launch", "progress"]
    assert records[1]["trials"] == 2
    assert records[-1] == {"type": "done", "status": 0}
    assert screen.err.getvalue() == ""


async def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_module, "LINE_EVERY_S", 0.01)
    screen = Screen(Style.LINES)
    async with screen.show.showing():
        await asyncio.sleep(0.05)
    assert "0 done · 0 running · 2 queued" in screen.err.getvalue().splitlines()[0]
    screen.show.emit("done", {"status": 0})
    assert screen.out.getvalue() == ""


@pytest.mark.parametrize(
    ("style", "shown"), [(Style.LINES, True), (Style.LIVE, True), (Style.QUIET, False), (Style.JSON, False)]
)
def test_another_attempt_is_said(style: Style, shown: bool) -> None:
    screen = Screen(style)
    screen.show.watch().attempt_failed(TRIAL, failure("infra/sandbox_lost", "gone [red]"), 1.5)
    line = "csv loop·m #2: gone [red] [infra/sandbox_lost]; again in 1.5 s"
    assert (line in screen.err.getvalue()) == shown


def test_trouble_goes_above_the_live_view_and_else_as_all_commands_show_it() -> None:
    error = ImageError("building failed\n  step 2", hint="look at the log", where="x.log")
    plain, live = Screen(Style.QUIET), Screen(Style.LIVE)
    plain.show.watch().trouble(error)
    live.show.watch().trouble(error)
    assert plain.errors == [error]
    assert live.errors == []
    assert [line.rstrip() for line in live.err.getvalue().splitlines()] == [
        "error: building failed",
        "  step 2  [infra/image]",
        "  x.log",
        "hint: look at the log",
    ]
