"""Programs that are run so that nothing of them is left: processes, mounts, time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.core.errors import ImageError
from cloche.sandbox.images.tools import Stopped, in_thread, run_contained, search_path, tool_status

ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def sleeping(seconds: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", seconds.encode()]:
            found.append(folder.name)
    return found


async def test_the_status_and_both_outputs_come_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    status = await run_contained(
        ["sh", "-c", "echo out; echo err >&2; cat; pwd; exit 3"], log=log, env=ENV, timeout_s=60, cwd=tmp_path
    )
    assert status == 3
    assert sorted(log.read_text().splitlines()) == sorted(["out", "err", str(tmp_path)])
    assert await run_contained(["sh", "-c", "echo more"], log=log, env=ENV, timeout_s=60) == 0
    assert log.read_text().endswith("more\n")


async def test_only_the_given_environment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    log = tmp_path / "log"
    await run_contained(["env"], log=log, env={**ENV, "A": "b"}, timeout_s=60)
    assert "A=b" in log.read_text()
    assert "SECRET" not in log.read_text()


async def test_mounts_stay_inside(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    log = tmp_path / "log"
    line = f"mount -t tmpfs x {place} && touch {place}/inside && ls {place}"
    assert await run_contained(["sh", "-c", line], log=log, env=ENV, timeout_s=60) == 0
    assert log.read_text() == "inside\n"
    assert list(place.iterdir()) == []


async def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    line = "setsid sleep 7654321 & sleep 0.1"
    assert await run_contained(["sh", "-c", line], log=tmp_path / "log", env=ENV, timeout_s=60) == 0
    assert sleeping("7654321") == []


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_the_whole_tree_has_ended_when_the_call_ends(tmp_path: Path, how: str) -> None:
    sleep = "sleep 7654322"
    line = f"trap '' TERM INT HUP; setsid {sleep} & ({sleep} & {sleep}) & echo up; {sleep}"
    log = tmp_path / "log"
    task = asyncio.ensure_future(
        run_contained(["sh", "-c", line], log=log, env=ENV, timeout_s=1 if how == "timeout" else 60)
    )
    if how == "timeout":
        with pytest.raises(TimeoutError):
            await task
    else:
        async with asyncio.timeout(60):
            while len(sleeping("7654322")) < 4:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sleeping("7654322") == []
    assert "up" in log.read_text()


async def test_a_call_that_is_cancelled_at_once_leaves_nothing(tmp_path: Path) -> None:
    for turns in range(8):
        task = asyncio.ensure_future(
            run_contained(["sleep", "7654323"], log=tmp_path / "log", env=ENV, timeout_s=60)
        )
        for _ in range(turns):
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(10):
        while sleeping("7654323"):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.01)


async def test_work_in_a_thread_gives_its_result_or_its_error() -> None:
    assert await in_thread(lambda _: threading.current_thread() is not threading.main_thread()) is True

    def fail(_: Callable[[], None]) -> None:
        raise ImageError("no")

    with pytest.raises(ImageError, match="no"):
        await in_thread(fail)


async def test_work_in_a_thread_has_ended_when_its_cancellation_arrives() -> None:
    began, stopped = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work(check: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(began.set)
        try:
            while True:
                check()
        except Stopped:
            stopped.set()
            raise

    task = asyncio.ensure_future(in_thread(work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()


def test_tools_are_found_where_a_services_path_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert search_path().startswith("/nowhere:")
    assert "/usr/sbin" in search_path().split(":")
    status = tool_status()
    assert set(status) == {"buildah", "mmdebstrap"}
    assert all(path is None or os.access(path, os.X_OK) for path in status.values())
