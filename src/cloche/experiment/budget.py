"""Budgets as people write them: ``50usd``, ``$50``, ``2Mtokens``, ``90min``. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from cloche.core.errors import InvalidInput
from cloche.core.experiment.policy import Budget

_TEXT = re.compile(r"(?P<dollar>\$)?(?P<number>[0-9]+(?:[.,_][0-9]+)*)\s*(?P<unit>[a-zA-Z]*)")
_SECONDS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_TOKENS = {"tokens": 1, "token": 1, "ktokens": 10**3, "mtokens": 10**6, "gtokens": 10**9}


def parse_budget(texts: Iterable[str]) -> Budget:
    """Return the budget that these limits make up. Raises InvalidInput for what is none, or said twice."""
    found: dict[str, float] = {}
    for text in texts:
        kind, value = _parse(text)
        if kind in found:
            raise InvalidInput(f"--budget {text}: that kind of limit is given twice")
        found[kind] = value
    return Budget(
        cost_usd=found.get("cost"),
        tokens=None if "tokens" not in found else int(found["tokens"]),
        wall_s=found.get("wall"),
    )


def _parse(text: str) -> tuple[str, float]:
    match = _TEXT.fullmatch(text.strip())
    unit = match["unit"].lower() if match else ""
    value = float(match["number"].replace("_", "").replace(",", "")) if match else 0.0
    if match and math.isfinite(value) and value > 0:
        if (match["dollar"] and not unit) or (not match["dollar"] and unit == "usd"):
            return "cost", value
        if not match["dollar"] and unit in _TOKENS:
            return "tokens", value * _TOKENS[unit]
        if not match["dollar"] and unit in _SECONDS:
            return "wall", value * _SECONDS[unit]
    raise InvalidInput(f"{text!r} is no budget", hint="such as 50usd, 2Mtokens or 3h; repeat for several")
