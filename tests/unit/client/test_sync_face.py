"""The sync face is the async one without ``await``: same names, same parameters, same words."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import cloche
import cloche.client
from cloche.client import AsyncFiles, AsyncProcess, AsyncSandbox, Files, Process, Sandbox
from cloche.client.portal import Portal, portal
from cloche.core.errors import UsageError

PAIRS = [(AsyncSandbox, Sandbox), (AsyncProcess, Process), (AsyncFiles, Files)]
_WORDS = {"__aiter__": "__iter__", "__aenter__": "__enter__", "__aexit__": "__exit__"}


def _public(cls: type) -> set[str]:
    own = {name for name in vars(cls) if not name.startswith("_")}
    return (
        own | {_WORDS[name] for name in vars(cls) if name in _WORDS} | (set(_WORDS.values()) & set(vars(cls)))
    )


@pytest.mark.parametrize(("awaited", "direct"), PAIRS)
def test_both_faces_have_the_same_members(awaited: type, direct: type) -> None:
    assert _public(awaited) == _public(direct)
    for name in _public(awaited):
        if name.startswith("_"):
            continue
        theirs, ours = getattr(awaited, name), getattr(direct, name)
        assert ours.__doc__ == theirs.__doc__, name
        if callable(theirs):
            left, right = (list(inspect.signature(item).parameters.values()) for item in (theirs, ours))
            assert left == right, name
            assert not inspect.iscoroutinefunction(ours), name


def test_the_public_surface() -> None:
    assert cloche.__all__ == ["AsyncSandbox", "Sandbox", "__version__"]
    assert (cloche.Sandbox, cloche.AsyncSandbox) == (Sandbox, AsyncSandbox)
    assert cloche.client.__all__ == sorted(cloche.client.__all__)
    for name in cloche.client.__all__:
        assert getattr(cloche.client, name).__doc__, name
    with pytest.raises(AttributeError, match="Sandbx"):
        cloche.Sandbx  # noqa: B018
    methods = (
        "create create_many connect list refresh wait events run start terminal process commands files pause"
    )
    methods += (
        " resume snapshot fork set_network denials port_url extend heartbeat delete close sidecar id view"
    )
    assert {name for name in _public(Sandbox) if not name.startswith("_")} == set(methods.split())


@pytest.fixture
def own() -> AsyncIterator[Portal]:
    through = Portal()
    yield through
    through.close()
    assert not any(
        thread.name == "cloche" and thread.is_alive() and thread is through._thread
        for thread in threading.enumerate()
    )


def test_work_is_done_from_within_a_running_loop(own: Portal) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    async def cell() -> int:
        return own.run(work)  # as a notebook's cell does: its own loop runs in this thread

    assert asyncio.run(cell()) == 7


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT mean what it does on a terminal: a job in the background starts with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_caller_waits_for_the_clean_up(own: Portal) -> None:
    cleaned = threading.Event()
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), 2)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        own.run(work)
    assert cleaned.is_set()
    thread.join()


def test_an_iteration_that_is_left_ends_its_source(own: Portal) -> None:
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            closed.append(True)

    found = own.iterate(numbers())
    assert [next(found), next(found)] == [0, 1]
    found.close()
    assert closed == [True]
    assert list(own.iterate(numbers())) == list(range(10))


@pytest.mark.fault("sdk-after-fork")
def test_after_a_fork_it_fails_clearly(own: Portal) -> None:
    async def work() -> int:
        return 1

    portal().run(work)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            own.run(work)
        except UsageError as error:
            os.write(write, error.message.encode())
            fresh = portal()  # the child's own works
            os.write(write, b"|" + str(fresh.run(work)).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as said:
        message = said.read()
    assert b"before the process was forked" in message
    assert message.endswith(b"|1")


def test_its_own_thread_is_refused(own: Portal) -> None:
    async def inside() -> None:
        own.run(inside)

    with pytest.raises(UsageError, match="own loop"):
        own.run(inside)
