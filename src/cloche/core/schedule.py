"""Which trial starts next, and what a signal means. Pure: the time is told, nothing is started here.

Must never let a trial that waits for another attempt hold a place among the running.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import IntEnum


class Stop(IntEnum):
    """How far a run is being stopped; it only ever goes up."""

    RUNNING = 0
    DRAINING = 1
    CANCELLING = 2
    KILLING = 3


def after_interrupt(stop: Stop) -> Stop:
    """Ctrl-C: once drains, twice cancels, three times kills."""
    return Stop(min(stop + 1, Stop.KILLING))


def after_terminate(stop: Stop) -> Stop:
    """SIGTERM: cancels at once, kills when it was already cancelling."""
    return Stop.CANCELLING if stop < Stop.CANCELLING else Stop.KILLING


@dataclass(slots=True)
class Queue:
    """Names in the order they came, each with the time before which it must not start.

    Fresh trials (ready at once) keep their order; a waiting retry that is due goes before them, since
    its cell is otherwise done and its image warm.
    """

    limit: int
    running: set[str] = field(default_factory=set)
    stop: Stop = Stop.RUNNING
    _fresh: list[str] = field(default_factory=list)
    _next: int = 0
    _waiting: list[tuple[float, str]] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Queue a trial that may start at once."""
        self._fresh.append(name)

    def wait(self, name: str, until_s: float) -> None:
        """Queue another attempt, not before ``until_s``; its place is free meanwhile."""
        self.running.discard(name)
        heapq.heappush(self._waiting, (until_s, name))

    def done(self, name: str) -> None:
        """Free the place of a trial that is over; raises KeyError for one that was not running."""
        self.running.remove(name)

    @property
    def queued(self) -> int:
        """How many have not started, waiting retries included."""
        return len(self._fresh) - self._next + len(self._waiting)

    @property
    def waiting(self) -> int:
        """How many wait for another attempt."""
        return len(self._waiting)

    def take(self, now_s: float) -> list[str]:
        """Return the trials to start now and count them as running; none once the run is being stopped."""
        started: list[str] = []
        while self.stop is Stop.RUNNING and len(self.running) < self.limit:
            if self._waiting and self._waiting[0][0] <= now_s:
                name = heapq.heappop(self._waiting)[1]
            elif self._next < len(self._fresh):
                name = self._fresh[self._next]
                self._next += 1
            else:
                break
            self.running.add(name)
            started.append(name)
        return started

    def next_due_s(self) -> float | None:
        """Return when the next waiting retry is due, if the run goes on and one waits."""
        if self.stop is not Stop.RUNNING or not self._waiting:
            return None
        return self._waiting[0][0]

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing will start."""
        return not self.running and (self.stop is not Stop.RUNNING or self.queued == 0)
