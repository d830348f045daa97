"""The live view: a few lines of a terminal, drawn again a few times a second. Must never scroll."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cloche.report.progress import Progress, view


class LiveView:
    """A region of the terminal that shows ``view`` a few times a second, as a context manager."""

    def __init__(self, console: Console, progress: Progress, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds; the view counts from when it was made."""
        self._progress = progress
        self._clock = clock
        self._began_s = clock()
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _render(self) -> Text:
        lines = view(self._progress, self._clock() - self._began_s)
        return Text("\n".join(f" {line}" for line in lines))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
