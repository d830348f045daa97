"""Sizes, times and pairs as people type them."""

from __future__ import annotations

import asyncio

import click
import pytest

from cloche.cli.common import Duration, Size, parse_pairs, run_async


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("1k", 1024),
        ("512m", 512 << 20),
        ("2g", 2 << 30),
        ("2GiB", 2 << 30),
        ("1.5 k", 1536),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "-1", "1x", "m", "1e3", "1 2", "٣"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a size"):
        Size().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("0.5d", 43200)]
)
def test_times(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1s", "1w", "s", "1m30s"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a time"):
        Duration().convert(text, None, None)


def test_pairs_keep_later_equals_signs() -> None:
    assert parse_pairs(["A=1", "B=x=y", "C="], "--env") == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize("item", ["A", "=1", ""])
def test_what_is_not_a_pair(item: str) -> None:
    with pytest.raises(click.BadParameter, match="NAME=VALUE"):
        parse_pairs([item], "--env")


def test_an_interrupt_becomes_an_abort() -> None:
    async def interrupted() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    with pytest.raises(click.exceptions.Abort):
        run_async(interrupted())
