"""Clean-up ends before a cancellation is delivered."""

from __future__ import annotations

import asyncio

import pytest

from cloche.sandbox.native.finish import finish


async def test_the_result_is_returned() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await finish(work()) == 7


async def test_an_error_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await finish(work())


async def test_a_cancellation_waits_for_the_end() -> None:
    begun, go, done = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await go.wait()
        done.append(True)

    task = asyncio.create_task(finish(work()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # twice
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]


async def test_a_cancellation_hides_the_error_of_the_clean_up() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go.wait()
        raise ValueError("late")

    task = asyncio.create_task(finish(work()))
    await begun.wait()
    task.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
