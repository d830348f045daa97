"""The result table on a terminal: puts words into columns, and columns into as many blocks as fit.

Must never cut a figure: what does not fit goes into a further block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cloche.report.summary import Summary
from cloche.report.words import Words, cell_words, cost_notes, missing_lines, timeout_notes, total_rows

_STYLES = {
    "good": "green",
    "mixed": "yellow",
    "bad": "red",
    "missing": "magenta",
    "plain": "",
    "head": "bold",
}
_GAP = 3


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of words under a head; ``names`` is the first column, ``columns`` the others, head included."""

    names: list[str]
    columns: list[list[Words]]

    @property
    def name_width(self) -> int:
        """Terminal cells of the first column."""
        return max(map(cell_len, self.names))

    def width(self, column: int) -> int:
        """Terminal cells of a column."""
        return max(cell_len(words.text) for words in self.columns[column])


def grid(summary: Summary, *, short: bool = False) -> Grid:
    """Lay out the tasks' rows, then the totals'."""
    rows = total_rows(summary, short=short)
    columns = []
    for index, column in enumerate(summary.columns):
        cells = [cell_words(summary.cells.get((task, column)), short=short) for task in summary.tasks]
        columns.append([Words(column.label, "head"), *cells, *[Words(texts[index]) for _, texts in rows]])
    return Grid(["task", *summary.tasks, *[name for name, _ in rows]], columns)


def blocks(layout: Grid, width: int) -> list[list[int]]:
    """Divide the columns into groups that fit ``width`` together with the names, each at least one column."""
    groups: list[list[int]] = []
    used = 0
    for index in range(len(layout.columns)):
        need = layout.width(index) + _GAP
        if not groups or used + need > width:
            groups.append([])
            used = 1 + layout.name_width
        groups[-1].append(index)
        used += need
    return groups


def _line(name: str, words: Sequence[Words], widths: Sequence[int], name_width: int, *, head: bool) -> Text:
    line = Text(" ", no_wrap=True, overflow="ignore", end="")
    line.append(name.ljust(name_width), style="bold" if head else "")
    for item, width in zip(words, widths, strict=True):
        line.append(" " * _GAP)
        line.append(item.text, style=_STYLES[item.tone])
        line.append(" " * (width - cell_len(item.text)))
    line.rstrip()
    return line


def fit(summary: Summary, width: int) -> tuple[Grid, list[list[int]]]:
    """Choose full words if all columns then fit side by side, else short ones, in blocks where need be."""
    layout = grid(summary)
    groups = blocks(layout, width)
    if len(groups) > 1:
        layout = grid(summary, short=True)
        groups = blocks(layout, width)
    return layout, groups


def print_table(console: Console, summary: Summary) -> None:
    """Print the table, and below it why trials have no verdict and models no cost."""
    layout, groups = fit(summary, console.width)
    width = layout.name_width
    for group in groups:
        widths = [layout.width(index) for index in group]
        for row, name in enumerate(layout.names):
            words = [layout.columns[index][row] for index in group]
            _print(console, _line(name, words, widths, width, head=row == 0))
        console.print()
    trials = [trial for cell in summary.cells.values() for trial in cell.trials]
    lines = [*missing_lines(trials), *timeout_notes(trials), *cost_notes(summary)]
    for line in lines:
        console.print(Text(f" {line}"), soft_wrap=True)
    if lines:
        console.print()


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True)
