"""Plain columns for listings. Must never wrap or colour: the rows are for people and for ``awk`` alike."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import click

_HEADS = {"created_at": "AGE", "size_bytes": "SIZE"}


def _age(seconds: float) -> str:
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _cell(key: str, value: object) -> str:
    if value is None or value in ("", {}):
        return "-"
    if key.endswith("_at") and isinstance(value, int | float):
        return _age(time.time() - value)
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{value / (1 << 20):.0f} MiB"
    if key == "digest":
        return str(value).removeprefix("sha256:")[:12]
    if isinstance(value, Mapping):
        return ",".join(f"{name}={item}" for name, item in sorted(value.items()))
    return str(value)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows under their keys, columns separated by two spaces."""
    keys = list(rows[0])
    lines = [
        [_HEADS.get(key, key.upper()) for key in keys],
        *[[_cell(key, row[key]) for key in keys] for row in rows],
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(keys))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def print_rows(rows: Sequence[Mapping[str, object]], *, as_json: bool, short: Sequence[str]) -> None:
    """Print all of each row as JSON, or what fits on a line (the keys in ``short``) as columns."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    elif rows:
        click.echo(table([{key: row.get(key) for key in short} for row in rows]))
    else:
        click.echo("none", err=True)
