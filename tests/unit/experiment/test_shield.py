"""Work that comes to its end although its waiter is cancelled, once or often."""

from __future__ import annotations

import asyncio
import time

import pytest

from cloche.experiment.shield import thread_to_the_end, to_the_end


async def test_the_result_comes_back() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await to_the_end(work()) == 7


async def test_its_error_comes_back() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await to_the_end(work())


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_cancellations_wait_for_the_end(times: int) -> None:
    ended = asyncio.Event()
    going = asyncio.Event()

    async def work() -> None:
        await going.wait()
        ended.set()

    waiter = asyncio.create_task(to_the_end(work()))
    for _ in range(times):
        await asyncio.sleep(0)
        waiter.cancel()
    await asyncio.sleep(0)
    assert not waiter.done()
    going.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert ended.is_set()


async def test_a_cancellation_is_not_lost_when_the_work_fails() -> None:
    going = asyncio.Event()

    async def work() -> None:
        await going.wait()
        raise ValueError("late")

    waiter = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.sleep(0)
    going.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_a_thread_is_waited_for() -> None:
    seen: list[int] = []

    def slow(value: int) -> int:
        time.sleep(0.05)
        seen.append(value)
        return value

    waiter = asyncio.create_task(thread_to_the_end(slow, 3))
    await asyncio.sleep(0.01)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert seen == [3]
    assert await thread_to_the_end(slow, 4) == 4
