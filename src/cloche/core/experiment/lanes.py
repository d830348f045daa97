"""The queue: one lane for each agent and model, so that a lane without permits holds up no other.

Within a lane and between lanes the order is the plan's; a retry that is due goes before fresh trials, since
its task's image is warm. Must never hold a trial twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from cloche.core.experiment.events import TrialSpec

Lane = tuple[str, str | None, bool]
_Place = tuple[int, int, str]


class Lanes:
    """Names that may be started, each with its place in the plan."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[_Place]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, trial: TrialSpec, place: int, *, again: bool) -> None:
        """Put a trial in; ``again``: before all fresh ones."""
        lane = self._lanes.setdefault((trial.agent, trial.model, trial.exclusive), [])
        heapq.heappush(lane, (0 if again else 1, place, trial.name))
        self._size += 1

    def take(self, free: Callable[[str], bool]) -> str | None:
        """Take out the first trial whose lane is free; those that run alone only when no other can start.

        ``free`` is asked for the first trial of a lane, and its answer must hold for the lane.
        """
        for exclusive in (False, True):
            heads = sorted(
                (lane[0], key) for key, lane in self._lanes.items() if lane and key[2] is exclusive
            )
            for place, key in heads:
                if free(place[2]):
                    heapq.heappop(self._lanes[key])
                    self._size -= 1
                    return place[2]
        return None

    def drop(self, unwanted: Callable[[TrialSpec], bool], spec: Callable[[str], TrialSpec]) -> list[str]:
        """Take out and return every trial that is not wanted any more, in order of the lanes."""
        dropped: list[str] = []
        for lane in self._lanes.values():
            gone = [place for place in lane if unwanted(spec(place[2]))]
            if gone:
                lane[:] = [place for place in lane if place not in set(gone)]
                heapq.heapify(lane)
                dropped += [name for _, _, name in sorted(gone)]
        self._size -= len(dropped)
        return dropped

    def names(self) -> Iterator[str]:
        """Yield all names, in no order."""
        for lane in self._lanes.values():
            yield from (name for _, _, name in lane)
