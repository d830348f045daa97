"""The last screen of a run: the table, the line that accounts for everything, where the record is, a hint."""

from __future__ import annotations

from rich.console import Console

from cloche.report.summary import Summary
from cloche.report.table import print_table
from cloche.report.words import closing_line, hint_line


def print_report(
    console: Console,
    summary: Summary,
    *,
    folder: str,
    status: int,
    sandboxes_left: int | None,
    seconds: float | None,
) -> None:
    """Print it all; ``seconds`` is how long the run took, ``sandboxes_left`` ``None`` if nobody counted."""

    def say(text: str) -> None:
        console.print(f" {text}", markup=False, highlight=False, soft_wrap=True)

    print_table(console, summary)
    say(closing_line(summary, sandboxes_left=sandboxes_left, seconds=seconds))
    say(f"record: {folder}   open it: cloche report {folder}")
    if sandboxes_left:
        say("hint: cloche sandbox reap removes what is left")
    hint = hint_line(summary, status)
    if hint is not None:
        say(f"hint: {hint}")
