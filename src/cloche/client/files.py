"""The files of a sandbox, to await. Must never send a change twice: only looks are asked again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path
from typing import TYPE_CHECKING

from cloche.api.models import ChangeView
from cloche.client.line import Line
from cloche.sandbox.guest.glob import glob
from cloche.sandbox.guest.patch import PatchedFile, apply_patch
from cloche.sandbox.guest.records import FileInfo

if TYPE_CHECKING:
    from builtins import list as List  # noqa: N812  # `list` is a method here


class AsyncFiles:
    """Paths are absolute inside. A new file belongs to ``user``, else to root.

    Raises NotFound, InvalidInput (not a file, in the way, too large) and InfraError (disk full).
    """

    def __init__(self, line: Line) -> None:
        self._line = line

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a file's bytes, 64 MiB at most; larger ones go by ``stream`` or ``download``."""
        return await self._line.again(lambda live: live.read_file(path, offset=offset, length=length))

    async def read_text(self, path: str) -> str:
        """Return a file's text; what is no UTF-8 becomes U+FFFD."""
        return (await self.read(path)).decode("utf-8", "replace")

    async def stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes]:
        """Yield a file's bytes, however many."""
        async for piece in (await self._line.live()).read_stream(path, offset=offset):
            yield piece

    async def write(
        self,
        path: str,
        data: bytes | str | AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        user: str | None = None,
    ) -> None:
        """Replace a file at once, making the folders above it; when that fails nothing has changed."""
        live = await self._line.live()
        if isinstance(data, bytes | str):
            whole = data.encode() if isinstance(data, str) else data
            await live.write_file(path, whole, mode=mode, user=user)
        else:
            await live.write_stream(path, data, mode=mode, user=user)

    async def upload(self, source: Path | str, target: str, *, user: str | None = None) -> None:
        """Copy a file, or what a folder holds, from here to ``target``; modes and links are kept."""
        await (await self._line.live()).upload(Path(source), target, user=user)

    async def download(self, source: str, target: Path | str) -> List[FileInfo]:
        """Copy a file, or what a folder holds, to here; returns what was skipped (links, devices)."""
        return await (await self._line.live()).download(source, Path(target))

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return what is at a path; without ``follow`` a symbolic link is told as one."""
        return await self._line.again(lambda live: live.stat(path, follow=follow))

    async def exists(self, path: str) -> bool:
        """Whether something is there."""
        return await self._line.again(lambda live: live.exists(path))

    async def mkdir(
        self, path: str, *, mode: int = 0o755, parents: bool = True, user: str | None = None
    ) -> None:
        """Make a folder; with ``parents`` those above it too, and it may be there already."""
        await (await self._line.live()).make_dir(path, mode=mode, parents=parents, user=user)

    async def move(self, source: str, target: str) -> None:
        """Rename, replacing what is at ``target``."""
        await (await self._line.live()).move(source, target)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with ``recursive`` a folder and all it holds."""
        await (await self._line.live()).remove(path, recursive=recursive)

    async def glob(self, pattern: str) -> List[FileInfo]:
        """Return what matches an absolute pattern (``*``, ``?``, ``[…]``, ``**`` for folders), by path."""
        return await self._line.again(lambda live: glob(live, pattern))

    async def apply_patch(self, diff: str | bytes, folder: str = "/", *, strip: int = 1) -> List[PatchedFile]:
        """Apply a unified diff below a folder, all of it or nothing; ``strip`` as with ``patch -p``.

        Raises InvalidInput that says what does not fit.
        """
        data = diff.encode() if isinstance(diff, str) else diff
        return await apply_patch(await self._line.live(), folder, data, strip=strip)

    async def diff(self) -> List[ChangeView]:
        """Return how all files differ from the image, by path."""
        return [*(await self._line.backend.diff(self._line.id)).items]

    # stands last: in a class body the name `list` means this method from here on
    async def list(self, path: str) -> List[FileInfo]:
        """Return a folder's entries by name."""
        return await self._line.again(lambda live: live.list_dir(path))
