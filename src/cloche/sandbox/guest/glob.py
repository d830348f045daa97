"""Paths inside a sandbox that match a pattern, found by listing folders through the guest.

``*``, ``?`` and ``[…]`` match within one name, ``**`` any number of folders, none too. Names that begin with
a dot are names like others. ``**`` follows no symbolic link, so that no tree is walked twice or for ever; a
component that is written out may be one. Must never list without a bound: a workload decides what is there.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from cloche.core.errors import InvalidInput, NotFound
from cloche.sandbox.guest.records import FileInfo, FileKind

if TYPE_CHECKING:
    from cloche.sandbox.handle import Sandbox

MATCHES_MAX = 10_000
ENTRIES_MAX = 500_000
"""How many entries of folders are looked at before the pattern is refused."""
_COMPONENTS_MAX = 256
_MAGIC = re.compile(r"[*?\[]")


async def glob(sandbox: Sandbox, pattern: str, *, limit: int = MATCHES_MAX) -> list[FileInfo]:
    """Return what matches an absolute pattern, by path, links as links; nothing matched is no error.

    Raises InvalidInput for a pattern that is not absolute, has ``..``, or matches or has to look at too much.
    """
    search = _Search(sandbox, limit)
    await search.run("", _parts(pattern))
    return [search.found[path] for path in sorted(search.found)]


def _parts(pattern: str) -> tuple[str, ...]:
    if not pattern.startswith("/") or "\0" in pattern:
        raise InvalidInput(f"{pattern!r} is not an absolute pattern")
    parts: list[str] = []
    for part in pattern.split("/"):
        if part in {"", "."} or (part == "**" and parts[-1:] == ["**"]):
            continue
        if part == "..":
            raise InvalidInput(f"{pattern!r}: a pattern cannot have '..'")
        if "**" in part and part != "**":
            raise InvalidInput(f"{pattern!r}: '**' stands for whole folders, between two slashes")
        parts.append(part)
    if not parts or len(parts) > _COMPONENTS_MAX:
        raise InvalidInput(f"{pattern[:200]!r} names nothing, or too many folders")
    return tuple(parts)


class _Search:
    """One search. ``found`` is by path, since ``**`` may come to a path in several ways."""

    def __init__(self, sandbox: Sandbox, limit: int) -> None:
        self.found: dict[str, FileInfo] = {}
        self._sandbox = sandbox
        self._limit = limit
        self._entries = 0
        self._listed: dict[str, list[FileInfo]] = {}

    async def run(self, base: str, parts: tuple[str, ...]) -> None:
        """Match ``parts`` below the folder ``base``."""
        head, rest = parts[0], parts[1:]
        if head == "**":
            await self._deep(base, rest)
        elif _MAGIC.search(head):
            for info in await self._list(base):
                if fnmatch.fnmatchcase(info.name, head):
                    await self._matched(info, rest)
        else:
            there = await self._stat(f"{base}/{head}", follow=False)
            if there is not None:
                await self._matched(there, rest)

    async def _matched(self, info: FileInfo, rest: tuple[str, ...]) -> None:
        if not rest:
            self._take(info)
        elif await self._is_folder(info):
            await self.run(info.path, rest)

    async def _deep(self, base: str, rest: tuple[str, ...]) -> None:
        waiting = [base]
        while waiting:
            folder = waiting.pop()
            if rest:
                await self.run(folder, rest)
            for info in await self._list(folder):
                if not rest:
                    self._take(info)
                if info.is_folder:
                    waiting.append(info.path)

    def _take(self, info: FileInfo) -> None:
        self.found[info.path] = info
        if len(self.found) > self._limit:
            raise InvalidInput(f"the pattern matches more than {self._limit:,} paths", hint="narrow it")

    async def _is_folder(self, info: FileInfo) -> bool:
        if info.kind is not FileKind.SYMLINK:
            return info.is_folder
        behind = await self._stat(info.path, follow=True)
        return behind is not None and behind.is_folder

    async def _stat(self, path: str, *, follow: bool) -> FileInfo | None:
        try:
            return await self._sandbox.stat(path, follow=follow)
        except (NotFound, InvalidInput):
            return None  # not there, or a part of the path is no folder

    async def _list(self, folder: str) -> list[FileInfo]:
        if folder in self._listed:
            return self._listed[folder]
        try:
            found = await self._sandbox.list_dir(folder or "/")
        except (NotFound, InvalidInput):
            found = []  # it went, or became something else, while we looked
        self._entries += len(found)
        if self._entries > ENTRIES_MAX:
            raise InvalidInput(
                f"the pattern has to look at more than {ENTRIES_MAX:,} entries", hint="begin deeper"
            )
        self._listed[folder] = found
        return found
