"""The files of a task's folder that go into a sandbox: all of them, or those that ``.harborignore`` leaves.

Where rules leave something out, a copy of what remains is made for as long as it is needed. Must never
change the task, and never follow a link out of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cloche.tasks.ignore import IGNORE_FILE, TaskIgnores


@asynccontextmanager
async def selected(folder: Path, root: Path) -> AsyncIterator[Path]:
    """Yield a folder that holds what is to be uploaded of ``folder``, which lies in the task ``root``.

    Raises OSError where files cannot be read or copied.
    """
    if not await asyncio.to_thread(_has_rules, folder):
        yield folder
        return
    temporary = Path(tempfile.mkdtemp(prefix="cloche-select-"))
    target = temporary / folder.name
    copying = asyncio.ensure_future(asyncio.to_thread(_copy, folder, target, root, TaskIgnores(root)))
    try:
        await asyncio.shield(copying)
        yield target
    finally:
        await asyncio.wait([copying])  # a thread cannot be stopped, and would write into what is removed
        await asyncio.to_thread(shutil.rmtree, temporary)


def _has_rules(folder: Path) -> bool:
    return any(IGNORE_FILE in names for _, _, names in os.walk(folder))


def _copy(folder: Path, target: Path, root: Path, ignores: TaskIgnores) -> None:
    target.mkdir()
    shutil.copymode(folder, target)
    for entry in os.scandir(folder):
        path = Path(entry.path)
        name = path.relative_to(root).as_posix()
        if ignores.excluded(name, folder=entry.is_dir()):
            continue
        if entry.is_symlink():
            (target / entry.name).symlink_to(path.readlink())
        elif entry.is_dir(follow_symlinks=False):
            _copy(path, target / entry.name, root, ignores)
        elif entry.is_file(follow_symlinks=False):
            shutil.copy2(path, target / entry.name)
