"""What an operator sets of the service. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Bounds of one service; times in seconds.

    ``starts_at_once`` sandboxes are being made at a time and ``queued`` more may wait for that.
    ``look_s`` lies between two looks at the driver's listing, which show what ended by itself.
    ``remembered`` ended sandboxes and ``events`` changes of state are kept; ``handles`` connections to
    guests are open at once.
    """

    starts_at_once: int = 32
    queued: int = 20_000
    look_s: float = 1.0
    remembered: int = 10_000
    events: int = 50_000
    handles: int = 8_000
