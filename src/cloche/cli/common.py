"""What the commands share: running a coroutine, and sizes and environments as people type them.

Must never import a part of cloche that is slow to import.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import click

T = TypeVar("T")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; a Ctrl-C cancels the coroutine, waits for its clean-up and becomes exit 130."""
    import asyncio

    try:
        return asyncio.run(coroutine)
    except KeyboardInterrupt:
        raise click.exceptions.Abort from None


class Size(click.ParamType[int]):
    """A number of bytes: ``512m``, ``2g``, ``2GiB``; units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a size; write for example 512m or 2g", param, ctx)
        return int(float(match[1]) * _UNITS[match[2]])


class Duration(click.ParamType[float]):
    """A time: ``90``, ``90s``, ``15m``, ``2h``, ``1d``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a time; write for example 90s, 15m or 2h", param, ctx)
        return float(match[1]) * _TIMES[match[2]]


def parse_pairs(items: Iterable[str], option: str) -> dict[str, str]:
    """Turn ``NAME=VALUE`` items into a dictionary; raises BadParameter that names the option."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE", param_hint=option)
        pairs[name] = value
    return pairs
