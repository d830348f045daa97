"""Applies a unified diff to files inside a sandbox: all of it or nothing (``unified`` has the format).

Everything is read and computed before the first write; when a write fails, what was written is put back. Must
never write outside of the folder, nor through a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloche.core.errors import ClocheError, InfraError, InvalidInput, NotFound
from cloche.sandbox.guest import unified
from cloche.sandbox.guest.paths import Parents, folder, relative
from cloche.sandbox.guest.records import FileKind
from cloche.sandbox.guest.unified import FilePatch, PatchKind

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox

TOTAL_BYTES_MAX = 256 << 20
"""What the files of one patch may hold together, before and after."""
_NEW_MODE = 0o644


@dataclass(frozen=True, slots=True)
class PatchedFile:
    """What was done to one file. ``path`` is relative to the folder."""

    path: str
    kind: PatchKind


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it is or is to be: bytes, mode, owner (``uid:gid``)."""

    data: bytes
    mode: int
    owner: str | None


async def apply_patch(sandbox: Sandbox, base: str, diff: bytes, *, strip: int = 1) -> list[PatchedFile]:
    """Apply ``diff`` below the folder ``base``; ``strip`` leading components go from its paths.

    New files belong to root, others keep owner and mode. Raises InvalidInput, saying what does not fit, and
    then nothing has changed; InfraError where putting things back failed as well.
    """
    patches = unified.parse(diff, strip=strip)
    work = _Work(sandbox, folder(base))
    for patch in patches:
        await work.plan(patch)
    await work.write()
    return [PatchedFile(patch.path, patch.kind) for patch in patches]


class _Work:
    """Files by path: as they were found, and as they shall be (None: not there)."""

    def __init__(self, sandbox: Sandbox, base: str) -> None:
        self._sandbox = sandbox
        self._base = base
        self._parents = Parents(sandbox, base)
        self._before: dict[str, _File | None] = {}
        self._after: dict[str, _File | None] = {}
        self._left_bytes = TOTAL_BYTES_MAX

    async def plan(self, patch: FilePatch) -> None:
        """Work out what one file of the patch gives."""
        source = await self._find(patch.old) if patch.old else None
        target = await self._find(patch.new) if patch.new else None
        if patch.old and source is None:
            raise InvalidInput(f"{patch.old!r} is to be changed and is not there")
        if patch.old != patch.new and target is not None:
            raise InvalidInput(f"{patch.new!r} is to be made and is there already")
        data = unified.apply(patch, b"" if source is None else source.data)
        self._count(len(data))
        if patch.kind is PatchKind.DELETED and data:
            raise InvalidInput(f"{patch.old!r} is to be deleted and has more content than the patch shows")
        if patch.kind in {PatchKind.DELETED, PatchKind.RENAMED}:
            self._after[patch.old] = None
        if patch.new:
            mode = patch.mode or (source.mode if source else _NEW_MODE)
            self._after[patch.new] = _File(data, mode, source.owner if source else None)

    def _count(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise InvalidInput(f"the patched files hold more than {TOTAL_BYTES_MAX >> 20} MiB")

    async def _find(self, path: str) -> _File | None:
        """Return a file as the patch has left it so far."""
        parts = relative(path, path)
        if "/".join(parts) != path:
            raise InvalidInput(f"{path!r} is not a plain path")
        if path in self._after:
            return self._after[path]
        await self._parents.check(parts, path)
        self._before[path] = self._after[path] = found = await self._read(path)
        return found

    async def _read(self, path: str) -> _File | None:
        inside = f"{self._base}/{path}"
        try:
            info = await self._sandbox.stat(inside, follow=False)
            if info.kind is not FileKind.FILE:
                raise InvalidInput(f"{path!r} is a {info.kind.value}: only regular files can be patched")
            self._count(info.size_bytes)
            data = await self._sandbox.read_file(inside)
        except NotFound:
            return None
        return _File(data, info.mode, f"{info.uid}:{info.gid}")

    async def write(self) -> None:
        """Write what differs; put back what was written when one write fails, or is cancelled."""
        done: list[str] = []
        changed = [path for path, file in self._after.items() if file != self._before[path]]
        try:
            for path in sorted(changed, key=lambda path: self._after[path] is None):
                done.append(path)
                await self._put(path, self._after[path])
        except BaseException as error:
            failed = await self._put_back(done)
            if failed and isinstance(error, ClocheError):
                raise InfraError(
                    f"{error}; and these files could not be put back: {', '.join(failed)}"
                ) from error
            raise

    async def _put_back(self, paths: list[str]) -> list[str]:
        failed = []
        for path in reversed(paths):
            try:
                await self._put(path, self._before[path])
            except ClocheError:
                failed.append(path)
        return failed

    async def _put(self, path: str, file: _File | None) -> None:
        inside = f"{self._base}/{path}"
        if file is None:
            if await self._sandbox.exists(inside):
                await self._sandbox.remove(inside)
        else:
            await self._sandbox.write_file(inside, file.data, mode=file.mode, user=file.owner)
