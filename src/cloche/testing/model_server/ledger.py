"""What the scripted server served, to the token, so that somebody else's count can be checked against it.

Must never count a request twice, nor call usage reported before its bytes were handed to the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

RECENT_LIMIT = 1000


@dataclass(slots=True)
class Totals:
    """Sums over requests.

    ``refused`` got an HTTP error. ``reported`` got usage, and the three token figures add that up.
    ``unreported`` are the others: answers without usage, broken off, or left by the client. ``in_flight``,
    ``refused``, ``reported`` and ``unreported`` make up ``requests``.
    """

    requests: int = 0
    in_flight: int = 0
    refused: int = 0
    reported: int = 0
    unreported: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request that is over. ``fault`` is the kind of fault that was injected; ``status`` the HTTP one."""

    model: str
    conversation: str
    turn: int
    status: int
    reported: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    fault: str = ""


@dataclass(slots=True)
class Ledger:
    """Totals of everything, by model and by conversation (``model/script``), and the latest requests."""

    total: Totals = field(default_factory=Totals)
    by_model: dict[str, Totals] = field(default_factory=dict)
    by_conversation: dict[str, Totals] = field(default_factory=dict)
    recent: deque[Entry] = field(default_factory=lambda: deque(maxlen=RECENT_LIMIT))

    def begin(self, model: str, conversation: str) -> Callable[[Entry], None]:
        """Note that a request came, and return what is to be called, once, when it is over."""
        rows = (
            self.total,
            self.by_model.setdefault(model, Totals()),
            self.by_conversation.setdefault(f"{model}/{conversation}", Totals()),
        )
        for row in rows:
            row.requests += 1
            row.in_flight += 1

        def finish(entry: Entry) -> None:
            self.recent.append(entry)
            for row in rows:
                _add(row, entry)

        return finish

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as what ``GET /ledger`` sends."""
        return {
            "total": asdict(self.total),
            "by_model": {name: asdict(row) for name, row in sorted(self.by_model.items())},
            "by_conversation": {name: asdict(row) for name, row in sorted(self.by_conversation.items())},
            "recent": [asdict(entry) for entry in self.recent],
        }


def _add(row: Totals, entry: Entry) -> None:
    row.in_flight -= 1
    if entry.status != 200:
        row.refused += 1
    elif not entry.reported:
        row.unreported += 1
    else:
        row.reported += 1
        row.prompt_tokens += entry.prompt_tokens
        row.completion_tokens += entry.completion_tokens
        row.cached_tokens += entry.cached_tokens
