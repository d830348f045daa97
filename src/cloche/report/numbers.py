"""How a figure is shown: pure functions from numbers to words.

Must never show what is unknown as 0, nor a rate without its n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "unknown"
NOTHING = "–"
_Z_95 = 1.959963984540054
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def wilson(successes: int, n: int, z: float = _Z_95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, in 0..1 (Wilson 1927; 95 % by default).

    Raises ValueError if ``successes`` is not in 0..n. Without observations it is the whole range.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no proportion")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    scale = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return low, high


def percent(share: float, digits: int = 0) -> str:
    """Return ``55 %``; never ``100 %`` or ``0 %`` for what is not exactly all or nothing."""
    value = round(share * 100, digits)
    edge = 10.0**-digits
    if value >= 100 and share < 1:
        return f">{100 - edge:.{digits}f} %"
    if value <= 0 < share:
        return f"<{edge:.{digits}f} %"
    return f"{value:.{digits}f} %"


def rate(successes: int, n: int, digits: int = 0) -> str:
    """Return ``4/6 67 % [30–90]``: count, n, share and the 95 % Wilson interval in per cent."""
    if n == 0:
        return "0/0"
    low, high = wilson(successes, n)
    return (
        f"{successes:,}/{n:,} {percent(successes / n, digits)} "
        f"[{low * 100:.{digits}f}–{high * 100:.{digits}f}]"
    )


def count(value: int | None) -> str:
    """Return ``41,203``; from ten million on ``12.3 M``."""
    if value is None:
        return UNKNOWN
    if abs(value) < 10_000_000:
        return f"{value:,}"
    for size, letter in _LARGE:
        if abs(value) >= size:
            return (
                f"{value / size:.3g} {letter}"
                if abs(value) < 1000 * size
                else f"{value / size:,.0f} {letter}"
            )
    return f"{value:,}"


def money(usd: float | None) -> str:
    """Return dollars: whole ones from 100 on, cents from 1 on, and two figures that count below."""
    if usd is None:
        return UNKNOWN
    if usd < 0:
        return "-" + money(-usd)
    if usd == 0:
        return "$0"
    if usd >= 100:
        return f"${usd:,.0f}"
    if usd >= 1:
        return f"${usd:,.2f}"
    digits = min(8, 1 - math.floor(math.log10(usd)))
    return f"${usd:.{digits}f}"


def duration(seconds: float | None) -> str:
    """Return ``850 ms``, ``2.1 s``, ``75 s``, ``21 min``, ``3 h 05 min``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60:,} h {minutes % 60:02} min"


def median(values: Sequence[float]) -> float | None:
    """Return the median, ``None`` of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def plain(value: float | None) -> str:
    """Return a number without needless places: ``6``, ``6.5``; ``–`` for none."""
    return NOTHING if value is None else f"{value:,.1f}".removesuffix(".0")


def plural(n: int, one: str, many: str | None = None) -> str:
    """Return ``1 trial``, ``24 trials``."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
