"""How far a run is being stopped, and what a signal means for that. Pure: nothing is stopped here."""

from __future__ import annotations

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
