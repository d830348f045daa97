"""The host's programs that images need, and running them so that nothing of them is left behind.

Every program runs in mount and pid namespaces of its own: ending it ends its whole tree, and its mounts
vanish with it. It must never outlive the process that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cloche.core.errors import ClocheError, EnvironmentUnusable

T = TypeVar("T")

PACKAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"),
)


def tool_status() -> dict[str, str | None]:
    """Return for ``buildah`` and ``mmdebstrap`` where each is, or None where it is missing."""
    return {name: shutil.which(name, path=search_path()) for name in PACKAGES}


def search_path() -> str:
    """Return PATH with the system's folders, which a service's environment may lack."""
    return f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".lstrip(":")


def require(tool: str, purpose: str) -> str:
    """Return the program's path. Raises EnvironmentUnusable saying what is missing and what to do."""
    if os.geteuid() != 0:
        raise EnvironmentUnusable(f"{purpose} needs root", hint="run the command with sudo")
    found = tool_status()[tool]
    if found is None:
        raise EnvironmentUnusable(
            f"{purpose} needs {tool}, which is not installed", hint=f"apt-get install {PACKAGES[tool]}"
        )
    return found


async def in_thread(work: Callable[[Callable[[], None]], T]) -> T:
    """Run blocking work in a thread; a cancellation ends it too, and is passed on when it has ended.

    ``work`` gets a function that it must call now and then: it raises once nobody waits any more.
    """
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise Stopped("nobody waits for this any more")

    task = asyncio.ensure_future(asyncio.to_thread(work, check))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await to_the_end(task)
        raise


class Stopped(ClocheError):
    """The work was stopped because its caller has gone."""


async def to_the_end(task: asyncio.Future[Any]) -> None:
    """Wait for a clean-up that another cancellation must not cut short. Its own time-outs bound it."""
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    if task.exception() is not None and not isinstance(task.exception(), Stopped):
        task.result()


async def run_contained(
    command: Sequence[str], *, log: Path, env: Mapping[str, str], timeout_s: float, cwd: Path | None = None
) -> int:
    """Run to the end with both outputs appended to ``log``; return the exit status.

    Raises TimeoutError after ``timeout_s``. Then, and when cancelled, the whole tree has ended before this
    returns.
    """
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *_CONTAINED,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
        )
    try:
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the tree by its first process: ``unshare`` sees that one end only when all others have."""
    if process.returncode is not None:
        return
    for pid in _children(process.pid) or [process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await asyncio.shield(process.wait())


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
