"""Plain columns for listings. Must never wrap or colour: the rows are for people and for ``awk`` alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime


def _cell(key: str, value: object) -> str:
    if value is None or value in ("", {}):
        return "-"
    if key.endswith("_at") and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, Mapping):
        return ",".join(f"{name}={item}" for name, item in sorted(value.items()))
    return str(value)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows under their keys, columns separated by two spaces."""
    keys = list(rows[0])
    lines = [[key.upper() for key in keys], *[[_cell(key, row[key]) for key in keys] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(keys))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
